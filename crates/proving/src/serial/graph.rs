//! The graph of a history: who must come before whom.
//!
//! ```text
//!   ww  from the writer of a version to the writer of the next one
//!   wr  from the writer of a version to who read it
//!   rw  from who read a version to the writer of the next one
//!   rt  from who ended to who began afterwards
//! ```
//!
//! A history is strictly serializable if and only if no circle of these edges exists. Transactions
//! that did not commit take part with what they read: their bodies must not see a state that no
//! moment had, either.
//!
//! Which version an absent key showed is not written in it. It counts only if by the times of begin
//! and end just one version can have been it, so no circle is reported in error. If none can, the read
//! is wrong.

use std::collections::HashMap;

/// One transaction, or a plain read or write.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Number of the transaction, from 1; each value names its writer by it.
    pub id: u64,
    /// Tick of the run's clock before it began.
    pub began: u64,
    /// Tick of the same clock after it ended.
    pub ended: u64,
    /// LSN of its commit; 0 for one that wrote nothing.
    pub lsn: u64,
    /// Numbers of keys, and who wrote what was read; `None` when the key was absent.
    pub reads: Vec<(usize, Option<u64>)>,
    /// Numbers of keys, and whether a value was put (else the key was removed).
    pub writes: Vec<(usize, bool)>,
}

/// A version of a key: by whom, and whether it is a value.
#[derive(Clone, Copy)]
struct Version {
    /// Index of the record; `None` for the absence before the first write.
    by: Option<usize>,
    is_value: bool,
}

/// The versions of a key.
struct Versions {
    /// In their order, from the absence before the first write.
    order: Vec<Version>,
    /// Writers of later versions whose order is unknown.
    behind: Vec<usize>,
}

impl Default for Versions {
    fn default() -> Self {
        Versions { order: vec![Version { by: None, is_value: false }], behind: Vec::new() }
    }
}

/// Numbers of the records that wrote a key.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// In the order of their versions.
    pub writers: Vec<u64>,
    /// Later than all of those, in an order that is unknown.
    pub behind: Vec<u64>,
}

/// A circle, told edge by edge, or a value that nobody wrote.
pub type Story = String;

/// Checks a history whose versions are in the order of the log.
///
/// # Errors
/// The story of a circle, or of a read that no committed write explains.
pub fn check(records: &[Record]) -> Result<(), Story> {
    check_versions(records, &versions(records))
}

/// Checks a history of keys that are never removed, whose versions are in a given order.
///
/// # Errors
/// As [`check`].
pub fn check_order(records: &[Record], orders: &HashMap<usize, Order>) -> Result<(), Story> {
    let by_id = by_id(records);
    let of_key = |order: &Order| {
        let writers = order.writers.iter().filter_map(|id| by_id.get(id));
        let mut versions = Versions::default();
        versions.order.extend(writers.map(|by| Version { by: Some(*by), is_value: true }));
        versions.behind.extend(order.behind.iter().filter_map(|id| by_id.get(id)));
        versions
    };
    let versions = orders.iter().map(|(key, order)| (*key, of_key(order))).collect();
    check_versions(records, &versions)
}

/// Places of the records, by their numbers.
fn by_id(records: &[Record]) -> HashMap<u64, usize> {
    records.iter().enumerate().map(|(index, record)| (record.id, index)).collect()
}

fn check_versions(records: &[Record], versions: &HashMap<usize, Versions>) -> Result<(), Story> {
    let by_id = by_id(records);
    let mut edges = Edges::of(records);
    for of_key in versions.values() {
        for pair in of_key.order.windows(2) {
            edges.add(pair[0].by, pair[1].by, "ww");
        }
        for later in &of_key.behind {
            edges.add(of_key.order.last().and_then(|last| last.by), Some(*later), "ww");
        }
    }
    let none = Versions::default();
    let places = |of_key| (of_key, Places::of(records, of_key));
    let of_keys: HashMap<usize, (&Versions, Places)> =
        versions.iter().map(|(key, of_key)| (*key, places(of_key))).collect();
    let none = places(&none);
    for (reader, record) in records.iter().enumerate() {
        for (key, seen) in &record.reads {
            let (Versions { order: of_key, behind }, places) = of_keys.get(key).unwrap_or(&none);
            let place = match seen {
                None => places.absence(record).map_err(|()| {
                    format!("{record:?} read key {key} as absent, which it was not while it ran")
                })?,
                Some(id) => {
                    let at = by_id.get(id).and_then(|writer| places.values.get(writer)).copied();
                    let Some(at) = at else {
                        return Err(format!(
                            "{record:?} read of key {key} what {id} wrote, which did not commit"
                        ));
                    };
                    Some(at)
                }
            };
            let Some(place) = place else { continue };
            edges.add(of_key[place].by, Some(reader), "wr");
            match of_key.get(place + 1) {
                Some(next) => edges.add(Some(reader), next.by, "rw"),
                None => behind.iter().for_each(|next| edges.add(Some(reader), Some(*next), "rw")),
            }
        }
    }
    edges.circle().map_or(Ok(()), |circle| Err(edges.tell(records, &circle)))
}

