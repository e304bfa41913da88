//! The manifest: which keyspaces a database has. A small file that is only ever replaced whole:
//! written beside, synced, renamed, and the directory synced (rule P20). Only the manifest of the
//! same database is replaced: what else has come there by another hand is left alone.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | magic | `SPINNEY\0` |
//! | 8 | 4 | version | format of the whole directory: 2, or 1 in databases that a released program made; any other is refused |
//! | 12 | 4 | length | bytes of the payload |
//! | 16 | 8 | checksum | XXH3-64 of bytes 0..16 and the payload |
//! | 24 | | payload | tag `u64`, next keyspace id `u32`, number of keyspaces `u32`, then for each: id `u32`, engine `u8` (the number in its row of [`engines`](crate::engines): 1 TreeLine, 2 turtle), logged `u8`, name length `u16`, name |
//!
//! Every version keeps magic, version, length and checksum: they distinguish a damaged version from
//! an unknown one.
//! All integers are little-endian; the file is padded with zeros to whole pages. Ids below the next
//! one that are not listed were dropped; they are never used again.
//!
//! Example: a database without keyspaces and tag 7 has length 16 and payload `07 00 00 00 00 00 00
//! 00  01 00 00 00  00 00 00 00`.

use std::collections::HashSet;
use std::sync::Arc;

use spinney_base::limits::{KEYSPACE_NAME_BYTES_MAX, PAGE_BYTES};
use spinney_base::{Error, ErrorKind, KeyspaceId, Poison, Result};
use spinney_io::{AlignedBuf, Directory, File, OpenMode, Purpose};
use xxhash_rust::xxh3::Xxh3;

use crate::engines::EngineKind;
use crate::options::KeptOptions;

const MAGIC: [u8; 8] = *b"SPINNEY\0";
/// Version of the format of a database directory: what is written.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The oldest that is read. Its slots have no copies, and its superblocks stand once in their pages.
const FORMAT_VERSION_MIN: u32 = 1;
const HEAD_BYTES: usize = 24;
/// Far above what names and counts allow.
const PAYLOAD_BYTES_MAX: usize = 8 << 20;

pub(crate) const NAME: &str = "MANIFEST";
pub(crate) const NEW_NAME: &str = "MANIFEST.new";

/// What the manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Identity of the database, so that no file of another is taken for its own.
    pub(crate) tag: u64,
    pub(crate) next_id: KeyspaceId,
    pub(crate) keyspaces: Vec<ManifestKeyspace>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestKeyspace {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    pub(crate) options: KeptOptions,
}

impl Manifest {
    pub(crate) fn new(tag: u64) -> Self {
        Manifest { tag, next_id: KeyspaceId(1), keyspaces: Vec::new() }
    }

    /// Whether a directory has a manifest.
    pub(crate) fn exists(directory: &dyn Directory) -> Result<bool> {
        directory.exists(NAME)
    }

    /// Replaces the manifest of a directory, durably. A failure from the first sync on poisons:
    /// which manifest the next open finds is unknown then.
    ///
    /// # Errors
    /// As [`Manifest::check_there`], which comes first; `Full` or `Io`, or `Poisoned`.
    pub(crate) fn write(&self, directory: &dyn Directory, poison: &Poison) -> Result<()> {
        self.check_there(directory)?;
        let file = self.write_beside(directory)?;
        poison.guard(put_in_place(&*file, directory))
    }

