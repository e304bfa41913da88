//! TPC-C on key-value engines: the whole of its five transactions, without terminals and without
//! the times that their users think and type, so what is measured is the engine.
//!
//! It follows the specification, revision 5.11: [`schema`] (tables and keys), [`random`] (its
//! draws), [`load`] (the first population), [`transactions`] (New-Order, Payment, Order-Status,
//! Delivery, Stock-Level), [`conditions`] (the twelve consistency conditions, and two of our own),
//! [`run`] (the mix, and what a client thread does), [`query2`] (a long query of the CH-benCHmark).
//!
//! **Where it differs** from the specification, for every engine alike:
//! * A client has no terminal and no pauses, and the response is computed and not shown. Rates are
//!   therefore not tpmC.
//! * A thread has one home warehouse; several threads share one.
//! * Delivery is one transaction over all ten districts, and runs at once instead of deferred.
//! * The mix is a shuffled deck of 100 cards: 45 New-Order, 43 Payment, 4 of each other.
//! * Order-Status and Stock-Level are read-only transactions of one moment. The specification lets
//!   Stock-Level read what is committed at any moment.
//! * Condition 11 counts deliveries, too, so that it holds after a run and not only after the load.

pub mod conditions;
pub mod load;
pub mod query2;
pub mod random;
pub mod run;
pub mod schema;
pub mod transactions;
