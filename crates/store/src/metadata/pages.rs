//! All metadata pages by number: which are in memory, which have changed, and where each is on the
//! device. Numbers never change when a page moves, so a page that is written to a fresh place does
//! not change its parent; the page table (`page_table`) is the only thing that follows.
//!
//! A checkpoint freezes the changed pages by starting a new generation. A frozen page that changes
//! again before the checkpoint has written it is set aside as it was.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::crc32c;

use super::page::{Page, PageKind};

/// Pages that are not in memory; the operation must be tried again when they are. The first one is
/// needed, the others probably too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cold(pub(crate) Vec<u32>);

/// Why a page cannot be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageError {
    /// It must be loaded first, and others probably too.
    Cold(Cold),
    /// Pages with good checksums contradict each other: something refers to this one that must not.
    Contradiction {
        /// Number of the page.
        page: u32,
    },
}

/// Where a page is on the device and the CRC-32C of its bytes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location {
    /// Device block; 0 means that the page was never written.
    pub block: u32,
    pub crc: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The number is not in use.
    Free,
    /// On the device only.
    Cold,
    /// In memory as on the device.
    Clean,
    /// Changed in the frame's generation.
    Dirty,
    /// As handed to the device, which has not written it yet.
    Writing,
}

struct Frame {
    page: Option<Page>,
    location: Location,
    generation: u32,
    state: State,
    is_referenced: Cell<bool>,
    /// The turn in which the page was looked at last, in as many bits as cost no memory.
    looked_at: Cell<u16>,
}

type StableHash = BuildHasherDefault<DefaultHasher>;

/// The pages.
pub(crate) struct Pages {
    frames: Vec<Frame>,
    /// Pages in memory that may be evicted, in the order of the clock hand.
    clock: VecDeque<u32>,
    free_numbers: Vec<u32>,
    /// Numbers whose pages were dropped from the tree in this generation.
    freed: Vec<u32>,
    /// Pages changed in this generation; may hold a number twice.
    dirty: Vec<u32>,
    generation: u32,
    /// Frozen pages as they were before they changed again.
    set_aside: HashMap<u32, Page, StableHash>,
    /// CRC-32C of the pages when they were frozen.
    #[cfg(debug_assertions)]
    frozen_checks: HashMap<u32, u32, StableHash>,
    /// Pages whose reading is under way.
    loading: BTreeSet<u32>,
    resident_count: usize,
    /// Counts the calls of [`Pages::evict`].
    turn: u64,
    hit_count: Cell<u64>,
    miss_count: u64,
    /// The pages below this number are the bitmap's, the others are the tree's.
    tree_start: u32,
}

impl Pages {
    pub fn new() -> Self {
        Pages {
            frames: Vec::new(),
            clock: VecDeque::new(),
            free_numbers: Vec::new(),
            freed: Vec::new(),
            dirty: Vec::new(),
            generation: 1,
            set_aside: HashMap::default(),
            #[cfg(debug_assertions)]
            frozen_checks: HashMap::default(),
            loading: BTreeSet::new(),
            resident_count: 0,
            turn: 0,
            hit_count: Cell::new(0),
            miss_count: 0,
            tree_start: 0,
        }
    }

    /// The pages below this number are the bitmap's, the others are the tree's.
    pub fn set_tree_start(&mut self, number: u32) {
        self.tree_start = number;
    }

    /// Adds the next number while the page table is loaded. Without a location it is not in use.
    pub fn add(&mut self, location: Location) {
        let state = if location.block == 0 { State::Free } else { State::Cold };
        let (is_referenced, looked_at) = (Cell::new(false), Cell::new(0));
        self.frames.push(Frame { page: None, location, generation: 0, state, is_referenced, looked_at });
    }

    /// The numbers from `first` on that are not in use may be given out from now on.
    pub fn collect_free_numbers(&mut self, first: u32) {
        self.free_numbers = (first..self.count()).filter(|&number| !self.is_live(number)).collect();
    }

