//! Numbers of the paper, for B+trees and what stands beside them there.
//!
//! Its data are 100M records of 128 B (12.8 GB) and its budgets 2.5, 5, 10 and 20 GiB. A budget of
//! ours is laid beside the one that is about as large a share of the data.

/// The paper's budgets as shares of the data.
const SHARES: [f64; 4] = [0.195, 0.39, 0.78, 1.56];
/// How far a share of ours may be from one of the paper's.
const NEAR: f64 = 0.2;

/// Which of the paper's budgets a budget of ours is like.
#[expect(clippy::cast_precision_loss, reason = "a share has two digits")]
pub(crate) fn budget(memory: u64, data: u64) -> Option<usize> {
    let share = memory as f64 / data.max(1) as f64;
    SHARES.iter().position(|paper| (share / paper - 1.0).abs() < NEAR)
}

/// Numbers of one engine by the paper's budgets.
struct Numbers {
    engine: &'static str,
    /// Table 1: bytes moved for each byte inserted.
    load_bytes: [f64; 4],
    /// Table 2: requests of an operation of C and of F.
    reads: [f64; 4],
    updates: [f64; 4],
}

const NUMBERS: [Numbers; 5] = [
    Numbers {
        engine: "btree",
        load_bytes: [151.0, 93.4, 29.4, 0.0],
        reads: [0.54, 0.43, 0.22, 0.0],
        updates: [0.84, 0.68, 0.38, 0.0],
    },
    Numbers {
        engine: "2btree",
        load_bytes: [5.12, 2.56, 1.28, 0.0],
        reads: [0.20, 0.13, 0.05, 0.0],
        updates: [0.30, 0.18, 0.07, 0.0],
    },
    Numbers {
        engine: "treeline",
        load_bytes: [268.8, 248.3, 143.4, 0.0],
        reads: [0.26, 0.17, 0.06, 0.0],
        updates: [0.47, 0.29, 0.07, 0.0],
    },
    Numbers {
        engine: "rocksdb",
        load_bytes: [5.4, 5.4, 5.4, 5.4],
        reads: [0.46, 0.32, 0.1, 0.0],
        updates: [0.30, 0.19, 0.08, 0.02],
    },
    Numbers {
        engine: "rocksdb-rows",
        load_bytes: [5.4, 5.4, 5.4, 5.4],
        reads: [0.27, 0.19, 0.09, 0.0],
        updates: [0.52, 0.38, 0.25, 0.18],
    },
];

/// A number of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Published {
    LoadBytes,
    Reads,
    Updates,
}

/// The paper's number for an engine at a budget.
pub(crate) fn number(which: Published, engine: &str, budget: Option<usize>) -> Option<f64> {
    let numbers = NUMBERS.iter().find(|one| one.engine == engine)?;
    let row = match which {
        Published::LoadBytes => &numbers.load_bytes,
        Published::Reads => &numbers.reads,
        Published::Updates => &numbers.updates,
    };
    row.get(budget?).copied()
}

/// Ratios of throughput to the base that the text of the paper gives, each for one budget or for
/// all: figure, workload, engine, budget, ratio.
const RATIOS: [(&str, &str, &str, Option<usize>, &str); 9] = [
    ("fig12", "load", "2btree", Some(0), "9.8"),
    ("fig12", "load", "treeline", Some(0), "0.80"),
    ("fig13", "c", "2btree", Some(2), "3.7"),
    ("fig13", "f", "2btree", Some(2), "4.5"),
    ("fig14", "load", "2btree", Some(0), "5.8"),
    ("fig15", "c", "2btree", Some(2), "2.96"),
    ("fig15", "f", "2btree", Some(2), "3.8"),
    ("fig16", "su", "2btree", None, "0.5 to 1"),
    ("fig16", "su", "treeline", None, "down to 0.01"),
];

/// The ratio of a figure, or `-`.
pub(crate) fn ratio(
    figure: &str,
    workload: &str,
    engine: &str,
    budget: Option<usize>,
) -> &'static str {
    let is_it = |one: &&(&str, &str, &str, Option<usize>, &str)| {
        one.0 == figure
            && one.1 == workload
            && one.2 == engine
            && (one.3.is_none() || one.3 == budget)
    };
    RATIOS.iter().find(is_it).map_or("-", |one| one.4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_matched_by_their_share() {
        let data = 10_000_000 * 128;
        let budgets = [256_u64, 512, 1024, 2048, 100].map(|mib| budget(mib << 20, data));
        assert_eq!(budgets, [Some(0), Some(1), Some(2), Some(3), None]);
        assert_eq!(number(Published::Reads, "2btree", Some(1)), Some(0.13));
        assert_eq!(number(Published::Reads, "oak", Some(1)), None);
        assert_eq!(ratio("fig13", "f", "2btree", Some(2)), "4.5");
        assert_eq!(ratio("fig13", "f", "2btree", Some(1)), "-");
        assert_eq!(ratio("fig16", "su", "2btree", Some(1)), "0.5 to 1");
    }
}
