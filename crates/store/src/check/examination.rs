//! Examining one state of the metadata: the pages, the entries, and that they agree on the blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use atoll_types::PoolId;

use super::CheckPhase;
use super::bits::Bits;
use super::data::DataReader;
use super::entries::{Entries, Found, Reference};
use super::problem::{Problem, Problems};
use super::shared::check_counts;
use crate::disk::Disk;
use crate::layout::Layout;
use crate::metadata::page_table::PageTable;
use crate::metadata::{Metadata, PageKind, PoolCount};
use crate::overlay::Overlay;
use crate::walk::{Visitor, Walk, read_page};

/// Counts of found items.
#[derive(Clone, Copy, Default)]
pub(super) struct Figures {
    pub pgs: u64,
    pub objects: u64,
    pub omap_entries: u64,
    pub pages: u64,
    pub depth: usize,
    pub metadata_blocks: u64,
    pub data_blocks: u64,
    pub shared_blocks: u64,
}

/// Pages or blocks between two reports of progress.
const PROGRESS_STEP: u64 = 1024;

/// The examination of one state.
pub(super) struct Examination<'a> {
    metadata: &'a Metadata,
    page_table: &'a PageTable,
    layout: &'a Layout,
    problems: &'a mut Problems,
    progress: &'a mut dyn FnMut(CheckPhase, u64, u64),
    /// Blocks that the bitmap says are referred to.
    marked: Bits,
    marked_count: u64,
    /// Blocks that objects refer to, and those that several references are for.
    referenced: Bits,
    again: Bits,
    /// How many blocks the objects of each pool refer to.
    pool_blocks: BTreeMap<PoolId, u64>,
}

/// The walk over all pages.
struct Everything<'a, 'b> {
    examination: &'b mut Examination<'a>,
    entries: Entries,
    data: Option<DataReader<'b>>,
    reached: Bits,
    page_count: u64,
}

impl<'a> Examination<'a> {
    pub fn new(
        metadata: &'a Metadata,
        page_table: &'a PageTable,
        layout: &'a Layout,
        problems: &'a mut Problems,
        progress: &'a mut dyn FnMut(CheckPhase, u64, u64),
    ) -> Self {
        // The layout keeps block numbers in 32 bits.
        let (first, count) = (layout.data_start as u32, layout.data_blocks as u32);
        let bits = || Bits::new(first, count);
        Examination {
            metadata,
            page_table,
            layout,
            problems,
            progress,
            marked: bits(),
            marked_count: 0,
            referenced: bits(),
            again: bits(),
            pool_blocks: BTreeMap::new(),
        }
    }

    /// Examines everything; the data too, if there is an overlay that says where the newest bytes are.
    pub fn run(mut self, disk: &mut dyn Disk, overlay: Option<&Overlay>) -> Figures {
        let unreadable = self.read_bitmap(disk);
        let mut figures = self.walk(disk, overlay);
        figures.metadata_blocks = self.check_metadata_blocks();
        self.compare_with_bitmap(&unreadable);
        figures.data_blocks = self.referenced.len();
        figures.shared_blocks = check_counts(disk, self.metadata, &mut self.again, self.problems);
        let nothing = Bits::new(self.layout.data_start as u32, self.layout.data_blocks as u32);
        self.again.for_each_run_without(&nothing, |first, count| {
            self.problems.add(Problem::BlocksReferredToTwice { first, count });
        });
        figures
    }

    /// Reads the bitmap. Returns the numbers of its pages that are damaged.
    fn read_bitmap(&mut self, disk: &mut dyn Disk) -> Vec<u32> {
        let bitmap = self.metadata.bitmap;
        let mut unreadable = Vec::new();
        for number in 0..bitmap.page_count() {
            let pages = &self.metadata.tree.pages;
            let page = read_page(disk, pages, number).and_then(|page| match page.kind() {
                PageKind::Bitmap => Ok(page),
                _ => Err(Problem::DamagedPage {
                    page: number,
                    block: pages.location(number).block,
                    detail: "it should be part of the bitmap".into(),
                }),
            });
            match page {
                Ok(page) => bitmap.for_each_in(number, &page, |block| {
                    if !self.marked.insert(block) {
                        self.problems.add(Problem::LeakedBlocks { first: block, count: 1 });
                    }
                }),
                Err(problem) => {
                    self.problems.add(problem);
                    unreadable.push(number);
                }
            }
        }
        self.marked_count = self.marked.len();
        unreadable
    }

