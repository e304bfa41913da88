//! A database of two hundred lines: one file of records, all of it in memory, with bugs to be
//! switched on.
//!
//! It exists to try the proving ground itself: without a bug every test passes on it, and each
//! [`Bug`] must be found. It is also a second product for the mirror. Keyspaces are records of the
//! file like all else; it has no checkpoints, so it logs unlogged keyspaces as well, which the
//! contract allows.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_io::{AlignedBuf, Disk, File, IfMissing, OpenMode, Purpose};

use crate::database::{
    Bytes, Change, Config, Database, Items, KeyBound, Keys, Product, Promise, Swapped, Write,
};
use crate::model::{Model, ModelKeyspace, owned};

/// What is wrong with a toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// `Sync` writes are not synced.
    ForgetsSync,
    /// The file's name is not made durable.
    ForgetsDirectory,
    /// A batch is written as one record per write.
    SplitsBatches,
    /// Records carry no checksum of their own, so that a torn one is taken for whole.
    TrustsEveryByte,
    /// What an older life wrote past its gap is left there, for a later recovery to find (rule P8).
    LeavesOldTail,
    /// A removal of a key that was just written is lost.
    LosesRemovals,
}

/// Opens toys.
#[derive(Clone, Copy, Debug)]
pub struct Toy(pub Bug);

struct ToyDatabase {
    bug: Bug,
    file: Arc<dyn File>,
    state: Mutex<State>,
}

struct State {
    model: Model,
    end: u64,
    failed: bool,
}

/// Length and checksum, before the body of a record.
const HEADER_BYTES: usize = 8;

const CREATE: u8 = 1;
const DROP: u8 = 2;
const WRITES: u8 = 3;

impl Product for Toy {
    fn takes_backups(&self) -> bool {
        false
    }

    fn open(
        &self,
        disk: Arc<dyn Disk>,
        _runtime: Runtime,
        config: &Config,
    ) -> Result<Box<dyn Database>> {
        let directory = disk.directory(&config.path, IfMissing::Create)?;
        let file = directory.open("toy", OpenMode::CREATE)?;
        if self.0 != Bug::ForgetsDirectory {
            directory.sync()?;
        }
        let mut state = State { model: Model::default(), end: 0, failed: false };
        let pages = file.len()? / PAGE_BYTES as u64;
        let mut page = AlignedBuf::new(1);
        while state.end < pages {
            let offset = state.end * PAGE_BYTES as u64;
            file.read_at(page.bytes_mut(), offset, Purpose::RECOVERY)?;
            let length = number(page.bytes(), 0) as usize;
            let span = (length + HEADER_BYTES).div_ceil(PAGE_BYTES);
            if length == 0 || span as u64 > pages - state.end {
                break;
            }
            let mut record = AlignedBuf::new(span);
            file.read_at(record.bytes_mut(), offset, Purpose::RECOVERY)?;
            let body = &record.bytes()[HEADER_BYTES..HEADER_BYTES + length];
            let right = number(record.bytes(), 4) == checksum(body, state.end);
            if !right && self.0 != Bug::TrustsEveryByte {
                break;
            }
            redo(&mut state.model, body);
            state.end += span as u64;
        }
        if self.0 != Bug::LeavesOldTail {
            page.bytes_mut().fill(0);
            for place in state.end..pages {
                file.write_at(page.bytes(), place * PAGE_BYTES as u64, Purpose::RECOVERY)?;
            }
        }
        // What was kept is made durable before anything builds on it.
        if self.0 != Bug::ForgetsSync {
            file.sync(Purpose::RECOVERY)?;
        }
        Ok(Box::new(ToyDatabase { bug: self.0, file, state: Mutex::new(state) }))
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn checksum(bytes: &[u8], place: u64) -> u32 {
    let start = 0x811C_9DC5 ^ u32::try_from(place).unwrap_or(0);
    bytes.iter().fold(start, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn put(out: &mut Bytes, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn take<'a>(from: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, rest)) = from.split_first_chunk::<4>() else {
        *from = &[];
        return &[];
    };
    let length = rest.len().min(u32::from_le_bytes(*length) as usize);
    let (taken, rest) = rest.split_at(length);
    *from = rest;
    taken
}

fn redo(model: &mut Model, body: &[u8]) {
    let (kind, mut rest) = (body[0], &body[1..]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match kind {
        CREATE => {
            let logged = take(&mut rest) == [1];
            let keyspace = ModelKeyspace { logged, ..ModelKeyspace::default() };
            model.keyspaces.insert(text(take(&mut rest)), keyspace);
        }
        DROP => {
            model.keyspaces.remove(&text(take(&mut rest)));
        }
        _ => {
            while !rest.is_empty() {
                let keyspace = text(take(&mut rest));
                let key = take(&mut rest).to_vec();
                let value = match take(&mut rest) {
                    [1] => Some(take(&mut rest).to_vec()),
                    _ => None,
                };
                model.apply(&[Write { keyspace, key, value }]);
            }
        }
    }
}

impl ToyDatabase {
    fn append(&self, state: &mut State, body: &[u8], promise: Promise) -> Result<()> {
        if state.failed {
            return Err(Error::new(ErrorKind::Poisoned, "an earlier write failed"));
        }
        let span = (body.len() + HEADER_BYTES).div_ceil(PAGE_BYTES);
        let mut record = AlignedBuf::new(span);
        let length =
            u32::try_from(body.len()).map_err(|_| Error::invalid("too large for a toy"))?;
        let (header, rest) = record.bytes_mut().split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&length.to_le_bytes());
        header[4..].copy_from_slice(&checksum(body, state.end).to_le_bytes());
        rest[..body.len()].copy_from_slice(body);
        let offset = state.end * PAGE_BYTES as u64;
        let mut result = self.file.write_at(record.bytes(), offset, Purpose::LOG);
        if result.is_ok() && promise == Promise::Sync && self.bug != Bug::ForgetsSync {
            result = self.file.sync(Purpose::LOG);
        }
        state.failed = result.as_ref().is_err_and(|error| !error.is_full());
        result?;
        state.end += span as u64;
        redo(&mut state.model, body);
        Ok(())
    }

    fn write_locked(&self, state: &mut State, writes: &[Write], promise: Promise) -> Result<()> {
        let mut body = vec![WRITES];
        for write in writes {
            if self.bug == Bug::LosesRemovals
                && write.value.is_none()
                && write.key.last().is_some_and(|byte| byte % 3 == 0)
            {
                continue;
            }
            put(&mut body, write.keyspace.as_bytes());
            put(&mut body, &write.key);
            put(&mut body, &[u8::from(write.value.is_some())]);
            if let Some(value) = &write.value {
                put(&mut body, value);
            }
            if self.bug == Bug::SplitsBatches {
                self.append(state, &body, Promise::Buffered)?;
                body = vec![WRITES];
            }
        }
        if body.len() == 1 && self.bug == Bug::SplitsBatches {
            return if promise == Promise::Sync { self.file.sync(Purpose::LOG) } else { Ok(()) };
        }
        self.append(state, &body, promise)
    }

    fn items(&self, select: impl FnOnce(&Model) -> Vec<(&[u8], &[u8])>) -> Items<'_> {
        let state = self.state.lock();
        let items: Vec<_> = select(&state.model).into_iter().map(owned).collect();
        Box::new(items.into_iter().map(Ok))
    }
}

impl Database for ToyDatabase {
    fn create_keyspace(&self, name: &str, logged: bool) -> Result<()> {
        let mut state = self.state.lock();
        if state.model.keyspaces.contains_key(name) {
            return Ok(());
        }
        let mut body = vec![CREATE];
        put(&mut body, &[u8::from(logged)]);
        put(&mut body, name.as_bytes());
        self.append(&mut state, &body, Promise::Sync)
    }

    fn drop_keyspace(&self, name: &str) -> Result<()> {
        let mut body = vec![DROP];
        put(&mut body, name.as_bytes());
        self.append(&mut self.state.lock(), &body, Promise::Sync)
    }

    fn keyspaces(&self) -> Vec<(String, bool)> {
        let state = self.state.lock();
        let all = state.model.keyspaces.iter();
        all.map(|(name, keyspace)| (name.clone(), keyspace.logged)).collect()
    }

    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.state.lock().model.get(keyspace, key).map(<[u8]>::to_vec))
    }

