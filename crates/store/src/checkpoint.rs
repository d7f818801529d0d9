//! Checkpoints: applying the log's small writes to their places, writing changed metadata pages and the page table
//! to fresh places, and swapping the superblock, after which the log is trimmed. Client I/O continues beside it:
//! nothing here takes longer than a few blocks' worth of work at a time, and few requests are in flight unless the
//! log is about to fill up.
//!
//! It is safe because only records that were durable when it began are trimmed; their data is applied unless
//! something newer has replaced it; and the superblock is not written before every transaction that may have
//! replaced something is durable in the log itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};

use crate::disk::{DiskOperation, Segment, WRITE_SEGMENTS_MAX};
use crate::invariants;
use crate::loads::Waiter;
use crate::metadata::{Cold, Location};
use crate::outbox::Purpose;
use crate::overlay::{BufferBlock, Home, PendingBlock};
use crate::pgs::Saving;
use crate::store::Store;
use crate::superblock::Superblock;

/// Requests that a checkpoint makes at once at least, and at most. It is in no hurry until clients fill the log: one
/// that is done early has only taken the device from them, and their log records wait behind its writes. But blocks that
/// go to their places together share a doorbell of the device and interrupts.
const REQUESTS_MIN: usize = 16;
const REQUESTS_MAX: u64 = 128;
/// Blocks by which a checkpoint has to be behind for one more request.
const BEHIND_PER_REQUEST: u64 = 64;
/// Index blocks of the page table in flight: they are few, and the last that is written before the end.
const TABLE_REQUESTS_MAX: usize = 8;
/// Metadata pages in one write.
const PAGES_PER_WRITE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The logs of PGs are brought into the tree.
    SavePgs,
    /// Records that will be trimmed are not all durable yet.
    WaitForLog,
    /// Applying blocks and writing pages.
    Write,
    /// Writing the page table.
    Table,
    /// Transactions that replaced something meanwhile are not all durable yet.
    Fence,
    Sync,
    Superblock,
}

/// Adjacent blocks that are being applied.
struct Run {
    first: u32,
    blocks: Vec<(u64, Option<BufferBlock>)>,
    reads_left: usize,
}

enum Request {
    Pages(Vec<u32>),
    /// Bytes of a run's block that were dropped from memory.
    LogRead {
        run: u64,
        index: usize,
    },
    Apply {
        run: u64,
    },
    Other,
}

pub(crate) struct Checkpoint {
    phase: Phase,
    /// The logs of PGs cannot be saved before a page is there.
    waits_for_page: bool,
    superblock: Superblock,
    /// Position of the log up to which it is trimmed at the end.
    wal_trim_to: u64,
    /// Transactions below this one must be durable before the superblock may be written.
    fence_number: u64,
    pages: VecDeque<u32>,
    /// Pages and blocks to write, as counted at the beginning, and how many of them are written.
    work_count: u64,
    done_count: u64,
    /// Blocks that were appended to the log when the work began.
    wal_appended_at_start: u64,
    /// The next place whose pending bytes are looked at; `None` when all have been.
    apply_from: Option<u32>,
    runs: BTreeMap<u64, Run>,
    requests: BTreeMap<u64, Request>,
}

impl Checkpoint {
    /// Frozen pages that are not written yet, at most.
    pub fn pages_left(&self) -> usize {
        self.pages.len()
    }

    /// Where the log is trimmed to at the end, once that is known.
    pub fn trims_to(&self) -> Option<u64> {
        (self.phase != Phase::SavePgs).then_some(self.wal_trim_to)
    }

    /// Returns true if its last request is pending.
    pub fn is_writing_superblock(&self) -> bool {
        self.phase == Phase::Superblock
    }

    /// The superblock that it was to bring into force.
    pub fn into_superblock(self) -> Superblock {
        self.superblock
    }

    pub fn request_ids(&self) -> impl Iterator<Item = u64> {
        self.requests.keys().copied()
    }
}

