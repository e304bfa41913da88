//! The memory governor: memory follows use.
//!
//! ```text
//!   budget = overhead | floors | what is in use ........................ | what nobody has filled
//!                        ^         ^ idle keyspaces give it, bit by bit     ^ to whoever could use it
//!                        |         ^ busy ones only to others of more worth
//!                        `- stays whatever others want
//! ```
//!
//! A job measures the open keyspaces four times a second: how often each was entered, what it holds,
//! whether it has filled its target, and how many hits its last mebibyte gave. [`divide`] computes
//! what each should have, and the targets move there. The number of keyspaces does not matter: a
//! keyspace that is not used, or does not fill its target, gives all but a floor, which its engine
//! names, to those that do. Between keyspaces that are used and filled, memory moves in steps, and
//! only where it is clearly worth more.
//!
//! **Invariants**
//! 1. The targets of all open keyspaces add up to at most the budget less its overhead, unless
//!    their floors exceed it.
//! 2. A target is raised only by what others have given. While another keyspace still holds more
//!    than its own target, that excess is kept back.
//! 3. Nothing is decided, and no time is spent, while no keyspace is open. Parked ones have no
//!    account.
//!
//! [`divide`] is a pure function of its arguments.

/// A keyspace that was not entered for this many looks is idle.
const IDLE_LOOKS: u32 = 2;

/// Number of looks for which a keyspace with a filled target counts as wanting more, while it grows
/// by at least [`GROWTH`] per look.
const HUNGRY_LOOKS: u32 = 8;
const GROWTH: u64 = 64 << 10;

/// What a used keyspace may keep beyond what it holds, to grow into: one part in `SLACK_PART` of it,
/// plus [`SLACK_BYTES`], plus what it grows by in [`GROWTH_LOOKS`] looks.
const SLACK_PART: u64 = 4;
const SLACK_BYTES: u64 = 64 << 10;
const GROWTH_LOOKS: u64 = 4;

/// What a keyspace held is forgotten by one part in this many with each look: half of it in three
/// seconds. A keyspace whose writes gather holds hardly anything for a moment after each checkpoint.
/// What is taken from it then it would ask back with the next batches.
const HELD_PART: u64 = 16;

/// Between used keyspaces, one part in `STEP_PART` of the budget moves at once,
const STEP_PART: u64 = 16;
/// where the last bytes are worth at least this many times as much.
const RATIO: f64 = 2.0;

/// One use of a keyspace counts as one part in `USE_PART` of a hit per mebibyte held, where fewer
/// hits were counted. So writers, whose batching is not counted, keep some memory beside readers.
const USE_PART: f64 = 8.0;

/// What the governor knows of one keyspace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    /// Bytes that the keyspace keeps whatever others want.
    pub(crate) floor: u64,
    /// Bytes that it holds.
    pub(crate) used: u64,
    /// The same, or what it held lately if that is more.
    pub(crate) held: u64,
    /// Bytes by which it grows in a look.
    pub(crate) growth: u64,
    /// Bytes that it may hold now.
    pub(crate) target: u64,
    /// Hits per look that its last mebibyte gives.
    pub(crate) worth: f64,
    /// Whether it is used.
    pub(crate) is_busy: bool,
    /// Whether it fills its target now.
    pub(crate) is_full: bool,
    /// Whether it has filled its target, or is about to, and could use more.
    pub(crate) is_hungry: bool,
}

impl Claim {
    pub(crate) fn wants_more(&self) -> bool {
        self.is_busy && self.is_hungry
    }

    /// Bytes that are left to it before anything is given to others.
    fn kept(&self, others_want: bool) -> u64 {
        let with_slack = |bytes: u64| bytes + bytes / SLACK_PART + SLACK_BYTES;
        let kept = match (self.is_busy, others_want) {
            (true, _) if self.is_full => self.target,
            // Not all of its target, though it grows: others would starve beside what is empty.
            (true, _) => with_slack(self.held).saturating_add(self.growth * GROWTH_LOOKS),
            (false, true) => {
                let half = self.used.min(self.target) / 2;
                if half > self.floor + SLACK_BYTES { half } else { self.floor }
            }
            (false, false) => with_slack(self.used),
        };
        kept.min(self.target).max(self.floor)
    }
}

