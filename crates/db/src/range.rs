//! Ranges of keys, in the forms that callers write.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: `"a".."b"`, `key..`, `..=key`, `..`, or a pair of [`Bound`]s. A key is anything
/// that implements `AsRef<[u8]>`. Keys are ordered byte by byte.
///
/// This is a trait of its own, because [`RangeBounds<K>`](std::ops::RangeBounds) cannot infer `K`
/// for `..`.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// use spinney_db::{Db, KeyspaceOptions, Options};
/// let db = Db::open(directory.path(), Options::default())?;
/// let fruit = db.keyspace("fruit", KeyspaceOptions::default())?;
/// for name in ["apple", "banana", "cherry"] {
///     fruit.insert(name, "")?;
/// }
/// assert_eq!(fruit.range("apple".."cherry").count(), 2);
/// assert_eq!(fruit.range("banana"..).count(), 2);
/// assert_eq!(fruit.range(..).count(), 3);
/// # Ok(())
/// # }
/// ```
pub trait KeyRange {
    /// Returns the lower bound.
    fn lower(&self) -> Bound<&[u8]>;

    /// Returns the upper bound.
    fn upper(&self) -> Bound<&[u8]>;
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn lower(&self) -> Bound<&[u8]> {
        (**self).lower()
    }

    fn upper(&self) -> Bound<&[u8]> {
        (**self).upper()
    }
}

impl KeyRange for RangeFull {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Included(self.start.as_ref())
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Excluded(self.end.as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Included(self.start().as_ref())
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Included(self.end().as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Included(self.start.as_ref())
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Excluded(self.end.as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Included(self.end.as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn lower(&self) -> Bound<&[u8]> {
        self.0.as_ref().map(K::as_ref)
    }

    fn upper(&self) -> Bound<&[u8]> {
        self.1.as_ref().map(K::as_ref)
    }
}
