//! Salvage of leaves and of trees whose nodes have few pivots, so that they are high.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng, rngs::StdRng};

use spinney_base::{KeyspaceId, Lsn, PageNumber, Poison};
use spinney_cache::Cache;
use spinney_engine::{KeyspaceSalvage, LostRange};
use spinney_extent::store::DATA_PAGE_FIRST;
use spinney_extent::{BlockHeader, BlockKind, Checkpoint, Store, StoreOptions};
use spinney_io::sim::SimDisk;
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use super::Salvage;
use super::edits::{Edits, Use};
use crate::disk::DiskFiles;
use crate::kinds::{block, purpose};
use crate::leaf::format::Section;
use crate::leaf::{Leaf, LeafStore};
use crate::runs::Runs;
use crate::tests::{limits, run};
use crate::tree::Tree;
use spinney_engine::Notes;

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const PATH: &str = "/turtle";

fn store(disk: &SimDisk) -> Store {
    let poison = Arc::new(Poison::new());
    let options = StoreOptions { keyspace: KEYSPACE, double_write: false, poison };
    let store = Store::create(&*disk.at("/"), "turtle", options, Lsn::ZERO).unwrap();
    store.adopt(&[]).unwrap();
    store
}

fn flip(disk: &SimDisk, page: PageNumber) {
    disk.flip_bit(Path::new(PATH), page.offset() + 900, 2).unwrap();
}

fn within(ranges: &[LostRange], key: &[u8]) -> bool {
    ranges.iter().any(|range| {
        range.lower.as_slice() <= key && range.upper.as_deref().is_none_or(|upper| key < upper)
    })
}

