//! The real disk on a temporary directory: whole transfers, batches deeper than the ring, growth,
//! names, the lock.

use spinney_base::ErrorKind;
use spinney_base::limits::PAGE_BYTES;

use crate::disk::{Disk, File, OpenMode, Steps, Transfer, TransferBuf};
use crate::{AlignedBuf, Purpose, RealDisk};

const PAGE: u64 = PAGE_BYTES as u64;

fn both(test: impl Fn(RealDisk, &std::path::Path)) {
    for disk in [RealDisk::new(), RealDisk::new().poll_reads(false), RealDisk::without_uring()] {
        let place = tempfile::tempdir().unwrap();
        test(disk, place.path());
    }
}

#[test]
fn what_is_written_is_read() {
    both(|disk, place| {
        for mode in [OpenMode::CREATE, OpenMode::CREATE.cached()] {
            let file = disk.open(&place.join("data"), mode).unwrap();
            let mut out = AlignedBuf::new(3);
            out.bytes_mut().fill(9);
            out.page_mut(1).fill(8);
            file.write_at(out.bytes(), PAGE, Purpose::WriteBack).unwrap();
            file.sync(Purpose::WriteBack).unwrap();
            assert_eq!(file.len().unwrap(), 4 * PAGE);
            let mut back = AlignedBuf::new(4);
            file.read_at(back.bytes_mut(), 0, Purpose::Lookup).unwrap();
            assert_eq!(back.page(0), &[0; PAGE_BYTES]);
            assert_eq!(&back.bytes()[PAGE_BYTES..], out.bytes());
        }
        let counts = disk.counters().snapshot();
        let (write, read) = (Purpose::WriteBack as usize, Purpose::Lookup as usize);
        assert_eq!(counts.by_purpose[write].write_bytes, 6 * PAGE);
        assert_eq!(counts.by_purpose[write].syncs, 2);
        assert_eq!(counts.by_purpose[read].reads, 2);
        assert_eq!(counts.total().writes, 2);
    });
}

#[test]
fn a_batch_deeper_than_the_ring_is_whole() {
    both(|disk, place| {
        let file = disk.open(&place.join("data"), OpenMode::CREATE).unwrap();
        let mut pages: Vec<AlignedBuf> = (0..300).map(|_| AlignedBuf::new(1)).collect();
        for (index, page) in pages.iter_mut().enumerate() {
            page.page_mut(0).fill(u8::try_from(index % 251).unwrap());
        }
        let mut batch: Vec<Transfer<'_>> = pages
            .iter()
            .enumerate()
            .map(|(index, page)| Transfer::write(page.bytes(), (299 - index) as u64 * PAGE))
            .collect();
        file.transfer(&mut batch, Purpose::WriteBack);
        assert!(batch.iter().all(|transfer| transfer.result.is_ok()));

        let mut back: Vec<AlignedBuf> = (0..301).map(|_| AlignedBuf::new(1)).collect();
        let mut batch: Vec<Transfer<'_>> = back
            .iter_mut()
            .enumerate()
            .map(|(index, page)| Transfer::read(page.bytes_mut(), index as u64 * PAGE))
            .collect();
        file.transfer(&mut batch, Purpose::Scan);
        let past_the_end = batch.pop().unwrap().result.unwrap_err();
        assert_eq!(past_the_end.kind(), ErrorKind::Corruption);
        assert!(batch.iter().all(|transfer| transfer.result.is_ok()));
        for (index, page) in back[..300].iter().enumerate() {
            assert_eq!(page.bytes()[17], u8::try_from((299 - index) % 251).unwrap());
        }
        assert_eq!(disk.counters().snapshot().by_purpose[Purpose::Scan as usize].reads, 301);
    });
}

#[test]
fn a_file_that_ends_too_soon_is_corrupt_and_not_padded() {
    both(|disk, place| {
        let path = place.join("short");
        std::fs::write(&path, vec![1; 5000]).unwrap();
        for mode in [OpenMode::EXISTING, OpenMode::EXISTING.cached().read_only()] {
            let file = disk.open(&path, mode).unwrap();
            let mut buf = AlignedBuf::new(2);
            let error = file.read_at(buf.bytes_mut(), 0, Purpose::Lookup).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption);
            assert!(error.to_string().contains("short"), "{error}");
            let mut two = [AlignedBuf::new(1), AlignedBuf::new(1)];
            let mut batch: Vec<Transfer<'_>> = two
                .iter_mut()
                .enumerate()
                .map(|(index, page)| Transfer::read(page.bytes_mut(), index as u64 * PAGE))
                .collect();
            file.transfer(&mut batch, Purpose::Lookup);
            assert!(batch[0].result.is_ok());
            assert!(batch[1].result.as_ref().unwrap_err().is_corruption());
        }
    });
}

