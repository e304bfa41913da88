//! Transactions whose keys no other thread reads or writes: each conflict is a false one.
//!
//! Keys of the threads alternate, so threads share pages and stripes and no key. A record begins with a
//! balance. A transaction moves parts of balances, so their sum stays, and its thread knows each balance.

use spinney::{ErrorKind, Transaction};
use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::{Error, Result};

use super::world::{Finding, World, counted, float};

const READS: usize = 30;
const WRITES: usize = 5;

/// What each record has at first.
const BALANCE: u64 = 1_000_000;

/// Keys of one thread, and what it knows of them.
struct Owner {
    thread: u64,
    threads: u64,
    balances: Vec<u64>,
}

impl Owner {
    fn key(&self, index: usize) -> [u8; 8] {
        (index as u64 * self.threads + self.thread).to_be_bytes()
    }

    /// Indexes of different keys.
    fn choose(&self, random: &mut SplitMix) -> [usize; READS] {
        let mut chosen = [0; READS];
        for place in 0..READS {
            chosen[place] = loop {
                let index = random.below(self.balances.len());
                if !chosen[..place].contains(&index) {
                    break index;
                }
            };
        }
        chosen
    }
}

fn balance(value: &[u8]) -> u64 {
    value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

fn value_of(world: &World<'_>, balance: u64) -> Vec<u8> {
    let mut value = world.value(0, 0);
    value[..8].copy_from_slice(&balance.to_le_bytes());
    value
}

fn wrong(key: &[u8], found: u64, expected: u64) -> Error {
    let text = format!("key {} has {found} and not {expected}", key.escape_ascii());
    Error::new(ErrorKind::Corruption, text)
}

/// Reads 30 keys and moves parts of the first 5.
fn body(
    world: &World<'_>,
    owner: &Owner,
    chosen: &[usize; READS],
    moved: u64,
) -> Result<Transaction> {
    let mut transaction = world.db.begin()?;
    let mut value = Vec::new();
    for index in chosen {
        let key = owner.key(*index);
        transaction.get_into(&world.main, key, &mut value)?;
        if balance(&value) != owner.balances[*index] {
            return Err(wrong(&key, balance(&value), owner.balances[*index]));
        }
    }
    for (place, index) in chosen[..WRITES].iter().enumerate() {
        let new = after(owner.balances[*index], place, moved);
        transaction.insert(&world.main, owner.key(*index), value_of(world, new))?;
    }
    Ok(transaction)
}

/// The balance of a transaction's write: the first key gives what the others get.
fn after(balance: u64, place: usize, moved: u64) -> u64 {
    match place {
        0 => balance.wrapping_sub(moved * (WRITES as u64 - 1)),
        _ => balance.wrapping_add(moved),
    }
}

fn work(world: &World<'_>, owner: &mut Owner) -> Result<()> {
    let mut random = world.random(owner.thread);
    while !world.is_done() {
        let chosen = owner.choose(&mut random);
        let moved = random.next_u64() % 100;
        let result = body(world, owner, &chosen, moved).and_then(Transaction::commit);
        match result {
            Ok(()) => {
                for (place, index) in chosen[..WRITES].iter().enumerate() {
                    owner.balances[*index] = after(owner.balances[*index], place, moved);
                }
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn run(world: &World<'_>) -> Result<Finding> {
    let threads = world.plan.threads as u64;
    let each = usize::try_from(world.plan.records / threads).expect("it fits in memory");
    let owner = |thread| Mutex::new(Owner { thread, threads, balances: vec![BALANCE; each] });
    let owners: Vec<_> = (0..threads).map(owner).collect();
    let total = each as u64 * threads;
    let value = value_of(world, BALANCE);
    world.main.bulk_load((0..total).map(|key| (key.to_be_bytes(), &value)))?;
    let before = world.db.stats().transactions;
    let begun = world.time.now();
    let worked = world.beside(
        |thread| work(world, &mut owners[usize::try_from(thread).expect("few")].lock()),
        || {
            world.wait(world.plan.seconds);
            Ok(())
        },
    );
    let seconds = world.time.now().saturating_sub(begun).as_secs_f64();
    let after = world.db.stats().transactions;
    let found = match worked {
        Ok(()) => check(world, &owners),
        Err(error) => Err(error),
    };
    let text = counted(&before, &after);
    match found {
        Ok(()) => {
            let rate = float(after.committed - before.committed) / seconds.max(1e-9);
            Ok(Finding { text: format!("{text}, {rate:.0} committed/s"), is_right: true })
        }
        Err(error) if error.kind() == ErrorKind::Corruption => {
            Ok(Finding { text: format!("{error}; {text}"), is_right: false })
        }
        Err(error) => Err(error),
    }
}

/// Each balance is what its thread knows, and their sum is what it was.
fn check(world: &World<'_>, owners: &[Mutex<Owner>]) -> Result<()> {
    let owners: Vec<_> = owners.iter().map(Mutex::lock).collect();
    let (mut count, mut sum) = (0_u64, 0_u64);
    for record in world.main.iter() {
        let (key, value) = record?;
        let owner = &owners[usize::try_from(count % owners.len() as u64).expect("few")];
        let index = usize::try_from(count / owners.len() as u64).expect("it fits in memory");
        let expected = owner.balances.get(index).copied().unwrap_or(u64::MAX);
        if key != count.to_be_bytes() || balance(&value) != expected {
            return Err(wrong(&key, balance(&value), expected));
        }
        sum = sum.wrapping_add(expected);
        count += 1;
    }
    let expected = owners.iter().map(|owner| owner.balances.len() as u64).sum::<u64>();
    if count == expected && sum == expected.wrapping_mul(BALANCE) {
        return Ok(());
    }
    Err(wrong(b"sum", sum, expected.wrapping_mul(BALANCE)))
}