/// Returns what each keyspace should have of `total` bytes. See the module.
pub(crate) fn divide(total: u64, claims: &[Claim]) -> Vec<u64> {
    let others_want = claims.iter().any(Claim::wants_more);
    let mut targets: Vec<u64> = claims.iter().map(|claim| claim.kept(others_want)).collect();
    // Unused keyspaces give first, then all in proportion to what they have above their floors.
    let floor = |claim: &Claim| claim.floor;
    cut(&mut targets, claims, total, |claim| if claim.is_busy { u64::MAX } else { claim.floor });
    cut(&mut targets, claims, total, floor);
    cut(&mut targets, claims, total, |_| 0);
    let free = total.saturating_sub(targets.iter().sum());
    let receives = |claim: &Claim| match others_want {
        true => claim.wants_more(),
        false => claim.is_busy || !claims.iter().any(|other| other.is_busy),
    };
    let weight = |claim: &Claim| if others_want { claim.worth } else { 1.0 };
    spread(&mut targets, claims, free, receives, weight);
    if others_want && free < total / STEP_PART {
        exchange(&mut targets, claims, total / STEP_PART);
    }
    targets
}

/// Takes what is above `total` away from all, in proportion to what they have above `least`.
fn cut(targets: &mut [u64], claims: &[Claim], total: u64, least: impl Fn(&Claim) -> u64) {
    let sum: u64 = targets.iter().sum();
    let over = sum.saturating_sub(total);
    let above = |target: u64, claim: &Claim| target.saturating_sub(least(claim));
    let all: u64 = targets.iter().zip(claims).map(|(target, claim)| above(*target, claim)).sum();
    if over == 0 || all == 0 {
        return;
    }
    for (target, claim) in targets.iter_mut().zip(claims) {
        let part = u128::from(above(*target, claim)) * u128::from(over.min(all));
        *target -= u64::try_from(part.div_ceil(u128::from(all))).unwrap_or(0).min(*target);
    }
}

/// Gives `free` bytes to those that receive any: half of it evenly, half by weight.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "shares of bytes, which are cut off"
)]
fn spread(
    targets: &mut [u64],
    claims: &[Claim],
    free: u64,
    receives: impl Fn(&Claim) -> bool,
    weight: impl Fn(&Claim) -> f64,
) {
    let receivers = claims.iter().filter(|claim| receives(claim));
    let (count, all) =
        receivers.fold((0u64, 0.0), |(count, all), claim| (count + 1, all + weight(claim)));
    for (target, claim) in targets.iter_mut().zip(claims).filter(|(_, claim)| receives(claim)) {
        let even = 1.0 / count as f64;
        let part = if all > 0.0 { weight(claim) / all } else { even };
        // A single receiver gets all.
        let share = if count == 1 { 1.0 } else { (even + part) / 2.0 };
        *target += (free as f64 * share) as u64;
    }
}

/// Moves up to `step` bytes from the keyspace whose last bytes are worth least to the hungry one
/// whose last bytes are worth most, where the difference is large enough.
fn exchange(targets: &mut [u64], claims: &[Claim], step: u64) {
    let by_worth = |a: &usize, b: &usize| claims[*a].worth.total_cmp(&claims[*b].worth);
    let all = 0..claims.len();
    let Some(to) = all.clone().filter(|at| claims[*at].wants_more()).max_by(by_worth) else {
        return;
    };
    let gives = |at: &usize| *at != to && targets[*at] > claims[*at].floor;
    let Some(from) = all.filter(gives).min_by(by_worth) else { return };
    if claims[to].worth > RATIO * claims[from].worth {
        let step = step.min(targets[from] - claims[from].floor);
        targets[from] -= step;
        targets[to] += step;
    }
}

/// Why a keyspace has the memory that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is used and has not filled what it has.
    #[default]
    Fills,
    /// It is used, has filled what it has, and gets what others can give.
    Wants,
    /// It is used and has filled what it has, but others get more out of memory.
    Yields,
    /// It is not used, and nobody wants what it has.
    Idle,
    /// It is not used, and gives what it has to others.
    Gives,
    /// It was lent memory for a batch.
    Lent,
}

impl Why {
    /// The word that statistics use.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Why::Fills => "fills",
            Why::Wants => "wants",
            Why::Yields => "yields",
            Why::Idle => "idle",
            Why::Gives => "gives",
            Why::Lent => "lent",
        }
    }
}

/// What the last looks at a keyspace have measured.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    uses: u64,
    used: u64,
    hits: u64,
    /// What it held lately: the most, of which a part is forgotten with each look.
    held: u64,
    /// By how much it grew: likewise, half of it.
    growth: u64,
    /// Hits per look of the last mebibyte: a moving average that halves with each look.
    worth: f64,
    idle_looks: u32,
    /// All of them after a look at which it was full.
    hungry_looks: u32,
    why: Why,
}

