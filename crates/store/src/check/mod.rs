//! Checking a store that is not in use, without changing anything on its devices: the checkpoint, then the state
//! after replaying the log, as after opening the store, and if wanted the data of all objects.
//!
//! Memory: three bits for each block of the data region (96 MiB for each TiB), the page table, 64 MiB at most for
//! counting shared blocks, and the memory for replaying the log.

mod bits;
mod data;
mod entries;
mod examination;
mod problem;
mod shared;

#[cfg(test)]
pub(crate) mod tests;

use atoll_buffers::BLOCK_BYTES;
use serde::Serialize;

use crate::disk::Disk;
use crate::error::OpenError;
use crate::layout::Layout;
use crate::metadata::Metadata;
use crate::metadata::page_table::PageTable;
use crate::recovery::{Recovered, load_checkpoint, load_superblock};
use crate::superblock::Superblock;
use examination::{Examination, Figures};
use problem::Problems;

pub use problem::{BytePlace, Finding, Problem};

/// Parts to check.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read all data too, and compare it with its checksums.
    pub data: bool,
}

/// Phases of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckPhase {
    /// Reading metadata; progress is counted in pages.
    Metadata,
    /// Reading metadata and data; progress is counted in blocks of data.
    Data,
}

/// Result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Problems, up to a few hundred of them.
    pub problems: Vec<Finding>,
    /// How many problems there are, those that are not listed included.
    pub problem_count: u64,
    /// True if the log was replayed, in memory. It is not when the metadata is too damaged for it; then the
    /// figures are those of the checkpoint.
    pub is_replayed: bool,
    /// True if all data was read.
    pub is_data_checked: bool,
    /// Generation of the checkpoint.
    pub generation: u64,
    /// Superblock copies that are whole. After a power cut it may be one of the two.
    pub superblock_copies: usize,
    /// Records of the log that the checkpoint does not hold.
    pub log_records: u64,
    /// PGs.
    pub pgs: u64,
    /// Objects.
    pub objects: u64,
    /// Omap entries.
    pub omap_entries: u64,
    /// Metadata pages in use, those of the bitmap included.
    pub metadata_pages: u64,
    /// Depth of the tree; 0 if it is a single leaf.
    pub depth: usize,
    /// Bytes that pages and the page table take on the device.
    pub metadata_bytes: u64,
    /// Bytes of the blocks that objects refer to.
    pub data_bytes: u64,
    /// Bytes of those that belong to several objects.
    pub shared_bytes: u64,
    /// Size of the data region in bytes.
    pub region_bytes: u64,
}

/// Checks the store. `progress` is called from time to time with the completed part and the whole.
///
/// ```
/// use atoll_store::{CheckOptions, Disk, OpenError, check};
///
/// fn is_sound(disk: &mut dyn Disk) -> Result<bool, OpenError> {
///     let report = check(disk, CheckOptions { data: true }, &mut |_, _, _| {})?;
///     Ok(report.problem_count == 0)
/// }
/// ```
pub fn check(
    disk: &mut dyn Disk,
    options: CheckOptions,
    progress: &mut dyn FnMut(CheckPhase, u64, u64),
) -> Result<CheckReport, OpenError> {
    let (superblock, layout) = load_superblock(disk)?;
    let mut problems = Problems::default();
    let superblock_copies = check_copies(disk, &superblock, &mut problems);
    if !superblock.damage.is_empty() {
        problems.add(Problem::Remembered { detail: superblock.damage.clone() });
    }
    let mut figures = match load_checkpoint(disk, &superblock, &layout) {
        Ok((page_table, metadata)) => {
            let examination = Examination::new(&metadata, &page_table, &layout, &mut problems, progress);
            examination.run(disk, None)
        }
        Err(error) => {
            problems.add(Problem::PageTable { detail: error.to_string() });
            Figures::default()
        }
    };
    let mut log_records = None;
    if !problems.prevent_replay {
        problems.after_replay = true;
        match Recovered::load(disk) {
            Err(error) => problems.add(Problem::Log { detail: error.to_string() }),
            Ok(recovered) => {
                log_records = Some(recovered.replayed_records);
                if recovered.replayed_records > 0 || options.data {
                    figures = examine_replayed(disk, &recovered, options, &mut problems, progress);
                }
            }
        }
    }
    let report = Report { superblock: &superblock, layout: &layout, superblock_copies, log_records, figures };
    Ok(report.finish(problems, options))
}

/// Returns the problems of the metadata of a store in use.
pub(crate) fn examine(
    disk: &mut dyn Disk,
    metadata: &Metadata,
    page_table: &PageTable,
    layout: &Layout,
) -> Vec<Finding> {
    let mut problems = Problems::default();
    Examination::new(metadata, page_table, layout, &mut problems, &mut |_, _, _| {}).run(disk, None);
    problems.listed
}

fn examine_replayed(
    disk: &mut dyn Disk,
    recovered: &Recovered,
    options: CheckOptions,
    problems: &mut Problems,
    progress: &mut dyn FnMut(CheckPhase, u64, u64),
) -> Figures {
    let (metadata, page_table) = (&recovered.metadata, &recovered.page_table);
    let examination = Examination::new(metadata, page_table, &recovered.layout, problems, progress);
    let mut figures = examination.run(disk, options.data.then_some(&recovered.overlay));
    // Replay leaves the PGs in memory; the tree has those of the checkpoint.
    figures.pgs = recovered.pgs.len() as u64;
    if let Err(error) = recovered.rebuild_allocator() {
        problems.add(Problem::Log { detail: error.to_string() });
    }
    figures
}

/// The copy that is not in force is the one before it, or torn, or was never written.
fn check_copies(disk: &mut dyn Disk, superblock: &Superblock, problems: &mut Problems) -> usize {
    let copies = Superblock::copies(disk);
    for copy in copies.iter().flatten().filter(|copy| *copy != superblock) {
        let is_same_store = copy.store_id == superblock.store_id
            && copy.device_bytes == superblock.device_bytes
            && copy.wal_bytes == superblock.wal_bytes
            && copy.wal_is_apart == superblock.wal_is_apart;
        if !is_same_store || copy.generation + 1 != superblock.generation {
            let detail = format!("generation {} beside {}", copy.generation, superblock.generation);
            problems.add(Problem::Superblocks { detail });
        }
    }
    copies.iter().flatten().count()
}

/// Inputs of a report.
struct Report<'a> {
    superblock: &'a Superblock,
    layout: &'a Layout,
    superblock_copies: usize,
    log_records: Option<u64>,
    figures: Figures,
}

impl Report<'_> {
    fn finish(self, problems: Problems, options: CheckOptions) -> CheckReport {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        CheckReport {
            problems: problems.listed,
            problem_count: problems.total,
            is_replayed: self.log_records.is_some(),
            is_data_checked: self.log_records.is_some() && options.data,
            generation: self.superblock.generation,
            superblock_copies: self.superblock_copies,
            log_records: self.log_records.unwrap_or(0),
            pgs: self.figures.pgs,
            objects: self.figures.objects,
            omap_entries: self.figures.omap_entries,
            metadata_pages: self.figures.pages,
            depth: self.figures.depth,
            metadata_bytes: bytes(self.figures.metadata_blocks),
            data_bytes: bytes(self.figures.data_blocks),
            shared_bytes: bytes(self.figures.shared_blocks),
            region_bytes: bytes(self.layout.data_blocks),
        }
    }
}
