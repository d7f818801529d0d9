//! One part of the region: a bitmap in groups of 4096 blocks, indexed by how long a free run each
//! group has.
//!
//! A request goes to a group of the lowest class that is sure to have a run for all of it. So small
//! requests use the holes of groups that have no long runs left, and long runs remain for large
//! requests. When no group is sure to fit, the request is served from the longest runs there are.
//! Each step looks at one group of 64 words, never at the whole bitmap.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Run;

const WORD_BITS: usize = u64::BITS as usize;
const GROUP_WORDS: usize = 64;
const GROUP_BLOCKS: usize = GROUP_WORDS * WORD_BITS;
/// The class of a wholly free group.
const CLASS_MAX: usize = class_of(GROUP_BLOCKS);

/// The class of a group whose longest free run has this length: 0 for none, `n` for `2^(n - 1)`
/// up to `2^n - 1` blocks.
const fn class_of(longest: usize) -> usize {
    (usize::BITS - longest.leading_zeros()) as usize
}

/// The least length of the longest free run in a group of this class.
const fn class_floor(class: usize) -> usize {
    1 << (class - 1)
}

/// The lowest class whose groups are sure to have a free run of this length.
fn fitting_class(length: usize) -> usize {
    length.checked_sub(1).map_or(0, |below| class_of(below) + 1)
}

/// With less than this share free, a part is nearly full.
const NEARLY_FULL_SHARE: u32 = 32;

pub(super) struct Part {
    blocks: Range<u64>,
    free_count: u32,
    /// One bit for each block, set when the block is in use. The padding of the last group is
    /// always set.
    words: Vec<u64>,
    /// The class of each group. Claims leave it too high, so that rebuilding the bitmap is cheap;
    /// the search for a run corrects it.
    classes: Vec<u8>,
    /// The groups of each class; those of class 0 are in none.
    groups_by_class: [BTreeSet<u32>; CLASS_MAX + 1],
}

impl Part {
    /// All blocks are free.
    pub fn new(blocks: Range<u64>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        let group_count = count.div_ceil(GROUP_BLOCKS);
        let mut part = Part {
            free_count: u32::try_from(count).expect("block numbers and counts have 32 bits"),
            blocks,
            words: vec![0; group_count * GROUP_WORDS],
            classes: vec![CLASS_MAX as u8; group_count],
            groups_by_class: Default::default(),
        };
        part.groups_by_class[CLASS_MAX] = (0..group_count as u32).collect();
        if let Some(last) = group_count.checked_sub(1) {
            set(&mut part.words, count..group_count * GROUP_BLOCKS);
            part.set_class(last, class_of(count - last * GROUP_BLOCKS));
        }
        part
    }

    pub fn free_count(&self) -> u32 {
        self.free_count
    }

    pub fn block_count(&self) -> u32 {
        (self.blocks.end - self.blocks.start) as u32
    }

    pub fn has_same_blocks(&self, other: &Part) -> bool {
        self.blocks == other.blocks && self.words == other.words
    }

    /// The free count is that of the bitmap, no group has a longer run than its class says, and each group
    /// is found by its class.
    pub fn check_invariants(&self) {
        let used: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        let bits = self.words.len() * WORD_BITS;
        assert!(bits - used as usize == self.free_count as usize, "free blocks are counted");
        for (group, words) in self.words.chunks_exact(GROUP_WORDS).enumerate() {
            let class = usize::from(self.classes[group]);
            let is_found = class == 0 || self.groups_by_class[class].contains(&(group as u32));
            assert!(is_found && class_of(longest_free(words)) <= class, "a group of blocks is found by its class");
        }
        let found: usize = self.groups_by_class.iter().map(BTreeSet::len).sum();
        let with_class = self.classes.iter().filter(|&&class| class > 0).count();
        assert!(found == with_class, "a group of blocks is found by its class");
    }

    #[cfg(test)]
    pub fn miscount(&mut self) {
        self.free_count -= 1;
    }

    /// The bits of those blocks of a run that lie in this part.
    fn bits(&self, (first, count): Run) -> Range<usize> {
        let clamp = |block: u64| (block.clamp(self.blocks.start, self.blocks.end) - self.blocks.start) as usize;
        clamp(first.into())..clamp(u64::from(first) + u64::from(count))
    }