/// Of a leaf with many pages of keys and values some are damaged: within any bounds exactly what is
/// not on those is found, and holes tell where the rest was.
#[test]
fn p22_a_leaf_gives_all_that_is_whole() {
    let mut rng = StdRng::seed_from_u64(5);
    let key = |number: u32| format!("{:06}", number * 3).into_bytes();
    let value = |number: u32| number.to_le_bytes().repeat((number % 40) as usize);
    for round in 0..30 {
        let disk = SimDisk::new(round);
        let store = store(&disk);
        let cache = Cache::new(1 << 20);
        let files = LeafStore::new(Arc::new(store), cache.file());
        let edits: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..9_000)
            .map(|number| (key(number), (number % 11 != 3).then(|| value(number))))
            .collect();
        let all = run(edits.iter().map(|(key, value)| (&key[..], value.as_deref())));
        let leaf = Leaf::write(&files, &Runs::from(all), 10, Lsn(7), purpose::LEAF).unwrap();
        let description = *leaf.description();
        let pages = description.section_pages();
        assert!(pages[Section::Keys as usize] > 10 && pages[Section::Values as usize] > 10);
        // Which items lie on which page of keys; of each, which pages its value takes.
        let first =
            |section: Section| description.first.0 + pages[..section as usize].iter().sum::<u32>();
        let mut damaged = BTreeSet::new();
        for _ in 0..rng.random_range(0..6) {
            let section = if rng.random() { Section::Keys } else { Section::Values };
            damaged.insert(first(section) + rng.random_range(0..pages[section as usize]));
        }
        let mut healthy = Vec::new();
        let mut notes = Notes::default();
        let mut whole = Edits::new(&files.store, description, Use::Named, b"", None);
        while whole.peek(&mut notes).is_some() {
            healthy.push(whole.take().unwrap());
        }
        assert_eq!(healthy.len(), edits.len());
        damaged.iter().for_each(|page| flip(&disk, PageNumber(*page)));
        for _ in 0..6 {
            let (lower, upper) = (rng.random_range(0..28_000), rng.random_range(0..28_000));
            let (lower, upper) = (format!("{lower:06}"), format!("{:06}", lower + upper));
            let (lower, upper) = (lower.as_bytes(), upper.as_bytes());
            let (lower, upper) =
                if round % 5 == 0 { (&b""[..], None) } else { (lower, Some(upper)) };
            let mut found = Edits::new(&files.store, description, Use::Named, lower, upper);
            let mut values = 0;
            let mut seen = BTreeMap::new();
            while found.peek(&mut notes).is_some() {
                let edit = found.take().unwrap();
                let value = found.value(&edit, &mut notes);
                values += usize::from(value.is_none());
                seen.insert(edit.key, value);
            }
            let holes = std::mem::take(&mut found.holes);
            for (key, value) in &edits {
                let wanted = lower <= &key[..] && upper.is_none_or(|upper| &key[..] < upper);
                match seen.get(key) {
                    Some(found) => {
                        assert!(wanted && !within(&holes, key));
                        let is_it = found.as_ref().is_none_or(|found| {
                            value.as_ref().map_or(found.is_empty(), |value| value == found)
                        });
                        assert!(is_it, "{}", key.escape_ascii());
                    }
                    None => assert_eq!(wanted, within(&holes, key), "{}", key.escape_ascii()),
                }
            }
            let of_values = damaged.iter().any(|page| *page >= first(Section::Values));
            assert!(values == 0 || of_values);
            if damaged.is_empty() {
                assert!(values == 0 && holes.is_empty());
            }
        }
        drop(leaf);
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree with a past, and everything that its keys ever had.
struct World {
    disk: SimDisk,
    files: DiskFiles,
    model: Model,
    ever: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
    /// The tree of the newest checkpoint.
    published: Tree<DiskFiles>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let disk = SimDisk::new(seed);
        let cache = Cache::new(1 << 20);
        let leaves = LeafStore::new(Arc::new(store(&disk)), cache.file());
        let files = DiskFiles::new(leaves, limits(6000, 6), 10, 1);
        let (model, published) = (Model::new(), Tree::empty());
        let mut world = World { disk, files, model, ever: BTreeMap::new(), published };
        let mut tree = Tree::empty();
        let mut superseded = Vec::new();
        let (chi, rounds) = (rng.random_range(1..7), rng.random_range(12..40));
        for round in 1..=rounds * chi {
            let batch = world.batch(&mut rng, round);
            let batch = run(batch.iter().map(|(key, value)| (&key[..], value.as_deref())));
            // Of a keyspace without a log nothing moves on.
            let lsn = Lsn(if seed.is_multiple_of(3) { 5 } else { round });
            world.files.set_lsn(lsn);
            let left = chi - 1 - (round - 1) % chi;
            let runs = Runs::from(batch);
            tree = tree.apply(&world.files, &runs, Some(left), &mut superseded).unwrap();
            if left > 0 {
                tree = tree.write_early(&world.files, left).unwrap();
            } else {
                tree = tree.write(&world.files, &mut superseded).unwrap();
                let payload = crate::payload::encode(&tree.describe(&world.files).unwrap(), &[]);
                let checkpoint = Checkpoint { redo: lsn, structure: 0 };
                let published = &world.files.files.store;
                published.publish(checkpoint, &payload, || Ok(())).unwrap();
                world.published = tree.clone();
            }
        }
        world
    }

    fn batch(&mut self, rng: &mut StdRng, round: u64) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let mut batch = BTreeMap::new();
        let from = rng.random_range(0..3_000);
        let width = [150, 4_000][rng.random_range(0..2)];
        for _ in 0..150 {
            let key = format!("{:05}", from + rng.random_range(0..width)).into_bytes();
            let length = rng.random_range(0..120);
            let value = (rng.random_range(0..4) > 0)
                .then(|| format!("{round} ").into_bytes().repeat(length / 4 + 1));
            batch.insert(key, value);
        }
        for (key, value) in &batch {
            self.ever.entry(key.clone()).or_default().push(value.clone());
            match value {
                Some(value) => _ = self.model.insert(key.clone(), value.clone()),
                None => _ = self.model.remove(key),
            }
        }
        batch
    }

    /// Returns what a salvage of the file finds, and checks that it reports all that is not as it
    /// was.
    fn salvage(&self, disk: &SimDisk, when: &str) -> (usize, Salvage) {
        let mut salvage = Salvage::open(&*disk.at("/"), "turtle", KEYSPACE, true).unwrap();
        salvage.read_pages().unwrap();
        let mut found = Model::new();
        let shown = salvage.records(&mut |_, key, value| {
            match value {
                Some(value) => _ = found.insert(key.to_vec(), value.bytes.to_vec()),
                None => _ = found.remove(key),
            }
            Ok(())
        });
        shown.unwrap();
        let findings = salvage.findings();
        let mut wrong = 0;
        for (key, all) in &self.ever {
            let now = found.get(key).cloned();
            if now.as_ref() != self.model.get(key) {
                wrong += 1;
                let told = within(&findings.lost, key) || within(&findings.older, key);
                assert!(
                    told,
                    "{when}: {} is wrong, {now:?} {:?} {findings:?}",
                    key.escape_ascii(),
                    self.model.get(key)
                );
                assert!(now.is_none() || all.contains(&now), "{when}: {}", key.escape_ascii());
            }
        }
        assert!(found.keys().all(|key| self.ever.contains_key(key)), "{when}: a new key");
        (wrong, salvage)
    }

    fn pages(&self) -> u32 {
        (self.disk.contents(Path::new(PATH)).unwrap().len() / 4096) as u32
    }
}

