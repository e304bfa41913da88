//! Limits of keys, values, batches and databases. They are checked before anything changes; a
//! request beyond one is an error that names it.

/// Size of a page, in bytes. All files are read and written in whole pages.
pub const PAGE_BYTES: usize = 4096;

/// Longest key, in bytes. The empty key is a key.
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Most operations in one atomic batch.
pub const BATCH_OPERATIONS_MAX: usize = 1 << 16;

/// Most bytes of keys and values in one atomic batch.
pub const BATCH_BYTES_MAX: usize = 4 << 20;

/// Longest keyspace name, in bytes of UTF-8. Names are not empty and hold no control characters.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// Most keyspaces alive in one database.
pub const KEYSPACES_MAX: usize = 4096;

/// Smallest memory budget of a database, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;
