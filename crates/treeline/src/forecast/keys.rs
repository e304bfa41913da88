//! Samples of keys in little room, and how many of them lie below a key.
//!
//! ```text
//!   prefix "https://www."   shorts: the next 32 bytes of each     "a.example/x", "b.example/", ...
//!                                                                 |  an equal share  |  another |
//! ```
//!
//! A sample keeps what all of its keys begin with once; a key that begins otherwise makes that
//! shorter, and the part that is cut off is put before the shorts again. So 32 bytes tell keys
//! apart however long the prefix is that they share.
//!
//! **Invariant**: shorts order as the keys do, except that keys that differ only behind the 32
//! bytes are equal.

use crate::model::word_after;

/// Bytes kept of a key behind the prefix.
const SHORT_BYTES: usize = 32;

/// The beginning of what a key has behind the prefix. Unused bytes are zero, so that bytes and then
/// length order like the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Short {
    bytes: [u8; SHORT_BYTES],
    length: u8,
    /// Whether the key was above all before it.
    pub(super) appended: bool,
}

impl Short {
    fn new(parts: [&[u8]; 2], appended: bool) -> Short {
        let mut short = Short { bytes: [0; SHORT_BYTES], length: 0, appended };
        let rest = parts.into_iter().flatten().take(SHORT_BYTES);
        for (byte, from) in short.bytes.iter_mut().zip(rest) {
            *byte = *from;
            short.length += 1;
        }
        short
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Where a key lies beside those of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// Below all keys with the prefix.
    Below,
    /// It has the prefix, and this behind it.
    Behind(&'a [u8]),
    /// Above all keys with the prefix.
    Above,
}

/// Where `key` lies beside the keys that begin with `prefix`.
pub(super) fn place<'a>(prefix: &[u8], key: &'a [u8]) -> Place<'a> {
    match key.strip_prefix(prefix) {
        Some(rest) => Place::Behind(rest),
        None if key < prefix => Place::Below,
        None => Place::Above,
    }
}

/// Keys that share a prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    pub(super) prefix: Vec<u8>,
    pub(super) shorts: Vec<Short>,
}

impl Keys {
    /// Makes the prefix one of `key` too, and gives what is kept of it.
    pub(super) fn shorten(&mut self, key: &[u8], appended: bool) -> Short {
        if self.shorts.is_empty() {
            self.prefix.clear();
            self.prefix.extend_from_slice(key);
        }
        self.share(shared(&self.prefix, key));
        Short::new([&key[self.prefix.len()..], &[]], appended)
    }

    /// Cuts the prefix to `length` bytes, at most as many as there are.
    pub(super) fn share(&mut self, length: usize) {
        if length < self.prefix.len() {
            let cut = self.prefix.split_off(length);
            for short in &mut self.shorts {
                *short = Short::new([&cut, short.bytes()], short.appended);
            }
        }
    }

    /// A short as the beginning of its key.
    pub(super) fn key(&self, short: &Short) -> Vec<u8> {
        [self.prefix.as_slice(), short.bytes()].concat()
    }

    pub(super) fn bytes(&self) -> usize {
        self.prefix.capacity() + self.shorts.capacity() * size_of::<Short>()
    }
}

/// An equi-depth histogram: between every two neighbouring bounds lies an equal share of the keys.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    /// Ascending, at least one.
    bounds: Keys,
}

impl Histogram {
    /// Of a sample that ascends, in at most `parts` parts, a power of two, so that epochs of about
    /// as many samples give as many parts; `None` of an empty sample.
    pub(super) fn new(sample: &Keys, parts: usize) -> Option<Histogram> {
        let last = sample.shorts.len().checked_sub(1)?;
        let parts = 1 << parts.min(last).max(1).ilog2();
        let shorts = (0..=parts).map(|part| sample.shorts[part * last / parts]).collect();
        Some(Histogram { bounds: Keys { prefix: sample.prefix.clone(), shorts } })
    }

    pub(super) fn bounds(&self) -> &Keys {
        &self.bounds
    }

    /// Which share of the keys, from 0 to 1, lies below `key`.
    pub(super) fn below(&self, key: &[u8]) -> f64 {
        let rest = match place(&self.bounds.prefix, key) {
            Place::Below => return 0.0,
            Place::Above => return 1.0,
            Place::Behind(rest) => rest,
        };
        let bounds = &self.bounds.shorts;
        let parts = bounds.len() - 1;
        // The bounds below the key; behind the last of them it lies.
        let count = bounds.partition_point(|bound| bound.bytes() < rest);
        if count == 0 || count > parts {
            return if count == 0 { 0.0 } else { 1.0 };
        }
        let (low, high) = (bounds[count - 1].bytes(), bounds[count].bytes());
        let prefix = shared(low, high);
        let word = |key: &[u8]| u128::from(word_after(key, prefix));
        let inside = share_below(word(low), word(high), word(rest));
        (ratio(count - 1) + inside) / ratio(parts)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bounds.bytes()
    }
}

/// Which share of what lies evenly from `low` to `high` is below `at`.
pub(super) fn share_below(low: u128, high: u128, at: u128) -> f64 {
    if at <= low {
        return 0.0;
    }
    if at > high {
        return 1.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let share = (at - low) as f64 / (high - low) as f64;
    share
}

/// How many bytes two keys share at their beginning.
pub(super) fn shared(a: &[u8], b: &[u8]) -> usize {
    crate::segment::common_prefix(a, b).len()
}

#[expect(clippy::cast_precision_loss, reason = "a count of samples")]
pub(super) fn ratio(count: usize) -> f64 {
    count as f64
}
