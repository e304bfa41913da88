//! Approximate sizes, beside the true ones.
#![cfg(not(feature = "shuttle"))]

use spinney_base::Runtime;
use spinney_db::{Db, Durability, EngineKind, Options};

/// Within a fifth where records are alike; a range within a leaf at either end.
#[test]
fn approximate_sizes_are_near_the_true_ones() {
    for engine in EngineKind::ALL {
        for (records, length) in [(400_u64, 50_usize), (60_000, 40), (30_000, 300)] {
            let runtime = Runtime::stepped(1);
            let is_in_memory = !engine.row().capabilities.larger_than_memory;
            let memory = if is_in_memory { 64 << 20 } else { 4 << 20 };
            let options = Options::default().memory(memory).runtime(runtime.clone());
            let db = Db::in_memory(options).unwrap();
            let keyspace = db.keyspace("k", engine).unwrap();
            let key = |number: u64| format!("user {number:08}");
            for number in 0..records {
                let number = number.wrapping_mul(7_919) % records;
                keyspace.insert_with(key(number), vec![7; length], Durability::Buffered).unwrap();
            }
            db.checkpoint().unwrap();
            (0..200).for_each(|_| _ = runtime.step());
            let context = format!("{engine}, {records} of {length} B");
            let near = |found: u64, expected: u64, off: u64| {
                assert!(found.abs_diff(expected) <= off, "{context}: {found} and {expected}");
            };
            near(keyspace.approximate_len().unwrap(), records, records / 5);
            let bytes = (13 + length as u64) * records;
            let leaf = if records < 1000 { 0 } else { 512 << 10 };
            near(keyspace.approximate_bytes(..).unwrap(), bytes, bytes / 5 + leaf / 4);
            let [low, high] = [records / 4, records * 3 / 4].map(key);
            near(keyspace.approximate_bytes(&low..&high).unwrap(), bytes / 2, bytes / 10 + leaf);
            near(keyspace.approximate_bytes(&high..).unwrap(), bytes / 4, bytes / 20 + leaf);
            assert_eq!(keyspace.approximate_bytes("x"..).unwrap(), 0, "{context}");
            let ten = key(10)..key(20);
            assert_eq!(keyspace.approximate_bytes(ten).unwrap(), 10 * (13 + length as u64));
        }
    }
}

#[test]
fn large_values_and_removals_count() {
    for engine in EngineKind::ALL {
        let db = Db::in_memory(Options::default().memory(4 << 20)).unwrap();
        let keyspace = db.keyspace("k", engine).unwrap();
        assert_eq!(
            (keyspace.approximate_len().unwrap(), keyspace.approximate_bytes(..).unwrap()),
            (0, 0)
        );
        for number in 0..2_000_u32 {
            keyspace
                .insert_with(number.to_be_bytes(), vec![1; 20_000], Durability::Buffered)
                .unwrap();
        }
        db.checkpoint().unwrap();
        let all = keyspace.approximate_bytes(..).unwrap();
        assert!((30_000_000..60_000_000).contains(&all), "{engine}: {all}");
        for number in 0..1_900_u32 {
            keyspace.remove_with(number.to_be_bytes(), Durability::Buffered).unwrap();
        }
        assert_eq!(keyspace.approximate_len().unwrap(), 100, "{engine}");
        assert_eq!(keyspace.approximate_bytes(..).unwrap(), 100 * 20_004, "{engine}");
    }
}

/// Records whose values are large are counted by what lies where records lie; the bytes of large values are those of the values, not
/// of their pages.
#[test]
fn large_values_are_no_records_of_their_length() {
    for engine in EngineKind::ALL {
        let db = Db::in_memory(Options::default().memory(4 << 20)).unwrap();
        let keyspace = db.keyspace("k", engine).unwrap();
        let records = (0..5_000_u32).map(|number| (number.to_be_bytes(), vec![1; 10_000]));
        keyspace.bulk_load(records).unwrap();
        let (count, bytes) =
            (keyspace.approximate_len().unwrap(), keyspace.approximate_bytes(..).unwrap());
        // Few leaves have them all, so that a half-filled one counts.
        assert!((3_500..=6_500).contains(&count), "{engine}: {count} records");
        assert!(bytes.abs_diff(50_020_000) < 5_000_000, "{engine}: {bytes} bytes");
    }
}