    fn contains_key(&self, keyspace: &str, key: &[u8]) -> Result<bool> {
        Ok(self.get(keyspace, key)?.is_some())
    }

    fn multi_get(&self, keyspace: &str, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.get(keyspace, key)).collect()
    }

    fn write(&self, writes: &[Write], promise: Promise) -> Result<()> {
        self.write_locked(&mut self.state.lock(), writes, promise)
    }

    fn compare_and_swap(
        &self,
        keyspace: &str,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        let mut state = self.state.lock();
        let current = state.model.get(keyspace, key);
        if current != expected {
            return Ok(Err(current.map(<[u8]>::to_vec)));
        }
        let (keyspace, key) = (keyspace.to_owned(), key.to_vec());
        let write = Write { keyspace, key, value: new.map(<[u8]>::to_vec) };
        self.write_locked(&mut state, &[write], Promise::Sync).map(Ok)
    }

    fn update(&self, keyspace: &str, key: &[u8], change: &mut Change<'_>) -> Result<Option<Bytes>> {
        let mut state = self.state.lock();
        let value = change(state.model.get(keyspace, key));
        let (keyspace, key) = (keyspace.to_owned(), key.to_vec());
        let write = Write { keyspace, key, value: value.clone() };
        self.write_locked(&mut state, &[write], Promise::Sync)?;
        Ok(value)
    }

    fn range(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Items<'_> {
        self.items(|model| model.range(keyspace, &from, &to))
    }

    fn prefix(&self, keyspace: &str, prefix: &[u8]) -> Items<'_> {
        self.items(|model| model.prefix(keyspace, prefix))
    }

    fn keys(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Keys<'_> {
        Box::new(self.range(keyspace, from, to).map(|item| item.map(|(key, _)| key)))
    }

    fn first(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>> {
        self.range(keyspace, Bound::Unbounded, Bound::Unbounded).next().transpose()
    }

    fn last(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>> {
        self.range(keyspace, Bound::Unbounded, Bound::Unbounded).next_back().transpose()
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let result = self.file.sync(Purpose::LOG);
        state.failed |= result.is_err();
        result
    }

    fn checkpoint(&self) -> Result<()> {
        self.flush()
    }

    fn verify(&self) -> Result<()> {
        Ok(())
    }

    fn backup(&self, _directory: &Path) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "the toy takes no backups"))
    }

    fn set_memory(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.flush()
    }
}
