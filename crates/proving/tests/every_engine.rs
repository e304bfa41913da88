//! Crashes amid transactions over keyspaces of every engine.

#[test]
fn crash_amid_transactions() {
    spinney_proving::suite::crash_amid_transactions();
}