impl Seen {
    /// Starts with a keyspace that is being opened, and so is used.
    pub(crate) fn new(uses: u64) -> Seen {
        Seen { uses, ..Seen::default() }
    }

    /// Measures a keyspace once more: its uses, the bytes it holds, its hits, and whether it has
    /// filled its target.
    #[expect(clippy::cast_precision_loss, reason = "for comparisons")]
    pub(crate) fn look(&mut self, uses: u64, used: u64, hits: u64, is_full: bool) {
        let new_uses = uses.saturating_sub(std::mem::replace(&mut self.uses, uses));
        let new_hits = hits.saturating_sub(std::mem::replace(&mut self.hits, hits));
        let grew = used.saturating_sub(std::mem::replace(&mut self.used, used));
        self.held = used.max(self.held - self.held / HELD_PART);
        self.growth = grew.max(self.growth / 2);
        // Snapshots and readers of large values enter only once.
        let is_used = new_uses > 0 || new_hits > 0;
        self.idle_looks = if is_used { 0 } else { self.idle_looks.saturating_add(1) };
        self.hungry_looks = match is_full {
            true => HUNGRY_LOOKS,
            false if grew >= GROWTH => self.hungry_looks.saturating_sub(1),
            false => 0,
        };
        let mebibytes = used.max(SLACK_BYTES) as f64 / (1 << 20) as f64;
        // Where memory is not filled, nothing shows which bytes are the last: all are worth the
        // same amount.
        let part = if is_full { USE_PART } else { 1.0 };
        let now = (new_hits as f64).max(new_uses as f64 / part / mebibytes);
        self.worth = self.worth.midpoint(now);
    }

    /// Returns what the keyspace claims, with these bytes of floor, use and target.
    pub(crate) fn claim(&self, floor: u64, used: u64, target: u64) -> Claim {
        let Seen { worth, growth, hungry_looks, .. } = *self;
        let is_busy = self.idle_looks < IDLE_LOOKS;
        let (is_full, is_hungry) = (hungry_looks == HUNGRY_LOOKS, hungry_looks > 0);
        let held = self.held.max(used);
        Claim { floor, used, held, growth, target, worth, is_busy, is_full, is_hungry }
    }

    /// Notes why the keyspace has the memory that it has.
    pub(crate) fn set_why(&mut self, why: Why) {
        self.why = why;
    }

    /// Returns the hits per look of its last mebibyte, and why it has what it has, as statistics
    /// say it.
    pub(crate) fn result(&self) -> (f64, &'static str) {
        (self.worth, self.why.word())
    }
}

