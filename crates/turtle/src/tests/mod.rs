//! The tree against what it should be.

mod amplification;
mod costs;
mod disk;
mod figures;
mod levels;
mod model;
mod packed;
mod reads;

use spinney_base::ValueRef;

use crate::edit::Edit;
use crate::files::Limits;
use crate::run::{Run, RunBuilder};

/// A run of these edits.
pub(crate) fn run<'a>(edits: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Run {
    let mut builder = RunBuilder::default();
    for (key, value) in edits {
        builder.push(Edit { key, value: value.map(ValueRef::inline) });
    }
    builder.finish().unwrap()
}

pub(crate) fn limits(leaf_bytes: u64, pivots_max: usize) -> Limits {
    Limits {
        leaf_bytes,
        pending_percent: None,
        spread: 0,
        merge_bytes: u64::MAX,
        edit_bytes_max: leaf_bytes / 4,
        pivots_max,
        node_bytes: 32 << 10,
    }
}

#[test]
fn trees_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<crate::tree::Tree<crate::double::Double>>();
}