    /// How many pages may still be added until there are `count_max`.
    pub fn room(&self, count_max: u32) -> u32 {
        count_max.saturating_sub(self.count()).saturating_add(self.free_numbers.len() as u32)
    }

    /// Numbers given out so far, free ones included.
    pub fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    pub fn location(&self, number: u32) -> Location {
        self.frames[number as usize].location
    }

    /// Returns true if the number is in use.
    pub fn is_live(&self, number: u32) -> bool {
        self.frames.get(number as usize).is_some_and(|frame| frame.state != State::Free)
    }

    /// A fresh page.
    pub fn create(&mut self, kind: PageKind) -> u32 {
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.add(Location::default());
            self.count() - 1
        });
        self.put_new(number, Page::new(number, kind));
        number
    }

    /// Makes a page of this kind under this very number, which must be free.
    pub fn create_as(&mut self, number: u32, kind: PageKind) {
        assert!(!self.is_live(number), "page {number} exists");
        self.put_new(number, Page::new(number, kind));
    }

    fn put_new(&mut self, number: u32, page: Page) {
        let generation = self.generation;
        let frame = &mut self.frames[number as usize];
        frame.page = Some(page);
        frame.state = State::Dirty;
        frame.generation = generation;
        frame.is_referenced.set(true);
        frame.looked_at.set(self.turn as u16);
        self.dirty.push(number);
        self.became_resident(number);
    }

    fn became_resident(&mut self, number: u32) {
        self.resident_count += 1;
        let page = self.frames[number as usize].page.as_ref();
        // The bitmap is looked at without a way to wait for it, so it stays.
        if page.is_some_and(|page| page.kind() != PageKind::Bitmap) {
            self.clock.push_back(number);
        }
    }

    /// Takes a page out of the tree. It is in memory.
    pub fn free(&mut self, number: u32) {
        self.set_aside_if_frozen(number);
        let frame = &mut self.frames[number as usize];
        assert!(frame.page.take().is_some(), "only pages in memory are freed");
        frame.state = State::Free;
        self.resident_count -= 1;
        self.freed.push(number);
        self.free_numbers.push(number);
    }

    pub fn get(&self, number: u32) -> Result<&Page, PageError> {
        let frame = &self.frames[number as usize];
        match &frame.page {
            Some(page) => {
                frame.is_referenced.set(true);
                frame.looked_at.set(self.turn as u16);
                // The bitmap is always in memory; counting it would tell nothing.
                self.hit_count.set(self.hit_count.get() + u64::from(number >= self.tree_start));
                Ok(page)
            }
            None => Err(self.missing(number)),
        }
    }

    /// The error for a page that is not in memory.
    #[cold]
    fn missing(&self, number: u32) -> PageError {
        match self.is_live(number) {
            true => PageError::Cold(Cold(vec![number])),
            false => PageError::Contradiction { page: number },
        }
    }

    pub fn is_resident(&self, number: u32) -> bool {
        self.frames[number as usize].page.is_some()
    }

    /// The page for changing; it is in memory.
    pub fn get_mut(&mut self, number: u32) -> &mut Page {
        self.set_aside_if_frozen(number);
        let generation = self.generation;
        let frame = &mut self.frames[number as usize];
        if frame.state != State::Dirty || frame.generation != generation {
            assert!(frame.state != State::Free, "a page that is free is not changed");
            frame.state = State::Dirty;
            frame.generation = generation;
            self.dirty.push(number);
        }
        frame.is_referenced.set(true);
        frame.page.as_mut().expect("the caller has looked at the page just before")
    }

    fn set_aside_if_frozen(&mut self, number: u32) {
        let frame = &self.frames[number as usize];
        if frame.state == State::Dirty && frame.generation != self.generation {
            let page = frame.page.clone().expect("changed pages are in memory");
            self.set_aside.insert(number, page);
        }
    }

    // ---- checkpoints ------------------------------------------------------------------------

    /// Number of changes since the last freeze that a checkpoint would have to write, at most.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Freezes the changed pages. Returns their numbers, and the numbers that are not in use any
    /// more and whose places on the device are given up.
    pub fn freeze(&mut self) -> (Vec<u32>, Vec<(u32, Location)>) {
        assert!(self.set_aside.is_empty(), "the checkpoint before has written everything");
        self.generation += 1;
        let mut given_up = Vec::new();
        for number in std::mem::take(&mut self.freed) {
            let frame = &mut self.frames[number as usize];
            if frame.state == State::Free && frame.location.block != 0 {
                given_up.push((number, std::mem::take(&mut frame.location)));
            }
        }
        #[cfg(debug_assertions)]
        self.note_frozen();
        (std::mem::take(&mut self.dirty), given_up)
    }

    #[cfg(debug_assertions)]
    fn note_frozen(&mut self) {
        let pages = self.dirty.iter().filter_map(|&number| {
            let page = self.frames[number as usize].page.as_ref()?;
            Some((number, crc32c(page.bytes())))
        });
        self.frozen_checks = pages.collect();
    }

    /// Frozen pages that have changed since and are not written yet.
    pub fn set_aside_count(&self) -> usize {
        self.set_aside.len()
    }

    /// Returns true if a number from [`Pages::freeze`] stands for a page that is still to be written.
    pub fn is_to_be_written(&self, number: u32) -> bool {
        let frame = &self.frames[number as usize];
        self.set_aside.contains_key(&number) || frame.state == State::Dirty && frame.generation != self.generation
    }

    /// Copies a frozen page into `output` and gives it its new place. Returns the old one.
    pub fn write_frozen(&mut self, number: u32, block: u32, output: &mut [u8]) -> Location {
        let frame = &mut self.frames[number as usize];
        match self.set_aside.remove(&number) {
            Some(page) => output.copy_from_slice(page.bytes()),
            None => {
                let page = frame.page.as_ref().expect("changed pages are in memory");
                output.copy_from_slice(page.bytes());
                frame.state = State::Writing;
            }
        }
        let crc = crc32c(output);
        #[cfg(debug_assertions)]
        assert!(self.frozen_checks.get(&number) == Some(&crc), "page {number} is written as it was frozen");
        std::mem::replace(&mut frame.location, Location { block, crc })
    }

    /// The device has written a page.
    pub fn written(&mut self, number: u32) {
        let frame = &mut self.frames[number as usize];
        if frame.state == State::Writing {
            frame.state = State::Clean;
        }
    }

    // ---- what must not happen, for tests of the assertions ----------------------------------

    #[cfg(test)]
    pub fn miscount(&mut self) {
        self.resident_count += 1;
    }

    #[cfg(test)]
    pub fn forget_changes(&mut self) {
        self.dirty.clear();
    }

    #[cfg(test)]
    pub fn claim_loading(&mut self, number: u32) {
        self.loading.insert(number);
    }

    #[cfg(all(test, debug_assertions))]
    pub fn garble(&mut self, number: u32) {
        let page = self.frames[number as usize].page.as_mut().expect("the page is in memory");
        page.bytes_mut()[BLOCK_BYTES - 1] ^= 1;
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Bytes of memory that the pages take.
    pub fn memory_bytes(&self) -> u64 {
        let pages = self.resident_count + self.set_aside.len();
        (pages * BLOCK_BYTES + self.frames.len() * size_of::<Frame>()) as u64
    }

    /// Returns true if reading the page is pending.
    pub fn is_loading(&self, number: u32) -> bool {
        self.loading.contains(&number)
    }

    /// Memory is accounted for, a page that changed will be written, and none is read that is in memory.
    pub fn check_invariants(&self) {
        let resident = self.frames.iter().filter(|frame| frame.page.is_some()).count();
        assert!(resident == self.resident_count, "pages in memory are counted");
        let dirty: BTreeSet<u32> = self.dirty.iter().copied().collect();
        let in_clock: BTreeSet<u32> = self.clock.iter().copied().collect();
        for (number, frame) in (0..).zip(&self.frames) {
            let has_page = matches!(frame.state, State::Clean | State::Dirty | State::Writing);
            assert!(frame.page.is_some() == has_page, "the state of page {number} says whether it is in memory");
            let is_changed = frame.state == State::Dirty && frame.generation == self.generation;
            assert!(!is_changed || dirty.contains(&number), "the next checkpoint writes page {number}");
            let can_go = has_page && number >= self.tree_start;
            assert!(!can_go || in_clock.contains(&number), "page {number} can be dropped one day");
        }
        let is_cold = |number: &u32| self.frames[*number as usize].state == State::Cold;
        assert!(self.loading.iter().all(is_cold), "only pages that are not in memory are read");
    }

    /// Starts to load a page. False if it is being loaded or in memory already.
    pub fn start_loading(&mut self, number: u32) -> bool {
        let starts = !self.is_resident(number) && self.loading.insert(number);
        self.miss_count += u64::from(starts);
        starts
    }

    /// Looks at pages of the tree that were in memory.
    pub fn hit_count(&self) -> u64 {
        self.hit_count.get()
    }

    /// Pages that had to be loaded. An operation that meets one looks at it several times until it is there, so
    /// failed looks are not counted.
    pub fn miss_count(&self) -> u64 {
        self.miss_count
    }

    /// Reading a page has brought nothing.
    pub fn not_loaded(&mut self, number: u32) {
        self.loading.remove(&number);
    }

    /// A page has been read. False if it differs from the written one: the device is damaged.
    #[must_use]
    pub fn loaded(&mut self, number: u32, block: BlockBuffer) -> bool {
        self.loading.remove(&number);
        let frame = &self.frames[number as usize];
        if frame.state != State::Cold {
            return true;
        }
        if crc32c(block.as_slice()) != frame.location.crc {
            return false;
        }
        let Some(page) = Page::from_block(block, number) else { return false };
        if (page.kind() == PageKind::Bitmap) != (number < self.tree_start) {
            return false;
        }
        // The root has no parent, and nothing is its own child.
        let is_child = |child: u32| child > self.tree_start && child != number && self.is_live(child);
        if page.kind() == PageKind::Branch && !(0..page.count()).all(|index| is_child(page.child(index))) {
            return false;
        }
        let frame = &mut self.frames[number as usize];
        frame.page = Some(page);
        frame.state = State::Clean;
        frame.is_referenced.set(true);
        frame.looked_at.set(self.turn as u16);
        self.became_resident(number);
        true
    }

    /// The turn that lasts until the next call of [`Pages::evict`].
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Drops pages that were not used lately until the pages fit into `budget_bytes`, as far as
    /// possible and in small steps.
    ///
    /// An operation that waited for a page looks again at all others that it needs. So pages looked
    /// at since the turn in which the longest wait began stay; otherwise an operation that needs
    /// more pages than fit into memory would load them again and again, for ever.
    pub fn evict(&mut self, budget_bytes: u64, waiting_since: Option<u64>) {
        const STEPS_MAX: usize = 512;
        let turn = self.turn;
        self.turn += 1;
        let age_max = waiting_since.map(|since| u16::try_from(turn - since).unwrap_or(u16::MAX));
        let is_needed =
            |looked_at: u16| age_max.is_some_and(|age_max| (turn as u16).wrapping_sub(looked_at) <= age_max);
        for _ in 0..STEPS_MAX.min(self.clock.len()) {
            if self.memory_bytes() <= budget_bytes {
                return;
            }
            let Some(number) = self.clock.pop_front() else { return };
            let frame = &mut self.frames[number as usize];
            if frame.page.is_none() {
                // It was freed; its number may be in the clock again for a new page.
                continue;
            }
            let is_needed = is_needed(frame.looked_at.get());
            if frame.state != State::Clean || frame.is_referenced.replace(false) || is_needed {
                self.clock.push_back(number);
            } else {
                frame.page = None;
                frame.state = State::Cold;
                self.resident_count -= 1;
            }
        }
    }
}