impl Store {
    /// Returns true if a checkpoint runs.
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Starts a checkpoint, unless one runs.
    pub fn start_checkpoint(&mut self) {
        if self.checkpoint.is_some() || self.poisoned.is_some() {
            return;
        }
        self.checkpoint = Some(Box::new(Checkpoint {
            phase: Phase::SavePgs,
            waits_for_page: false,
            superblock: self.superblock.clone(),
            wal_trim_to: 0,
            fence_number: 0,
            pages: VecDeque::new(),
            work_count: 0,
            done_count: 0,
            wal_appended_at_start: 0,
            apply_from: Some(0),
            runs: BTreeMap::new(),
            requests: BTreeMap::new(),
        }));
        self.advance_checkpoint();
    }

    /// Moves the checkpoint on; called whenever something that it waits for may have happened.
    pub(crate) fn advance_checkpoint(&mut self) {
        let Some(mut checkpoint) = self.checkpoint.take() else { return };
        while self.poisoned.is_none() {
            let before = checkpoint.phase;
            self.advance_phase(&mut checkpoint);
            if checkpoint.phase == before {
                break;
            }
        }
        self.checkpoint = Some(checkpoint);
    }

    fn advance_phase(&mut self, checkpoint: &mut Checkpoint) {
        match checkpoint.phase {
            Phase::SavePgs => {
                if !checkpoint.waits_for_page && self.save_pgs(checkpoint) {
                    self.freeze(checkpoint);
                    checkpoint.phase = Phase::WaitForLog;
                }
            }
            Phase::WaitForLog => {
                if self.log.durable_through() + 1 >= checkpoint.superblock.wal_sequence {
                    checkpoint.phase = Phase::Write;
                }
            }
            Phase::Write => {
                self.write_pages_and_blocks(checkpoint);
                let is_done = checkpoint.pages.is_empty() && checkpoint.apply_from.is_none();
                if is_done && checkpoint.requests.is_empty() {
                    checkpoint.phase = Phase::Table;
                }
            }
            Phase::Table => {
                let all_requested = self.write_table(checkpoint);
                if all_requested && checkpoint.requests.is_empty() {
                    checkpoint.superblock.directories = self.page_table.directories().to_vec();
                    checkpoint.fence_number = self.next_number;
                    checkpoint.phase = Phase::Fence;
                }
            }
            Phase::Fence => {
                let oldest = self.log.oldest_uncommitted_number();
                if oldest.is_none_or(|number| number >= checkpoint.fence_number) {
                    self.request_of(checkpoint, Request::Other, DiskOperation::Sync);
                    checkpoint.phase = Phase::Sync;
                }
            }
            Phase::Sync if checkpoint.requests.is_empty() => {
                let frozen_left = checkpoint.pages.len() + self.metadata.tree.pages.set_aside_count();
                invariants::superblock_comes_after_all_pages(frozen_left, self.page_table.is_stale());
                let oldest_uncommitted = self.log.oldest_uncommitted_number();
                invariants::superblock_comes_after_the_fence(oldest_uncommitted, checkpoint.fence_number);
                let offset = checkpoint.superblock.block() * BLOCK_BYTES as u64;
                let buffer = Arc::new(checkpoint.superblock.encode());
                let segments = vec![Segment { buffer, first_block: 0, block_count: 1 }];
                let write = DiskOperation::Write { offset, segments, durable: true };
                self.request_of(checkpoint, Request::Other, write);
                checkpoint.phase = Phase::Superblock;
            }
            Phase::Sync | Phase::Superblock => {}
        }
    }

    fn request_of(&mut self, checkpoint: &mut Checkpoint, request: Request, operation: DiskOperation) {
        let id = self.outbox.request(Purpose::Checkpoint, operation);
        checkpoint.requests.insert(id, request);
    }

