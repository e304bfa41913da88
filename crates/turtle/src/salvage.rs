//! Salvage: what can be read of a damaged store file (rule P22).
//!
//! ```text
//!   slots --> root --> nodes --> leaves, with what waits for them above
//!     |         |        +--- a node that cannot be read: a gap --+
//!     |         +------------ a root that cannot be read ---------+--> all pages of the file
//!     +-- no slot: the newest payload among all pages, else the newest node
//! ```
//!
//! Pages are never written in place, so a tree whose root is found is as whole as its pages. Each
//! page of a leaf stands for its own keys or values. What a damaged page held is reported as lost,
//! or as older where a version below it or before it was found. Index and filter are not needed.
//!
//! The newest checkpoint that a slot names counts. If a slot is damaged, salvage looks for what it
//! may have named: a checkpoint's payload has its redo LSN in its block header and begins with the
//! root, and it is written after everything that it leads to. Failing that, the newest node is the
//! root, unless there is a higher one. What leads to pages of other times was not written whole, or
//! was given back since, and does not count while something else is there.
//!
//! **Where nothing leads to leaves** (below a node that is gone, or everywhere) all leaves and
//! segments of the file are shown, the older ones first ([`scan`] says what tells newer from
//! older). There salvage cannot promise more than this: each key has a value that it had once, the
//! newest one that the file has, except for a segment and a leaf of one checkpoint where no node
//! says which is which. Keys that were removed may come back, where a freed leaf was not written
//! over and no node says that a newer leaf has its range. Such ranges are reported as older.
//!
//! **Memory**: the nodes of a path and pages of what is merged; of a scan some hundred bytes for
//! each leaf or segment.

mod edits;
mod scan;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod walk;

use std::cmp::Reverse;
use std::sync::Arc;

use spinney_base::{Generation, KeyspaceId, Lsn, Poison, Result};
use spinney_engine::{KeyspaceSalvage, Notes, SalvageFindings, Show, Span};
use spinney_extent::{Store, StoreOptions};
use spinney_io::Directory;

use crate::payload;
use scan::{FoundRoot, Roles, Scan, Strays};
use walk::{Survey, Walk};

/// A store file being salvaged. Nothing is written to it.
#[derive(Debug)]
pub struct Salvage {
    store: Store,
    /// Whether the log has what was written.
    logged: bool,
    /// The first and last LSN of a whole log.
    log: Option<(Lsn, Lsn)>,
    root: Option<Vec<u8>>,
    redo: Option<Lsn>,
    survey: Survey,
    /// All pages, if they had to be looked at.
    scan: Option<(Scan, Roles)>,
    /// Whether any record may be an older one.
    is_doubtful: bool,
    notes: Notes,
    findings: SalvageFindings,
}

impl Salvage {
    /// Opens the file of a keyspace that is `logged` or is not.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened; damage is none.
    pub fn open(
        directory: &dyn Directory,
        name: &str,
        keyspace: KeyspaceId,
        logged: bool,
    ) -> Result<Salvage> {
        let options =
            StoreOptions { keyspace, double_write: false, poison: Arc::new(Poison::new()) };
        Ok(Salvage {
            store: Store::open_unread(directory, name, options)?,
            logged,
            log: None,
            root: None,
            redo: None,
            survey: Survey::default(),
            scan: None,
            is_doubtful: false,
            notes: Notes::default(),
            findings: SalvageFindings::default(),
        })
    }

    /// Looks at all pages, once.
    fn scan(&mut self) -> Result<()> {
        if self.scan.is_none() {
            let scan = Scan::read(&self.store)?;
            let roles = Roles::read(&self.store, &scan);
            self.scan = Some((scan, roles));
        }
        Ok(())
    }

