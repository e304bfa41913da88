//! Parts of values: what is read and replaced of a value whose length stays.
//!
//! ```text
//!   keyspace with versions:   the log and the older image have the part         value in a leaf
//!   else, or a large value:   a put of the whole value, if it is still the one that was read
//! ```

use std::ops::Range;

use spinney_base::{Error, Lsn, Result, ValueRef};
use spinney_engine::{Found, Patch, Resident};
use spinney_sync::hash_key;

use crate::guards::NOBODY;
use crate::keyspace_state::KeyspaceState;
use crate::record::Change;
use crate::state::State;
use crate::write::KeyspaceWrite;

/// Returns the part of a value of `length` bytes that begins at an offset.
///
/// # Errors
/// `InvalidArgument` when it ends behind the value.
pub(crate) fn part_at(offset: usize, bytes: usize, length: usize) -> Result<Range<usize>> {
    let end = offset.checked_add(bytes).filter(|end| *end <= length);
    let beyond = || {
        Error::invalid(format!(
            "{bytes} bytes from {offset} on are beyond a value of {length} bytes"
        ))
    };
    end.map(|end| offset..end).ok_or_else(beyond)
}

/// Leaves a part of a value.
///
/// # Errors
/// `InvalidArgument` when the part is none of the value, which is empty then.
pub(crate) fn cut(value: &mut Vec<u8>, part: &Range<usize>) -> Result<()> {
    let Range { start, end } = *part;
    let length = value.len();
    if start > end || end > length {
        value.clear();
        return Err(Error::invalid(format!(
            "{start}..{end} is no part of a value of {length} bytes"
        )));
    }
    value.truncate(end);
    value.drain(..start);
    Ok(())
}

impl State {
    /// Replaces the part of a key's value that begins at an offset. Returns the LSN, 0 when nothing was logged, or `None`
    /// when the key has no value.
    ///
    /// # Errors
    /// `InvalidArgument` when the part ends behind the value; nothing has changed.
    pub(crate) fn patch(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<Option<Lsn>> {
        let mut patch = Vec::new();
        loop {
            let hash = hash_key(keyspace.id, key);
            let mut value = Vec::new();
            let (found, stamp) = match keyspace.has_versions {
                true => self.read(keyspace, key, hash, &mut value)?,
                false => return self.patch_whole(keyspace, key, offset, bytes),
            };
            if found == Found::Absent {
                return Ok(None);
            }
            let is_small = bytes.len() + Patch::PART_BYTES < value.len();
            if found == Found::Large || !is_small {
                return self.patch_whole(keyspace, key, offset, bytes);
            }
            let end = part_at(offset, bytes.len(), value.len())?.end;
            if bytes.is_empty() {
                return Ok(Some(Lsn::ZERO));
            }
            patch.clear();
            Patch::push(&mut patch, offset, bytes);
            let change = Change { value: Some(ValueRef::inline(&patch)), is_patch: true };
            let write = KeyspaceWrite::of(keyspace, key, change);
            let written = self.write_if(&[write], NOBODY, |guards| {
                // Whatever the value is by now, it only has to have the part.
                guards.locked_since(hash, stamp) || {
                    value.clear();
                    let resident = keyspace.engine.get_resident(key, hash, &mut value);
                    resident == Resident::Present && end <= value.len()
                }
            })?;
            if written.is_some() {
                return Ok(written);
            }
        }
    }

    /// Does the same by a put of the whole value.
    fn patch_whole(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<Option<Lsn>> {
        let mut outcome = Ok(None);
        let written = self.change(keyspace, key, |current| {
            let Some(current) = current else {
                outcome = Ok(None);
                return None;
            };
            let part = part_at(offset, bytes.len(), current.len());
            outcome = part.clone().map(|_| Some(Lsn::ZERO));
            let part = part.ok().filter(|part| !part.is_empty())?;
            let mut new = current.to_vec();
            new[part].copy_from_slice(bytes);
            Some(Some(new))
        })?;
        if written.is_some() { Ok(written) } else { outcome }
    }
}