#[test]
fn allocation_grows_and_never_shrinks() {
    both(|disk, place| {
        let file = disk.open(&place.join("data"), OpenMode::CREATE).unwrap();
        let mut page = AlignedBuf::new(1);
        page.page_mut(0).fill(5);
        file.write_at(page.bytes(), 0, Purpose::WriteBack).unwrap();
        file.allocate(64 * PAGE).unwrap();
        file.allocate(2 * PAGE).unwrap();
        assert_eq!(file.len().unwrap(), 64 * PAGE);
        let mut back = AlignedBuf::new(64);
        file.read_at(back.bytes_mut(), 0, Purpose::Lookup).unwrap();
        assert_eq!(back.page(0), page.page(0));
        assert!(back.bytes()[PAGE_BYTES..].iter().all(|byte| *byte == 0));
        // More than any file system holds: refused, and nothing has changed.
        assert!(file.allocate(1 << 61).is_err());
        assert_eq!(file.len().unwrap(), 64 * PAGE);
    });
}

#[test]
fn names_are_made_listed_renamed_and_removed() {
    both(|disk, place| {
        let directory = place.join("a/b/c");
        disk.create_dir(&directory).unwrap();
        disk.create_dir(&directory).unwrap();
        let missing = disk.open(&directory.join("x"), OpenMode::EXISTING).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let handle = disk.open(&directory.join("x"), OpenMode::CREATE).unwrap();
        disk.open(&directory.join("w"), OpenMode::CREATE).unwrap();
        disk.create_dir(&directory.join("sub")).unwrap();
        assert_eq!(disk.list(&directory).unwrap(), [directory.join("w"), directory.join("x")]);
        disk.rename(&directory.join("x"), &directory.join("w")).unwrap();
        disk.sync_dir(&directory).unwrap();
        assert!(!disk.exists(&directory.join("x")).unwrap());
        disk.remove(&directory.join("w")).unwrap();
        let page = AlignedBuf::new(1);
        handle.write_at(page.bytes(), 0, Purpose::Tool).unwrap();
        let again = disk.remove(&directory.join("w")).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NotFound);
        assert_eq!(disk.list(&place.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_directory_is_held_once() {
    both(|disk, place| {
        let held = disk.lock(place).unwrap();
        assert_eq!(disk.lock(place).unwrap_err().kind(), ErrorKind::Locked);
        assert_eq!(RealDisk::new().lock(place).unwrap_err().kind(), ErrorKind::Locked);
        drop(held);
        disk.lock(place).unwrap();
    });
}

#[test]
fn writing_through_a_read_only_handle_is_an_error() {
    both(|disk, place| {
        let path = place.join("data");
        disk.open(&path, OpenMode::CREATE).unwrap();
        let file = disk.open(&path, OpenMode::EXISTING.read_only()).unwrap();
        let page = AlignedBuf::new(1);
        assert_eq!(
            file.write_at(page.bytes(), 0, Purpose::Tool).unwrap_err().kind(),
            ErrorKind::Io
        );
    });
}

#[test]
fn a_full_device_is_full() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let file = RealDisk::new().open("/dev/full".as_ref(), OpenMode::EXISTING.cached()).unwrap();
    let page = AlignedBuf::new(1);
    assert!(file.write_at(page.bytes(), 0, Purpose::Tool).unwrap_err().is_full());
    let mut batch = [Transfer::write(page.bytes(), 0), Transfer::write(page.bytes(), PAGE)];
    file.transfer(&mut batch, Purpose::Tool);
    assert!(batch.iter().all(|one| one.result.as_ref().unwrap_err().is_full()));
}

#[test]
fn the_device_answers_about_atomic_pages() {
    let place = tempfile::tempdir().unwrap();
    RealDisk::new().writes_pages_atomically(place.path()).unwrap();
}

#[test]
fn holes_give_room_back() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    let file = RealDisk::new().open(&path, OpenMode::CREATE).unwrap();
    let mut buf = AlignedBuf::new(64);
    buf.bytes_mut().fill(7);
    file.write_at(buf.bytes(), 0, Purpose::Tool).unwrap();
    file.sync(Purpose::Tool).unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    if !file.punch_hole(16 * 4096, 32 * 4096).unwrap() {
        assert_eq!(blocks(), before);
        return;
    }
    assert!(blocks() <= before - 32 * 8, "{} blocks of {before}", blocks());
    let mut read = AlignedBuf::new(64);
    file.read_at(read.bytes_mut(), 0, Purpose::Tool).unwrap();
    let zeros = read.bytes().iter().filter(|byte| **byte == 0).count();
    assert_eq!((zeros, file.len().unwrap()), (32 * 4096, 64 * 4096));
}

/// Direct reads that somebody waits for are polled for, and no others; whether in vain or not, each is there once.
#[test]
fn reads_that_are_waited_for_are_polled_for() {
    let place = tempfile::tempdir().unwrap();
    for (disk, polls) in [(RealDisk::new(), true), (RealDisk::new().poll_reads(false), false)] {
        let file = disk.open(&place.path().join("data"), OpenMode::CREATE).unwrap();
        let polls = polls && disk.backend() == "io_uring" && super::poll::is_free();
        let polls = polls && file.is_direct();
        let mut pages = AlignedBuf::new(64);
        for index in 0..64 {
            pages.page_mut(index).fill(u8::try_from(index).unwrap());
        }
        file.write_at(pages.bytes(), 0, Purpose::Lookup).unwrap();
        file.read_at(pages.bytes_mut(), 0, Purpose::Tool).unwrap();
        assert_eq!(disk.counters().snapshot().polls, 0);
        let mut page = AlignedBuf::new(1);
        for index in (0..64).cycle().take(1000) {
            file.read_at(page.bytes_mut(), index * PAGE, Purpose::Lookup).unwrap();
            assert!(page.bytes().iter().all(|byte| u64::from(*byte) == index));
        }
        let error = file.read_at(page.bytes_mut(), 64 * PAGE, Purpose::Lookup).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        let counted = disk.counters().snapshot();
        assert_eq!(counted.by_purpose[Purpose::Lookup as usize].reads, 1001);
        assert_eq!(counted.polls > 0, polls);
        assert!(counted.polls_in_vain <= counted.polls && counted.polls <= 1001);
    }
}

/// Learns where a page belongs when it begins, of the last page first, and begins no more than `most`;
/// sees each once.
struct Backwards<'a> {
    file: &'a dyn File,
    most: usize,
    began: usize,
    shown: Vec<usize>,
}

impl Steps for Backwards<'_> {
    fn begin(&mut self, index: usize, offset: &mut u64) -> bool {
        assert_eq!(index, self.began);
        if index == self.most {
            return false;
        }
        self.began += 1;
        *offset = (199 - index as u64) * PAGE;
        true
    }

    fn ended(&mut self, index: usize, transfer: &Transfer<'_>) {
        let TransferBuf::Read(bytes) = &transfer.buf else { panic!("it is a read") };
        assert!(transfer.result.is_ok());
        assert!(bytes.iter().all(|byte| usize::from(*byte) == 199 - index));
        self.shown[index] += 1;
        if index % 50 == 7 {
            let mut more = AlignedBuf::new(2);
            let (one, two) = more.bytes_mut().split_at_mut(PAGE_BYTES);
            let mut inner = [Transfer::read(one, 0), Transfer::read(two, PAGE)];
            self.file.transfer(&mut inner, Purpose::Tool);
            assert!(inner.iter().all(|transfer| transfer.result.is_ok()));
            assert_eq!((more.page(0)[5], more.page(1)[5]), (0, 1));
        }
    }
}