    fn walk(&mut self, disk: &mut dyn Disk, overlay: Option<&Overlay>) -> Figures {
        let (tree, object_count) = (&self.metadata.tree, self.metadata.object_count);
        let data = overlay.map(|overlay| DataReader::new(*self.layout, overlay));
        let reached = Bits::new(0, tree.pages.count());
        let mut everything =
            Everything { examination: self, entries: Entries::default(), data, reached, page_count: 0 };
        let depth = Walk::new(disk, &tree.pages, &[], &[0xff; 8]).run(tree.root, &mut everything);
        let Everything { examination, mut entries, data, reached, page_count } = everything;
        let problems = &mut *examination.problems;
        if let Some(mut data) = data {
            data.finish(disk, problems);
        }
        entries.end(&mut |found| {
            if let Found::Problem(problem) = found {
                problems.add(problem);
            }
        });
        if entries.object_count != object_count {
            problems.add(Problem::ObjectCount { found: entries.object_count, recorded: object_count });
        }
        examination.compare_pools(&entries.pools);
        let problems = &mut *examination.problems;
        let mut live = Bits::new(0, tree.pages.count());
        (tree.root..tree.pages.count()).filter(|&number| tree.pages.is_live(number)).for_each(|number| {
            live.insert(number);
        });
        live.for_each_run_without(&reached, |first, count| {
            problems.add(Problem::UnreachablePages { first, count });
        });
        Figures {
            pgs: entries.pg_count,
            objects: entries.object_count,
            omap_entries: entries.omap_count,
            pages: page_count + u64::from(tree.root),
            depth,
            ..Figures::default()
        }
    }

    /// Checks the counts of pools by the objects of each, if nothing else is wrong: damaged objects cannot be
    /// counted.
    fn compare_pools(&mut self, objects: &BTreeMap<PoolId, u64>) {
        let Some(counts) = self.metadata.pool_counts.as_ref().filter(|_| self.problems.total == 0) else { return };
        let recorded: BTreeMap<PoolId, PoolCount> = counts.iter().collect();
        let pools: BTreeSet<PoolId> = objects.keys().chain(recorded.keys()).copied().collect();
        for pool in pools {
            let of = |counts: &BTreeMap<PoolId, u64>| counts.get(&pool).copied().unwrap_or(0);
            let found = PoolCount { objects: of(objects), blocks: of(&self.pool_blocks) };
            let recorded = recorded.get(&pool).copied().unwrap_or_default();
            if found != recorded {
                self.problems.add(Problem::PoolCount {
                    pool: pool.0,
                    objects: found.objects,
                    blocks: found.blocks,
                    recorded_objects: recorded.objects,
                    recorded_blocks: recorded.blocks,
                });
            }
        }
    }

    /// An object refers to a block.
    fn referred(&mut self, disk: &mut dyn Disk, reference: &Reference, data: Option<&mut DataReader>) {
        let block = reference.device_block;
        if !self.referenced.covers(block) {
            let (object, index) = (reference.object.clone(), reference.index);
            return self.problems.add(Problem::BlockOutside { object, index, block });
        }
        match self.referenced.insert(block) {
            true => *self.pool_blocks.entry(reference.object.pg.pool).or_default() += 1,
            false => drop(self.again.insert(block)),
        }
        let Some(data) = data else { return };
        data.take(disk, reference, self.problems);
        if data.block_count.is_multiple_of(PROGRESS_STEP) {
            (self.progress)(CheckPhase::Data, data.block_count, self.marked_count.max(data.block_count));
        }
    }

    /// Checks that no block of metadata has another use. Returns how many such blocks there are.
    fn check_metadata_blocks(&mut self) -> u64 {
        let mut taken = Bits::new(self.layout.data_start as u32, self.layout.data_blocks as u32);
        let pages = &self.metadata.tree.pages;
        let of_pages = (0..pages.count()).map(|number| pages.location(number).block).filter(|&block| block != 0);
        for block in of_pages.chain(self.page_table.blocks()) {
            let detail = match self.referenced.contains(block) {
                true => "an object",
                false => "another part of the metadata",
            };
            if !taken.insert(block) || self.referenced.contains(block) {
                self.problems.add(Problem::MetadataBlock { block, detail: detail.into() });
            }
        }
        taken.len()
    }

    /// Checks that the bitmap agrees with the objects, except where it cannot be read.
    fn compare_with_bitmap(&mut self, unreadable: &[u32]) {
        for &number in unreadable {
            let (first, count) = self.metadata.bitmap.blocks_of(number);
            for block in (first..first + count).filter(|&block| self.referenced.contains(block)) {
                self.marked.insert(block);
            }
        }
        let problems = &mut *self.problems;
        self.referenced.for_each_run_without(&self.marked, |first, count| {
            problems.add(Problem::UnmarkedBlocks { first, count });
        });
        self.marked.for_each_run_without(&self.referenced, |first, count| {
            problems.add(Problem::LeakedBlocks { first, count });
        });
    }
}

impl Visitor for Everything<'_, '_> {
    fn entry(&mut self, disk: &mut dyn Disk, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        let (examination, data) = (&mut *self.examination, &mut self.data);
        self.entries.take(key, value, &mut |found| match found {
            Found::Problem(problem) => examination.problems.add(problem),
            Found::Reference(reference) => examination.referred(disk, &reference, data.as_mut()),
        });
        ControlFlow::Continue(())
    }

    fn enter(&mut self, number: u32, parent: u32) -> bool {
        if !self.reached.insert(number) {
            self.problem(Problem::PageReachedTwice { page: number, parent });
            return false;
        }
        self.page_count += 1;
        if self.data.is_none() && self.page_count.is_multiple_of(PROGRESS_STEP) {
            let all = self.examination.metadata.tree.pages.count();
            (self.examination.progress)(CheckPhase::Metadata, self.page_count, u64::from(all));
        }
        true
    }

    fn problem(&mut self, problem: Problem) {
        self.examination.problems.add(problem);
    }
}
