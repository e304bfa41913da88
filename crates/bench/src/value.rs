//! Values that prove themselves: every byte follows from the key and a version, and the version is
//! in the value.
//!
//! ```text
//! | version u32 | check u32 | word 1 | word 2 | ... | tail |      check and words follow from (key, version)
//! ```
//!
//! A value shorter than eight bytes has no version; its bytes follow from the key alone.

use spinney_base::runtime::SplitMix;

use crate::permutation::mix64;

const TOKEN_BYTES: usize = 8;

/// A hash of a key, the same everywhere.
fn key_hash(key: &[u8]) -> u64 {
    let mut hash = key.len() as u64;
    for chunk in key.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix64(hash ^ u64::from_le_bytes(word)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    hash
}

fn stream(key: &[u8], version: u32) -> SplitMix {
    SplitMix(key_hash(key) ^ (u64::from(version) << 20))
}

fn token(words: &mut SplitMix, version: u32) -> [u8; TOKEN_BYTES] {
    let check = words.next_u64() & 0xFFFF_FFFF;
    (u64::from(version) | (check << 32)).to_le_bytes()
}

/// Makes `out` the value of `key` at `version`, `length` bytes long.
pub fn fill(key: &[u8], version: u32, length: usize, out: &mut Vec<u8>) {
    out.clear();
    let version = if length < TOKEN_BYTES { 0 } else { version };
    let mut words = stream(key, version);
    let token = token(&mut words, version);
    if length < TOKEN_BYTES {
        out.extend_from_slice(&words.next_u64().to_le_bytes()[..length]);
        return;
    }
    out.extend_from_slice(&token);
    while out.len() + 8 <= length {
        out.extend_from_slice(&words.next_u64().to_le_bytes());
    }
    let tail = words.next_u64().to_le_bytes();
    out.extend_from_slice(&tail[..length - out.len()]);
}

/// Whether `value` is some version of the value of `key`, `length` bytes long.
#[must_use]
pub fn check(key: &[u8], value: &[u8], length: usize) -> bool {
    if value.len() != length {
        return false;
    }
    let Some((head, mut rest)) = value.split_first_chunk::<TOKEN_BYTES>() else {
        let mut words = stream(key, 0);
        token(&mut words, 0);
        return words.next_u64().to_le_bytes().starts_with(value);
    };
    let [a, b, c, d, ..] = *head;
    let version = u32::from_le_bytes([a, b, c, d]);
    let mut words = stream(key, version);
    if token(&mut words, version) != *head {
        return false;
    }
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        if words.next_u64().to_le_bytes() != *word {
            return false;
        }
        rest = after;
    }
    words.next_u64().to_le_bytes().starts_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_passes_and_any_other_byte_fails() {
        let mut value = Vec::new();
        for length in [0, 1, 7, 8, 9, 15, 16, 56, 1016] {
            for version in [0, 1, u32::MAX] {
                fill(b"key", version, length, &mut value);
                assert_eq!(value.len(), length);
                assert!(check(b"key", &value, length), "length {length}");
                assert!(!check(b"key", &value, length + 1), "length {length}");
                assert!(length == 0 || !check(b"kez", &value, length), "length {length}");
                for place in 0..length {
                    value[place] ^= 1;
                    assert!(!check(b"key", &value, length), "length {length} place {place}");
                    value[place] ^= 1;
                }
            }
        }
    }
}
