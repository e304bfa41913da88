//! TurtleKV's leaves; the tree lands beside them.

#[allow(dead_code, reason = "the tree will use it")]
mod edit;
#[allow(dead_code, reason = "the tree will use it")]
mod leaf;
mod run;