    /// How many blocks of a run lie in this part.
    pub fn covered(&self, run: Run) -> u32 {
        self.bits(run).len() as u32
    }

    /// Returns true if all blocks of a run that lie in this part are free.
    pub fn is_free(&self, run: Run) -> bool {
        masks(self.bits(run)).all(|(word, mask)| self.words[word] & mask == 0)
    }

    /// Marks the blocks of a run that lie in this part as used; they must be free.
    pub fn claim(&mut self, run: Run) {
        assert!(self.is_free(run), "a used block of {run:?} is claimed");
        let bits = self.bits(run);
        self.free_count -= bits.len() as u32;
        set(&mut self.words, bits);
    }

    /// Corrects the classes of all groups after claims.
    pub fn index_groups(&mut self) {
        for group in 0..self.classes.len() {
            // Taking no blocks only corrects the class.
            self.take(group, 1, 0, &mut Vec::new());
        }
    }

    /// Frees the blocks of a run that lie in this part; all of them must be used.
    pub fn release(&mut self, run: Run) {
        let bits = self.bits(run);
        if bits.is_empty() {
            return;
        }
        for (word, mask) in masks(bits.clone()) {
            assert!(self.words[word] & mask == mask, "a block of {run:?} is released twice");
            self.words[word] &= !mask;
        }
        self.free_count += bits.len() as u32;
        for group in bits.start / GROUP_BLOCKS..bits.end.div_ceil(GROUP_BLOCKS) {
            let start = bits.start.max(group * GROUP_BLOCKS) - group * GROUP_BLOCKS;
            let words = &self.words[group * GROUP_WORDS..][..GROUP_WORDS];
            // The run may have grown together with its neighbours.
            let length = find_used(words, start) - free_since(words, start);
            self.set_class(group, class_of(length).max(self.classes[group].into()));
        }
    }

    /// Allocates blocks that the caller knows to be free.
    pub fn allocate(&mut self, count: u32, runs: &mut Vec<Run>) {
        assert!(count <= self.free_count, "{count} blocks of {} that are free", self.free_count);
        self.free_count -= count;
        let mut missing = count as usize;
        while missing > 0 {
            let piece = missing.min(GROUP_BLOCKS);
            let fitting = fitting_class(piece);
            let (class, length_min) = match (fitting..=CLASS_MAX).find(|&class| self.has_groups(class)) {
                Some(class) => (class, piece),
                None => {
                    let longest = (1..fitting).rev().find(|&class| self.has_groups(class));
                    let class = longest.expect("the free count says that a block is free");
                    (class, class_floor(class))
                }
            };
            let group = *self.groups_by_class[class].first().expect("a class that has groups");
            missing -= self.take(group as usize, length_min, missing, runs);
        }
    }

    /// Returns true if the index knows a free run for a request, or for the first group's worth of it.
    pub fn fits(&self, count: u32) -> bool {
        let fitting = fitting_class(GROUP_BLOCKS.min(count as usize));
        (fitting..=CLASS_MAX).any(|class| self.has_groups(class))
    }

    /// Returns true if few blocks are free, most of them in holes.
    pub fn is_nearly_full(&self) -> bool {
        self.free_count < self.block_count() / NEARLY_FULL_SHARE
    }

    fn has_groups(&self, class: usize) -> bool {
        !self.groups_by_class[class].is_empty()
    }

    /// Takes runs of at least `length_min` blocks from a group, until fewer than that are missing,
    /// and returns how many blocks it took. Corrects the group's class.
    fn take(&mut self, group: usize, length_min: usize, missing: usize, runs: &mut Vec<Run>) -> usize {
        let words = &mut self.words[group * GROUP_WORDS..][..GROUP_WORDS];
        let first_block = self.blocks.start + (group * GROUP_BLOCKS) as u64;
        let class: usize = self.classes[group].into();
        let (mut taken, mut longest_left, mut position) = (0, 0, 0);
        while missing - taken >= length_min || class_of(longest_left) < class {
            let start = find_free(words, position);
            if start == GROUP_BLOCKS {
                self.set_class(group, class_of(longest_left));
                break;
            }
            position = find_used(words, start);
            let mut length_left = position - start;
            if length_left >= length_min && missing - taken >= length_min {
                let length = length_left.min(missing - taken);
                set(words, start..start + length);
                push_run(runs, ((first_block + start as u64) as u32, length as u32));
                taken += length;
                length_left -= length;
            }
            longest_left = longest_left.max(length_left);
        }
        taken
    }

