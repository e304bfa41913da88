//! Checkpoints: everything dirty is written back, then the index is [published](crate::publish).
//!
//! **Invariant**: when a checkpoint is published, every record that was applied up to its redo LSN
//! is in its page (P14).

use std::sync::atomic::Ordering;

use spinney_base::{Lsn, Result, probe};
use spinney_io::Purpose;

use crate::policy::BATCH_PAGES;
use crate::tree::TreeLine;

impl TreeLine {
    /// Writes back everything applied up to `redo` and publishes it (P14). Rests in between as
    /// [`Engine::checkpoint_slowly`] says.
    pub(crate) fn publish_checkpoint(
        &self,
        redo: Lsn,
        rest: &mut dyn FnMut(f64) -> bool,
    ) -> Result<()> {
        let _inside = probe::enter("checkpoint");
        let cut = self.large.cut(redo.0);
        self.write_back_everything(rest)?;
        if self.shape.redo.load(Ordering::Acquire) == redo.0
            && self.shape.published.load(Ordering::Acquire) == self.shape.index.sequence()
            && !self.large.settles(&cut)
        {
            // Nothing was written since the last checkpoint but what is not logged, and that only
            // needs a sync.
            self.shape.store.sync(Purpose::CHECKPOINT)?;
        } else {
            self.publish_index(redo, &cut)?;
        }
        self.shape.pages_in_doubt.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Writes back every record that is dirty now, and waits for write-backs of others. Calls
    /// `rest` in between with the share of the segments that it has passed, with no lock held.
    ///
    /// # Errors
    /// As a write-back has.
    pub(crate) fn write_back_everything(&self, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        self.shape.index.mark_due();
        let mut progress = Progress { share: 0.0, has_time: rest(0.0), rest };
        loop {
            while self.shape.index.is_due() {
                self.write_back_due(&mut progress)?;
            }
            // A write-back that began before may hold due records. Those that it does not write,
            // because it fails or other threads are in its way, it lists again before it ends. Then
            // this checkpoint writes them.
            let _no_write_back = self.shape.gate.write();
            if !self.shape.index.is_due() {
                return Ok(());
            }
        }
    }

    /// Writes back due records, segment by segment. May leave a part of a long list, and segments
    /// that other threads were changing.
    fn write_back_due(&self, progress: &mut Progress<'_>) -> Result<()> {
        let all: u64 = self.shape.index.counts().segments.iter().sum();
        let mut from = Some(Vec::new());
        let mut looked = 0;
        while let Some(lower) = from {
            let some = if progress.has_time { self.few_pages() } else { BATCH_PAGES };
            let (segments, next) = self.shape.index.due_segments(&lower, some, &mut looked);
            self.write_back_segments(&segments)?;
            from = next;
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            progress.passed(looked as f64 / all.max(1) as f64);
        }
        Ok(())
    }
}

/// How far a checkpoint is, and the callback that learns it.
struct Progress<'r> {
    share: f64,
    has_time: bool,
    rest: &'r mut dyn FnMut(f64) -> bool,
}

