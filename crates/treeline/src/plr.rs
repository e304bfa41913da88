//! Piecewise linear regression with a bound on the error, as long as any line can be: records come
//! one by one, and are accepted while one line passes through the range of each.
//!
//! ```text
//!    y |            | .'         each record is an upright range [low, high] at its x;
//!      |         |.'|            the line must cross every one of them
//!      |     | .'|
//!      |   |.'                   steepest line: under a high end, over an earlier low end
//!      |  .'                     flattest line: over a low end, under an earlier high end
//!      +---------------- x
//! ```
//!
//! For a slope `s` there is such a line exactly if `low_i - s x_i <= high_j - s x_j` for every two
//! ranges `i` and `j`. So the slopes that are possible are those from the greatest of
//! `(low_j - high_i) / (x_j - x_i)` to the least of `(high_j - low_i) / (x_j - x_i)`, both over all
//! `i < j`. A new range `j` needs only the `i` that decide, and these lie where a tangent from the
//! new end touches the hull of the earlier opposite ends: the upper hull of the low ends, the lower
//! hull of the high ends. Both hulls grow at their right end only, and the tangent is found by
//! bisection (O'Rourke 1981; the paper's reference 54).
//!
//! **Invariants**
//! 1. A range is refused only if no line crosses all with it (*optimal*), and once accepted, lines
//!    that cross all exist. All is decided in integers, so rounding never decides.
//! 2. [`Plr::finish`] gives a slope that is not negative: with low and high ends that do not fall,
//!    a falling line that crosses all can be turned level about its last point.
//!
//! Numbers: a difference of `x` is below 2^64 and one of `y` below 2^62, so products fit `i128`.
//! The line itself is in floats and off by their rounding, far below a byte.
//!
//! Paper: 4.5, phase II; notes 1.1 and 1.2: the greedy form finds 1.02 pages a segment where this
//! one finds 1.76.

/// Greatest magnitude of `low` and `high`.
const Y_MAX: i64 = 1 << 61;

/// A line through accepted ranges: `y = (x - origin) * slope + intercept`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) origin: u64,
    /// Not negative.
    pub(crate) slope: f64,
    pub(crate) intercept: f64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    x: u64,
    y: i64,
}

/// A slope as a fraction; `run` is positive.
#[derive(Clone, Copy, Debug)]
struct Slope {
    rise: i128,
    run: i128,
}

impl Slope {
    /// From `a` to `b`, which is to its right.
    fn between(a: Point, b: Point) -> Slope {
        Slope { rise: i128::from(b.y) - i128::from(a.y), run: i128::from(b.x) - i128::from(a.x) }
    }

    fn less(self, other: Slope) -> bool {
        self.rise * other.run < other.rise * self.run
    }

    #[expect(clippy::cast_precision_loss, reason = "the line is in floats")]
    fn value(self) -> f64 {
        self.rise as f64 / self.run as f64
    }
}

/// One side of the convex hull of points that come from left to right. The upper hull bends down,
/// the lower one, which is kept with `y` negated, is the same then.
#[derive(Debug, Default)]
struct Hull {
    points: Vec<Point>,
}

impl Hull {
    /// The slope of the line from `point`, right of all, that touches the hull: the least of the
    /// slopes from its points. `None` if there is no point.
    fn tangent(&self, point: Point) -> Option<Slope> {
        // The lines through the hull's edges pass ever lower at `point.x`, so those that pass above
        // `point` come first; along them the slope to `point` falls, and behind them it rises.
        let passes_above = |edge: usize| {
            let [left, right] = [self.points[edge], self.points[edge + 1]];
            Slope::between(right, point).less(Slope::between(left, right))
        };
        let (mut low, mut high) = (0, self.points.len().checked_sub(1)?);
        while low < high {
            let middle = low + (high - low) / 2;
            if passes_above(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(Slope::between(self.points[low], point))
    }

    fn push(&mut self, point: Point) {
        while let [.., left, right] = self.points[..]
            && !Slope::between(right, point).less(Slope::between(left, right))
        {
            self.points.pop();
        }
        self.points.push(point);
    }
}

/// The regression. See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Plr {
    origin: u64,
    lows: Hull,
    /// With `y` negated.
    highs: Hull,
    /// The greatest slope of a line through all ranges; `None` while there is no limit.
    steepest: Option<Slope>,
    /// The least slope, negated.
    flattest: Option<Slope>,
}

impl Plr {
    /// Forgets all ranges and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.lows.points.clear();
        self.highs.points.clear();
        (self.steepest, self.flattest) = (None, None);
    }

    /// Accepts the range from `low` to `high` at `x` if one line crosses it and all before. Each
    /// `x` is greater than the one before, and neither end is below the one before. Nothing changes
    /// when it is refused.
    pub(crate) fn add(&mut self, x: u64, low: i64, high: i64) -> bool {
        debug_assert!(low.abs() <= Y_MAX && high.abs() <= Y_MAX, "products fit i128");
        if low > high {
            return false;
        }
        if self.lows.points.is_empty() {
            self.origin = x;
        }
        debug_assert!(self.lows.points.last().is_none_or(|last| last.x + self.origin < x));
        let x = x - self.origin;
        let (low, high) = (Point { x, y: low }, Point { x, y: -high });
        let top = Point { x, y: -high.y };
        let bottom = Point { x, y: -low.y };
        let steepest = least(self.steepest, self.lows.tangent(top));
        let flattest = least(self.flattest, self.highs.tangent(bottom));
        if let (Some(steepest), Some(flattest)) = (steepest, flattest)
            && steepest.less(Slope { rise: -flattest.rise, run: flattest.run })
        {
            return false;
        }
        (self.steepest, self.flattest) = (steepest, flattest);
        self.lows.push(low);
        self.highs.push(high);
        true
    }

