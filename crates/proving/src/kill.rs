//! The kill test: a real process on the real disk is killed in the middle of its writes; what it
//! acknowledged must be there, what it removed must not, no batch or transaction may be torn, and beyond the acknowledged only what
//! was in flight. Beside its writes it changes the checkpoint distance, and takes snapshots, which it looks at itself.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use spinney::{Db, EngineKind, Options};
use spinney_base::Runtime;

use crate::tier::Random;

/// Threads of the child.
pub const THREADS: usize = 4;
/// Keys of each thread.
pub const SLOTS: usize = 500;
/// Every batch writes the same number into the keyspace of each engine, which bears its name.
pub const KEYSPACES: [EngineKind; EngineKind::ALL.len()] = EngineKind::ALL;

/// How parent and child open the database.
#[must_use]
pub fn options() -> Options {
    // With room for all records of an engine that keeps them in memory, whatever its snapshots and transactions keep.
    Options::default().memory(4 << 20).log_bytes_max(2 << 20)
}

/// The key of a slot.
#[must_use]
pub fn key(thread: usize, slot: usize) -> Vec<u8> {
    format!("thread-{thread}/slot-{slot:05}").into_bytes()
}

/// The value that stands for `number`.
#[must_use]
pub fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    // One in thirty does not fit a page.
    let length = if number % 30 == 7 { 4_000 + number * 977 % 30_000 } else { number * 37 % 700 };
    let length = 8 + usize::try_from(length).expect("small");
    value.resize(length, u8::try_from(number % 251).expect("small"));
    value
}

/// Whether the batch of a number removes its slot instead of writing it.
#[must_use]
pub fn removes(number: u64) -> bool {
    number % 4 == 3
}

/// What the slot holds once the batch of a number was written there.
fn left_by(number: u64) -> Option<u64> {
    (!removes(number)).then_some(number)
}

/// The line with which the child says that it has changed the checkpoint distance.
pub const CHANGED: &str = "changed";
/// And the one with which it says that a snapshot that it kept through some batches was right, and goes.
pub const LOOKED: &str = "looked";

/// What a child said before it died.
#[derive(Default)]
struct Said {
    /// Thread, slot and number of each batch that was acknowledged, in the order of its thread.
    acknowledged: Vec<(usize, usize, u64)>,
    changed: usize,
    looked: usize,
}

impl Said {
    fn hear(&mut self, line: &str) {
        match line {
            CHANGED => self.changed += 1,
            LOOKED => self.looked += 1,
            _ => {
                let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
                // The last line may be cut short.
                let Ok([thread, slot, number]) = numbers.as_deref() else { return };
                let small = |n: u64| usize::try_from(n).expect("small");
                self.acknowledged.push((small(*thread), small(*slot), *number));
            }
        }
    }
}

/// Runs the child on `directory` and kills it, `rounds` times.
///
/// # Panics
/// When something acknowledged is lost, a batch is torn, or the database is damaged.
pub fn run(child: &Path, directory: &Path, rounds: u64, seed: u64) {
    let mut random = Random::new(seed, 12);
    // The last batch of each slot, by the last round's check and the acknowledgements since.
    let mut known: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let mut first = 1;
    let (mut acknowledgements, mut removals, mut changed, mut looked) = (0, 0, 0, 0);
    for round in 0..rounds {
        let time = Duration::from_millis(20 + random.below(400) as u64);
        let said = run_and_kill(child, directory, first, random.next_u64(), time);
        let lines = said.acknowledged;
        acknowledgements += lines.len();
        removals += lines.iter().filter(|(.., number)| removes(*number)).count();
        changed += said.changed;
        looked += said.looked;
        // The number that each thread was writing when it died, if it wrote on: the one after its
        // last acknowledged.
        let mut next = [first; THREADS];
        for (thread, slot, number) in lines {
            known.insert((thread, slot), number);
            next[thread] = number + 1;
        }
        check(directory, &mut known, next, round);
        first = next.into_iter().max().unwrap_or(first) + 1;
    }
    let told = format!(
        "{rounds} kills, {acknowledgements} acknowledged batches, {removals} of them of removals, {changed} changes of the \
         checkpoint distance, {looked} snapshots"
    );
    println!("{told}");
    let all = [acknowledgements, removals, changed, looked];
    assert!(
        all.iter().all(|count| *count > 0),
        "no child lived long enough for all it does: {told}"
    );
}

fn run_and_kill(child: &Path, directory: &Path, first: u64, seed: u64, time: Duration) -> Said {
    let mut command = Command::new(child);
    command.arg(directory).args([first.to_string(), seed.to_string()]);
    let mut said = Said::default();
    start_and_kill(&mut command, time, &mut |line| said.hear(line));
    said
}

/// Starts a process, passes each line of its standard output to `hear`, and kills it after `time`. The
/// last line may be cut short.
///
/// # Panics
/// When the process cannot be started, or ends by itself.
pub fn start_and_kill(command: &mut Command, time: Duration, hear: &mut (dyn FnMut(&str) + Send)) {
    let mut process = command.stdout(Stdio::piped()).spawn().expect("the child starts");
    let output = process.stdout.take().expect("it is piped");
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                hear(&String::from_utf8_lossy(&line));
            }
        });
        Runtime::threads().sleep(time);
        process.kill().expect("it is our child");
        reader.join().expect("the reader does not panic");
    });
    let status = process.wait().expect("it is our child");
    assert!(!status.success() && status.code().is_none(), "the child ended by itself: {status}");
}

fn check(
    directory: &Path,
    known: &mut BTreeMap<(usize, usize), u64>,
    next: [u64; THREADS],
    round: u64,
) {
    let db = Db::open(directory, options()).expect("what a kill left opens");
    db.verify().expect("what a kill left is whole");
    let there = db.keyspaces();
    if there.len() < KEYSPACES.len() {
        assert!(known.is_empty(), "round {round}: a keyspace is gone");
        return;
    }
    let keyspaces = KEYSPACES.map(|kind| db.existing_keyspace(kind.name()).expect("it is listed"));
    let mut in_flight = [0; THREADS];
    for thread in 0..THREADS {
        for slot in 0..SLOTS {
            let found = keyspaces.each_ref().map(|keyspace| {
                let found = keyspace.get(key(thread, slot)).expect("what a kill left is whole");
                found.map(|value| {
                    let number =
                        u64::from_be_bytes(value[..8].try_into().expect("it has a number"));
                    assert!(*value == *self::value(number), "round {round}: a value is wrong");
                    assert!(!removes(number), "round {round}: {number} is no value");
                    number
                })
            });
            let one = found[0];
            let is_whole = found.iter().all(|other| *other == one);
            assert!(is_whole, "round {round}: a batch is torn: {found:?}");
            let acknowledged = known.get(&(thread, slot)).copied();
            if one == acknowledged.and_then(left_by) {
                continue;
            }
            assert!(
                one == left_by(next[thread]),
                "round {round}: thread {thread} slot {slot} holds {one:?}, acknowledged was {acknowledged:?}, in flight {}",
                next[thread]
            );
            in_flight[thread] += 1;
            known.insert((thread, slot), next[thread]);
        }
    }
    assert!(in_flight.iter().all(|count| *count <= 1), "round {round}: too much was in flight");
    db.close().expect("a good disk");
}
