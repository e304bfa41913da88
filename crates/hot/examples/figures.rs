//! What a record costs in the hot tier: bytes beside key and value, and lookups of one thread.
//!
//! `cargo run --release -p spinney-hot --example figures -- RECORDS VALUE_BYTES LOOKUPS [SWEEPS]`

use spinney_base::ValueRef;
use spinney_base::runtime::SplitMix;
use spinney_hot::{Cached, HotTier, Records};

fn main() {
    let numbers: Vec<u64> =
        std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let [records, value_bytes, lookups, sweeps @ ..] = &numbers[..] else {
        panic!("RECORDS VALUE_BYTES LOOKUPS [SWEEPS]");
    };
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let value = vec![1; usize::try_from(*value_bytes).expect("a length")];
    let tier = HotTier::new(1 << 40);
    let mut random = SplitMix(1);
    for number in 0..*records {
        tier.put(&key(number), Some(ValueRef { bytes: &value, large: false }), &mut Vec::new());
    }
    // As a tier in use: records leave here and there, and others come.
    for _ in 0..sweeps.first().copied().unwrap_or_default() {
        let mut hand = Some(Vec::new());
        while let Some(from) = hand {
            let mut victims = Records::default();
            hand = tier.pass(&from, true, &mut victims).1;
            tier.finish(&victims, victims.len(), &mut |_| {});
        }
        for _ in 0..records / 2 {
            let number = random.next_u64() % records;
            let value = ValueRef { bytes: &value, large: false };
            tier.put(&key(number), Some(value), &mut Vec::new());
        }
    }
    let beside = tier.bytes() / tier.len() - 8 - value_bytes;
    println!("{} records, {beside} bytes beside each", tier.len());
    let mut found = 0_u64;
    let mut out = Vec::with_capacity(4096);
    for _ in 0..*lookups {
        out.clear();
        let number = random.next_u64() % records;
        found += u64::from(tier.get(&key(number), &mut out) == Cached::Present);
    }
    println!("{found} of {lookups} found");
}
