//! The real disk on a temporary directory: whole transfers, batches deeper than the ring, growth,
//! names, the lock.

use std::sync::Arc;

use spinney_base::ErrorKind;
use spinney_base::limits::PAGE_BYTES;

use crate::disk::{Directory, Disk, File, IfMissing, OpenMode, Steps, Transfer, TransferBuf};
use crate::{AlignedBuf, Purpose, RealDisk};

const PAGE: u64 = PAGE_BYTES as u64;

fn both(test: impl Fn(RealDisk, &std::path::Path)) {
    for disk in [RealDisk::new(), RealDisk::new().poll_reads(false), RealDisk::without_uring()] {
        let place = tempfile::tempdir().unwrap();
        test(disk, place.path());
    }
}

fn at(disk: &RealDisk, path: &std::path::Path) -> Arc<dyn Directory> {
    disk.directory(path, IfMissing::Fail).unwrap()
}

#[test]
fn what_is_written_is_read() {
    both(|disk, place| {
        for mode in [OpenMode::CREATE, OpenMode::CREATE.cached()] {
            let file = at(&disk, place).open("data", mode).unwrap();
            let mut out = AlignedBuf::new(3);
            out.bytes_mut().fill(9);
            out.page_mut(1).fill(8);
            file.write_at(out.bytes(), PAGE, Purpose::WRITE_BACK).unwrap();
            file.sync(Purpose::WRITE_BACK).unwrap();
            assert_eq!(file.len().unwrap(), 4 * PAGE);
            let mut back = AlignedBuf::new(4);
            file.read_at(back.bytes_mut(), 0, Purpose::LOOKUP).unwrap();
            assert_eq!(back.page(0), &[0; PAGE_BYTES]);
            assert_eq!(&back.bytes()[PAGE_BYTES..], out.bytes());
        }
        let counts = disk.counters().snapshot();
        let (write, read) = (Purpose::WRITE_BACK.index(), Purpose::LOOKUP.index());
        assert_eq!(counts.by_purpose[write].write_bytes, 6 * PAGE);
        assert_eq!(counts.by_purpose[write].syncs, 2);
        assert_eq!(counts.by_purpose[read].reads, 2);
        assert_eq!(counts.total().writes, 2);
    });
}

#[test]
fn a_batch_deeper_than_the_ring_is_whole() {
    both(|disk, place| {
        let file = at(&disk, place).open("data", OpenMode::CREATE).unwrap();
        let mut pages: Vec<AlignedBuf> = (0..300).map(|_| AlignedBuf::new(1)).collect();
        for (index, page) in pages.iter_mut().enumerate() {
            page.page_mut(0).fill(u8::try_from(index % 251).unwrap());
        }
        let mut batch: Vec<Transfer<'_>> = pages
            .iter()
            .enumerate()
            .map(|(index, page)| Transfer::write(page.bytes(), (299 - index) as u64 * PAGE))
            .collect();
        file.transfer(&mut batch, Purpose::WRITE_BACK);
        assert!(batch.iter().all(|transfer| transfer.result.is_ok()));

        let mut back: Vec<AlignedBuf> = (0..301).map(|_| AlignedBuf::new(1)).collect();
        let mut batch: Vec<Transfer<'_>> = back
            .iter_mut()
            .enumerate()
            .map(|(index, page)| Transfer::read(page.bytes_mut(), index as u64 * PAGE))
            .collect();
        file.transfer(&mut batch, Purpose::SCAN);
        let past_the_end = batch.pop().unwrap().result.unwrap_err();
        assert_eq!(past_the_end.kind(), ErrorKind::Corruption);
        assert!(batch.iter().all(|transfer| transfer.result.is_ok()));
        for (index, page) in back[..300].iter().enumerate() {
            assert_eq!(page.bytes()[17], u8::try_from((299 - index) % 251).unwrap());
        }
        assert_eq!(disk.counters().snapshot().by_purpose[Purpose::SCAN.index()].reads, 301);
    });
}