/// The versions of each key, in the order of the log.
fn versions(records: &[Record]) -> HashMap<usize, Versions> {
    let mut writers: Vec<usize> = (0..records.len()).filter(|it| records[*it].lsn > 0).collect();
    writers.sort_unstable_by_key(|index| records[*index].lsn);
    let mut versions: HashMap<usize, Versions> = HashMap::new();
    for index in writers {
        for (key, is_value) in &records[index].writes {
            let of_key = versions.entry(*key).or_default();
            of_key.order.push(Version { by: Some(index), is_value: *is_value });
        }
    }
    versions
}

/// Where versions of a key lie in their order.
struct Places {
    /// Values, by their writers.
    values: HashMap<usize, usize>,
    /// Versions without a value.
    absences: Vec<Absence>,
}

/// A version without a value, and while when it can have been there.
struct Absence {
    place: usize,
    /// When its writer began.
    began: u64,
    /// When the writer of the next version ended.
    over: u64,
    /// The least `began` of it and those behind.
    began_from_here: u64,
    /// The greatest `over` of it and those before.
    over_up_to_here: u64,
}

impl Places {
    fn of(records: &[Record], versions: &Versions) -> Places {
        let (order, mut values, mut absences) = (&versions.order, HashMap::new(), Vec::new());
        let mut latest = 0;
        for (place, version) in order.iter().enumerate() {
            if let (true, Some(by)) = (version.is_value, version.by) {
                values.entry(by).or_insert(place);
            }
            if !version.is_value {
                let began = version.by.map_or(0, |by| records[by].began);
                let next = order.get(place + 1);
                let over = next.map_or(u64::MAX, |it| it.by.map_or(0, |by| records[by].ended));
                latest = over.max(latest);
                let (began_from_here, over_up_to_here) = (began, latest);
                absences.push(Absence { place, began, over, began_from_here, over_up_to_here });
            }
        }
        let mut least = u64::MAX;
        for absence in absences.iter_mut().rev() {
            least = absence.began.min(least);
            absence.began_from_here = least;
        }
        Places { values, absences }
    }

    /// The only version without a value that can have been there while a record ran; `None` if there
    /// are several. An error if there is none.
    fn absence(&self, reader: &Record) -> Result<Option<usize>, ()> {
        let first = self.absences.partition_point(|it| it.over_up_to_here < reader.began);
        let end = self.absences.partition_point(|it| it.began_from_here < reader.ended);
        let can_be = |it: &&Absence| it.began < reader.ended && it.over >= reader.began;
        let mut all = self.absences.get(first..end).unwrap_or_default().iter().filter(can_be);
        let first = all.next().ok_or(())?;
        Ok(all.next().is_none().then_some(first.place))
    }
}

/// Edges between nodes. Records come first; behind them is a node for each end of a record, in their
/// order, which say with few edges who ended before whom began.
struct Edges {
    to: Vec<Vec<(usize, &'static str)>>,
}

impl Edges {
    fn of(records: &[Record]) -> Edges {
        let mut edges = Edges { to: vec![Vec::new(); 2 * records.len()] };
        let mut ends: Vec<(u64, usize)> =
            records.iter().enumerate().map(|(index, record)| (record.ended, index)).collect();
        ends.sort_unstable();
        let node = |place: usize| records.len() + place;
        for (place, (_, index)) in ends.iter().enumerate() {
            edges.add(Some(*index), Some(node(place)), "ended");
            if place + 1 < ends.len() {
                edges.add(Some(node(place)), Some(node(place + 1)), "then");
            }
        }
        for (index, record) in records.iter().enumerate() {
            let before = ends.partition_point(|(ended, _)| *ended < record.began);
            if before > 0 {
                edges.add(Some(node(before - 1)), Some(index), "began");
            }
        }
        edges
    }

    fn add(&mut self, from: Option<usize>, to: Option<usize>, kind: &'static str) {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            self.to[from].push((to, kind));
        }
    }

