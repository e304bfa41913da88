//! Bf-tree: a B-tree whose leaves have small pages of recent records before them, in a circular
//! buffer.
//!
//! Its crate says that recovery from its log is incomplete, so it is measured without durability
//! only. Its buffer is the greatest power of two within the budget, and its file is read and
//! written directly; what the rest of it allocates a control group limits where one can be made.

use std::sync::Arc;

use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Driver, Knobs, OpenConfig, Session, Store, Terms, prefix_end};
use spinney_bench::plan::Durability;

use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::refuse_knobs;

/// What a leaf of 4 KiB takes: a record and its place.
const RECORD_BYTES_MAX: usize = 1952;
const KEY_BYTES_MAX: usize = 32;

/// Bf-tree.
#[derive(Clone, Copy, Debug)]
pub struct BfTreeDriver;

struct BfTreeStore {
    tree: Arc<BfTree>,
    limit: Limited,
}

struct BfTreeSession {
    tree: Arc<BfTree>,
    buffer: Vec<u8>,
}

impl Driver for BfTreeDriver {
    fn name(&self) -> &'static str {
        "bf-tree"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("bf-tree", knobs, &[MEMORY_LIMIT])
    }

    fn reopens(&self) -> bool {
        false
    }

    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>> {
        if config.durability != Durability::None {
            let text =
                "bf-tree cannot recover what it wrote, so it is measured with --durability none";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let limit = Limited::enter("bf-tree", config)?;
        let memory = usize::try_from(config.memory).unwrap_or(usize::MAX);
        let buffer = 1 << memory.max(1 << 16).ilog2();
        let mut options = Config::new(config.directory.join("records.bftree"), buffer);
        options
            .storage_backend(StorageBackend::StdDirect)
            .cb_max_record_size(RECORD_BYTES_MAX)
            .cb_max_key_len(KEY_BYTES_MAX)
            .max_fence_len(2 * KEY_BYTES_MAX);
        let tree = BfTree::with_config(options, None)
            .map_err(|error| Error::invalid(format!("bf-tree: {error:?}")))?;
        Ok(Box::new(BfTreeStore { tree: Arc::new(tree), limit }))
    }
}

impl Store for BfTreeStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        let buffer = vec![0; RECORD_BYTES_MAX];
        Ok(Box::new(BfTreeSession { tree: self.tree.clone(), buffer }))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: "bf-tree crate 0.5".to_owned(),
            torn_writes: "none".to_owned(),
            memory_limited,
            notes: vec!["has neither log nor checkpoint here".to_owned(), memory],
        }
    }
}

impl Session for BfTreeSession {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        match self.tree.read(key, &mut self.buffer) {
            LeafReadResult::Found(length) => {
                value.extend_from_slice(&self.buffer[..length as usize]);
                Ok(true)
            }
            LeafReadResult::Deleted | LeafReadResult::NotFound => Ok(false),
            LeafReadResult::InvalidKey => Err(Error::invalid("bf-tree refuses the key")),
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(Error::invalid(format!("bf-tree: {why}"))),
        }
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.tree.delete(key);
        Ok(())
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let scan = self.tree.scan_with_count(start, limit, ScanReturnField::KeyAndValue);
        let mut scan = scan.map_err(|error| Error::invalid(format!("bf-tree: {error:?}")))?;
        while let Some((key, value)) = scan.next(&mut self.buffer) {
            visit(&self.buffer[..key], &self.buffer[key..key + value]);
        }
        Ok(())
    }

    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let fields = ScanReturnField::KeyAndValue;
        let scan = match prefix_end(prefix) {
            Some(end) => self.tree.scan_with_end_key(prefix, &end, fields),
            None => self.tree.scan_with_count(prefix, limit, fields),
        };
        let mut scan = scan.map_err(|error| Error::invalid(format!("bf-tree: {error:?}")))?;
        for _ in 0..limit {
            let Some((key, value)) = scan.next(&mut self.buffer) else { break };
            // The end may be a key itself.
            if self.buffer[..key].starts_with(prefix) {
                visit(&self.buffer[..key], &self.buffer[key..key + value]);
            }
        }
        Ok(())
    }
}
