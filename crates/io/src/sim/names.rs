//! Names of files: what a lookup finds now, what is durable, and the steps between.
//!
//! **Invariant.** Every step since the last sync of its directory is pending, in order; a crash
//! lets either a prefix of a directory's pending steps survive (a journal) or each by itself (no
//! journal). A rename is one step: it is seen whole or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use spinney_base::runtime::SplitMix;

use super::inode::Survival;

pub(super) type InodeNumber = u64;

#[derive(Clone, Debug)]
enum NameStep {
    Create(PathBuf, InodeNumber),
    Rename(PathBuf, PathBuf, InodeNumber),
    Remove(PathBuf, InodeNumber),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    current: BTreeMap<PathBuf, InodeNumber>,
    durable: BTreeMap<PathBuf, InodeNumber>,
    pending: BTreeMap<PathBuf, Vec<NameStep>>,
}

fn apply(names: &mut BTreeMap<PathBuf, InodeNumber>, step: &NameStep) {
    match step {
        NameStep::Create(path, inode) => {
            names.insert(path.clone(), *inode);
        }
        NameStep::Rename(from, to, inode) => {
            // Without the creation before it, the old name is not there to be removed, and may by
            // now be another file's.
            if names.get(from) == Some(inode) {
                names.remove(from);
            }
            names.insert(to.clone(), *inode);
        }
        NameStep::Remove(path, inode) => {
            if names.get(path) == Some(inode) {
                names.remove(path);
            }
        }
    }
}

impl Names {
    pub(super) fn current(&self) -> &BTreeMap<PathBuf, InodeNumber> {
        &self.current
    }

    fn step(&mut self, path: &Path, step: NameStep) {
        apply(&mut self.current, &step);
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        self.pending.entry(directory).or_default().push(step);
    }

    pub(super) fn create(&mut self, path: &Path, inode: InodeNumber) {
        self.step(path, NameStep::Create(path.to_owned(), inode));
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        if let Some(inode) = self.current.get(from).copied() {
            self.step(from, NameStep::Rename(from.to_owned(), to.to_owned(), inode));
        }
    }

    pub(super) fn remove(&mut self, path: &Path) {
        if let Some(inode) = self.current.get(path).copied() {
            self.step(path, NameStep::Remove(path.to_owned(), inode));
        }
    }

    pub(super) fn sync(&mut self, directory: &Path) {
        for step in self.pending.remove(directory).unwrap_or_default() {
            apply(&mut self.durable, &step);
        }
    }

    /// Moves all names under a directory with it, at once and for good.
    pub(super) fn move_directory(&mut self, from: &Path, to: &Path) {
        let moved = |path: &Path| match path.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
            Ok(rest) => to.join(rest),
            Err(_) => path.to_owned(),
        };
        for names in [&mut self.current, &mut self.durable] {
            *names = std::mem::take(names).into_iter().map(|(p, n)| (moved(&p), n)).collect();
        }
        let pending = std::mem::take(&mut self.pending);
        self.pending = (pending.into_iter())
            .map(|(directory, mut steps)| {
                for step in &mut steps {
                    match step {
                        NameStep::Create(path, _) | NameStep::Remove(path, _) => {
                            *path = moved(path);
                        }
                        NameStep::Rename(from, to, _) => {
                            *from = moved(from);
                            *to = moved(to);
                        }
                    }
                }
                (moved(&directory), steps)
            })
            .collect();
    }

    /// Removes all names under a directory, at once and for good.
    pub(super) fn remove_directory(&mut self, directory: &Path) {
        self.current.retain(|path, _| !path.starts_with(directory));
        self.durable.retain(|path, _| !path.starts_with(directory));
        self.pending.retain(|path, _| !path.starts_with(directory));
    }

    /// The names after a power loss: all that is left is durable.
    pub(super) fn after_crash(&self, random: &mut SplitMix, survival: Survival) -> Names {
        let mut names = self.durable.clone();
        for steps in self.pending.values() {
            let journaled = random.below(2) == 0;
            for step in steps {
                if survival.survives(random) {
                    apply(&mut names, step);
                } else if journaled {
                    break;
                }
            }
        }
        Names { current: names.clone(), durable: names, pending: BTreeMap::new() }
    }
}