    /// Writes the manifest of a directory that has none and that nobody has open, durably.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub(crate) fn write_new(&self, directory: &dyn Directory) -> Result<()> {
        let file = self.write_beside(directory)?;
        put_in_place(&*file, directory)
    }

    /// Passes when there is no manifest in a directory.
    ///
    /// # Errors
    /// `Corruption` when there is one; `Io`.
    pub(crate) fn check_none(directory: &dyn Directory) -> Result<()> {
        if Manifest::exists(directory)? {
            return Err(misplaced(directory, "no manifest", "another database's"));
        }
        Ok(())
    }

    /// Passes when the manifest in a directory is this database's: nobody has put another database's
    /// files there since it was opened.
    ///
    /// # Errors
    /// `Corruption` when it is another's, damaged or gone; `Io`.
    pub(crate) fn check_there(&self, directory: &dyn Directory) -> Result<()> {
        let expected = || format!("the manifest of database {:016x}", self.tag);
        match Manifest::read(directory) {
            Ok(found) if found.tag == self.tag => Ok(()),
            Ok(found) => Err(misplaced(directory, &expected(), &format!("{:016x}'s", found.tag))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(misplaced(directory, &expected(), "none"))
            }
            Err(error) => Err(error),
        }
    }

    fn write_beside(&self, directory: &dyn Directory) -> Result<Arc<dyn File>> {
        let bytes = self.encode();
        let mut buf = AlignedBuf::new(bytes.len().div_ceil(PAGE_BYTES));
        buf.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        if directory.exists(NEW_NAME)? {
            directory.remove(NEW_NAME)?;
        }
        let file = directory.open(NEW_NAME, OpenMode::CREATE.cached())?;
        file.write_at(buf.bytes(), 0, Purpose::MANIFEST)?;
        Ok(file)
    }

    /// Reads the manifest of a directory.
    pub(crate) fn read(directory: &dyn Directory) -> Result<Manifest> {
        let file = directory.open(NAME, OpenMode::EXISTING.cached().read_only())?;
        let path = file.path();
        let damaged =
            |expected: &str, found: String| Error::corruption(path.display(), 0, expected, found);
        let length = file.len()?;
        let pages = usize::try_from(length / PAGE_BYTES as u64).unwrap_or(usize::MAX);
        if pages == 0 || pages > (PAYLOAD_BYTES_MAX + HEAD_BYTES).div_ceil(PAGE_BYTES) {
            return Err(damaged("a manifest of whole pages", format!("{length} bytes")));
        }
        let mut buf = AlignedBuf::new(pages);
        file.read_at(buf.bytes_mut(), 0, Purpose::RECOVERY)?;
        Manifest::decode(buf.bytes()).map_err(|problem| match problem {
            Problem::Version(version) => Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has format version {version}; this program reads versions {FORMAT_VERSION_MIN} to {FORMAT_VERSION}",
                    path.display()
                ),
            ),
            Problem::Damage(expected) => damaged(expected, "something else".to_owned()),
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        payload.extend_from_slice(&self.tag.to_le_bytes());
        payload.extend_from_slice(&self.next_id.0.to_le_bytes());
        let count = u32::try_from(self.keyspaces.len()).expect("KEYSPACES_MAX is far below");
        payload.extend_from_slice(&count.to_le_bytes());
        for keyspace in &self.keyspaces {
            payload.extend_from_slice(&keyspace.id.0.to_le_bytes());
            payload.push(keyspace.options.engine.row().number);
            payload.push(u8::from(keyspace.options.logged));
            let length =
                u16::try_from(keyspace.name.len()).expect("names were checked at the door");
            payload.extend_from_slice(&length.to_le_bytes());
            payload.extend_from_slice(keyspace.name.as_bytes());
        }
        let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        let length = u32::try_from(payload.len()).expect("a manifest is small");
        bytes.extend_from_slice(&length.to_le_bytes());
        let checksum = checksum(&bytes, &payload);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&payload);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Manifest, Problem> {
        let mut reader = Reader(bytes);
        if reader.take()? != MAGIC {
            return Err(Problem::Damage("the magic of a Spinney database"));
        }
        let version = u32::from_le_bytes(reader.take()?);
        let length = u32::from_le_bytes(reader.take()?) as usize;
        let stored = u64::from_le_bytes(reader.take()?);
        let payload =
            reader.0.get(..length).ok_or(Problem::Damage("a payload as long as it says"))?;
        if stored != checksum(&bytes[..16], payload) {
            return Err(Problem::Damage("a matching checksum"));
        }
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(Problem::Version(version));
        }
        let mut reader = Reader(payload);
        let tag = u64::from_le_bytes(reader.take()?);
        let next_id = KeyspaceId(u32::from_le_bytes(reader.take()?));
        let count = u32::from_le_bytes(reader.take()?);
        let mut keyspaces: Vec<ManifestKeyspace> = Vec::new();
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for _ in 0..count {
            let id = KeyspaceId(u32::from_le_bytes(reader.take()?));
            let [engine, logged] = reader.take()?;
            let engine = EngineKind::of_number(engine).ok_or(Problem::Damage("a known engine"))?;
            let length = usize::from(u16::from_le_bytes(reader.take()?));
            let name =
                reader.0.get(..length).ok_or(Problem::Damage("a name as long as it says"))?;
            reader.0 = &reader.0[length..];
            if id >= next_id || logged > 1 || !ids.insert(id) || !names.insert(name) {
                return Err(Problem::Damage("keyspaces with ids and names of their own"));
            }
            let name =
                String::from_utf8(name.to_vec()).map_err(|_| Problem::Damage("a name in UTF-8"))?;
            let options = KeptOptions { engine, logged: logged == 1 };
            keyspaces.push(ManifestKeyspace { id, name, options });
        }
        Ok(Manifest { tag, next_id, keyspaces })
    }
}

