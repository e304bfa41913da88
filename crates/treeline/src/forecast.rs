//! Insert forecasting: how many keys will come into a range, so that a reorganization leaves that
//! much room ([`build`](crate::build)).
//!
//! ```text
//!   put of a new key --1 of n--> sample of this epoch        (a reservoir of at most 4096 keys)
//!                                     | the epoch ends
//!                                     v
//!                        equi-depth histogram of 256 parts
//!                          |                        |
//!               "the next epoch                "bounds that moved
//!                is like the last"              move on"  (trend)
//!                          +--- which was right ---+
//!                                     v
//!                     forecast(lower, upper) for the epochs to come
//! ```
//!
//! An epoch is a number of inserts. When one ends, both forecasters are compared with what came:
//! how far off were they on ranges that each took an equal share of it? The better one answers
//! until the next epoch ends; in doubt the histogram.
//!
//! **The right edge**: keys above all of the epochs before are counted apart. They come behind
//! everything, so the pages of a range need no room for them ([`Expected::appended`]). A histogram
//! would expect later ones where these came, and none comes there any more.
//!
//! **Invariants**
//! 1. With one thread, all is determined by the seed and the keys.
//! 2. Memory is bounded, whatever the keys: [`Forecaster::bytes`].
//! 3. The parts of a range add up: `forecast(a, b) + forecast(b, c)` is `forecast(a, c)`, but for
//!    rounding.
//!
//! **Concurrency**: thread-safe. [`Forecaster::record`] counts. One call in n takes the sample's
//! lock if it is free, and is left out otherwise (shares stay what they are), so it never waits.
//! Only the call that ends an epoch waits, and sorts the sample. A forecast reads what was frozen
//! then. Lock order: sample, then frozen.
//!
//! Keys are recorded when they are put, not when their records are written back: by then a hot
//! range may have cooled, and its room had to be left earlier. A put counts as an insert unless the
//! cache knows the key. A reorganization weighs that with the share of new records that it finds
//! ([`reorganize`](crate::reorganize)).
//!
//! **Crash**: nothing is kept; a new life begins with an epoch without forecasts.
//!
//! Paper: 3.3, 4.6; notes 3. **Differs from the paper**: the sample is the epoch's and not that of
//! all time, and gives bounds and counts at once, so a hot spot that moves finds bounds there;
//! inserts are sampled; keys below the smallest sample count; the right edge; the trend.

mod keys;
#[cfg(test)]
mod tests;
mod trend;

use std::sync::Arc;

use spinney_base::runtime::SplitMix;
use spinney_base::shim::atomic::{AtomicU64, Ordering};
use spinney_base::shim::{Mutex, RwLock};

use keys::{Histogram, Keys, ratio};
use trend::{HISTORY, Trend};

/// Parts of a histogram.
const PARTS: usize = 256;

/// Keys of a sample at most.
const SAMPLE_MAX: usize = 4096;

/// Ranges that forecasters are compared on.
const JUDGED_PARTS: usize = 64;

/// The trend answers if it was off by less than this share of what the histogram was off by: where
/// inserts jump, both are wrong, and the histogram is right again an epoch earlier.
const TREND_MARGIN: f64 = 0.8;

/// Most future epochs.
const FUTURE_MAX: u32 = 1000;

/// Inserts that are expected in a range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Expected {
    /// Among the keys that are there.
    pub(crate) inside: f64,
    /// Behind the greatest key that ever came: appended, so pages get no room for them.
    pub(crate) appended: f64,
}

impl Expected {
    pub(crate) fn total(&self) -> f64 {
        self.inside + self.appended
    }
}

/// How good the forecasts are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ForecastStats {
    /// Keys that were recorded.
    pub(crate) inserts: u64,
    /// Epochs that ended.
    pub(crate) epochs: u64,
    /// Inserts of the epochs that had been forecast, and how many of them came where the forecaster
    /// that answered expected them.
    pub(crate) forecast: f64,
    pub(crate) came_as_forecast: f64,
    /// How far off each forecaster was in the last epoch, in inserts: the mean over ranges that
    /// took a 64th of the inserts each. Zero before there was a forecast.
    pub(crate) histogram_error: f64,
    pub(crate) trend_error: f64,
    /// Whether the trend answers.
    pub(crate) trend_answers: bool,
}

/// Forecasts inserts. Thread-safe.
#[derive(Debug)]
pub(crate) struct Forecaster {
    seed: u64,
    epoch_inserts: u64,
    future_epochs: u32,
    /// An insert is sampled if these bits of its shuffled ordinal are zero.
    sample_mask: u64,
    inserts: AtomicU64,
    sample: Mutex<Sample>,
    frozen: RwLock<Arc<Frozen>>,
}

