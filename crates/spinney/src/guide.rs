//! The guide: a page for each of the first questions.
//!
//! Begin with [which engine](engines), [how much memory](memory) and [what survives](durability).

macro_rules! pages {
    ($($name:ident $file:literal)*) => {$(
        #[doc = include_str!(concat!("../../../docs/guide/", $file, ".md"))]
        pub mod $name {}
    )*};
}

pages! {
    engines "engines"
    memory "memory"
    durability "durability"
    keyspaces "keyspaces"
    keys_and_values "keys-and-values"
    batches "batches"
    transactions "transactions"
    snapshots "snapshots"
    backup "backup"
    trouble "trouble"
    processes "processes"
    limits "limits"
    space "space"
    coming_from "coming-from"
}