#[test]
fn a_file_that_ends_too_soon_is_corrupt_and_not_padded() {
    both(|disk, place| {
        std::fs::write(place.join("short"), vec![1; 5000]).unwrap();
        for mode in [OpenMode::EXISTING, OpenMode::EXISTING.cached().read_only()] {
            let file = at(&disk, place).open("short", mode).unwrap();
            let mut buf = AlignedBuf::new(2);
            let error = file.read_at(buf.bytes_mut(), 0, Purpose::LOOKUP).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption);
            assert!(error.to_string().contains("short"), "{error}");
            let mut two = [AlignedBuf::new(1), AlignedBuf::new(1)];
            let mut batch: Vec<Transfer<'_>> = two
                .iter_mut()
                .enumerate()
                .map(|(index, page)| Transfer::read(page.bytes_mut(), index as u64 * PAGE))
                .collect();
            file.transfer(&mut batch, Purpose::LOOKUP);
            assert!(batch[0].result.is_ok());
            assert!(batch[1].result.as_ref().unwrap_err().is_corruption());
        }
    });
}

#[test]
fn allocation_grows_and_never_shrinks() {
    both(|disk, place| {
        let file = at(&disk, place).open("data", OpenMode::CREATE).unwrap();
        let mut page = AlignedBuf::new(1);
        page.page_mut(0).fill(5);
        file.write_at(page.bytes(), 0, Purpose::WRITE_BACK).unwrap();
        file.allocate(64 * PAGE).unwrap();
        file.allocate(2 * PAGE).unwrap();
        assert_eq!(file.len().unwrap(), 64 * PAGE);
        let mut back = AlignedBuf::new(64);
        file.read_at(back.bytes_mut(), 0, Purpose::LOOKUP).unwrap();
        assert_eq!(back.page(0), page.page(0));
        assert!(back.bytes()[PAGE_BYTES..].iter().all(|byte| *byte == 0));
        // More than any file system holds: refused, and nothing has changed.
        assert!(file.allocate(1 << 61).is_err());
        assert_eq!(file.len().unwrap(), 64 * PAGE);
    });
}