    /// Finds the root of the newest tree, and its redo LSN.
    fn find_root(&mut self) -> Result<()> {
        let (slots, mut doubt) = self.store.found_slots();
        let newest_redo = slots.first().map(|(slot, _)| slot.redo);
        let newest = slots.first().and_then(|(slot, _)| Some(slot.extents.first()?.1));
        let newest = newest.unwrap_or_default();
        let mut roots: Vec<(FoundRoot, bool)> = Vec::new();
        for (slot, found) in slots {
            let decoded = found.and_then(|bytes| {
                let (root, _) = payload::decode(&bytes)?;
                // A new keyspace has no payload and no tree.
                Ok(if root.is_empty() { EMPTY.to_vec() } else { root.to_vec() })
            });
            match decoded {
                Ok(root) => {
                    let extent = slot.extents.first();
                    let generation = extent.map_or(Generation(0), |(_, generation)| *generation);
                    let redo = Some(slot.redo);
                    roots.push((FoundRoot { generation, redo, root }, true));
                }
                // A slot that was read before is the newer one.
                Err(error) if roots.is_empty() => doubt = Some(error),
                Err(_) => {}
            }
        }
        let Some(doubt) = doubt else {
            if let Some((found, _)) = roots.into_iter().next() {
                (self.root, self.redo) = (Some(found.root), found.redo);
            }
            return Ok(());
        };
        self.scan()?;
        if let Some((scan, roles)) = &self.scan {
            roots.extend(scan.roots.iter().chain(&roles.top).map(|root| (root.clone(), false)));
        }
        // What a slot names comes before the same without a slot.
        roots.sort_by_key(|(root, _)| Reverse(root.generation));
        let chosen = self.choose(&roots)?;
        if chosen != Some(0) || !roots[0].1 {
            self.findings.checkpoint = Some(doubt.to_string());
        }
        let by_slot = roots.iter().position(|(_, of_slot)| *of_slot);
        let Some(at) = chosen.or(by_slot) else {
            (self.redo, self.is_doubtful) = (newest_redo, true);
            return Ok(());
        };
        let (found, _) = roots.swap_remove(at);
        let scan = self.scan.as_ref().map(|(scan, _)| scan);
        // What a younger checkpoint may have had is in a log that reaches back to this one. Of a
        // node that nothing named it is only likely that it is the root.
        let reaches = |redo: Lsn| {
            let log = self.log.filter(|_| self.logged);
            log.is_some_and(|(first, last)| redo.next() >= first && redo <= last)
        };
        let is_last =
            newest <= found.generation && scan.is_none_or(|scan| !scan.has_younger_than(&found));
        self.is_doubtful = found.redo.is_none_or(|redo| !is_last && !reaches(redo));
        if self.is_doubtful {
            self.findings.checkpoint = Some(doubt.to_string());
        }
        (self.root, self.redo) = (Some(found.root), found.redo);
        Ok(())
    }

    /// Which of several roots, the newest first, is the first one that leads to pages of one time.
    fn choose(&self, roots: &[(FoundRoot, bool)]) -> Result<Option<usize>> {
        for (index, (root, _)) in roots.iter().enumerate() {
            let mut notes = Notes::default();
            if Walk::new(&self.store, &mut notes).is_of_its_time(&root.root)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

/// A tree without records.
const EMPTY: [u8; 1] = [0];

impl KeyspaceSalvage for Salvage {
    fn end_of_log(&mut self, first: Lsn, last: Lsn) {
        self.log = Some((first, last));
    }

    fn read_pages(&mut self) -> Result<()> {
        self.find_root()?;
        if let Some(root) = &self.root {
            self.survey = Walk::new(&self.store, &mut self.notes).survey(root)?;
        }
        let is_gone = |gap: &walk::Gap| gap.range == Span::ALL.to_range();
        if self.survey.gaps.iter().any(is_gone) && self.survey.named.is_empty() {
            // The root cannot be read.
            self.root = None;
        }
        if self.root.is_none() || !self.survey.gaps.is_empty() {
            self.scan()?;
        }
        Ok(())
    }

    fn records(&mut self, show: &mut Show<'_>) -> Result<()> {
        let mut notes = std::mem::take(&mut self.notes);
        let all = Span::ALL.to_range();
        if let Some((scan, roles)) = &self.scan
            && (self.root.is_none() || !self.survey.gaps.is_empty())
        {
            let strays = Strays::new(&self.store, scan, roles, &self.survey.named);
            if self.root.is_none() {
                self.is_doubtful = strays.show(&all, None, &mut notes, show)?;
                if !self.is_doubtful {
                    notes.lost(all.clone());
                }
                scan.damaged.iter().for_each(|(page, damage)| notes.damaged(*page, damage));
            }
            for gap in self.survey.gaps.iter().filter(|_| self.root.is_some()) {
                if strays.show(&gap.range, gap.below, &mut notes, show)? {
                    notes.older(gap.range.clone());
                } else {
                    notes.lost(gap.range.clone());
                }
            }
        }
        if let Some(root) = &self.root {
            Walk::new(&self.store, &mut notes).records(root, show)?;
        }
        notes.tell(&self.store, &mut self.findings);
        if self.is_doubtful {
            self.findings.older = vec![all];
        }
        Ok(())
    }

    fn redo(&self) -> Option<Lsn> {
        self.redo
    }

    fn findings(&self) -> &SalvageFindings {
        &self.findings
    }

    fn store(&self) -> &Store {
        &self.store
    }
}
