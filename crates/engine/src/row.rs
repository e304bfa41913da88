//! The registry row of an engine: everything beside the contract that the crates above need to know
//! of it. Each engine crate fills in one [`Row`], and the database's registry lists the rows. The
//! manifest, messages, salvage, the benchmark, the program and the proving ground derive what they
//! need from the row, so none of them names an engine.

use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, Result};
use spinney_extent::BlockKind;
use spinney_io::{Directory, Purpose};

use crate::{Capabilities, Engine, EngineContext, KeyspaceSalvage};

/// The registry's description of one engine.
#[derive(Debug)]
pub struct Row {
    /// Name in options, output and messages: lower-case letters and digits.
    pub name: &'static str,
    /// Number in the manifest, above 0. A number is never given to another engine.
    pub number: u8,
    /// What its keyspaces can do.
    pub capabilities: Capabilities,
    /// Bytes that a record takes beside its key and value, as
    /// [`Engine::approximate_bytes`](crate::Engine::approximate_bytes) counts it, on average. Too
    /// few make short records look more than they are.
    pub record_overhead: u64,
    /// Makes the files of a new keyspace, whose log records all come after the LSN.
    pub create: fn(EngineContext, Lsn) -> Result<Arc<dyn Engine>>,
    /// Opens the files of a keyspace at its newest checkpoint.
    pub open: fn(EngineContext) -> Result<Arc<dyn Engine>>,
    /// Opens a keyspace's file for salvage.
    pub salvage: OpenSalvage,
    /// Checks the name and value of an option of the engine.
    pub check_option: fn(&str, &str) -> Result<()>,
    /// Kinds of block that hold its records or lead to them. Without a manifest, a salvage finds
    /// the engine of a file by these, so no two engines share one.
    pub blocks: &'static [BlockKind],
    /// Purposes of its I/O, beside those that all engines share.
    pub purposes: &'static [Purpose],
    /// How the proving ground tests the engine.
    pub proving: Proving,
}

/// Opens the file of this name, of a keyspace; the flag says whether the keyspace was logged.
pub type OpenSalvage =
    fn(&dyn Directory, &str, KeyspaceId, bool) -> Result<Box<dyn KeyspaceSalvage>>;

/// Options by name, with their values.
pub type OwnOptions = &'static [(&'static str, &'static str)];

/// A state of a database, as probes name it, and the number of crashes that must strike it, in
/// units of the tier.
pub type StateSeen = (&'static str, u64);

/// How the proving ground tests an engine.
#[derive(Debug)]
pub struct Proving {
    /// Options for its keyspaces: a run takes the entry at its seed modulo the length.
    pub options: &'static [OwnOptions],
    /// States that simulated crashes must strike: in short runs, and in long ones with salvage.
    pub states: [&'static [StateSeen]; 2],
    /// Where the watch over the disk finds the owned pages.
    pub watched: Watched,
}

/// Where an engine records on disk which pages it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Structure records in the log name them.
    Records,
    /// The payload of a checkpoint names a root, and the tree of nodes below it names the rest, in
    /// the layout that `proving` walks.
    Roots,
    /// The payload of a checkpoint names a root, and inner nodes the pages below, in the layout of
    /// `access`.
    Pages,
    /// Nowhere that the watch knows, so its disk is not watched.
    Nowhere,
}
