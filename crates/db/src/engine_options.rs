//! Options of one engine, each with a type of its own.
//!
//! A database hands them to the engine by name, as the program's flags do: one way to check them,
//! in the engine.

use crate::engines::EngineKind;
use crate::options::KeyspaceOptions;

/// Whether TreeLine writes bursts of new records as sorted runs first, which are merged later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Staging {
    /// Long bursts only.
    #[default]
    Auto,
    /// All bursts.
    Always,
    /// None.
    Never,
}

/// Options of a keyspace of TreeLine. Without any the engine suits itself to the memory and to the
/// workload, so most users set none; the switches serve experiments. Options hold until the database
/// is closed.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # use spinney_db::{Db, Options};
/// # let db = Db::open(directory.path(), Options::default())?;
/// use spinney_db::{EngineKind, TreeLineOptions};
/// let users = db.keyspace("users", TreeLineOptions::default().page_filters(false))?;
/// assert_eq!(users.engine(), EngineKind::TreeLine);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeLineOptions {
    own: Vec<(String, String)>,
}

/// Options of a keyspace of TurtleKV. Without any the engine suits itself to the memory and to the
/// workload. Options hold until the database is closed.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # use spinney_db::{Db, Options};
/// # let db = Db::open(directory.path(), Options::default())?;
/// use spinney_db::{EngineKind, TurtleOptions};
/// let events = db.keyspace("events", TurtleOptions::default().checkpoint_distance(8))?;
/// assert_eq!(events.engine(), EngineKind::Turtle);
/// assert!(db.keyspace("other", TurtleOptions::default().filter_bits(33)).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurtleOptions {
    own: Vec<(String, String)>,
}

/// Options of a keyspace of `2btree`. Without any it keeps two tiers and chooses by itself which records
/// are kept singly. Options hold until the database is closed.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # use spinney_db::{Db, Options};
/// # let db = Db::open(directory.path(), Options::default())?;
/// use spinney_db::{EngineKind, TwoBTreeOptions};
/// let items = db.keyspace("items", TwoBTreeOptions::default().tier_percent(60).promotion(0.3))?;
/// assert_eq!(items.engine(), EngineKind::TwoBTree);
/// items.insert("ada:1", "a short range of neighbours")?;
/// assert_eq!(items.prefix("ada:").count(), 1);
/// let plain = db.keyspace("plain", TwoBTreeOptions::default().one_tier())?;
/// plain.insert("ada", "a record of a plain B+tree")?;
/// assert!(db.keyspace("other", TwoBTreeOptions::default().tier_percent(96)).is_err());
/// assert!(db.keyspace("other", TwoBTreeOptions::default().promotion(1.5)).is_err());
/// # db.close()
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TwoBTreeOptions {
    own: Vec<(String, String)>,
}

fn set(own: &mut Vec<(String, String)>, name: &str, value: impl ToString) {
    own.retain(|(other, _)| other != name);
    own.push((name.to_owned(), value.to_string()));
}