/// The current epoch.
#[derive(Debug)]
struct Sample {
    random: SplitMix,
    keys: Keys,
    /// Keys that were offered to the reservoir.
    offered: usize,
    /// The greatest key that was ever offered.
    highest: Vec<u8>,
    /// The greatest key when the last epoch ended. What lies behind it is appended, even if many
    /// threads append at once and the keys come in no strict order.
    edge: Option<Vec<u8>>,
    history: Vec<Histogram>,
}

/// What the last epochs say.
#[derive(Clone, Debug, Default)]
struct Frozen {
    /// Inserts of an epoch.
    inserts: f64,
    /// Where those go that are not appended, and the share of those that are.
    histogram: Option<Histogram>,
    appended_share: f64,
    trend: Option<Trend>,
    highest: Vec<u8>,
    stats: ForecastStats,
}

impl Forecaster {
    /// A forecaster with epochs of `epoch_inserts` inserts, at least 64. It forecasts the inserts
    /// of the `future_epochs` epochs (1 to 1000) after the one that ended last.
    pub(crate) fn new(seed: u64, epoch_inserts: u64, future_epochs: u32) -> Self {
        let epoch_inserts = epoch_inserts.max(64);
        // Sampled so seldom, an epoch still gives half the sample that there is room for.
        let every = (epoch_inserts / (SAMPLE_MAX as u64 / 2)).max(1);
        Forecaster {
            seed,
            epoch_inserts,
            future_epochs: future_epochs.clamp(1, FUTURE_MAX),
            sample_mask: (1 << every.ilog2()) - 1,
            inserts: AtomicU64::new(0),
            sample: Mutex::new(Sample::new(seed)),
            frozen: RwLock::new(Arc::default()),
        }
    }

    /// Counts the put of a key that is not known to be there.
    pub(crate) fn record(&self, key: &[u8]) {
        let ordinal = self.inserts.fetch_add(1, Ordering::Relaxed);
        let ends = (ordinal + 1).is_multiple_of(self.epoch_inserts);
        let sampled = SplitMix(self.seed ^ ordinal).next_u64() & self.sample_mask == 0;
        if ends {
            let mut sample = self.sample.lock();
            sample.offer(key);
            let last = Arc::clone(&self.frozen.read());
            let next = sample.end_epoch(&last, self.epoch_inserts);
            *self.frozen.write() = Arc::new(next);
        } else if sampled && let Some(mut sample) = self.sample.try_lock() {
            sample.offer(key);
        }
    }

    /// Inserts to expect from `lower` on and below `upper` (to the end without one); none before
    /// the first epoch ended.
    pub(crate) fn forecast(&self, lower: &[u8], upper: Option<&[u8]>) -> Expected {
        let frozen = Arc::clone(&self.frozen.read());
        frozen.expect(lower, upper, self.future_epochs, frozen.stats.trend_answers)
    }

    pub(crate) fn stats(&self) -> ForecastStats {
        let inserts = self.inserts.load(Ordering::Relaxed);
        ForecastStats { inserts, ..self.frozen.read().stats }
    }

    /// Forgets what it knows, and begins with an epoch without forecasts.
    pub(crate) fn forget(&self) {
        let mut sample = self.sample.lock();
        if sample.offered == 0 && self.frozen.read().histogram.is_none() {
            return;
        }
        *sample = Sample::new(self.seed);
        let stats = self.frozen.read().stats;
        *self.frozen.write() = Arc::new(Frozen { stats, ..Frozen::default() });
    }

    /// Bytes of memory that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        let sample = self.sample.lock();
        let history: usize = sample.history.iter().map(Histogram::bytes).sum();
        let own = sample.keys.bytes() + 2 * sample.highest.capacity() + history;
        drop(sample);
        let frozen = self.frozen.read();
        let histogram = frozen.histogram.as_ref().map_or(0, Histogram::bytes);
        let trend = frozen.trend.as_ref().map_or(0, Trend::bytes);
        let frozen = size_of::<Frozen>() + histogram + trend + frozen.highest.capacity();
        (size_of::<Forecaster>() + own + frozen) as u64
    }
}

impl Sample {
    fn new(seed: u64) -> Self {
        Sample {
            random: SplitMix(!seed),
            keys: Keys::default(),
            offered: 0,
            highest: Vec::new(),
            edge: None,
            history: Vec::new(),
        }
    }