fn put_in_place(file: &dyn File, directory: &dyn Directory) -> Result<()> {
    file.sync(Purpose::MANIFEST)?;
    directory.rename(NEW_NAME, NAME)?;
    directory.sync()
}

fn misplaced(directory: &dyn Directory, expected: &str, found: &str) -> Error {
    Error::corruption(directory.path().join(NAME).display(), 0, expected, found)
}

enum Problem {
    Version(u32),
    Damage(&'static str),
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let (taken, left) = self.0.split_first_chunk().ok_or(Problem::Damage("more bytes"))?;
        self.0 = left;
        Ok(*taken)
    }
}

fn checksum(head: &[u8], payload: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.digest()
}

/// Checks a keyspace's name.
///
/// # Errors
/// `InvalidArgument` for an empty or overlong name or one with control characters.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("a keyspace needs a name that is not empty"));
    }
    if name.len() > KEYSPACE_NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a keyspace name of {} bytes is too long (KEYSPACE_NAME_BYTES_MAX, {KEYSPACE_NAME_BYTES_MAX})",
            name.len()
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid("a keyspace name holds a control character"));
    }
    Ok(())
}

/// Decodes arbitrary bytes, for fuzzing: never panics, and what it accepts encodes to the same.
#[doc(hidden)]
#[must_use]
pub fn manifest_round_trips(bytes: &[u8]) -> bool {
    match Manifest::decode(bytes) {
        Ok(manifest) => bytes.starts_with(&manifest.encode()),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Manifest {
        let options = KeptOptions::default();
        let keyspace = |id, name: &str, options| ManifestKeyspace {
            id: KeyspaceId(id),
            name: name.into(),
            options,
        };
        Manifest {
            tag: 7,
            next_id: KeyspaceId(9),
            keyspaces: vec![
                keyspace(1, "a/../b", options),
                keyspace(8, "ü", KeptOptions { logged: false, ..options }),
            ],
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = Manifest::new(7).encode();
        assert_eq!(bytes[..16], *b"SPINNEY\0\x02\0\0\0\x10\0\0\0");
        assert_eq!(bytes[24..], [7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn comes_back_and_detects_every_flipped_bit() {
        let bytes = sample().encode();
        assert!(matches!(Manifest::decode(&bytes), Ok(manifest) if manifest == sample()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn names() {
        assert!(
            check_name("..").is_ok()
                && check_name("a/b").is_ok()
                && check_name(&"x".repeat(255)).is_ok()
        );
        for name in ["", "a\0b", "a\nb", &"x".repeat(256)] {
            assert_eq!(check_name(name).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    proptest! {
        #[test]
        fn nonsense_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            prop_assert!(manifest_round_trips(&bytes));
            let whole = sample().encode();
            prop_assert!(Manifest::decode(&whole[..cut.min(whole.len() - 1)]).is_err());
        }
    }
}
