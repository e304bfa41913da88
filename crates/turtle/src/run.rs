//! Where edits lie in memory that was read; the part of runs that leaves know.

/// Where an edit lies in a source, as who read it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) key: u32,
    pub(crate) key_length: u16,
    /// Offset and length of the value or the pointer; without meaning for a tombstone.
    pub(crate) value: u32,
    pub(crate) value_length: u32,
    pub(crate) op: Op,
}

/// What an edit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put,
    PutLarge,
    Delete,
}