    /// Algorithm R: of all that were offered each is kept with the same probability.
    fn offer(&mut self, key: &[u8]) {
        self.offered += 1;
        let appended = key > self.edge.as_ref().unwrap_or(&self.highest).as_slice();
        if key > self.highest.as_slice() {
            self.highest.clear();
            self.highest.extend_from_slice(key);
        }
        let place = self.random.below(self.offered);
        if self.keys.shorts.len() < SAMPLE_MAX {
            let short = self.keys.shorten(key, appended);
            self.keys.shorts.push(short);
        } else if place < SAMPLE_MAX {
            self.keys.shorts[place] = self.keys.shorten(key, appended);
        }
    }

    /// Judges what was forecast for the epoch and makes the next forecast from it.
    fn end_epoch(&mut self, last: &Frozen, inserts: u64) -> Frozen {
        self.keys.shorts.sort_unstable();
        let all = Histogram::new(&self.keys, PARTS);
        let kept = self.keys.shorts.len();
        let judge = Histogram::new(&self.keys, JUDGED_PARTS);
        self.keys.shorts.retain(|short| !short.appended);
        let appended = ratio(kept - self.keys.shorts.len()) / ratio(kept.max(1));
        let histogram = Histogram::new(&self.keys, PARTS);
        self.keys.shorts.clear();
        self.offered = 0;
        self.edge.get_or_insert_default().clone_from(&self.highest);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let inserts = inserts as f64;
        let stats = judge.map_or(last.stats, |came| last.judge(&came, inserts));
        if let Some(all) = all {
            if self.history.len() == HISTORY {
                self.history.remove(0);
            }
            self.history.push(all);
        }
        Frozen {
            inserts,
            histogram,
            appended_share: appended,
            trend: Trend::new(&self.history),
            highest: self.highest.clone(),
            stats: ForecastStats { epochs: last.stats.epochs + 1, ..stats },
        }
    }
}

impl Frozen {
    fn expect(&self, lower: &[u8], upper: Option<&[u8]>, epochs: u32, trend: bool) -> Expected {
        let highest = self.highest.as_slice();
        let has_edge = lower <= highest && upper.is_none_or(|upper| highest < upper);
        if let Some(trend) = self.trend.as_ref().filter(|_| trend) {
            let below = |key: &[u8]| trend.below(key, epochs);
            let end = upper.map_or(f64::from(epochs), below);
            let edge = if has_edge { below(highest) } else { end };
            // A range behind the greatest key gets appended keys only.
            let edge = if lower > highest { below(lower) } else { edge };
            return Expected {
                inside: (edge - below(lower)).max(0.0) * self.inserts,
                appended: (end - edge).max(0.0) * self.inserts,
            };
        }
        let epochs = f64::from(epochs) * self.inserts;
        let inside = self.histogram.as_ref().map_or(0.0, |histogram| {
            upper.map_or(1.0, |upper| histogram.below(upper)) - histogram.below(lower)
        });
        Expected {
            inside: inside.max(0.0) * (1.0 - self.appended_share) * epochs,
            appended: if has_edge { self.appended_share * epochs } else { 0.0 },
        }
    }

    /// What to say of this forecast now that the epoch's inserts came: `came` has as many in every
    /// part.
    fn judge(&self, came: &Histogram, inserts: f64) -> ForecastStats {
        if self.histogram.is_none() && self.appended_share == 0.0 {
            return self.stats;
        }
        let bounds = came.bounds();
        let keys: Vec<Vec<u8>> = bounds.shorts.iter().map(|short| bounds.key(short)).collect();
        // The first part reaches down to all keys, the last one up; between them are the cuts.
        let parts = keys.len().saturating_sub(1).max(1);
        let cuts = &keys[1..parts];
        let share = inserts / ratio(parts);
        let judged = |trend: bool| {
            let (mut off, mut met) = (0.0, 0.0);
            for part in 0..parts {
                let lower = part.checked_sub(1).map_or(&[][..], |cut| cuts[cut].as_slice());
                let upper = cuts.get(part).map(Vec::as_slice);
                let expected = self.expect(lower, upper, 1, trend).total();
                off += (expected - share).abs();
                met += expected.min(share);
            }
            (off / ratio(parts), met)
        };
        let (histogram, trend) = (judged(false), judged(true));
        let answered = if self.stats.trend_answers { trend } else { histogram };
        ForecastStats {
            forecast: self.stats.forecast + inserts,
            came_as_forecast: self.stats.came_as_forecast + answered.1,
            histogram_error: histogram.0,
            trend_error: trend.0,
            trend_answers: self.trend.is_some() && trend.0 < TREND_MARGIN * histogram.0,
            ..self.stats
        }
    }
}