    /// Brings the logs of all PGs that have changed into the tree. False if pages must be loaded first.
    fn save_pgs(&mut self, checkpoint: &mut Checkpoint) -> bool {
        // Before others, which would evict these pages again.
        let cold = self.metadata.cold_pages_of_counts();
        let saving = match self.pgs.save_all(&mut self.metadata) {
            Saving::Done if !cold.is_empty() => Saving::Cold(cold),
            Saving::Done => self.metadata.save_pool_counts().map_or_else(Saving::from, |()| Saving::Done),
            Saving::Cold(pages) => Saving::Cold(pages.into_iter().chain(cold).collect()),
            damaged @ Saving::Damaged(_) => damaged,
        };
        match saving {
            Saving::Done => return true,
            Saving::Cold(pages) => self.wait_with_checkpoint(checkpoint, pages),
            Saving::Damaged(cause) => self.poison_by_damage(cause),
        }
        false
    }

    /// Has pages read in parallel and continues when the last, and so nearly all of them, have been
    /// read.
    fn wait_with_checkpoint(&mut self, checkpoint: &mut Checkpoint, pages: Vec<u32>) {
        let last = *pages.last().expect("a PG needs a page");
        assert!(!self.metadata.tree.pages.is_resident(last), "the checkpoint would not be woken");
        pages.into_iter().for_each(|number| self.load_page(number));
        checkpoint.waits_for_page = true;
        self.wait_for(Cold(vec![last]), Waiter::Checkpoint);
    }