/// `auto` where nothing is chosen.
fn or_auto(value: Option<f32>) -> String {
    value.map_or_else(|| "auto".to_owned(), |value| value.to_string())
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl TreeLineOptions {
    fn with(mut self, name: &str, value: impl ToString) -> Self {
        set(&mut self.own, name, value);
        self
    }

    /// Whether a segment may have several pages, told apart by a model of its keys; default yes.
    #[must_use]
    pub fn page_grouping(self, yes: bool) -> Self {
        self.with("page-grouping", switch(yes))
    }

    /// Whether records are cached one by one; default yes.
    #[must_use]
    pub fn record_cache(self, yes: bool) -> Self {
        self.with("record-cache", switch(yes))
    }

    /// Whether pages that a scan read stay in memory; default yes.
    #[must_use]
    pub fn page_cache(self, yes: bool) -> Self {
        self.with("page-cache", switch(yes))
    }

    /// Whether a page that was read for an absent key leaves a filter in memory; default yes.
    #[must_use]
    pub fn page_filters(self, yes: bool) -> Self {
        self.with("page-filters", switch(yes))
    }

    /// Whether new pages leave room where inserts are forecast; default yes.
    #[must_use]
    pub fn forecast(self, yes: bool) -> Self {
        self.with("forecast", switch(yes))
    }

    /// Whether an evicted dirty record takes all dirty records of its page to disk with it; default
    /// yes.
    #[must_use]
    pub fn batch_writeout(self, yes: bool) -> Self {
        self.with("batch-writeout", switch(yes))
    }

    /// Whether steps may tell a segment's pages apart where no line fits closely; default yes.
    #[must_use]
    pub fn steps(self, yes: bool) -> Self {
        self.with("steps", switch(yes))
    }

    /// Which bursts of new records are staged; default [`Staging::Auto`].
    #[must_use]
    pub fn staging(self, staging: Staging) -> Self {
        let value = match staging {
            Staging::Auto => "auto",
            Staging::Always => "on",
            Staging::Never => "off",
        };
        self.with("staging", value)
    }

    /// Whether a read caches all records of its page; default no.
    #[must_use]
    pub fn optimistic_admission(self, yes: bool) -> Self {
        self.with("optimistic-admission", switch(yes))
    }

    /// Number of records that a new page gets, from 1 to 400; default `None`, the engine's choice.
    #[must_use]
    pub fn goal(self, records: Option<f32>) -> Self {
        self.with("goal", or_auto(records))
    }

    /// Number of records that a segment's model may be off by, above 0 and at most 400; default
    /// `None`, the engine's choice.
    #[must_use]
    pub fn epsilon(self, records: Option<f32>) -> Self {
        self.with("epsilon", or_auto(records))
    }

    /// Bytes of disk that values which writes replaced may take for snapshots, at least 64 KiB; `None`
    /// is as much as the pages of the keyspace, and 16 MiB at least. Beyond that the oldest snapshot
    /// ends. While they are merged they take up to twice as much.
    #[must_use]
    pub fn snapshot_bytes(self, bytes: Option<u64>) -> Self {
        let bytes = bytes.map_or_else(|| "auto".to_owned(), |bytes| bytes.to_string());
        self.with("snapshot-bytes", bytes)
    }
}

impl TurtleOptions {
    fn with(mut self, name: &str, value: impl ToString) -> Self {
        set(&mut self.own, name, value);
        self
    }

    /// Checkpoint distance: number of update batches that gather in memory before a checkpoint
    /// writes them, from 1 to 1,048,576. Memory and log may allow fewer. Default: the engine chooses by
    /// the reads and writes that it sees. See also
    /// [`TurtleKeyspace::set_checkpoint_distance`](crate::TurtleKeyspace::set_checkpoint_distance).
    #[must_use]
    pub fn checkpoint_distance(self, batches: u64) -> Self {
        self.with("chi", batches)
    }

    /// Most bytes of a leaf and of an update batch, from 16 KiB to 16 MiB; default 2 MiB. A sixteenth
    /// of the keyspace's memory where that is less.
    #[must_use]
    pub fn leaf_bytes(self, bytes: u64) -> Self {
        self.with("leaf", bytes)
    }

    /// Bits of a filter for each key of what is written from now on, from 0 to 32; default 12.
    #[must_use]
    pub fn filter_bits(self, bits: u32) -> Self {
        self.with("filter-bits", bits)
    }
}

impl TwoBTreeOptions {
    fn with(mut self, name: &str, value: impl ToString) -> Self {
        set(&mut self.own, name, value);
        self
    }

    /// Keeps one tier: pages stay in memory for reads, and single records only until they are merged
    /// into their pages. This is the plain B+tree that the paper compares with. Default: two tiers. The
    /// options below have no effect with one tier.
    #[must_use]
    pub fn one_tier(self) -> Self {
        self.with("tiers", 1)
    }

    /// Most percent of the keyspace's memory for single records, from 10 to 95; default 90. They get less
    /// where pages need it: the estimate for inner nodes is 32 bytes for each page of the tree.
    #[must_use]
    pub fn tier_percent(self, percent: u64) -> Self {
        self.with("tier", percent)
    }

    /// Whether single records that were not changed are in memory again after a restart: they are written now and then,
    /// and loaded in the background; default yes. Records that the tree lacks always are.
    #[must_use]
    pub fn warm_restarts(self, yes: bool) -> Self {
        self.with("image", if yes { "warm" } else { "dirty" })
    }

    /// KiB of a page: 4, 8 or 16; default 4. A keyspace that has pages keeps theirs, whatever is chosen
    /// later. Long ranges take fewer requests with long pages, single records more bytes.
    #[must_use]
    pub fn page_kib(self, kib: u64) -> Self {
        self.with("page", kib)
    }

    /// Lets records that come to be kept singly leave their page, until memory is wanted for others; default no. It
    /// saves no read, and each such record changes a page twice: it is there to be measured (figure 21 of the paper).
    #[must_use]
    pub fn exclusive(self, yes: bool) -> Self {
        self.with("tiering", if yes { "exclusive" } else { "inclusive" })
    }

    /// Share of the records read from pages that are kept singly from then on, from 0 to 1; the paper's
    /// promotion rate F. Default: the engine chooses by what is asked for again.
    #[must_use]
    pub fn promotion(self, share: f64) -> Self {
        self.with("promotion", share)
    }
}

impl From<TreeLineOptions> for KeyspaceOptions {
    fn from(options: TreeLineOptions) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(EngineKind::TreeLine).own(options.own)
    }
}