/// Returns the targets that can be set now, and whether they are less than wanted.
pub(crate) fn grant(total: u64, claims: &[Claim], wanted: &[u64]) -> (Vec<u64>, bool) {
    let all = || claims.iter().zip(wanted);
    let taken: u64 = all().map(|(claim, wanted)| claim.target.min(*wanted).max(claim.used)).sum();
    let more: u64 =
        all().map(|(claim, wanted)| wanted.saturating_sub(claim.target.max(claim.used))).sum();
    let free = total.saturating_sub(taken).min(more);
    let granted = |(claim, wanted): (&Claim, &u64)| {
        let from = claim.target.max(claim.used);
        let part = u128::from(wanted.saturating_sub(from)) * u128::from(free);
        let part = u64::try_from(part / u128::from(more.max(1))).unwrap_or(0);
        if *wanted <= claim.target { *wanted } else { (*wanted).min(from + part) }
    };
    (all().map(granted).collect(), free < more)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TOTAL: u64 = 64 * MIB;
    const FLOOR: u64 = MIB / 8;

    /// Used, and filled up to its target.
    fn hungry(target: u64, worth: f64) -> Claim {
        let (is_busy, is_full, is_hungry) = (true, true, true);
        let (floor, used, held, growth) = (FLOOR, target, target, 0);
        Claim { floor, used, held, growth, target, worth, is_busy, is_full, is_hungry }
    }

    /// Used, and holding less than its target.
    fn filling(used: u64, target: u64) -> Claim {
        Claim { used, held: used, is_full: false, is_hungry: false, ..hungry(target, 1.0) }
    }

    fn idle(used: u64, target: u64) -> Claim {
        Claim { is_busy: false, worth: 0.0, ..filling(used, target) }
    }

    fn check(claims: &[Claim]) -> Vec<u64> {
        let targets = divide(TOTAL, claims);
        assert!(targets.iter().sum::<u64>() <= TOTAL, "{targets:?}");
        assert!(targets.iter().zip(claims).all(|(target, claim)| *target >= claim.floor));
        targets
    }

    fn is_near(bytes: u64, expected: u64) -> bool {
        bytes.abs_diff(expected) <= TOTAL / 64
    }

    /// Looks again and again while the first keyspace holds all it may, and the others what they
    /// had at most.
    fn settle(claims: &mut [Claim], looks: u32) -> Vec<u64> {
        for _ in 0..looks {
            let targets = divide(TOTAL, claims);
            for (claim, target) in claims.iter_mut().zip(targets) {
                claim.target = target;
                claim.used = if claim.is_hungry { target } else { claim.used.min(target) };
            }
        }
        check(claims)
    }

    #[test]
    fn one_alone_has_all_whatever_it_does() {
        for claim in [hungry(MIB, 0.0), hungry(TOTAL, 9.0), filling(0, MIB), idle(MIB, 2 * MIB)] {
            assert_eq!(check(&[claim]), [TOTAL]);
        }
        assert_eq!(divide(TOTAL, &[]), [0u64; 0]);
    }

    #[test]
    fn idle_and_empty_ones_give_all_but_their_floor_at_once() {
        let mut claims = vec![hungry(MIB, 5.0)];
        claims.resize(256, idle(FLOOR, TOTAL / 256));
        let targets = check(&claims);
        assert_eq!(targets[1..], [FLOOR; 255]);
        assert_eq!(targets[0], TOTAL - 255 * FLOOR);
        // However many there are.
        claims.truncate(3);
        assert_eq!(check(&claims)[0], TOTAL - 2 * FLOOR);
    }

    #[test]
    fn what_an_idle_one_holds_goes_by_halves() {
        let mut claims = [hungry(FLOOR, 5.0), idle(60 * MIB, 60 * MIB)];
        let first = check(&claims);
        assert!(is_near(first[1], 30 * MIB), "{first:?}");
        let later = settle(&mut claims, 6);
        assert!(later[0] > TOTAL / 10 * 9, "most of it within two seconds: {later:?}");
        assert_eq!(settle(&mut claims, 10), [TOTAL - FLOOR, FLOOR]);
    }

    #[test]
    fn nothing_moves_where_nobody_wants_it() {
        let targets = check(&[filling(MIB, 10 * MIB), idle(20 * MIB, 30 * MIB)]);
        assert!(targets[1] >= 20 * MIB, "it keeps what it holds: {targets:?}");
        assert!(targets[0] > 30 * MIB, "a used keyspace gets what nobody has filled");
        let all_idle = check(&[idle(MIB, 10 * MIB), idle(MIB, 20 * MIB)]);
        assert!(is_near(all_idle[0], TOTAL / 2) && is_near(all_idle[1], TOTAL / 2));
    }

    #[test]
    fn one_that_does_not_fill_its_target_gives_the_rest() {
        let targets = check(&[hungry(32 * MIB, 1.0), filling(MIB, 32 * MIB)]);
        assert!((MIB..2 * MIB).contains(&targets[1]), "{targets:?}");
        assert_eq!(targets[0], TOTAL - targets[1]);
    }

    /// One that grows a little keeps what it will fill soon, not all that it was ever given.
    #[test]
    fn one_that_grows_does_not_keep_what_is_empty() {
        let small = |target| Claim { growth: FLOOR, is_hungry: true, ..filling(MIB, target) };
        let mut claims = [hungry(MIB, 1.0), small(32 * MIB), small(31 * MIB)];
        let targets = settle(&mut claims, 20);
        assert!(targets[0] > TOTAL / 4 * 3, "who fills what he has gets it: {targets:?}");
        assert!(targets[1..].iter().all(|target| *target > MIB), "{targets:?}");
        let fast = Claim { growth: 8 * MIB, ..small(40 * MIB) };
        assert!(check(&[hungry(MIB, 1.0), fast])[1] >= 32 * MIB, "it would stop at each look");
    }

    /// What gathers for a checkpoint is gone for a moment afterwards.
    #[test]
    fn memory_that_was_held_lately_stays() {
        let (mut seen, mut uses) = (Seen::default(), 0);
        let mut kept = |used, looks| {
            for _ in 0..looks {
                uses += 10;
                seen.look(uses, used, 0, false);
            }
            seen.claim(FLOOR, used, 40 * MIB).kept(true)
        };
        assert_eq!(kept(40 * MIB, 1), 40 * MIB);
        assert!(kept(MIB, 4) > 32 * MIB, "within a second");
        assert!(kept(MIB, 100) < 2 * MIB, "not always");
    }

    #[test]
    fn between_used_ones_memory_goes_where_it_is_worth_more() {
        let half = TOTAL / 2;
        for ratio in [0.6, 1.0, 1.9] {
            let targets = check(&[hungry(half, 10.0), hungry(half, 10.0 * ratio)]);
            assert_eq!(targets, [half; 2], "{ratio}: nothing moves between equals");
        }
        let targets = check(&[hungry(half, 10.0), hungry(half, 21.0)]);
        assert_eq!(targets, [half - TOTAL / STEP_PART, half + TOTAL / STEP_PART]);
        let mut claims = [hungry(half, 10.0), hungry(half, 50.0)];
        assert_eq!(settle(&mut claims, 20), [FLOOR, TOTAL - FLOOR]);
    }

    #[test]
    fn several_that_want_share_by_worth_and_none_gets_nothing() {
        let claims =
            [hungry(MIB, 30.0), hungry(MIB, 10.0), hungry(MIB, 0.0), idle(FLOOR, 61 * MIB)];
        let targets = check(&claims);
        assert!(targets[0] > targets[1] && targets[1] > targets[2], "{targets:?}");
        assert!(targets[2] > 8 * MIB, "{targets:?}");
    }

    #[test]
    fn less_budget_and_higher_floors_are_kept() {
        let claims = [hungry(60 * MIB, 5.0), idle(60 * MIB, 60 * MIB), filling(9 * MIB, 60 * MIB)];
        let targets = check(&claims);
        assert_eq!(targets[1], FLOOR, "{targets:?}");
        // A loan is a floor.
        let lent = Claim { floor: 16 * MIB, ..filling(FLOOR, FLOOR) };
        let targets = check(&[hungry(64 * MIB, 5.0), lent]);
        assert!(targets[1] >= 16 * MIB && targets[0] <= 48 * MIB, "{targets:?}");
        let many = divide(TOTAL, &[Claim { floor: MIB, ..Claim::default() }; 100]);
        assert!(many.iter().all(|target| *target > MIB / 2) && many.iter().sum::<u64>() <= TOTAL);
    }

    #[test]
    fn who_gives_gives_first() {
        let claims = [hungry(MIB, 5.0), idle(40 * MIB, 40 * MIB)];
        let wanted = [TOTAL - 10 * MIB, 10 * MIB];
        let (granted, is_kept_back) = grant(TOTAL, &claims, &wanted);
        assert_eq!((granted, is_kept_back), (vec![TOTAL - 40 * MIB, 10 * MIB], true));
        let given = [claims[0], Claim { used: 10 * MIB, target: 10 * MIB, ..claims[1] }];
        assert_eq!(grant(TOTAL, &given, &wanted), (wanted.to_vec(), false));
    }

    #[test]
    fn a_pause_is_not_idleness_and_growth_is_hunger() {
        let mut seen = Seen::default();
        let mut look = |uses, used, is_full| {
            seen.look(uses, used, 0, is_full);
            (seen.idle_looks < IDLE_LOOKS, seen.hungry_looks > 0)
        };
        assert_eq!(look(10, MIB, true), (true, true));
        assert_eq!(look(10, MIB, true), (true, true), "one look without a use");
        assert_eq!(look(10, MIB, true), (false, true));
        assert_eq!(look(11, 2 * MIB, false), (true, true), "it has more, and is filling it");
        assert_eq!(look(12, 2 * MIB, false), (true, false), "it has all that it needs");
        let hungry = (1..20).take_while(|at| look(12 + at, (2 + at) * MIB, false).1).count();
        assert!(hungry < 8, "not forever: {hungry}");
    }

    #[test]
    fn worth_is_of_hits_or_else_of_uses() {
        let mut seen = Seen::default();
        for step in 1..20 {
            seen.look(1000 * step, 8 * MIB, 500 * step, true);
        }
        assert!((499.0..=500.0).contains(&seen.worth), "{}", seen.worth);
        let mut writer = Seen::default();
        for step in 1..20 {
            writer.look(1024 * step, 8 * MIB, 0, true);
        }
        assert!((15.9..=16.0).contains(&writer.worth), "{}", writer.worth);
    }
}
