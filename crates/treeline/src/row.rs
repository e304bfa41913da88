//! The engine's row in the registry.

use std::sync::Arc;

use spinney_engine::{BlockKind, Engine, Proving, Row, Watched};

use crate::{Salvage, TreeLine, check_option};

/// TreeLine's row.
pub const ROW: Row = Row {
    name: "treeline",
    number: 1,
    capabilities: TreeLine::CAPABILITIES,
    // About what a slot takes.
    record_overhead: 8,
    create: |context, redo| Ok(Arc::new(TreeLine::create(context, redo)?) as Arc<dyn Engine>),
    open: |context| Ok(Arc::new(TreeLine::open(context)?) as Arc<dyn Engine>),
    salvage: |directory, name, keyspace, _| Ok(Box::new(Salvage::open(directory, name, keyspace)?)),
    check_option,
    blocks: &[BlockKind::DATA],
    purposes: &[],
    proving: Proving {
        options: &[
            &[],
            &[("staging", "on")],
            // The default, told so that records are chosen for which it stages.
            &[("staging", "auto")],
            &[("page-grouping", "off"), ("optimistic-admission", "on")],
            &[("staging", "on")],
            &[("staging", "auto")],
            &[("staging", "on"), ("steps", "off"), ("batch-writeout", "off")],
            &[("staging", "on")],
            &[("record-cache", "off"), ("forecast", "off"), ("goal", "6"), ("epsilon", "1")],
            &[],
        ],
        states: [&[("stage merge", 1)], &[("reorganize", 3), ("salvage", 1)]],
        watched: Watched::Records,
    },
};