impl From<TurtleOptions> for KeyspaceOptions {
    fn from(options: TurtleOptions) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(EngineKind::Turtle).own(options.own)
    }
}

impl From<TwoBTreeOptions> for KeyspaceOptions {
    fn from(options: TwoBTreeOptions) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(EngineKind::TwoBTree).own(options.own)
    }
}

/// A keyspace of an engine that suits itself.
impl From<EngineKind> for KeyspaceOptions {
    fn from(engine: EngineKind) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(engine)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Each builder's name is one of the engine's, and its range the engine's.
    #[test]
    fn builders_name_options_of_their_engines() {
        let treeline = TreeLineOptions::default()
            .page_grouping(false)
            .record_cache(true)
            .page_cache(false)
            .page_filters(false)
            .forecast(false)
            .batch_writeout(false)
            .steps(false)
            .staging(Staging::Never)
            .optimistic_admission(true)
            .goal(Some(40.0))
            .epsilon(Some(0.5))
            .snapshot_bytes(Some(1 << 20));
        assert_eq!(treeline.own.len(), 12);
        KeyspaceOptions::from(treeline).check().unwrap();
        let auto = TreeLineOptions::default()
            .goal(None)
            .epsilon(None)
            .snapshot_bytes(None)
            .staging(Staging::Auto);
        KeyspaceOptions::from(auto).check().unwrap();
        for wrong in [Some(0.0), Some(401.0), Some(f32::NAN)] {
            let options = KeyspaceOptions::from(TreeLineOptions::default().goal(wrong));
            assert!(options.check().is_err(), "{wrong:?}");
        }
        let turtle = TurtleOptions::default().checkpoint_distance(3).leaf_bytes(1 << 20);
        KeyspaceOptions::from(turtle.clone().filter_bits(0)).check().unwrap();
        let wrong = [
            turtle.clone().checkpoint_distance(0),
            turtle.clone().leaf_bytes(1000),
            turtle.clone().filter_bits(33),
        ];
        for options in wrong {
            assert!(KeyspaceOptions::from(options.clone()).check().is_err(), "{options:?}");
        }
        // The last word counts.
        assert_eq!(turtle.checkpoint_distance(5).own.len(), 2);
        let two = TwoBTreeOptions::default();
        let all = two.clone().one_tier().tier_percent(10).promotion(0.0).page_kib(16);
        assert_eq!(all.own.len(), 4);
        for right in [all, two.clone().tier_percent(95).promotion(1.0)] {
            KeyspaceOptions::from(right).check().unwrap();
        }
        let wrong = [
            two.clone().tier_percent(9),
            two.clone().tier_percent(96),
            two.clone().promotion(-0.1),
            two.clone().promotion(1.1),
            two.clone().promotion(f64::NAN),
            two.clone().page_kib(12),
        ];
        for options in wrong {
            assert!(KeyspaceOptions::from(options.clone()).check().is_err(), "{options:?}");
        }
        assert_eq!(two.promotion(0.2).promotion(0.3).own, [("promotion".into(), "0.3".into())]);
    }
}
