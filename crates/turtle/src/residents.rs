//! Keys whose values conditional writes wait for (rule P4): a few that are on disk, with the values
//! that they have there, so that a write can compare them under a stripe without I/O.
//!
//! A place is taken before the value is read. Applying an edit of the key clears it, and a bulk
//! load clears all. So a value that is found here is the key's newest, or a memtable has a newer
//! one and is asked first.
//!
//! **Concurrency.** Applying looks at one counter if no write waits for anything.

use std::collections::BTreeMap;

use spinney_base::Result;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicUsize, Ordering::SeqCst, fence};
use spinney_engine::{Found, Resident};

/// Most keys that are kept. More replace those that have been there for longest: a write that waits
/// for one looks soon. With fewer, many writers make each other read twice.
const KEYS_MAX: usize = 64;

/// See the module. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Residents {
    places: Mutex<Places>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Places {
    by_key: BTreeMap<Vec<u8>, Place>,
    next: u64,
}

impl Places {
    fn drop_oldest(&mut self) {
        let oldest = self.by_key.iter().min_by_key(|(_, place)| place.number);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.by_key.remove(&key);
        }
    }
}

#[derive(Debug)]
struct Place {
    number: u64,
    /// Nothing until it was read.
    found: Option<(Found, Vec<u8>)>,
}

impl Residents {
    /// Keeps what `read` finds for a key, unless it is written meanwhile.
    pub(crate) fn keep(
        &self,
        key: &[u8],
        read: impl FnOnce(&mut Vec<u8>) -> Result<Found>,
    ) -> Result<()> {
        let number = {
            let mut places = self.places.lock();
            if places.by_key.len() >= KEYS_MAX && !places.by_key.contains_key(key) {
                places.drop_oldest();
            }
            let number = places.next;
            places.next += 1;
            places.by_key.insert(key.to_vec(), Place { number, found: None });
            self.count.store(places.by_key.len(), SeqCst);
            number
        };
        fence(SeqCst);
        let mut value = Vec::new();
        let found = read(&mut value)?;
        let mut places = self.places.lock();
        if let Some(place) = places.by_key.get_mut(key).filter(|place| place.number == number) {
            place.found = Some((found, value));
        }
        Ok(())
    }

    /// An edit of this key is in a memtable now.
    pub(crate) fn written(&self, key: &[u8]) {
        fence(SeqCst);
        if self.count.load(SeqCst) > 0 {
            let mut places = self.places.lock();
            places.by_key.remove(key);
            self.count.store(places.by_key.len(), SeqCst);
        }
    }

    /// Forgets all values: another tree has replaced the one that they were read from, and no edits
    /// tell what it has for them. A read that is under way finds its place gone.
    pub(crate) fn forget(&self) {
        let mut places = self.places.lock();
        places.by_key.clear();
        self.count.store(0, SeqCst);
    }

    /// What is known of a key that no memtable has; the caller has its stripe.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Resident {
        let places = self.places.lock();
        let Some(Place { found: Some((found, value)), .. }) = places.by_key.get(key) else {
            return Resident::Unknown;
        };
        out.extend_from_slice(value);
        match found {
            Found::Absent => Resident::Absent,
            Found::Inline => Resident::Present,
            Found::Large => Resident::Large,
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn p04_a_write_meanwhile_is_not_missed() {
        let residents = Residents::default();
        let read = |out: &mut Vec<u8>| {
            out.push(7);
            Ok(Found::Inline)
        };
        residents.keep(b"a", read).unwrap();
        let mut out = Vec::new();
        assert_eq!((residents.get(b"a", &mut out), &*out), (Resident::Present, &[7][..]));
        residents.written(b"a");
        assert_eq!(residents.get(b"a", &mut Vec::new()), Resident::Unknown);
        let overtaken = |out: &mut Vec<u8>| {
            residents.written(b"a");
            read(out)
        };
        residents.keep(b"a", overtaken).unwrap();
        assert_eq!(residents.get(b"a", &mut Vec::new()), Resident::Unknown);
        residents.keep(b"a", read).unwrap();
        residents.forget();
        assert_eq!(residents.get(b"a", &mut Vec::new()), Resident::Unknown);
        let loaded_over = |out: &mut Vec<u8>| {
            residents.forget();
            read(out)
        };
        residents.keep(b"a", loaded_over).unwrap();
        assert_eq!(residents.get(b"a", &mut Vec::new()), Resident::Unknown);
        for key in 0..=u8::try_from(KEYS_MAX).unwrap() {
            residents.keep(&[key], read).unwrap();
        }
        assert_eq!(residents.places.lock().by_key.len(), KEYS_MAX);
    }

    /// A write that waits for a key finds its place until [`KEYS_MAX`] others have come, whatever
    /// their keys are.
    #[test]
    fn p04_the_oldest_place_goes_for_a_new_one() {
        let residents = Residents::default();
        let keep = |key: u8| residents.keep(&[key], |_| Ok(Found::Absent)).unwrap();
        let is_kept = |key: u8| residents.get(&[key], &mut Vec::new()) == Resident::Absent;
        let high = 100..100 + u8::try_from(KEYS_MAX).unwrap();
        high.clone().for_each(keep);
        (1..4).rev().for_each(keep);
        assert!((1..4).all(is_kept), "those that came last");
        assert!(!(100..103).any(is_kept) && (103..high.end).all(is_kept));
        // One that has a place takes no other's, and is the newest again.
        keep(103);
        assert!((103..high.end).all(is_kept));
        keep(4);
        assert!(is_kept(103) && !is_kept(104));
    }
}
