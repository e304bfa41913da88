//! The forecaster that follows a trend: the bounds of an equi-depth histogram keep moving as they
//! moved in the last epochs.
//!
//! ```text
//!   epoch 1      |....:....|                     bounds that move alike: a hot spot drifts
//!   epoch 2           |....:....|
//!   epoch 3                |....:....|
//!   forecast                    |....:....|      and so on, an epoch later
//! ```
//!
//! A bound is a number: the 15 bytes behind what all of the bounds share, so that 128 bits hold any
//! sum of what happens here. Keys that differ only behind them do not move; then the other
//! forecaster is the better one, and answers.
//!
//! Paper: 3.3 names "more elaborate forecasting schemes" as possible. This one is ours.

use super::keys::{Histogram, Keys, Place, place, ratio, share_below, shared};

/// Epochs from which a trend is computed.
pub(super) const HISTORY: usize = 3;

/// Most future epochs that are looked at one by one; of more, this many spread over them.
const LOOKS_MAX: u32 = 16;

const NUMBER_BYTES: usize = 15;
const NUMBER_MAX: i128 = (1 << (8 * NUMBER_BYTES)) - 1;

/// Bounds and how far each moves in an epoch.
#[derive(Clone, Debug)]
pub(super) struct Trend {
    prefix: Vec<u8>,
    bounds: Vec<(i128, i128)>,
}

impl Trend {
    /// From the histograms of the last epochs, the newest last; `None` of fewer than two, or when
    /// they have not the same number of parts.
    pub(super) fn new(history: &[Histogram]) -> Option<Trend> {
        let epochs = history.len().checked_sub(1).filter(|epochs| *epochs > 0)?;
        let (oldest, newest) = (history.first()?, history.last()?);
        let (mut old, mut new) = (oldest.bounds().clone(), newest.bounds().clone());
        if old.shorts.len() != new.shorts.len() {
            return None;
        }
        let prefix = shared(&old.prefix, &new.prefix);
        old.share(prefix);
        new.share(prefix);
        // What all bounds share behind the prefix: what the least and the greatest of them do.
        let ends = |keys: &Keys| Some([*keys.shorts.first()?, *keys.shorts.last()?]);
        let ([a, b], [c, d]) = (ends(&old)?, ends(&new)?);
        let skip = [b, c, d].iter().map(|end| shared(a.bytes(), end.bytes())).min()?;
        let epochs = i128::try_from(epochs).ok()?;
        let bounds = old.shorts.iter().zip(&new.shorts).map(|(old, new)| {
            let (old, new) = (number(&old.bytes()[skip..]), number(&new.bytes()[skip..]));
            (new, (new - old) / epochs)
        });
        let bounds = bounds.collect();
        let mut prefix = new.prefix;
        prefix.extend_from_slice(&a.bytes()[..skip]);
        Some(Trend { prefix, bounds })
    }

    /// How many times an epoch's inserts go below `key` in this many epochs to come.
    pub(super) fn below(&self, key: &[u8], epochs: u32) -> f64 {
        let at = match place(&self.prefix, key) {
            Place::Below => return 0.0,
            Place::Above => return f64::from(epochs),
            Place::Behind(rest) => number(rest),
        };
        let looks = epochs.min(LOOKS_MAX);
        let mut sum = 0.0;
        for look in 1..=looks {
            let epoch = i128::from(look * epochs / looks);
            let bound = |(start, step): (i128, i128)| {
                start.saturating_add(step.saturating_mul(epoch)).clamp(0, NUMBER_MAX)
            };
            for pair in self.bounds.windows(2) {
                let (a, b) = (bound(pair[0]), bound(pair[1]));
                // Bounds that move unlike each other may pass each other.
                let (low, high) = (a.min(b).unsigned_abs(), a.max(b).unsigned_abs());
                sum += share_below(low, high, at.unsigned_abs());
            }
        }
        sum / ratio(self.bounds.len() - 1) * f64::from(epochs) / f64::from(looks.max(1))
    }

    pub(super) fn bytes(&self) -> usize {
        self.prefix.capacity() + self.bounds.capacity() * size_of::<(i128, i128)>()
    }
}

/// The first 15 bytes as a number that orders like them; not negative.
fn number(bytes: &[u8]) -> i128 {
    let mut wide = [0; 16];
    let length = bytes.len().min(NUMBER_BYTES);
    wide[1..=length].copy_from_slice(&bytes[..length]);
    i128::from_be_bytes(wide)
}
