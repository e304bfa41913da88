//! File systems that write a page of a file in place, and how to request it of btrfs.
//!
//! A store into a mapped page has no answer. Where it needs a block that is not there, the kernel
//! kills the process with SIGBUS. That is never so for a page that was allocated before, if the
//! file system writes it where it is:
//!
//! | file system | in place |
//! |---|---|
//! | ext4 (and ext2, ext3) | yes |
//! | tmpfs | yes: its blocks are memory |
//! | XFS | if it was made without reflinks; else a page may come to be shared at any time (`cp` does it) |
//! | btrfs, bcachefs, ZFS, F2FS | no: they copy on write |
//! | overlayfs, NFS, FUSE and all others | unknown, so no |
//!
//! New files on btrfs are asked to be written in place (`chattr +C`). A database overwrites pages
//! all the time: copied on write, an old block stays taken until all of its extent is, and a full
//! disk has no room for what replaces what is there. The price: the file system keeps no checksum
//! of these files, of which every block has one of ours. A snapshot or a copy that shares blocks
//! still makes it copy once, so no file is mapped there.

#![expect(unsafe_code, reason = "an ioctl that rustix does not have")]

use std::os::fd::{AsFd, OwnedFd};

use rustix::ioctl::{Getter, Opcode, opcode};

const EXT4: u64 = 0xEF53;
const TMPFS: u64 = 0x0102_1994;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683E;

/// `struct xfs_fsop_geom_v4` of `xfs_fs.h`, 112 bytes; the flags are its word 23.
type XfsGeometry = [u32; 28];
const XFS_FLAGS: usize = 23;
/// `XFS_FSOP_GEOM_FLAGS_REFLINK`.
const XFS_REFLINK: u32 = 1 << 20;
/// `XFS_IOC_FSGEOMETRY_V4`, `_IOR('X', 124, struct xfs_fsop_geom_v4)`.
const XFS_GEOMETRY: Opcode = opcode::read::<XfsGeometry>(b'X', 124);

/// Returns whether a store into a page with an allocated block never needs another block.
pub(super) fn stores_in_place(file: &OwnedFd) -> bool {
    match kind(file) {
        Some(EXT4 | TMPFS) => true,
        Some(XFS) => xfs_geometry(file).is_some_and(|words| words[XFS_FLAGS] & XFS_REFLINK == 0),
        _ => false,
    }
}

/// Returns whether a hole in the middle of a file frees its space. On btrfs the space stays taken
/// until the whole extent is free, and a write into the hole takes other space.
pub(super) fn holes_give_room_back(file: &OwnedFd) -> bool {
    !is_btrfs(file)
}

/// Returns whether the file is on XFS.
pub(super) fn is_xfs(file: &OwnedFd) -> bool {
    kind(file) == Some(XFS)
}

fn is_btrfs(file: &OwnedFd) -> bool {
    kind(file) == Some(BTRFS)
}

fn kind(file: &OwnedFd) -> Option<u64> {
    u64::try_from(rustix::fs::fstatfs(file).ok()?.f_type).ok()
}

/// Asks a copy-on-write file system to write this file in place, which is possible only for an
/// empty file. If it refuses, writes are as without it.
pub(super) fn ask_to_write_in_place(file: &OwnedFd) {
    let is_empty = || rustix::fs::fstat(file).is_ok_and(|stat| stat.st_size == 0);
    if is_btrfs(file)
        && is_empty()
        && let Ok(flags) = rustix::fs::ioctl_getflags(file)
    {
        let _ = rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW);
    }
}

fn xfs_geometry(file: &OwnedFd) -> Option<XfsGeometry> {
    // SAFETY: this request writes a `struct xfs_fsop_geom_v4`, which has the size of `XfsGeometry`
    // and is only integers; the caller has seen that the file is on XFS, whose request it is.
    let getter = unsafe { Getter::<XFS_GEOMETRY, XfsGeometry>::new() };
    // SAFETY: the getter is that of the request.
    unsafe { rustix::ioctl::ioctl(file.as_fd(), getter) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_this_machine() {
        // _IOR('X', 124, 112 bytes), as the kernel's headers have it.
        assert_eq!(XFS_GEOMETRY, 0x8070_587c);
        let is_in_place = |path: &str| {
            let file = std::fs::File::open(path).ok()?;
            let system = rustix::fs::fstatfs(&file).ok()?;
            Some((system.f_type, stores_in_place(&file.into())))
        };
        // A file system of the kernel's own, which is none of those that are known.
        assert_eq!(is_in_place("/proc").map(|(_, yes)| yes), Some(false));
        if let Some((0x0102_1994, yes)) = is_in_place("/dev/shm") {
            assert!(yes);
        }
        let place = tempfile::tempdir().unwrap();
        if let Some((0xEF53, yes)) = is_in_place(place.path().to_str().unwrap()) {
            assert!(yes);
        }
    }
}
