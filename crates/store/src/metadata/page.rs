//! One page of the metadata tree: a slotted page of one device block, used in memory exactly as it
//! is on the device.
//!
//! ```text
//! number u32 | kind u8 | 0 u8 | entries u16 | prefix length u16 | heap start u16 | garbage u16 | 0 u16
//! prefix | slots: u16 offset of each entry, in key order | free | heap of entries
//! entry: key length u16 | value length u16 | key without the prefix | value
//! ```
//!
//! All keys of a page begin with its prefix, which is stored once. The checksum of a page is stored
//! with the reference to it (see `page_table`), so that a page that was lost or written to a wrong
//! place is noticed too.

use std::cmp::Ordering;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};

const HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 4;
/// Bytes of a page that entries can take, their slots included.
pub(crate) const PAGE_CAPACITY_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;
/// Longest key: a branch has room for two of them, and a leaf that overflows can always be split
/// into three.
pub(crate) const KEY_BYTES_MAX: usize = 1_900;
/// Longest value; longer ones are cut into parts by `keys`.
pub(crate) const VALUE_BYTES_MAX: usize = 1_200;

const _: () = assert!(KEY_BYTES_MAX + VALUE_BYTES_MAX + ENTRY_HEADER_BYTES + 2 <= PAGE_CAPACITY_BYTES);
const _: () = assert!(2 * (KEY_BYTES_MAX + 4 + ENTRY_HEADER_BYTES + 2) <= PAGE_CAPACITY_BYTES);

/// Purpose of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// Keys and values.
    Leaf = 1,
    /// Lower bounds of keys and numbers of child pages.
    Branch = 2,
    /// Part of the bitmap of referenced data blocks.
    Bitmap = 3,
}

/// A page in memory.
#[derive(Clone)]
pub(crate) struct Page {
    block: BlockBuffer,
}

/// Bytes that an entry takes in a page without a prefix.
pub(crate) fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
    2 + ENTRY_HEADER_BYTES + key.len() + value.len()
}

impl Page {
    pub fn new(number: u32, kind: PageKind) -> Self {
        let mut page = Page { block: BlockBuffer::zeroed(1) };
        page.bytes_mut()[..4].copy_from_slice(&number.to_le_bytes());
        page.bytes_mut()[4] = kind as u8;
        page.set_heap_start(BLOCK_BYTES);
        page
    }

    /// A page as it was read; `None` if its structure would lead outside of it.
    pub fn from_block(block: BlockBuffer, number: u32) -> Option<Self> {
        if block.block_count() != 1 {
            return None;
        }
        let page = Page { block };
        let is_sound = page.number() == number
            && match page.bytes()[4] {
                kind if kind == PageKind::Bitmap as u8 => true,
                kind if kind == PageKind::Leaf as u8 => page.entries_are_inside() && page.is_in_order(0),
                kind if kind == PageKind::Branch as u8 => {
                    page.entries_are_inside()
                        && page.count() > 0
                        && page.is_in_order(1)
                        && (0..page.count()).all(|index| page.value(index).len() == 4)
                }
                _ => false,
            };
        is_sound.then_some(page)
    }

