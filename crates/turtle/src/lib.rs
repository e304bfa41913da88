//! TurtleKV: a tree that trades memory for writes while it runs (arXiv 2509.10714).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), expect(dead_code, reason = "the engine that uses the tree comes later"))]

mod check;
mod cursor;
mod disk;
#[cfg(test)]
mod double;
mod edit;
mod evacuate;
mod files;
mod leaf;
mod levels;
mod merge;
mod node;
mod packed;
mod range;
mod run;
mod runs;
mod stream;
#[cfg(test)]
mod tests;
mod tree;
mod update;
mod write;
