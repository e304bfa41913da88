//! Statistics of the operating system about this process: peak memory, I/O, and the disk space of a
//! directory.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use spinney_base::{Error, Result};

/// I/O of this process, from the kernel's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessIo {
    /// Read system calls, and page faults that went to the disk.
    pub(crate) reads: u64,
    /// Bytes fetched from storage.
    pub(crate) read_bytes: u64,
    /// Write system calls.
    pub(crate) writes: u64,
    /// Bytes sent to storage.
    pub(crate) write_bytes: u64,
}

impl ProcessIo {
    pub(crate) fn since(self, before: ProcessIo) -> ProcessIo {
        ProcessIo {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
        }
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::io(format!("read {path}"), error))
}

/// The number after `name:` in a file of such lines.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The kernel's I/O counters of this process.
pub(crate) fn io() -> Result<ProcessIo> {
    let text = read("/proc/self/io")?;
    let one = |name| {
        field(&text, name)
            .ok_or_else(|| Error::invalid(format!("/proc/self/io has no field {name}")))
    };
    Ok(ProcessIo {
        reads: one("syscr")? + major_faults()?,
        read_bytes: one("read_bytes")?,
        writes: one("syscw")?,
        write_bytes: one("write_bytes")?,
    })
}

/// Page faults of this process that went to the disk: the reads of a memory-mapped engine.
fn major_faults() -> Result<u64> {
    let text = read("/proc/self/stat")?;
    // The second field is the program's name in parentheses and may hold anything; major faults are
    // the tenth after it.
    let fault =
        text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(9)?.parse().ok());
    fault.ok_or_else(|| Error::invalid("/proc/self/stat has no count of major faults"))
}

/// Forgets the peak memory so far, where the kernel lets a process do that.
pub(crate) fn reset_peak_memory() {
    // Without the permission, the peak covers the whole life of the process, which is still a true
    // upper bound.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most memory this process had resident, in bytes.
pub(crate) fn peak_memory() -> Result<u64> {
    let text = read("/proc/self/status")?;
    let kibibytes = field(&text, "VmHWM")
        .ok_or_else(|| Error::invalid("/proc/self/status has no field VmHWM"))?;
    Ok(kibibytes * 1024)
}

/// The room that a directory's files take on the disk, in bytes.
pub(crate) fn space(directory: &Path) -> Result<u64> {
    let context = |error| Error::io(format!("list {}", directory.display()), error);
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).map_err(context)? {
        let entry = entry.map_err(context)?;
        // A file that the engine removed meanwhile takes no room.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { space(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        reset_peak_memory();
        let before = io().unwrap();
        let peak = peak_memory().unwrap();
        assert!(peak > 1 << 20, "{peak}");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), vec![1; 10_000]).unwrap();
        std::fs::create_dir(directory.path().join("deeper")).unwrap();
        std::fs::write(directory.path().join("deeper/file"), vec![1; 10_000]).unwrap();
        assert!(io().unwrap().since(before).writes >= 2);
        let _ = space(directory.path()).unwrap();
    }
}