    /// Returns true if every entry has bytes of its own, and the rest of the heap is as large as the counted
    /// garbage: then no later change can lead outside of the page.
    fn entries_are_inside(&self) -> bool {
        let (slots_end, heap_start) = (self.slots_start() + 2 * self.count(), self.heap_start());
        if slots_end > heap_start || heap_start > BLOCK_BYTES {
            return false;
        }
        let mut offsets: Vec<usize> = (0..self.count()).map(|index| self.slot(index)).collect();
        offsets.sort_unstable();
        let (mut end, mut garbage_bytes) = (heap_start, 0);
        for offset in offsets {
            if offset < end || offset + ENTRY_HEADER_BYTES > BLOCK_BYTES {
                return false;
            }
            let (key_bytes, value_bytes) = (self.u16_at(offset), self.u16_at(offset + 2));
            if self.prefix_bytes() + key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
                return false;
            }
            garbage_bytes += offset - end;
            end = offset + ENTRY_HEADER_BYTES + key_bytes + value_bytes;
        }
        end <= BLOCK_BYTES && garbage_bytes + BLOCK_BYTES - end == self.garbage_bytes()
    }

    /// Returns true if the keys from entry `first` on are in order.
    fn is_in_order(&self, first: usize) -> bool {
        (first + 1..self.count()).all(|index| self.suffix(index - 1) < self.suffix(index))
    }

    #[inline]
    pub fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        self.block.as_slice().first_chunk().expect("a page has one block")
    }

    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8; BLOCK_BYTES] {
        self.block.as_mut_slice().first_chunk_mut().expect("a page has one block")
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> usize {
        let bytes = self.block.as_slice();
        usize::from(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
    }

    #[inline]
    fn field(&self, offset: usize) -> usize {
        self.u16_at(offset)
    }

    fn set_field(&mut self, offset: usize, value: usize) {
        let value = u16::try_from(value).expect("offsets within a page have 16 bits");
        self.bytes_mut()[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub fn number(&self) -> u32 {
        u32::from_le_bytes(*self.bytes().first_chunk().expect("a page is longer"))
    }

    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.bytes()[4] == PageKind::Leaf as u8
    }

    pub fn kind(&self) -> PageKind {
        match self.bytes()[4] {
            1 => PageKind::Leaf,
            2 => PageKind::Branch,
            _ => PageKind::Bitmap,
        }
    }

    /// Number of entries.
    #[inline]
    pub fn count(&self) -> usize {
        self.field(6)
    }

    #[inline]
    fn prefix_bytes(&self) -> usize {
        self.field(8)
    }

    #[inline]
    pub fn prefix(&self) -> &[u8] {
        &self.bytes()[HEADER_BYTES..HEADER_BYTES + self.prefix_bytes()]
    }

    fn heap_start(&self) -> usize {
        self.field(12)
    }

    fn set_heap_start(&mut self, start: usize) {
        self.set_field(12, start);
    }

    fn garbage_bytes(&self) -> usize {
        self.field(14)
    }

    #[inline]
    fn slots_start(&self) -> usize {
        HEADER_BYTES + self.prefix_bytes()
    }

    #[inline]
    fn slot(&self, index: usize) -> usize {
        self.u16_at(self.slots_start() + 2 * index)
    }

    /// The key of an entry without the page's prefix.
    #[inline]
    pub fn suffix(&self, index: usize) -> &[u8] {
        let offset = self.slot(index);
        let start = offset + ENTRY_HEADER_BYTES;
        &self.bytes()[start..start + self.u16_at(offset)]
    }

    /// The whole key of an entry.
    pub fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    #[inline]
    fn value_range(&self, index: usize) -> std::ops::Range<usize> {
        let offset = self.slot(index);
        let start = offset + ENTRY_HEADER_BYTES + self.u16_at(offset);
        start..start + self.u16_at(offset + 2)
    }

    #[inline]
    pub fn value(&self, index: usize) -> &[u8] {
        &self.bytes()[self.value_range(index)]
    }

    /// The value of an entry, to be changed without changing its length.
    pub fn value_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.value_range(index);
        &mut self.bytes_mut()[range]
    }

    /// The child that a branch's entry refers to.
    #[inline]
    pub fn child(&self, index: usize) -> u32 {
        u32::from_le_bytes(self.value(index).try_into().expect("branches hold page numbers"))
    }

    /// Bytes in use, slots and prefix included.
    pub fn used_bytes(&self) -> usize {
        self.prefix_bytes() + 2 * self.count() + BLOCK_BYTES - self.heap_start() - self.garbage_bytes()
    }

    fn gap_bytes(&self) -> usize {
        self.heap_start() - self.slots_start() - 2 * self.count()
    }

    /// Returns true if there is such an entry, and it has the key.
    pub fn has_at(&self, index: usize, key: &[u8]) -> bool {
        index < self.count() && key.strip_prefix(self.prefix()).is_some_and(|suffix| suffix == self.suffix(index))
    }

    /// Returns true if all keys are below all of the other page.
    pub fn is_before(&self, other: &Page) -> bool {
        let Some(last) = self.count().checked_sub(1) else { return true };
        other.count() == 0 || self.key(last) < other.key(0)
    }

    /// Where the key is, or where it would be.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        match key[..key.len().min(prefix.len())].cmp(prefix) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.count()),
            Ordering::Equal => {}
        }
        let suffix = &key[prefix.len()..];
        let bytes = self.bytes();
        let slots = bytes[self.slots_start()..][..2 * self.count()].as_chunks::<2>().0;
        let (mut low, mut high) = (0, slots.len());
        while low < high {
            let middle = (low + high) / 2;
            let entry = &bytes[usize::from(u16::from_le_bytes(slots[middle]))..];
            let (header, entry) = entry.split_first_chunk::<ENTRY_HEADER_BYTES>().expect("entries are inside");
            let entry_bytes = usize::from(u16::from_le_bytes([header[0], header[1]]));
            match entry[..entry_bytes].cmp(suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The branch's entry whose child holds the key.
    pub fn child_index(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// Inserts an entry at the place that [`Page::search`] gave. False if there is no room.
    pub fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) -> bool {
        if !key.starts_with(self.prefix()) {
            let common = common_bytes(self.prefix(), key);
            let growth = (self.prefix_bytes() - common) * self.count();
            if self.used_bytes() + growth + entry_bytes(key, value) - common > PAGE_CAPACITY_BYTES {
                return false;
            }
            self.rebuild_with_prefix(common);
        }
        let suffix_bytes = key.len() - self.prefix_bytes();
        let needed = ENTRY_HEADER_BYTES + suffix_bytes + value.len();
        if self.gap_bytes() < needed + 2 {
            if self.gap_bytes() + self.garbage_bytes() < needed + 2 {
                return false;
            }
            self.rebuild_with_prefix(self.prefix_bytes());
        }
        let offset = self.push_entry(&key[self.prefix_bytes()..], value);
        let (slot, end) = (self.slots_start() + 2 * index, self.slots_start() + 2 * self.count());
        self.bytes_mut().copy_within(slot..end, slot + 2);
        self.set_field(slot, offset);
        self.set_field(6, self.count() + 1);
        true
    }

    fn push_entry(&mut self, suffix: &[u8], value: &[u8]) -> usize {
        let offset = self.heap_start() - ENTRY_HEADER_BYTES - suffix.len() - value.len();
        self.set_field(offset, suffix.len());
        self.set_field(offset + 2, value.len());
        let key_start = offset + ENTRY_HEADER_BYTES;
        let value_start = key_start + suffix.len();
        self.bytes_mut()[key_start..value_start].copy_from_slice(suffix);
        self.bytes_mut()[value_start..value_start + value.len()].copy_from_slice(value);
        self.set_heap_start(offset);
        offset
    }

    /// Gives an entry another value. False if there is no room; then nothing was changed.
    pub fn replace(&mut self, index: usize, value: &[u8]) -> bool {
        let range = self.value_range(index);
        if range.len() == value.len() {
            self.bytes_mut()[range].copy_from_slice(value);
            return true;
        }
        let freed = ENTRY_HEADER_BYTES + self.suffix(index).len() + range.len();
        let needed = freed - range.len() + value.len();
        if self.gap_bytes() + self.garbage_bytes() + freed < needed {
            return false;
        }
        let key = self.key(index);
        self.remove(index);
        assert!(self.insert(index, &key, value), "there is room: it was counted");
        true
    }

    pub fn remove(&mut self, index: usize) {
        let freed = ENTRY_HEADER_BYTES + self.suffix(index).len() + self.value(index).len();
        self.set_field(14, self.garbage_bytes() + freed);
        let (slot, end) = (self.slots_start() + 2 * index, self.slots_start() + 2 * self.count());
        self.bytes_mut().copy_within(slot + 2..end, slot);
        self.set_field(6, self.count() - 1);
    }

    /// All entries with whole keys.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..self.count()).map(|index| (self.key(index), self.value(index).to_vec())).collect()
    }

    /// Copies the entries together, with the first `prefix_bytes` of their keys as the prefix.
    fn rebuild_with_prefix(&mut self, prefix_bytes: usize) {
        let old = self.clone();
        let prefix = old.key_prefix(prefix_bytes);
        self.start(&prefix);
        for index in 0..old.count() {
            let suffix = &old.key(index)[prefix_bytes..];
            self.append(suffix, old.value(index));
        }
    }

    fn key_prefix(&self, prefix_bytes: usize) -> Vec<u8> {
        self.prefix()[..prefix_bytes].to_vec()
    }

    fn start(&mut self, prefix: &[u8]) {
        self.set_field(6, 0);
        self.set_field(8, prefix.len());
        self.set_field(14, 0);
        self.set_heap_start(BLOCK_BYTES);
        self.bytes_mut()[HEADER_BYTES..HEADER_BYTES + prefix.len()].copy_from_slice(prefix);
    }

    fn append(&mut self, suffix: &[u8], value: &[u8]) {
        let offset = self.push_entry(suffix, value);
        let slot = self.slots_start() + 2 * self.count();
        self.set_field(slot, offset);
        self.set_field(6, self.count() + 1);
    }

    /// Replaces everything by these entries, which are in order and fit.
    pub fn fill(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) {
        let prefix_bytes = common_prefix_bytes(entries);
        let prefix = entries.first().map_or(&[][..], |(key, _)| &key[..prefix_bytes]);
        self.start(prefix);
        for (key, value) in entries {
            self.append(&key[prefix_bytes..], value);
        }
        assert!(self.gap_bytes() < BLOCK_BYTES, "the entries fit into the page");
    }
}

/// Number of bytes at the start that both have in common.
pub(crate) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Number of bytes at the start that all keys have in common. The keys are in order, but for the
/// first one of a branch: it stands for everything below the second, whatever it was once.
pub(crate) fn common_prefix_bytes(entries: &[(Vec<u8>, Vec<u8>)]) -> usize {
    match entries {
        [(first, _), (second, _), .., (last, _)] => common_bytes(first, second).min(common_bytes(second, last)),
        [(first, _), (second, _)] => common_bytes(first, second),
        _ => 0,
    }
}

/// Reads bytes as a page and, if they are one, uses it in all ways.
pub(crate) fn fuzz_page(bytes: &[u8]) {
    let Some(bytes) = bytes.get(..BLOCK_BYTES) else { return };
    let number = u32::from_le_bytes(*bytes.first_chunk().expect("a block is longer"));
    let Some(mut page) = Page::from_block(BlockBuffer::from_bytes(bytes), number) else { return };
    if page.kind() == PageKind::Bitmap {
        return;
    }
    let entries = page.entries();
    for (key, _) in &entries {
        let _ = (page.search(key), page.child_index(key));
    }
    if page.is_leaf() {
        for (index, (key, value)) in entries.iter().enumerate().take(4) {
            let _ = page.replace(index, &[value, &[1][..]].concat());
            let _ = page.insert(page.count(), &[key, &[1][..]].concat(), b"value");
        }
        while page.count() > 0 {
            page.remove(page.count() / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Put(Vec<u8>, Vec<u8>),
        Remove(Vec<u8>),
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        (any::<bool>(), proptest::collection::vec(0u8..3, 0..6)).prop_map(|(long, tail)| {
            let mut key = if long { b"a long common prefix/".to_vec() } else { Vec::new() };
            key.extend(tail);
            key
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (key(), proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(k, v)| Step::Put(k, v)),
            1 => key().prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn a_page_is_a_small_ordered_map(steps in proptest::collection::vec(step(), 1..200)) {
            let mut page = Page::new(7, PageKind::Leaf);
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        let done = match page.search(&key) {
                            Ok(index) => page.replace(index, &value),
                            Err(index) => page.insert(index, &key, &value),
                        };
                        if done {
                            model.insert(key, value);
                        } else {
                            prop_assert!(page.used_bytes() + 2100 > PAGE_CAPACITY_BYTES, "refused too early");
                        }
                    }
                    Step::Remove(key) => {
                        if let Ok(index) = page.search(&key) {
                            page.remove(index);
                        }
                        model.remove(&key);
                    }
                }
                prop_assert!(Page::from_block(page.block.clone(), 7).is_some());
                prop_assert!(page.used_bytes() <= PAGE_CAPACITY_BYTES);
                prop_assert_eq!(page.entries(), model.clone().into_iter().collect::<Vec<_>>());
            }
            let mut filled = Page::new(7, PageKind::Leaf);
            filled.fill(&page.entries());
            prop_assert_eq!(filled.entries(), page.entries());
        }

        #[test]
        fn random_pages_are_refused_or_safe(
            mut bytes in proptest::collection::vec(any::<u8>(), BLOCK_BYTES), kind in 0u8..5, count in 0u8..9,
        ) {
            bytes[..4].copy_from_slice(&7u32.to_le_bytes());
            bytes[4] = kind;
            bytes[6..9].copy_from_slice(&[count, 0, count]);
            bytes[9] = 0;
            bytes[13] &= 0x1f;
            if let Some(page) = Page::from_block(BlockBuffer::from_bytes(&bytes), 7) && page.kind() != PageKind::Bitmap {
                let _ = page.entries();
                let _ = page.search(b"key");
            }
        }
    }
}