    /// A page that the checkpoint waits for is there.
    pub(crate) fn checkpoint_page_loaded(&mut self) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.waits_for_page = false;
        }
        self.advance_checkpoint();
    }

    /// Freezes the present state, which the checkpoint writes.
    fn freeze(&mut self, checkpoint: &mut Checkpoint) {
        let (wal_position, wal_sequence) = self.log.head();
        checkpoint.wal_trim_to = self.log.appended_blocks();
        self.space.freeze();
        let (pages, given_up) = self.metadata.tree.pages.freeze();
        for (number, location) in given_up {
            self.space.give_up_with_checkpoint(location.block);
            self.page_table.page_moved(number);
        }
        checkpoint.work_count = pages.len() as u64 + self.overlay.len() as u64;
        checkpoint.wal_appended_at_start = self.log.appended_blocks();
        checkpoint.pages = pages.into();
        checkpoint.superblock = Superblock {
            generation: self.superblock.generation + 1,
            incarnation: self.log.incarnation(),
            wal_position,
            wal_sequence,
            page_count: self.metadata.tree.pages.count(),
            object_count: self.metadata.object_count,
            directories: Vec::new(),
            ..self.superblock.clone()
        };
    }

    /// Returns the number of requests that a checkpoint may have in flight: few, to leave the device to clients;
    /// more if it falls behind the log's growth, because a full log would make clients wait for the whole rest of
    /// it.
    fn requests_max(&self, checkpoint: &Checkpoint) -> usize {
        let appended = self.log.appended_blocks() - checkpoint.wal_appended_at_start;
        let due = checkpoint.work_count * appended / self.log.blocks_per_checkpoint();
        let behind = due.saturating_sub(checkpoint.done_count);
        REQUESTS_MIN + (behind / BEHIND_PER_REQUEST).min(REQUESTS_MAX - REQUESTS_MIN as u64) as usize
    }

    fn write_pages_and_blocks(&mut self, checkpoint: &mut Checkpoint) {
        let trims_below = checkpoint.superblock.wal_sequence;
        invariants::checkpoint_applies_durable_records_only(self.log.durable_through(), trims_below);
        let requests_max = self.requests_max(checkpoint);
        let is_behind = requests_max > REQUESTS_MIN;
        let left_max = if is_behind { requests_max / 2 } else { 0 };
        if checkpoint.requests.len() > left_max {
            return;
        }
        // Pages are written in long pieces, of which one at a time is enough unless the checkpoint is behind.
        loop {
            let has_written = self.write_some_pages(checkpoint);
            let has_applied = self.apply_runs(checkpoint, requests_max);
            let has_room = checkpoint.requests.len() < requests_max && self.poisoned.is_none();
            if !(has_written || has_applied) || !is_behind || !has_room {
                return;
            }
        }
    }

    /// Starts to apply adjacent blocks until `requests_max` requests are in flight. False when there are none
    /// left.
    fn apply_runs(&mut self, checkpoint: &mut Checkpoint, requests_max: usize) -> bool {
        let mut has_applied = false;
        while checkpoint.requests.len() < requests_max && self.apply_next_run(checkpoint) {
            has_applied = true;
        }
        has_applied
    }

    fn write_some_pages(&mut self, checkpoint: &mut Checkpoint) -> bool {
        let mut numbers = Vec::new();
        while numbers.len() < PAGES_PER_WRITE
            && let Some(number) = checkpoint.pages.pop_front()
        {
            if self.metadata.tree.pages.is_to_be_written(number) && !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        if numbers.is_empty() {
            return false;
        }
        let Some(runs) = self.space.allocate_metadata(numbers.len() as u32) else {
            self.poison("there is no space left for metadata".into());
            return false;
        };
        let mut numbers = numbers.into_iter();
        for (first, count) in runs {
            let mut buffer = BlockBuffer::for_overwriting(count as usize);
            let mut written = Vec::with_capacity(count as usize);
            for (block, output) in (first..).zip(buffer.as_mut_slice().chunks_exact_mut(BLOCK_BYTES)) {
                let number = numbers.next().expect("as many blocks were allocated as there are pages");
                let old = self.metadata.tree.pages.write_frozen(number, block, output);
                if old != Location::default() {
                    self.space.give_up_with_checkpoint(old.block);
                }
                self.page_table.page_moved(number);
                written.push(number);
            }
            self.write_metadata(checkpoint, Request::Pages(written), first, buffer);
        }
        true
    }

    fn write_metadata(&mut self, checkpoint: &mut Checkpoint, request: Request, block: u32, buffer: BlockBuffer) {
        let segment = Segment { block_count: buffer.block_count(), buffer: Arc::new(buffer), first_block: 0 };
        let offset = u64::from(block) * BLOCK_BYTES as u64;
        let write = DiskOperation::Write { offset, segments: vec![segment], durable: false };
        self.request_of(checkpoint, request, write);
    }

    /// Writes the index blocks that have changed. True when all have been handed to the device.
    fn write_table(&mut self, checkpoint: &mut Checkpoint) -> bool {
        while checkpoint.requests.len() < TABLE_REQUESTS_MAX {
            if !self.page_table.is_stale() {
                return true;
            }
            let Some(runs) = self.space.allocate_metadata(1) else {
                self.poison("there is no space left for metadata".into());
                return false;
            };
            let block = runs[0].0;
            let (buffer, old_block) = self.page_table.write_next(&self.metadata.tree.pages, block);
            if old_block != 0 {
                self.space.give_up_with_checkpoint(old_block);
            }
            self.write_metadata(checkpoint, Request::Other, block, buffer);
        }
        false
    }

    // ---- applying small writes --------------------------------------------------------------

    /// Starts to apply the next adjacent blocks. False when there are none left.
    fn apply_next_run(&mut self, checkpoint: &mut Checkpoint) -> bool {
        let Some(from) = checkpoint.apply_from else { return false };
        let trimmed_below = checkpoint.superblock.wal_sequence;
        let must_apply = |pending: &PendingBlock| match pending.home {
            Home::Log { sequence, .. } => sequence < trimmed_below,
            Home::NoRecord | Home::Place => false,
        };
        let mut due = self.overlay.range_from(from).filter(|(_, pending)| must_apply(pending)).peekable();
        let Some(&(first, _)) = due.peek() else {
            checkpoint.apply_from = None;
            return false;
        };
        let mut run = Run { first, blocks: Vec::new(), reads_left: 0 };
        let mut log_reads = Vec::new();
        for (block, pending) in due {
            if block != first + run.blocks.len() as u32 || run.blocks.len() == WRITE_SEGMENTS_MAX {
                break;
            }
            if let (None, Home::Log { block: log_block, .. }) = (&pending.buffer, pending.home) {
                log_reads.push((run.blocks.len(), log_block));
            }
            run.blocks.push((pending.number, pending.buffer.clone()));
        }
        checkpoint.apply_from = (first + (run.blocks.len() as u32 - 1)).checked_add(1);
        run.reads_left = log_reads.len();
        let id = self.outbox.next_id();
        for (index, log_block) in log_reads {
            let offset = (self.layout.wal_start + log_block) * BLOCK_BYTES as u64;
            let read = DiskOperation::Read { offset, block_count: 1 };
            let request = self.outbox.request_on(self.layout.wal_device, Purpose::Checkpoint, read);
            checkpoint.requests.insert(request, Request::LogRead { run: id, index });
        }
        checkpoint.runs.insert(id, run);
        self.apply_if_complete(checkpoint, id);
        true
    }

    fn apply_if_complete(&mut self, checkpoint: &mut Checkpoint, id: u64) {
        let run = &checkpoint.runs[&id];
        if run.reads_left > 0 {
            return;
        }
        let offset = u64::from(run.first) * BLOCK_BYTES as u64;
        let segment = |(_, buffer): &(u64, Option<BufferBlock>)| {
            let (buffer, index) = buffer.as_ref().expect("blocks that were not in memory have been read");
            Segment { buffer: Arc::clone(buffer), first_block: *index, block_count: 1 }
        };
        let segments = join_segments(run.blocks.iter().map(segment));
        let write = DiskOperation::Write { offset, segments, durable: false };
        self.request_of(checkpoint, Request::Apply { run: id }, write);
    }

    /// A request of the checkpoint is done.
    pub(crate) fn checkpoint_request_done(&mut self, id: u64, buffer: Option<BlockBuffer>) {
        let mut checkpoint = self.checkpoint.take().expect("a checkpoint waits for its requests");
        match checkpoint.requests.remove(&id).expect("requests are remembered") {
            Request::Pages(numbers) => {
                checkpoint.done_count += numbers.len() as u64;
                numbers.into_iter().for_each(|number| self.metadata.tree.pages.written(number));
            }
            Request::LogRead { run: run_id, index } => match buffer.filter(|buffer| buffer.block_count() == 1) {
                Some(buffer) => {
                    let run = checkpoint.runs.get_mut(&run_id).expect("a run waits for its reads");
                    run.blocks[index].1 = Some((Arc::new(buffer), 0));
                    run.reads_left -= 1;
                    self.apply_if_complete(&mut checkpoint, run_id);
                }
                None => self.poison("the log could not be read back".into()),
            },
            Request::Apply { run } => {
                let run = checkpoint.runs.remove(&run).expect("a run waits for its write");
                checkpoint.done_count += run.blocks.len() as u64;
                for (block, (number, _)) in (run.first..).zip(run.blocks) {
                    self.overlay.remove_if_from(block, number);
                }
            }
            Request::Other if checkpoint.phase == Phase::Superblock => return self.finish_checkpoint(checkpoint),
            Request::Other => {}
        }
        self.checkpoint = Some(checkpoint);
        self.advance_checkpoint();
    }

    fn finish_checkpoint(&mut self, checkpoint: Box<Checkpoint>) {
        invariants::generations_follow_each_other(self.superblock.generation, checkpoint.superblock.generation);
        self.superblock = checkpoint.superblock;
        self.space.reclaim();
        self.log.trim(checkpoint.wal_trim_to);
        self.overlay.trimmed(self.superblock.wal_sequence);
        self.usage.checkpoint_count += 1;
        self.discard_next();
    }
}

/// Blocks that lie one after the other in a buffer become one segment.
fn join_segments(segments: impl Iterator<Item = Segment>) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for segment in segments {
        match joined.last_mut() {
            Some(last)
                if Arc::ptr_eq(&last.buffer, &segment.buffer)
                    && last.first_block + last.block_count == segment.first_block =>
            {
                last.block_count += segment.block_count;
            }
            _ => joined.push(segment),
        }
    }
    joined
}
