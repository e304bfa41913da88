//! Which process holds a lock that was refused, as far as the kernel tells.
//!
//! `/proc/locks` has a line for every lock: `7: FLOCK  ADVISORY  WRITE 1234 fe:00:5390404 0 EOF`,
//! with the process, and device and number of the file. Nothing has to be written to be found there,
//! and nothing is left behind by a process that was killed. Where the file system has device numbers
//! of its own (btrfs, overlayfs), the files that the process has open are looked at.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::Stat;

/// Returns the process that holds the lock of a file. `None` when the kernel does not say, because
/// the process is in another container or on another machine, or there is no `/proc`.
pub(super) fn holder_of(descriptor: &OwnedFd) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let file = rustix::fs::fstat(descriptor).ok()?;
    let device = (rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev));
    let mut locks = locks.lines().filter_map(parse).filter(|lock| lock.inode == file.st_ino);
    let holds = |lock: &Lock| lock.device == device || has_open(lock.process, &file);
    locks.find(holds).map(|lock| lock.process)
}

#[derive(Debug, PartialEq, Eq)]
struct Lock {
    process: u32,
    device: (u32, u32),
    inode: u64,
}

/// Parses one line; `None` for other kinds of locks and for waiting ones.
fn parse(line: &str) -> Option<Lock> {
    let mut words = line.split_whitespace().skip(1);
    if words.next() != Some("FLOCK") {
        return None;
    }
    let process = words.nth(2)?.parse().ok().filter(|process| *process > 0)?;
    let mut file = words.next()?.split(':');
    let number = |word: Option<&str>| u32::from_str_radix(word?, 16).ok();
    let device = (number(file.next())?, number(file.next())?);
    Some(Lock { process, device, inode: file.next()?.parse().ok()? })
}

/// Returns whether a process has a file open, as far as permissions allow.
fn has_open(process: u32, file: &Stat) -> bool {
    let directory = PathBuf::from(format!("/proc/{process}/fd"));
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut open = entries.filter_map(|entry| rustix::fs::stat(entry.path()).ok());
    open.any(|other| (other.st_dev, other.st_ino) == (file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let lock = |process, device, inode| Some(Lock { process, device, inode });
        let line = "7: FLOCK  ADVISORY  WRITE 1234 fe:00:5390404 0 EOF";
        assert_eq!(parse(line), lock(1234, (0xfe, 0), 5_390_404));
        assert_eq!(parse("9: FLOCK  ADVISORY  READ 1 00:1f:7 0 EOF"), lock(1, (0, 31), 7));
        for other in [
            "",
            "7:",
            "7: POSIX  ADVISORY  WRITE 1234 fe:00:5390404 0 EOF",
            "7: -> FLOCK  ADVISORY  WRITE 1234 fe:00:5390404 0 EOF",
            "7: FLOCK  ADVISORY  WRITE 0 fe:00:5390404 0 EOF",
            "7: FLOCK  ADVISORY  WRITE 1234 fe:zz:5390404 0 EOF",
            "7: FLOCK  ADVISORY  WRITE 1234 fe:00",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