/// Panics at the tenth transfer that ends, or when the tenth is to begin.
struct Panics {
    at_begin: bool,
    ended: usize,
}

impl Steps for Panics {
    fn begin(&mut self, index: usize, _offset: &mut u64) -> bool {
        assert!(!self.at_begin || index < 9, "on purpose");
        true
    }

    fn ended(&mut self, _index: usize, _transfer: &Transfer<'_>) {
        self.ended += 1;
        assert!(self.ended < 10, "on purpose");
    }
}

/// Whoever takes steps may use the disk itself; what does not begin does not happen; and what panics leaves
/// nothing under way.
#[test]
fn steps_are_taken_while_others_are_under_way() {
    both(|disk, place| {
        let file = disk.open(&place.join("data"), OpenMode::CREATE).unwrap();
        let mut pages = AlignedBuf::new(200);
        for index in 0..200 {
            pages.page_mut(index).fill(u8::try_from(index).unwrap());
        }
        file.write_at(pages.bytes(), 0, Purpose::Tool).unwrap();
        for most in [200, 150, 3, 0] {
            let mut back = AlignedBuf::new(200);
            let chunks = back.bytes_mut().chunks_mut(PAGE_BYTES);
            let mut batch: Vec<_> = chunks.map(|page| Transfer::read(page, 0)).collect();
            let mut steps = Backwards { file: &*file, most, began: 0, shown: vec![0; 200] };
            file.transfer_in_steps(&mut batch, Purpose::Lookup, &mut steps);
            assert!(steps.shown.iter().enumerate().all(|(at, n)| *n == usize::from(at < most)));
            let (last, first) = (back.page(199)[0], back.page(0)[0]);
            assert_eq!((last, first), (0, if most > 0 { 199 } else { 0 }));
        }
        let mut back = AlignedBuf::new(200);
        let mut batch: Vec<_> = (back.bytes_mut().chunks_mut(PAGE_BYTES).enumerate())
            .map(|(index, page)| Transfer::read(page, index as u64 * PAGE))
            .collect();
        for at_begin in [false, true] {
            let mut steps = Panics { at_begin, ended: 0 };
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                file.transfer_in_steps(&mut batch, Purpose::Lookup, &mut steps);
            }));
            assert!(panicked.is_err());
        }
        file.transfer(&mut batch, Purpose::Lookup);
        assert!(batch.iter().all(|transfer| transfer.result.is_ok()));
    });
}
