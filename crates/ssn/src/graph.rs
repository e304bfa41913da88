//! The exact multiversion serialization graph of a history, for tests.
//!
//! ```text
//!   versions of a key, by stamp:   v1 (A)      v2 (B)      v3 (C)
//!   T read v2:                     B -> T      T -> C      wr; rw to the immediate next version
//!   writers:                       A -> B      B -> C           ww
//!   A ended before T began:        A -> T                       rt
//! ```
//!
//! Checked, too: nobody overwrote another version than the immediate one before its own (no lost
//! update), and each transaction, committed or not, read the newest versions at its begin stamp (a
//! view of one moment).

use std::collections::BTreeMap;

use crate::Stamp;

/// What one transaction did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// Ticks of the world before it began and after it ended.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) begin: Stamp,
    pub(crate) cstamp: Stamp,
    pub(crate) committed: bool,
    /// Keys, and the stamps of the versions that were read.
    pub(crate) reads: Vec<(usize, Stamp)>,
    /// Keys, and the stamps of the versions that were overwritten.
    pub(crate) writes: Vec<(usize, Stamp)>,
}

/// Checks a whole history over keys whose first versions have the stamps `initial`.
pub(crate) fn check(initial: &[Stamp], history: &[Done]) -> Result<(), String> {
    let first = |stamp: &Stamp| BTreeMap::from([(*stamp, None)]);
    let mut versions: Vec<BTreeMap<Stamp, Option<usize>>> = initial.iter().map(first).collect();
    let committed = || history.iter().enumerate().filter(|(_, done)| done.committed);
    for (writer, done) in committed() {
        for (key, _) in &done.writes {
            versions[*key].insert(done.cstamp, Some(writer));
        }
    }
    let next = |key: usize, stamp: Stamp| versions[key].range(stamp + 1..).next();
    for done in history {
        for (key, stamp) in &done.reads {
            let is_newest = next(*key, *stamp).is_none_or(|(end, _)| *end > done.begin);
            if *stamp > done.begin || !is_newest {
                return Err(format!("no view of one moment: key {key} at {stamp} in {done:?}"));
            }
        }
    }
    // Behind the transactions the moments at which they ended, in their order.
    let mut edges = vec![Vec::new(); 2 * history.len()];
    let mut ends: Vec<(u64, usize)> = committed().map(|(name, done)| (done.ended, name)).collect();
    ends.sort_unstable();
    for (at, (_, name)) in ends.iter().enumerate() {
        edges[*name].push(history.len() + at);
        if at + 1 < ends.len() {
            edges[history.len() + at].push(history.len() + at + 1);
        }
    }
    for (name, done) in committed() {
        let before = ends.partition_point(|(ended, _)| *ended < done.began);
        if let Some(last) = before.checked_sub(1) {
            edges[history.len() + last].push(name);
        }
        for (key, overwritten) in &done.writes {
            let (before, writer) = versions[*key].range(..done.cstamp).next_back().unwrap();
            if before != overwritten {
                return Err(format!("lost update: {before} of key {key} by {done:?}"));
            }
            if *overwritten > done.begin {
                return Err(format!("a second updater of key {key}: {done:?}"));
            }
            edges[name].extend(next(*key, done.cstamp).and_then(|(_, writer)| *writer));
            debug_assert_ne!(*writer, Some(name));
        }
        for (key, stamp) in &done.reads {
            let creator = versions[*key].get(stamp).ok_or("a version that nobody committed")?;
            if let Some(creator) = creator {
                edges[*creator].push(name);
            }
            let overwriter = next(*key, *stamp).and_then(|(_, writer)| *writer);
            edges[name].extend(overwriter.filter(|writer| *writer != name));
        }
    }
    acyclic(&edges).map_err(|cycle| {
        let story: Vec<String> = cycle
            .iter()
            .filter(|name| **name < history.len())
            .take(8)
            .map(|name| format!("{name}: {:?}", history[*name]))
            .collect();
        format!("cycle among:\n{}", story.join("\n"))
    })
}

/// Takes off nodes without predecessors, then nodes without successors; what stays is on cycles or
/// between them.
fn acyclic(edges: &[Vec<usize>]) -> Result<(), Vec<usize>> {
    let mut back = vec![Vec::new(); edges.len()];
    for (from, to) in
        edges.iter().enumerate().flat_map(|(at, to)| to.iter().map(move |to| (at, to)))
    {
        back[*to].push(from);
    }
    let mut stays = vec![true; edges.len()];
    for (out, into) in [(edges, &back[..]), (&back[..], edges)] {
        let mut degree: Vec<usize> =
            into.iter().map(|from| from.iter().filter(|at| stays[**at]).count()).collect();
        let mut free: Vec<usize> =
            (0..edges.len()).filter(|at| stays[*at] && degree[*at] == 0).collect();
        while let Some(at) = free.pop() {
            stays[at] = false;
            for to in out[at].iter().filter(|to| stays[**to]) {
                degree[*to] -= 1;
                if degree[*to] == 0 {
                    free.push(*to);
                }
            }
        }
    }
    let cycle: Vec<usize> = (0..edges.len()).filter(|at| stays[*at]).collect();
    if cycle.is_empty() { Ok(()) } else { Err(cycle) }
}

#[test]
fn the_checker_finds_what_it_is_for() {
    let done = |begin, cstamp, reads: &[(usize, Stamp)], writes: &[(usize, Stamp)]| Done {
        begin,
        cstamp,
        committed: true,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        began: 0,
        ended: cstamp,
    };
    let skew = [done(10, 11, &[(0, 1)], &[(1, 1)]), done(10, 12, &[(1, 1)], &[(0, 1)])];
    assert!(check(&[1, 1], &skew).unwrap_err().starts_with("cycle"));
    assert!(check(&[1, 1], &skew[..1]).is_ok());
    // The second reads an old version though the first has ended before.
    let mut late = [done(10, 11, &[], &[(0, 1)]), done(10, 12, &[(0, 1)], &[])];
    assert!(check(&[1], &late).is_ok());
    late[1].began = 12;
    assert!(check(&[1], &late).unwrap_err().starts_with("cycle"));
    let lost = [done(10, 11, &[], &[(0, 1)]), done(10, 12, &[], &[(0, 1)])];
    assert!(check(&[1], &lost).unwrap_err().starts_with("lost update"));
    let torn = [done(10, 11, &[], &[(0, 1), (1, 1)]), done(11, 0, &[(0, 11), (1, 1)], &[])];
    assert!(check(&[1, 1], &torn).unwrap_err().starts_with("no view"));
}