/// Single bytes, written or stored, are what reads find.
#[test]
fn bytes_at_any_place() {
    both(|disk, place| {
        let file = at(&disk, place).open("bytes", OpenMode::CREATE.cached()).unwrap();
        file.allocate(4 * PAGE).unwrap();
        file.write_bytes(&[7; 5000], 4001, Purpose::LOG).unwrap();
        let mut buf = AlignedBuf::new(4);
        file.read_at(buf.bytes_mut(), 0, Purpose::LOOKUP).unwrap();
        assert!(
            buf.bytes().iter().enumerate().all(|(index, byte)| {
                *byte == if (4001..9001).contains(&index) { 7 } else { 0 }
            })
        );
        assert_eq!(file.len().unwrap(), 4 * PAGE);
        // What is mapped has its blocks, also where the file had holes.
        rustix::fs::ftruncate(std::fs::File::create(place.join("holes")).unwrap(), 64 * PAGE)
            .unwrap();
        let holes = at(&disk, place).open("holes", OpenMode::EXISTING.cached()).unwrap();
        if let Some(mapping) = holes.map(64 * PAGE_BYTES) {
            use std::os::unix::fs::MetadataExt;
            assert!(std::fs::metadata(place.join("holes")).unwrap().blocks() * 512 >= 64 * PAGE);
            mapping.store(63 * PAGE_BYTES + 8, &[3; 9]);
            holes.read_at(buf.bytes_mut(), 60 * PAGE, Purpose::LOOKUP).unwrap();
            assert_eq!(buf.page(3)[7..18], [0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
            // Changes nothing that can be seen, and is carried out everywhere.
            mapping.write_back(63 * PAGE_BYTES + 8..63 * PAGE_BYTES + 200);
            mapping.write_back(64 * PAGE_BYTES - 1..64 * PAGE_BYTES);
            mapping.fence();
            assert_eq!(mapping.is_persistent(), holes.is_persistent());
            holes.read_at(buf.bytes_mut(), 60 * PAGE, Purpose::LOOKUP).unwrap();
            assert_eq!(buf.page(3)[7..18], [0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
        }
        assert!(
            at(&disk, place).open("holes", OpenMode::EXISTING).unwrap().map(PAGE_BYTES).is_none()
        );
    });
}

#[test]
fn names_are_made_listed_renamed_and_removed() {
    both(|disk, place| {
        let path = place.join("a/b/c");
        disk.directory(&path, IfMissing::Create).unwrap();
        let directory = disk.directory(&path, IfMissing::Create).unwrap();
        let missing = directory.open("x", OpenMode::EXISTING).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let handle = directory.open("x", OpenMode::CREATE).unwrap();
        assert_eq!(handle.path(), path.join("x"));
        directory.open("w", OpenMode::CREATE).unwrap();
        disk.directory(&path.join("sub"), IfMissing::Create).unwrap();
        assert_eq!(directory.list().unwrap(), ["w", "x"]);
        directory.rename("x", "w").unwrap();
        directory.sync().unwrap();
        assert!(!directory.exists("x").unwrap());
        assert!(directory.exists("sub").unwrap());
        directory.remove("w").unwrap();
        let page = AlignedBuf::new(1);
        handle.write_at(page.bytes(), 0, Purpose::TOOL).unwrap();
        let again = directory.remove("w").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NotFound);
        let none = disk.directory(&place.join("none"), IfMissing::Fail).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        for name in ["", ".", "..", "a/b", "/etc/passwd"] {
            for error in [
                directory.open(name, OpenMode::EXISTING).unwrap_err(),
                directory.remove(name).unwrap_err(),
                directory.rename("x", name).unwrap_err(),
                directory.exists(name).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
            }
        }
    });
}

#[test]
fn what_is_no_directory_says_so() {
    both(|disk, place| {
        std::fs::write(place.join("file"), b"").unwrap();
        std::os::unix::fs::symlink(place.join("nowhere"), place.join("dangling")).unwrap();
        for if_missing in [IfMissing::Fail, IfMissing::Create] {
            let error = disk.directory(&place.join("file"), if_missing).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().ends_with("file is not a directory"), "{error}");
        }
        let error = disk.directory(&place.join("dangling"), IfMissing::Create).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("dangling is a symbolic link to something"), "{error}");
        assert!(!place.join("nowhere").exists());
    });
}

/// Whatever is done to the path of a directory, a handle stays with what it was opened as.
#[test]
fn a_handle_stays_with_its_directory() {
    both(|disk, place| {
        let (there, elsewhere) = (place.join("there"), place.join("elsewhere"));
        let directory = disk.directory(&there, IfMissing::Create).unwrap();
        std::fs::rename(&there, &elsewhere).unwrap();
        std::fs::create_dir(&there).unwrap();
        directory.open("new", OpenMode::CREATE).unwrap();
        directory.rename("new", "newer").unwrap();
        directory.sync().unwrap();
        assert!(elsewhere.join("newer").exists() && !there.join("newer").exists());
        std::fs::remove_dir_all(&elsewhere).unwrap();
        assert_eq!(directory.list().unwrap(), [""; 0]);
        let gone = directory.open("x", OpenMode::CREATE).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_directory_is_held_once() {
    both(|disk, place| {
        let directory = at(&disk, place);
        let held = directory.lock().unwrap();
        let another = at(&RealDisk::new(), place);
        for other in [&directory, &another, &at(&disk, place)] {
            let error = other.lock().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Locked);
            assert!(error.to_string().ends_with("another handle of this process"), "{error}");
        }
        // The handle may go, and the file: the directory itself is held.
        drop(directory);
        std::fs::remove_file(place.join("lock")).unwrap();
        assert_eq!(another.lock().unwrap_err().kind(), ErrorKind::Locked);
        drop(held);
        drop(another.lock().unwrap());
        // Where a file cannot be made, and where only the file is held, as by an earlier version.
        std::fs::remove_file(place.join("lock")).unwrap();
        let file = std::fs::File::create(place.join("lock")).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(another.lock().unwrap_err().kind(), ErrorKind::Locked);
        drop(file);
        another.lock().unwrap();
    });
}

#[test]
fn writing_through_a_read_only_handle_is_an_error() {
    both(|disk, place| {
        at(&disk, place).open("data", OpenMode::CREATE).unwrap();
        let file = at(&disk, place).open("data", OpenMode::EXISTING.read_only()).unwrap();
        let page = AlignedBuf::new(1);
        assert_eq!(
            file.write_at(page.bytes(), 0, Purpose::TOOL).unwrap_err().kind(),
            ErrorKind::Io
        );
    });
}

#[test]
fn a_full_device_is_full() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let file =
        at(&RealDisk::new(), "/dev".as_ref()).open("full", OpenMode::EXISTING.cached()).unwrap();
    let page = AlignedBuf::new(1);
    assert!(file.write_at(page.bytes(), 0, Purpose::TOOL).unwrap_err().is_full());
    let mut batch = [Transfer::write(page.bytes(), 0), Transfer::write(page.bytes(), PAGE)];
    file.transfer(&mut batch, Purpose::TOOL);
    assert!(batch.iter().all(|one| one.result.as_ref().unwrap_err().is_full()));
}

#[test]
fn the_device_answers_about_atomic_pages() {
    let place = tempfile::tempdir().unwrap();
    at(&RealDisk::new(), place.path()).writes_pages_atomically().unwrap();
}

#[test]
fn holes_give_room_back() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    let file = at(&RealDisk::new(), directory.path()).open("f", OpenMode::CREATE).unwrap();
    let mut buf = AlignedBuf::new(64);
    buf.bytes_mut().fill(7);
    file.write_at(buf.bytes(), 0, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    if !file.punch_hole(16 * 4096, 32 * 4096).unwrap() {
        assert_eq!(blocks(), before);
        return;
    }
    assert!(blocks() <= before - 32 * 8, "{} blocks of {before}", blocks());
    let mut read = AlignedBuf::new(64);
    file.read_at(read.bytes_mut(), 0, Purpose::TOOL).unwrap();
    let zeros = read.bytes().iter().filter(|byte| **byte == 0).count();
    assert_eq!((zeros, file.len().unwrap()), (32 * 4096, 64 * 4096));
}

/// Direct reads that somebody waits for are polled for, and no others; whether in vain or not, each
/// is there once.
#[test]
fn reads_that_are_waited_for_are_polled_for() {
    let place = tempfile::tempdir().unwrap();
    for (disk, polls) in [(RealDisk::new(), true), (RealDisk::new().poll_reads(false), false)] {
        let file = at(&disk, place.path()).open("data", OpenMode::CREATE).unwrap();
        let polls = polls && disk.backend() == "io_uring" && super::poll::is_free();
        let polls = polls && file.is_direct();
        let mut pages = AlignedBuf::new(64);
        for index in 0..64 {
            pages.page_mut(index).fill(u8::try_from(index).unwrap());
        }
        file.write_at(pages.bytes(), 0, Purpose::LOOKUP).unwrap();
        file.read_at(pages.bytes_mut(), 0, Purpose::TOOL).unwrap();
        assert_eq!(disk.counters().snapshot().polls, 0);
        let mut page = AlignedBuf::new(1);
        for index in (0..64).cycle().take(1000) {
            file.read_at(page.bytes_mut(), index * PAGE, Purpose::LOOKUP).unwrap();
            assert!(page.bytes().iter().all(|byte| u64::from(*byte) == index));
        }
        let error = file.read_at(page.bytes_mut(), 64 * PAGE, Purpose::LOOKUP).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        let counted = disk.counters().snapshot();
        assert_eq!(counted.by_purpose[Purpose::LOOKUP.index()].reads, 1001);
        assert_eq!(counted.polls > 0, polls);
        assert!(counted.polls_in_vain <= counted.polls && counted.polls <= 1001);
    }
}

/// Learns where a page belongs when it begins, of the last page first, and begins no more than
/// `most`; sees each once.
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
            self.file.transfer(&mut inner, Purpose::TOOL);
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

/// Any thread that takes steps may use the disk itself; what does not begin does not happen; and
/// what panics leaves nothing under way.
#[test]
fn steps_are_taken_while_others_are_under_way() {
    both(|disk, place| {
        let file = at(&disk, place).open("data", OpenMode::CREATE).unwrap();
        let mut pages = AlignedBuf::new(200);
        for index in 0..200 {
            pages.page_mut(index).fill(u8::try_from(index).unwrap());
        }
        file.write_at(pages.bytes(), 0, Purpose::TOOL).unwrap();
        for most in [200, 150, 3, 0] {
            let mut back = AlignedBuf::new(200);
            let chunks = back.bytes_mut().chunks_mut(PAGE_BYTES);
            let mut batch: Vec<_> = chunks.map(|page| Transfer::read(page, 0)).collect();
            let mut steps = Backwards { file: &*file, most, began: 0, shown: vec![0; 200] };
            file.transfer_in_steps(&mut batch, Purpose::LOOKUP, &mut steps);
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
                file.transfer_in_steps(&mut batch, Purpose::LOOKUP, &mut steps);
            }));
            assert!(panicked.is_err());
        }
        file.transfer(&mut batch, Purpose::LOOKUP);
        assert!(batch.iter().all(|transfer| transfer.result.is_ok()));
    });
}