impl Progress<'_> {
    /// Notes that this share of the segments was passed, for the first time or again.
    fn passed(&mut self, share: f64) {
        self.share = self.share.max(share.min(1.0));
        self.has_time = (self.rest)(self.share);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use spinney_base::{KeyspaceId, MemoryBudget, Poison, Runtime, ValueRef};
    use spinney_engine::{Engine, EngineContext, SnapshotNumber, Write};
    use spinney_io::sim::SimDisk;
    use spinney_sync::hash_key;
    use spinney_wal::{Log, LogOptions};

    use super::*;
    use crate::reorganize::{Outcome, Why};

    const KEYSPACE: KeyspaceId = KeyspaceId(1);

    fn tree(memory: u64) -> TreeLine {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/db")).unwrap();
        let log = LogOptions::sized(7, 1 << 20);
        let context = EngineContext {
            directory: disk.at("/db"),
            name: "keyspace".into(),
            keyspace: KEYSPACE,
            logged: false,
            double_write: false,
            log: Log::create(&*disk.at("/db"), "wal", &log).unwrap(),
            runtime: Runtime::stepped(1),
            poison: Arc::new(Poison::new()),
            memory: MemoryBudget::new(memory).open("keyspace", memory),
            certifier: spinney_engine::Certifier::above(0),
        };
        TreeLine::create(context, Lsn::ZERO).unwrap()
    }

    fn key(number: u32) -> [u8; 4] {
        number.wrapping_mul(0x9e37_79b1).to_be_bytes()
    }

    fn write(tree: &TreeLine, key: &[u8], value: Option<ValueRef<'_>>) {
        let write = Write { key, hash: hash_key(KEYSPACE, key), value };
        let prepared = tree.prepare(&write).unwrap();
        tree.apply(&write, prepared, Lsn::ZERO, SnapshotNumber::NONE);
    }

    fn remove(tree: &TreeLine, key: &[u8]) {
        write(tree, key, None);
    }

    fn put_all(tree: &TreeLine, value: &[u8]) {
        (0..8000).for_each(|number| write(tree, &key(number), Some(ValueRef::inline(value))));
    }

    /// The shares rise to 1, pieces are small while there is time, and writers may write meanwhile.
    #[test]
    fn a_checkpoint_says_how_far_it_is_and_lets_others_write() {
        let tree = tree(4 << 20);
        put_all(&tree, &[1; 100]);
        tree.checkpoint(Lsn(1)).unwrap();
        put_all(&tree, &[2; 100]);
        let segments: u64 = tree.shape.index.counts().segments.iter().sum();
        let mut shares = Vec::new();
        let rest = &mut |done| {
            if shares.len() == 2 {
                put_all(&tree, &[3; 100]);
            }
            shares.push(done);
            shares.len() < 4
        };
        tree.checkpoint_slowly(Lsn(2), rest).unwrap();
        assert_eq!(tree.redo(), Lsn(2));
        assert!(segments > 40 && shares.is_sorted(), "{segments}: {shares:?}");
        #[expect(clippy::cast_precision_loss, reason = "a few segments")]
        let pieces = 3.0 * crate::policy::FEW_PAGES as f64 / segments as f64;
        assert!(shares[3] > 0.0 && shares[3] <= pieces + 0.01, "{shares:?}");
        assert_eq!(shares.last(), Some(&1.0));
        // Puts into segments that the checkpoint had not passed yet are written back.
        let dirty = tree.stats().records_dirty;
        assert!(dirty < 4000, "{dirty}");
    }

    /// P14: segments become one while a checkpoint is under way, so that short lists become one
    /// list, longer than a batch takes. All records that were dirty when it began are written back
    /// when it ends.
    #[test]
    fn p14_lists_that_become_one_are_brought_home_whole() {
        let tree = tree(64 << 20);
        tree.set_option("page-grouping", "off").unwrap();
        put_all(&tree, &[1; 100]);
        tree.checkpoint(Lsn(1)).unwrap();
        // Few records stay, so that segments may be joined.
        (0..8000).filter(|number| number % 16 > 0).for_each(|number| remove(&tree, &key(number)));
        tree.checkpoint(Lsn(2)).unwrap();
        // Removals of nothing, with long keys, so that batches take few.
        for number in 8000..20000 {
            remove(&tree, &[&key(number)[..], &[0; 1000]].concat());
        }
        let mut is_joined = false;
        let rest = &mut |_| {
            if !std::mem::replace(&mut is_joined, true) {
                let first = tree.shape.index.find(&[]);
                assert_eq!(tree.reorganize(&first, Why::Compact).unwrap(), Outcome::Done);
            }
            false
        };
        tree.write_back_everything(rest).unwrap();
        assert_eq!(tree.stats().records_dirty, 0);
    }
}