    /// Nodes of a circle, in order.
    fn circle(&self) -> Option<Vec<usize>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            No,
            Open,
            Done,
        }
        let mut seen = vec![Seen::No; self.to.len()];
        for start in 0..self.to.len() {
            if seen[start] != Seen::No {
                continue;
            }
            // The nodes of the path, and how many of their edges were followed.
            let mut path = vec![(start, 0)];
            seen[start] = Seen::Open;
            while let Some((node, followed)) = path.last_mut() {
                let Some((to, _)) = self.to[*node].get(*followed) else {
                    seen[*node] = Seen::Done;
                    path.pop();
                    continue;
                };
                *followed += 1;
                match seen[*to] {
                    Seen::Open => {
                        let from = path.iter().position(|(node, _)| node == to)?;
                        return Some(path[from..].iter().map(|(node, _)| *node).collect());
                    }
                    Seen::No => {
                        seen[*to] = Seen::Open;
                        path.push((*to, 0));
                    }
                    Seen::Done => {}
                }
            }
        }
        None
    }

    fn tell(&self, records: &[Record], circle: &[usize]) -> Story {
        let mut story = String::from("a circle:\n");
        for (place, node) in circle.iter().enumerate() {
            let next = circle[(place + 1) % circle.len()];
            let kind =
                self.to[*node].iter().find(|(to, _)| *to == next).map_or("", |(_, kind)| kind);
            match records.get(*node) {
                Some(record) => story += &format!("  {record:?}\n    {kind}\n"),
                None => story += &format!("    {kind}\n"),
            }
        }
        story
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that ran at the same time as all others.
    fn record(id: u64, lsn: u64, reads: &[(usize, u64)], writes: &[usize]) -> Record {
        let reads = reads.iter().map(|(key, by)| (*key, Some(*by).filter(|by| *by > 0))).collect();
        let writes = writes.iter().map(|key| (*key, true)).collect();
        Record { id, began: 1, ended: 100 + id, lsn, reads, writes }
    }

    /// Keys 0 and 1, written before everything else.
    fn first() -> Record {
        Record { began: 0, ended: 0, ..record(1, 1, &[], &[0, 1]) }
    }

    #[test]
    fn planted_anomalies_are_circles() {
        let anomalies: [(&str, Vec<Record>); 6] = [
            ("lost update", vec![record(2, 2, &[(0, 1)], &[0]), record(3, 3, &[(0, 1)], &[0])]),
            (
                "write skew",
                vec![record(2, 2, &[(0, 1), (1, 1)], &[0]), record(3, 3, &[(0, 1), (1, 1)], &[1])],
            ),
            ("read skew", vec![record(2, 2, &[], &[0, 1]), record(3, 0, &[(0, 1), (1, 2)], &[])]),
            (
                "half a batch",
                vec![record(2, 2, &[], &[0, 1]), record(3, 3, &[(0, 2), (1, 1)], &[2])],
            ),
            (
                "read-only anomaly",
                vec![
                    record(2, 3, &[(0, 1), (1, 1)], &[0]),
                    record(3, 2, &[(1, 1)], &[1]),
                    record(4, 0, &[(0, 1), (1, 3)], &[]),
                ],
            ),
            (
                "stale read",
                vec![
                    Record { began: 5, ended: 6, ..record(2, 2, &[], &[0]) },
                    Record { began: 7, ended: 8, ..record(3, 0, &[(0, 1)], &[]) },
                ],
            ),
        ];
        for (name, mut records) in anomalies {
            records.insert(0, first());
            let story = check(&records).expect_err(name);
            assert!(story.contains("a circle"), "{name}: {story}");
        }
        let uncommitted = [first(), record(3, 0, &[(0, 9)], &[])];
        assert!(check(&uncommitted).unwrap_err().contains("did not commit"));
    }

    #[test]
    fn right_histories_have_none() {
        let orders: [Vec<Record>; 4] = [
            vec![record(2, 2, &[(0, 1)], &[0]), record(3, 3, &[(0, 2)], &[0])],
            // Who only read what another overwrote may have the later LSN.
            vec![record(2, 3, &[(0, 1)], &[1]), record(3, 2, &[], &[0])],
            vec![record(2, 2, &[], &[0, 1]), record(3, 0, &[(0, 1), (1, 1)], &[])],
            vec![
                Record { began: 5, ended: 6, ..record(2, 2, &[], &[0]) },
                Record { began: 4, ended: 8, ..record(3, 0, &[(0, 1)], &[]) },
            ],
        ];
        for mut records in orders {
            records.insert(0, first());
            check(&records).unwrap();
        }
    }

    #[test]
    fn an_absence_counts_if_it_can_be_one_only() {
        let removal = Record {
            writes: vec![(0, false)],
            ..Record { began: 10, ended: 11, ..record(2, 2, &[], &[]) }
        };
        let put = Record { began: 20, ended: 21, ..record(3, 3, &[], &[0]) };
        let absent = |began, ended| Record { began, ended, ..record(4, 0, &[(0, 0), (1, 1)], &[]) };
        let history = |reader| [first(), removal.clone(), put.clone(), reader];
        check(&history(absent(12, 13))).unwrap();
        check(&history(absent(12, 30))).unwrap();
        let story = check(&history(absent(22, 23))).unwrap_err();
        assert!(story.contains("as absent, which it was not"), "{story}");
        // Another key tells that it ran after the put.
        let other = Record { began: 22, ended: 23, ..record(5, 4, &[], &[1]) };
        let late = Record { began: 12, ended: 30, ..record(6, 0, &[(0, 0), (1, 5)], &[]) };
        let story = check(&[first(), removal.clone(), put.clone(), other, late]);
        assert!(story.unwrap_err().contains("a circle"));
    }
}
