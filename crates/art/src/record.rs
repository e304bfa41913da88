//! Records of a map that owns its keys: value and key in one allocation.
//!
//! ```text
//!  +--------+-----------------+-----------------+
//!  | length | value           | key, as long as |
//!  | 4      | size_of::<V>()  | it is           |
//!  +--------+-----------------+-----------------+
//! ```
//!
//! A leaf of the tree is the record's address.
//!
//! **Invariants**
//! 1. A record never changes: another value means another record.
//! 2. A record whose leaf was in the tree is freed an epoch after it was removed, or with the tree;
//!    its value is dropped then.
#![expect(unsafe_code, reason = "a record is a header and as many bytes as its key has")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_epoch::Guard;

use crate::map::ArtMap;
use crate::memory::Memory;
use crate::node::prefetch;
use crate::source::{KeySource, Parting};

#[repr(C)]
struct Header<V> {
    length: u32,
    value: V,
}

/// A record that cannot be freed while the thread is pinned.
#[derive(Debug)]
pub(crate) struct Record<'g, V>(NonNull<Header<V>>, PhantomData<&'g Guard>);

impl<V> Clone for Record<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Record<'_, V> {}

impl<'g, V> Record<'g, V> {
    fn layout(length: usize) -> Layout {
        let bytes = size_of::<Header<V>>() + length;
        Layout::from_size_align(bytes, align_of::<Header<V>>()).expect("keys are below 4 GiB")
    }

    /// A record that nobody else knows.
    ///
    /// # Panics
    /// When the key is 4 GiB or longer.
    pub(crate) fn new(key: &[u8], value: V, memory: &Memory, _: &'g Guard) -> Self {
        let length = u32::try_from(key.len()).expect("keys are shorter than 4 GiB");
        let layout = Self::layout(key.len());
        // SAFETY: the layout is never empty, for it has the header.
        let raw = unsafe { alloc(layout) };
        let Some(header) = NonNull::new(raw.cast::<Header<V>>()) else {
            handle_alloc_error(layout);
        };
        // SAFETY: the allocation begins with room for a header, aligned as the layout says.
        unsafe { header.write(Header { length, value }) };
        // SAFETY: the header and the key are within the allocation.
        let bytes = unsafe { header.add(1) }.cast::<u8>();
        // SAFETY: there are as many bytes behind the header as the key has; a new allocation
        // overlaps nothing.
        unsafe { bytes.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len()) };
        memory.allocated(layout.size());
        Record(header, PhantomData)
    }

    /// The record's leaf.
    pub(crate) fn leaf(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// The record of a leaf.
    ///
    /// # Safety
    /// The leaf is that of a record which is not freed during `'g`.
    unsafe fn of_leaf(leaf: u64) -> Self {
        let address = usize::try_from(leaf).expect("it was an address");
        let header = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        Record(header.expect("it was the address of a record"), PhantomData)
    }

    fn header(self) -> &'g Header<V> {
        // SAFETY: invariant 2 and the contract of `of_leaf`; records do not change.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn key(self) -> &'g [u8] {
        let length = self.header().length as usize;
        // SAFETY: the key lies right behind the header, in the same allocation.
        let bytes = unsafe { self.0.add(1) }.cast::<u8>();
        // SAFETY: the key has that many bytes, and invariant 2.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), length) }
    }

    pub(crate) fn value(self) -> &'g V {
        &self.header().value
    }

    fn bytes(self) -> usize {
        Self::layout(self.header().length as usize).size()
    }

    /// Frees a record.
    ///
    /// # Safety
    /// Nobody uses it any more, and it is freed once.
    unsafe fn free(self) {
        let layout = Self::layout(self.header().length as usize);
        // SAFETY: it was written when it was made, and this is the last use of it.
        unsafe { self.0.drop_in_place() };
        // SAFETY: it was allocated with this layout, and nobody uses it any more.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

impl<V: Send + Sync + 'static> ArtMap<V> {
    /// The record of a leaf that the map's own tree told under this guard.
    pub(crate) fn record<'g>(&self, leaf: u64, _: &'g Guard) -> Record<'g, V> {
        // SAFETY: all leaves of the tree are records, this one was in the tree since the guard was
        // pinned, and invariant 2.
        unsafe { Record::of_leaf(leaf) }
    }

    /// Frees the record of a leaf that this call removed from the tree once nobody can see it;
    /// returns it, for the guard sees it until then.
    pub(crate) fn retire<'g>(&self, leaf: u64, guard: &'g Guard) -> Record<'g, V> {
        let retired = self.record(leaf, guard);
        let bytes = retired.bytes();
        self.records.unlinked(bytes);
        let memory = Arc::clone(&self.records);
        // The guard's lifetime ends before the closure runs.
        let record: Record<'_, V> = Record(retired.0, PhantomData);
        let reclaim = move || {
            // SAFETY: as below; the closure runs once.
            unsafe { record.free() };
            memory.reclaimed(bytes);
        };
        // SAFETY: only the thread that removes a leaf retires its record, so that is done once. A
        // thread that still reads it was pinned before it was removed, and the closure runs after
        // all of these are unpinned. It may run in another thread, and drops the value there, for
        // `V` is `Send`; and later than the map is gone, for `V` is `'static`.
        unsafe { guard.defer_unchecked(reclaim) };
        retired
    }

    /// Frees a record that this call made and that did not get into the tree.
    pub(crate) fn discard(&self, record: Record<'_, V>) {
        self.records.freed(record.bytes());
        // SAFETY: nobody else knows it.
        unsafe { record.free() };
    }
}

impl<V: Send + Sync + 'static> Drop for ArtMap<V> {
    fn drop(&mut self) {
        let records = &self.records;
        self.art.clear(|leaf| {
            // SAFETY: all leaves of the tree are records, each comes once, and `&mut self` means
            // that no thread reads them.
            let record: Record<'_, V> = unsafe { Record::of_leaf(leaf) };
            records.freed(record.bytes());
            // SAFETY: as above; the tree has forgotten the leaf.
            unsafe { record.free() };
        });
    }
}

/// Tells the keys of records to their tree. Only a tree whose leaves are all records has it.
#[derive(Debug)]
pub(crate) struct Records<V>(PhantomData<fn() -> V>);

impl<V> Default for Records<V> {
    fn default() -> Self {
        Records(PhantomData)
    }
}

impl<V> Records<V> {
    #[inline]
    fn key<'a>(&'a self, leaf: u64) -> &'a [u8] {
        // SAFETY: the tree asks while it is pinned and about leaves that were in it since, see
        // `KeySource`; the methods below let go of the key before they return.
        let record: Record<'a, V> = unsafe { Record::of_leaf(leaf) };
        record.key()
    }
}

impl<V> KeySource for Records<V> {
    fn read_key(&self, leaf: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(self.key(leaf));
    }

    #[inline]
    fn prefetch(&self, leaf: u64) {
        prefetch(usize::try_from(leaf).expect("it was an address"));
    }

    #[inline]
    fn compare(&self, leaf: u64, key: &[u8]) -> Parting {
        Parting::of(self.key(leaf), key)
    }

    #[inline]
    fn matches(&self, leaf: u64, key: &[u8]) -> bool {
        self.key(leaf) == key
    }
}