    fn set_class(&mut self, group: usize, class: usize) {
        let old = std::mem::replace(&mut self.classes[group], class as u8) as usize;
        if old == class {
            return;
        }
        if old > 0 {
            self.groups_by_class[old].remove(&(group as u32));
        }
        if class > 0 {
            self.groups_by_class[class].insert(group as u32);
        }
    }
}

/// The length of the longest free run of a group.
fn longest_free(words: &[u64]) -> usize {
    let (mut longest, mut position) = (0, 0);
    while position < GROUP_BLOCKS {
        let start = find_free(words, position);
        position = if start < GROUP_BLOCKS { find_used(words, start) } else { start };
        longest = longest.max(position - start);
    }
    longest
}

/// Adds a run, joined to the last one when they touch.
pub(crate) fn push_run(runs: &mut Vec<Run>, (first, count): Run) {
    match runs.last_mut() {
        Some((start, length)) if *start + *length == first => *length += count,
        _ => runs.push((first, count)),
    }
}

/// The words that a range of bits lies in, each with a mask of its bits.
fn masks(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (bits.start / WORD_BITS..bits.end.div_ceil(WORD_BITS)).map(move |word| {
        let low = bits.start.saturating_sub(word * WORD_BITS);
        let high = (bits.end - word * WORD_BITS).min(WORD_BITS);
        (word, (u64::MAX << low) & (u64::MAX >> (WORD_BITS - high)))
    })
}

fn set(words: &mut [u64], bits: Range<usize>) {
    masks(bits).for_each(|(word, mask)| words[word] |= mask);
}

/// The first free bit from `from` on, or the end.
fn find_free(words: &[u64], from: usize) -> usize {
    find_set(words, from, |word| !word)
}

/// The first used bit from `from` on, or the end.
fn find_used(words: &[u64], from: usize) -> usize {
    find_set(words, from, |word| word)
}

fn find_set(words: &[u64], from: usize, view: impl Fn(u64) -> u64) -> usize {
    let mut index = from / WORD_BITS;
    let mut mask = u64::MAX << (from % WORD_BITS);
    while let Some(&word) = words.get(index) {
        let found = view(word) & mask;
        if found != 0 {
            return index * WORD_BITS + found.trailing_zeros() as usize;
        }
        index += 1;
        mask = u64::MAX;
    }
    words.len() * WORD_BITS
}

/// Where the run of free bits that `position` ends begins; `position` itself when the bit before it
/// is used.
fn free_since(words: &[u64], position: usize) -> usize {
    let mut mask = !(u64::MAX << (position % WORD_BITS));
    for (index, &word) in words[..=position / WORD_BITS].iter().enumerate().rev() {
        let found = word & mask;
        if found != 0 {
            return (index + 1) * WORD_BITS - found.leading_zeros() as usize;
        }
        mask = u64::MAX;
    }
    0
}

#[cfg(test)]
impl Part {
    /// Checks that the index agrees with the bitmap. After claims, classes may be too high.
    pub fn check(&self, has_claimed: bool) {
        let free: u32 = self.words.iter().map(|word| word.count_zeros()).sum();
        assert_eq!(free, self.free_count);
        for (group, words) in self.words.chunks(GROUP_WORDS).enumerate() {
            let (mut longest, mut position) = (0, 0);
            while position < GROUP_BLOCKS {
                let start = find_free(words, position);
                position = find_used(words, start);
                longest = longest.max(position - start);
            }
            let class: usize = self.classes[group].into();
            assert!(class == class_of(longest) || (has_claimed && class > class_of(longest)));
            for (other, groups) in self.groups_by_class.iter().enumerate() {
                assert_eq!(groups.contains(&(group as u32)), other == class && class > 0);
            }
        }
    }
}
