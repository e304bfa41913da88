//! The engine's row in the registry.

use std::sync::Arc;

use spinney_engine::{Engine, Proving, Row, Watched};

use crate::edit::EDIT_BYTES;
use crate::kinds::{block, purpose};
use crate::{Salvage, Turtle, check_option};

/// TurtleKV's row.
pub const ROW: Row = Row {
    name: "turtle",
    number: 2,
    capabilities: Turtle::CAPABILITIES,
    record_overhead: EDIT_BYTES,
    create: |context, redo| Ok(Arc::new(Turtle::create(context, redo)?) as Arc<dyn Engine>),
    open: |context| Ok(Arc::new(Turtle::open(context)?) as Arc<dyn Engine>),
    salvage: |directory, name, keyspace, logged| {
        Ok(Box::new(Salvage::open(directory, name, keyspace, logged)?))
    },
    check_option,
    blocks: &[block::LEAF, block::NODE],
    purposes: &[
        purpose::FLUSH,
        purpose::EARLY,
        purpose::MERGE,
        purpose::TIDY,
        purpose::LEAF,
        purpose::NODE,
    ],
    proving: Proving {
        options: &[
            &[],
            &[("leaf", "16KiB")],
            &[],
            &[("chi", "1"), ("filter-bits", "0")],
            &[("leaf", "16KiB")],
            &[],
            &[("chi", "3"), ("leaf", "16KiB")],
            &[("leaf", "16KiB")],
            &[],
            &[],
        ],
        states: [
            &[("seal", 1), ("chi change", 1), ("snapshot kept", 1), ("page free", 1)],
            &[
                ("seal", 1),
                ("checkpoint build", 1),
                ("root publish", 1),
                ("chi change", 1),
                ("page free", 1),
                ("salvage", 1),
            ],
        ],
        watched: Watched::Roots,
    },
};
