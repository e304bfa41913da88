//! Encoding of records with fixed fields, for workloads with tables of their own.
//!
//! ```text
//!  number   its bytes, big endian          text   length (2 bytes, big endian), UTF-8 bytes
//!  [u8; N]  its bytes
//! ```
//!
//! Fields follow one another in their order, and nothing follows the last.

use spinney_base::{Error, ErrorKind, Result};

/// A value that a record holds.
pub(crate) trait Field: Sized {
    /// Appends the bytes.
    fn write(&self, out: &mut Vec<u8>);
    /// Takes the bytes off the front of `from`; `None` when they are not what [`Field::write`] writes.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ident)+) => {
        $(impl Field for $type {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn read(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some($type::from_be_bytes(*bytes))
            }
        })+
    };
}

numbers! { u8 u16 u32 u64 i64 }

impl Field for String {
    fn write(&self, out: &mut Vec<u8>) {
        let length = u16::try_from(self.len()).unwrap_or(u16::MAX);
        length.write(out);
        out.extend_from_slice(&self.as_bytes()[..usize::from(length)]);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let length = u16::read(from)?;
        let (text, rest) = from.split_at_checked(usize::from(length))?;
        *from = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl<const N: usize> Field for [u8; N] {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = from.split_first_chunk()?;
        *from = rest;
        Some(*bytes)
    }
}

/// A record of a table.
pub trait Record: Sized {
    /// Replaces `out` by the bytes of the record.
    fn encode_into(&self, out: &mut Vec<u8>);

    /// Reads a record from all of `bytes`.
    ///
    /// # Errors
    /// `Corruption` for bytes that are none.
    fn decode(bytes: &[u8]) -> Result<Self>;

    /// Returns the bytes of the record.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }
}

/// The error of bytes that are no record, or no key, of a table.
pub(crate) fn unreadable(what: &str, bytes: &[u8]) -> Error {
    let message = format!("{} bytes are no {what}: {}", bytes.len(), bytes.escape_ascii());
    Error::new(ErrorKind::Corruption, message)
}

/// Declares records: structs of public fields with an encoding.
macro_rules! records {
    ($($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)+ })+) => {
        $($(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)+ }

        impl $crate::record::Record for $name {
            fn encode_into(&self, out: &mut Vec<u8>) {
                out.clear();
                $($crate::record::Field::write(&self.$field, out);)+
            }

            fn decode(bytes: &[u8]) -> spinney_base::Result<Self> {
                let mut rest = bytes;
                let read = |rest: &mut &[u8]| {
                    Some($name { $($field: $crate::record::Field::read(rest)?,)+ })
                };
                match read(&mut rest) {
                    Some(record) if rest.is_empty() => Ok(record),
                    _ => Err($crate::record::unreadable(stringify!($name), bytes)),
                }
            }
        })+
    };
}

pub(crate) use records;
