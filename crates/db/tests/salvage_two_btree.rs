//! Salvage (rule P22) of 2btree keyspaces whose roots cannot be read, on the simulated disk: the leaves of the file
//! alone have every record, and the report names what damage makes doubtful.
#![cfg(not(feature = "shuttle"))]

#[path = "common/seeds.rs"]
mod seeds;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Db, Durability, EngineKind, KeyspaceOptions, LostRange, Options, SalvageReport};
use spinney_io::sim::SimDisk;
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use crate::seeds::seeds;

const FILE: &str = "/db/keyspace-00000001.spn";
const NEW: &str = "/new";
const PAGE: usize = 4096;
/// Kind of a leaf's block.
const LEAF: u8 = 8;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(3 << 20)
        .log_bytes_max(16 << 20)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

/// A database with a past, what it holds, and every value that a key ever had.
struct Old {
    disk: SimDisk,
    model: Model,
    ever: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
}

/// Several lives of inserts, removals and large values with checkpoints between them; closed, or killed with a tail of
/// the log.
fn an_old_one(seed: u64, is_killed: bool) -> Old {
    let mut disk = SimDisk::new(seed);
    let (mut model, mut ever) = (Model::new(), BTreeMap::<_, Vec<_>>::new());
    for life in 0..3 {
        let runtime = Runtime::stepped(seed + life);
        let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
        let main = KeyspaceOptions::default().engine(EngineKind::TwoBTree);
        let main = db.keyspace("main", main).unwrap();
        for number in 1..=3_000_u64 {
            let number = (seed * 10 + life) * 3_000 + number;
            let key = format!("key {:06}", number.wrapping_mul(0x9E37_79B9) % 3_000).into_bytes();
            let value = match number % 7 {
                0 | 1 => None,
                2 if number % 182 == 2 => Some(number.to_be_bytes().repeat(1_500)),
                _ => Some(number.to_be_bytes().repeat(5 + (number % 40) as usize)),
            };
            match &value {
                Some(value) => {
                    main.insert_with(&key, value, Durability::Buffered).unwrap();
                    model.insert(key.clone(), value.clone());
                }
                None => {
                    main.remove_with(&key, Durability::Buffered).unwrap();
                    model.remove(&key);
                }
            }
            ever.entry(key).or_default().push(value);
            if number.is_multiple_of(20) {
                (0..4).for_each(|_| _ = runtime.step());
            }
            if number.is_multiple_of(700) {
                db.checkpoint().unwrap();
            }
        }
        if life == 2 && is_killed {
            db.flush().unwrap();
            disk = disk.kill();
        } else {
            drop(main);
            db.close().unwrap();
        }
    }
    Old { disk, model, ever }
}

fn salvage(disk: &SimDisk) -> (SalvageReport, Model) {
    let report = Db::salvage("/db", NEW, options(disk, &Runtime::stepped(1))).unwrap();
    let db = Db::open(Path::new(NEW), options(disk, &Runtime::stepped(2))).unwrap();
    db.verify().unwrap();
    let name = db.keyspaces()[0].name.clone();
    let main = db.existing_keyspace(&name).unwrap();
    let all = main.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec()));
    let all = all.collect();
    (report, all)
}

fn zero(disk: &SimDisk, pages: std::ops::Range<u64>) {
    let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
    let count = usize::try_from(pages.end - pages.start).unwrap();
    file.write_at(AlignedBuf::new(count).bytes(), pages.start * 4096, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
}

fn within(ranges: &[LostRange], key: &[u8]) -> bool {
    ranges.iter().any(|range| {
        range.lower[..] <= *key && range.upper.as_deref().is_none_or(|upper| key < upper)
    })
}

/// Both slots and their copies are gone: everything is there, from leaves and images, and with the log on top. Where the
/// newest image is whole no longer, since it was freed and partly written over, what is found may be old.
#[test]
fn p22_leaves_alone_have_every_record() {
    let mut in_doubt = 0;
    for seed in seeds(6) {
        let old = an_old_one(seed, seed % 2 == 1);
        let disk = old.disk.kill();
        zero(&disk, 0..4);
        let (report, found) = salvage(&disk);
        let one = &report.keyspaces[0];
        assert!(one.checkpoint.is_some(), "seed {seed}: {one:#?}");
        assert!(found == old.model, "seed {seed}: {} of {}", found.len(), old.model.len());
        assert!(one.lost.is_empty() && one.damaged.is_empty(), "seed {seed}: {one:#?}");
        in_doubt += usize::from(!one.older.is_empty());
    }
    assert!(in_doubt <= 2, "{in_doubt} of 6");
}

/// Manifest and log are gone, too: the leaves say whose they are.
#[test]
fn p22_leaves_say_whose_they_are() {
    let old = an_old_one(9, false);
    let disk = old.disk.kill();
    zero(&disk, 0..4);
    for file in ["/db/MANIFEST", "/db/wal"] {
        disk.remove(Path::new(file)).unwrap();
    }
    disk.sync_dir(Path::new("/db")).unwrap();
    let (report, found) = salvage(&disk);
    assert!(report.manifest.is_some() && report.log.is_some(), "{report:#?}");
    assert!(found == old.model);
}

/// Leaves are damaged, too: each record is the newest, or the report names it, and was so once.
#[test]
fn p22_what_leaves_do_not_tell_is_said() {
    let (mut lost, mut older) = (0, 0);
    for seed in seeds(6) {
        let old = an_old_one(seed, false);
        let disk = old.disk.kill();
        zero(&disk, 0..4);
        let bytes = disk.contents(Path::new(FILE)).unwrap();
        let leaves = (128..bytes.len() / PAGE).filter(|page| bytes[page * PAGE + 8] == LEAF);
        for page in leaves.step_by(5 + seed as usize) {
            disk.flip_bit(Path::new(FILE), (page * PAGE + 700) as u64, 3).unwrap();
        }
        let (report, found) = salvage(&disk);
        let one = &report.keyspaces[0];
        assert!(!one.damaged.is_empty(), "{one:#?}");
        for (key, all) in &old.ever {
            let now = found.get(key).cloned();
            if now.as_ref() == old.model.get(key) {
                continue;
            }
            let told = within(&one.lost, key) || within(&one.older, key);
            assert!(told || one.lost_values.contains(key), "{}", key.escape_ascii());
            assert!(now.is_none() || all.contains(&now), "{}", key.escape_ascii());
            lost += usize::from(within(&one.lost, key));
            older += 1;
        }
    }
    assert!(lost > 0 && older > lost, "{lost} {older}");
}