fn zero(disk: &SimDisk, page: PageNumber) {
    let file = disk.open(Path::new(PATH), OpenMode::EXISTING).unwrap();
    file.write_at(AlignedBuf::new(1).bytes(), page.offset(), Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
}

/// Whatever the shape of the tree: all of it, without slots as well as with them.
#[test]
fn p22_a_sound_tree_is_found_whole() {
    for seed in 0..40 {
        let world = World::new(seed);
        for slots in [0..0, 0..1, 1..2, 0..2] {
            let disk = world.disk.kill();
            slots.clone().for_each(|page| zero(&disk, PageNumber(page)));
            let when = format!("seed {seed}, slots {slots:?}");
            let (wrong, salvage) = world.salvage(&disk, &when);
            let findings = salvage.findings();
            assert!(wrong == 0 && findings.damaged.is_empty(), "{when}: {findings:#?}");
            assert!(findings.lost.is_empty() && findings.older.is_empty(), "{when}: {findings:#?}");
            assert!(salvage.redo().is_some(), "{when}");
        }
        // Not even a checkpoint's payload is left: the newest node is the root.
        let disk = world.disk.kill();
        let bytes = disk.contents(Path::new(PATH)).unwrap();
        let is_lost = |page: &u32| *page < 2 || bytes[*page as usize * 4096 + 8] == 3;
        (0..world.pages()).filter(is_lost).for_each(|page| zero(&disk, PageNumber(page)));
        let (wrong, salvage) = world.salvage(&disk, "no checkpoint");
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(!salvage.findings().older.is_empty() && salvage.redo().is_none());
    }
}

/// One page after the other, and many: the report covers what is not as it was, and little more.
#[test]
fn p22_damage_of_a_tree_is_told() {
    let (mut hurt, mut wrong_by_nodes, mut nodes) = (0, 0, 0);
    for seed in 0..12 {
        let world = World::new(100 + seed);
        let bytes = world.disk.contents(Path::new(PATH)).unwrap();
        let kind = |page: u32| bytes[page as usize * 4096 + 8];
        let mut rng = StdRng::seed_from_u64(seed);
        for page in DATA_PAGE_FIRST..world.pages() {
            let is_node = kind(page) == 6;
            if kind(page) == 0 || !is_node && rng.random_range(0..12) > 0 {
                continue;
            }
            let disk = world.disk.kill();
            flip(&disk, PageNumber(page));
            let (wrong, salvage) = world.salvage(&disk, &format!("seed {seed}, page {page}"));
            let findings = salvage.findings();
            let told = !findings.lost.is_empty() || !findings.older.is_empty();
            let why = !findings.damaged.is_empty() || findings.checkpoint.is_some();
            assert!(!told || why, "{findings:#?}");
            hurt += usize::from(told);
            if is_node && told {
                (wrong_by_nodes, nodes) = (wrong_by_nodes + wrong, nodes + 1);
            } else {
                assert!(wrong < 700, "page {page}: {wrong}");
            }
        }
        for share in [3, 30] {
            let disk = world.disk.kill();
            for page in 0..world.pages() {
                if rng.random_range(0..share) > 0 {
                    continue;
                }
                if rng.random() {
                    flip(&disk, PageNumber(page))
                } else {
                    zero(&disk, PageNumber(page))
                }
            }
            world.salvage(&disk, &format!("seed {seed}, one of {share}"));
        }
    }
    assert!(hurt > 60 && nodes > 30, "{hurt} pages hurt, {nodes} of them nodes");
    assert!(wrong_by_nodes < nodes * 5, "{wrong_by_nodes} records by {nodes} nodes");
}

/// Nothing is left of the newest checkpoint that leads to its tree: the one before is found whole,
/// and its records are reported as possibly older.
#[test]
fn p22_an_older_checkpoint_is_told() {
    let mut wrong = 0;
    for seed in 0..20 {
        let world = World::new(300 + seed);
        let bytes = world.disk.contents(Path::new(PATH)).unwrap();
        let header = |page: u32| {
            let mut block = AlignedBuf::new(1);
            block.bytes_mut().copy_from_slice(&bytes[page as usize * 4096..][..4096]);
            BlockHeader::decode(block.page(0)).ok()
        };
        let newest = |kind: BlockKind| {
            let of_kind = move |page: &u32| header(*page).is_some_and(|header| header.kind == kind);
            let pages = (DATA_PAGE_FIRST..world.pages()).filter(of_kind);
            let newest = pages.clone().map(|page| header(page).unwrap().generation).max();
            pages.filter(move |page| Some(header(*page).unwrap().generation) == newest)
        };
        for slot in 0..2 {
            let disk = world.disk.kill();
            let lost = newest(BlockKind::CHECKPOINT).chain(newest(block::NODE)).chain([slot]);
            lost.for_each(|page| zero(&disk, PageNumber(page)));
            let (older, salvage) = world.salvage(&disk, &format!("seed {seed}, slot {slot}"));
            assert!(older == 0 || salvage.findings().checkpoint.is_some());
            wrong += older;
        }
    }
    assert!(wrong > 0, "no checkpoint before had other records");
}

/// Pages whose checksums hold and whose bytes are nonsense: nothing panics, nothing runs forever.
#[test]
fn p22_nonsense_does_not_panic() {
    let mut rng = StdRng::seed_from_u64(9);
    for seed in 0..4 {
        let world = World::new(200 + seed);
        let bytes = world.disk.contents(Path::new(PATH)).unwrap();
        for round in 0..150 {
            let disk = world.disk.kill();
            let file = disk.open(Path::new(PATH), OpenMode::EXISTING).unwrap();
            for page in DATA_PAGE_FIRST..world.pages() {
                let block = &bytes[page as usize * 4096..][..4096];
                let share = if block[8] == 6 { 3 } else { 10 };
                if rng.random_range(0..share) > 0 {
                    continue;
                }
                let mut buf = AlignedBuf::new(1);
                buf.bytes_mut().copy_from_slice(block);
                let Ok(header) = BlockHeader::decode(buf.page(0)) else { continue };
                for _ in 0..rng.random_range(1..4) {
                    let most = [16, 60, 4064][rng.random_range(0..3)];
                    let at = 32 + rng.random_range(0..most);
                    let byte = [0, 1, 0xff, rng.random()][rng.random_range(0..4)];
                    buf.bytes_mut()[at] = byte;
                }
                header.seal(buf.page_mut(0));
                file.write_at(buf.bytes(), PageNumber(page).offset(), Purpose::TOOL).unwrap();
            }
            if round % 3 == 0 {
                zero(&disk, PageNumber(0));
                zero(&disk, PageNumber(1));
            }
            let mut salvage = Salvage::open(&*disk.at("/"), "turtle", KEYSPACE, true).unwrap();
            salvage.read_pages().unwrap();
            salvage.records(&mut |_, _, _| Ok(())).unwrap();
        }
    }
}
