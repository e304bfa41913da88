//! A memory control group around this process, for engines whose memory is the page cache and has
//! no other limit.
//!
//! The group is made below the one the process is in, so every limit above still holds; the process
//! leaves and removes it at the end. Where that is not allowed, there is no limit and the caller
//! says so.

use std::path::{Path, PathBuf};

use spinney_base::{Error, Result};
use spinney_bench::driver::OpenConfig;

/// Memory of the benchmark program itself, which the group counts too.
const PROGRAM_BYTES: u64 = 32 << 20;

/// The option that keeps this process in the control group it is in: `--lmdb.memory-limit off`.
pub(crate) const MEMORY_LIMIT: &str = "memory-limit";

/// The limit of an engine that wants one, or why there is none.
#[derive(Debug)]
pub(crate) struct Limited(Result<MemoryLimit>);

impl Limited {
    /// Limits this process as an engine's options say.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that is neither on nor off, which was checked before.
    pub(crate) fn enter(engine: &str, config: &OpenConfig) -> Result<Self> {
        match config.knobs.get(MEMORY_LIMIT).map(String::as_str) {
            None | Some("on") => Ok(Limited(MemoryLimit::enter(config.memory))),
            Some("off") => Ok(Limited(Err(Error::invalid(format!("{MEMORY_LIMIT} is off"))))),
            Some(other) => {
                let text = format!("{engine}.{MEMORY_LIMIT} is on or off, not {other:?}");
                Err(Error::invalid(text))
            }
        }
    }

    /// Whether there is one, and what to say of it.
    pub(crate) fn terms(&self) -> (bool, String) {
        match &self.0 {
            Ok(_) => (true, "memory is limited by a control group, page cache included".to_owned()),
            Err(error) => (false, format!("memory is unlimited ({error})")),
        }
    }
}

/// This process inside a group of its own; dropping it leaves and removes the group.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    outer: PathBuf,
    inner: PathBuf,
}

impl MemoryLimit {
    /// Limits this process, its page cache included, to `bytes` and a fixed allowance for the
    /// program itself.
    ///
    /// # Errors
    /// `Io` when no group can be made here, for whatever reason.
    pub(crate) fn enter(bytes: u64) -> Result<Self> {
        let groups = read(Path::new("/proc/self/cgroup"))?;
        let mounts = read(Path::new("/proc/self/mounts"))?;
        let (outer, version) = own_group(&groups, &mounts)
            .ok_or_else(|| Error::invalid("this process is in no memory control group"))?;
        let inner = outer.join(format!("spinney-bench-{}", std::process::id()));
        std::fs::create_dir(&inner)
            .map_err(|error| Error::io(format!("create {}", inner.display()), error))?;
        // From here on, dropping it cleans up.
        let limit = MemoryLimit { outer, inner };
        let file = match version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        write(&limit.inner.join(file), bytes + PROGRAM_BYTES)?;
        write(&limit.inner.join("cgroup.procs"), u64::from(std::process::id()))?;
        Ok(limit)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // An empty group that cannot be removed limits nobody.
        let _ = write(&self.outer.join("cgroup.procs"), u64::from(std::process::id()));
        let _ = std::fs::remove_dir(&self.inner);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The directory of the group that this process is in for memory, from the kernel's lists of groups
/// and mounts.
fn own_group(groups: &str, mounts: &str) -> Option<(PathBuf, Version)> {
    let group = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            wanted(controllers).then(|| fields.next()).flatten()
        })
    };
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let fits =
                *fields.get(2)? == kind && fields.get(3)?.split(',').any(|one| one == option);
            fits.then(|| fields[1])
        })
    };
    let has_memory = |controllers: &str| controllers.split(',').any(|one| one == "memory");
    let (path, root, version) = match (group(&has_memory), mount("cgroup", "memory")) {
        (Some(path), Some(root)) => (path, root, Version::One),
        _ => (group(&str::is_empty)?, mount("cgroup2", "rw")?, Version::Two),
    };
    Some((Path::new(root).join(path.trim_start_matches('/')), version))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::io(format!("read {}", path.display()), error))
}

fn write(path: &Path, number: u64) -> Result<()> {
    std::fs::write(path, number.to_string())
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let found = own_group("4:memory:/outer/one\n1:cpu:/\n0::/\n", mounts);
        assert_eq!(found, Some(("/sys/fs/cgroup/memory/outer/one".into(), Version::One)));
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = own_group("0::/user.slice/session\n", mounts);
        assert_eq!(found, Some(("/sys/fs/cgroup/user.slice/session".into(), Version::Two)));
        assert_eq!(own_group("0::/\n", ""), None);
    }
}