    /// A line through all accepted ranges, its slope in the middle of those possible; `None` before
    /// the first range.
    pub(crate) fn finish(&self) -> Option<Line> {
        self.lows.points.first()?;
        let slope = match (self.steepest, self.flattest) {
            (Some(steepest), Some(flattest)) => {
                let (steepest, flattest) = (steepest.value().max(0.0), -flattest.value());
                f64::midpoint(steepest, flattest.max(0.0))
            }
            _ => 0.0,
        };
        #[expect(clippy::cast_precision_loss, reason = "the line is in floats")]
        let at_origin = |point: &Point| point.y as f64 - point.x as f64 * slope;
        let least = self.lows.points.iter().map(at_origin).fold(f64::MIN, f64::max);
        #[expect(clippy::cast_precision_loss, reason = "the line is in floats")]
        let at_origin = |point: &Point| -(point.y as f64) - point.x as f64 * slope;
        let most = self.highs.points.iter().map(at_origin).fold(f64::MAX, f64::min);
        Some(Line { origin: self.origin, slope, intercept: f64::midpoint(least, most) })
    }
}

fn least(a: Option<Slope>, b: Option<Slope>) -> Option<Slope> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.less(a) { b } else { a }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Ranges = Vec<(u64, i64, i64)>;

    /// Whether a line crosses all ranges: every pair's condition, in fractions.
    fn feasible(ranges: &Ranges) -> bool {
        let point = |x: u64, y: i64| Point { x, y };
        let mut steepest: Option<Slope> = None;
        let mut flattest: Option<Slope> = None;
        for (index, (x, low, high)) in ranges.iter().enumerate() {
            for (left, left_low, left_high) in &ranges[..index] {
                steepest = least(
                    steepest,
                    Some(Slope::between(point(*left, *left_low), point(*x, *high))),
                );
                flattest = least(
                    flattest,
                    Some(Slope::between(point(*left, -left_high), point(*x, -low))),
                );
            }
        }
        match (steepest, flattest) {
            (Some(a), Some(b)) => !a.less(Slope { rise: -b.rise, run: b.run }),
            _ => true,
        }
    }

    /// Steps of x, steps of y and widths.
    fn ranges(x_step: u64) -> impl Strategy<Value = Ranges> {
        let step = (1..x_step, 0_i64..60, 0_i64..12);
        (prop::collection::vec(step, 1..60), any::<u32>()).prop_map(|(steps, start)| {
            let (mut x, mut low, mut high) = (u64::from(start), -20, -20);
            let mut ranges = Vec::new();
            for (dx, dy, width) in steps {
                x += dx;
                low += dy;
                high = (low + 20 + width).max(high);
                ranges.push((x, low, high));
            }
            ranges
        })
    }

    fn check(ranges: &Ranges) {
        let mut plr = Plr::default();
        let mut accepted = Ranges::new();
        for range in ranges {
            accepted.push(*range);
            let fits = feasible(&accepted);
            assert_eq!(plr.add(range.0, range.1, range.2), fits, "{accepted:?}");
            if !fits {
                accepted.pop();
            }
        }
        let line = plr.finish().expect("the first is always accepted");
        assert!(line.slope >= 0.0 && line.slope.is_finite());
        for (x, low, high) in accepted {
            let y = (x - line.origin) as f64 * line.slope + line.intercept;
            let slack = 1e-6;
            assert!(y >= low as f64 - slack && y <= high as f64 + slack, "{y} at {x}");
        }
    }

    proptest! {
        #[test]
        fn accepts_as_long_as_any_line_fits(ranges in ranges(40)) {
            check(&ranges);
        }

        #[test]
        fn accepts_as_long_as_any_line_fits_with_wide_keys(ranges in ranges(1 << 58)) {
            check(&ranges);
        }
    }

    #[test]
    fn the_whole_range_of_keys_fits() {
        let mut plr = Plr::default();
        assert!(plr.add(0, -Y_MAX, Y_MAX));
        assert!(plr.add(u64::MAX, Y_MAX - 1, Y_MAX));
        assert!(plr.finish().unwrap().slope > 0.0);
    }

    #[test]
    fn nothing_gives_no_line_and_one_range_a_level_one() {
        let mut plr = Plr::default();
        assert_eq!(plr.finish(), None);
        assert!(!plr.add(7, 3, 2));
        assert!(plr.add(7, -5, 5));
        assert_eq!(plr.finish(), Some(Line { origin: 7, slope: 0.0, intercept: 0.0 }));
        plr.clear();
        assert_eq!(plr.finish(), None);
    }
}
