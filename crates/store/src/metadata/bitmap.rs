//! Which data blocks the objects refer to: a bitmap in pages of its own, written by checkpoints like
//! all other pages, so that opening a store does not have to read the whole tree.

use super::page::{Page, PageKind};
use super::pages::Pages;
use atoll_buffers::BLOCK_BYTES;

const HEADER_BYTES: usize = 16;
const BLOCKS_PER_PAGE: u32 = ((BLOCK_BYTES - HEADER_BYTES) * 8) as u32;

/// Where the bitmap is: its pages have the numbers from 0 on.
#[derive(Clone, Copy)]
pub(crate) struct Bitmap {
    first_block: u32,
    block_count: u32,
}

impl Bitmap {
    pub fn new(first_block: u64, block_count: u64) -> Self {
        let narrow = |value: u64| u32::try_from(value).expect("the layout keeps block numbers in 32 bits");
        Bitmap { first_block: narrow(first_block), block_count: narrow(block_count) }
    }

    /// Number of pages.
    pub fn page_count(&self) -> u32 {
        self.block_count.div_ceil(BLOCKS_PER_PAGE)
    }

    /// Makes the pages that were never written.
    pub fn create_missing(&self, pages: &mut Pages) {
        pages.set_tree_start(self.page_count());
        for number in 0..self.page_count() {
            if !pages.is_live(number) {
                pages.create_as(number, PageKind::Bitmap);
            }
        }
    }

    /// Returns true if the block is one that objects may have.
    pub fn covers(&self, block: u32) -> bool {
        block.checked_sub(self.first_block).is_some_and(|index| index < self.block_count)
    }

    fn place(&self, block: u32) -> (u32, usize, u8) {
        assert!(self.covers(block), "block {block} is outside the data region");
        let index = block - self.first_block;
        let bit = index % BLOCKS_PER_PAGE;
        (index / BLOCKS_PER_PAGE, HEADER_BYTES + bit as usize / 8, 1 << (bit % 8))
    }

    /// Says whether objects refer to a block from now on, which must be news.
    pub fn set(&self, pages: &mut Pages, block: u32, is_referenced: bool) {
        let (number, byte, mask) = self.place(block);
        let bytes = pages.get_mut(number).bytes_mut();
        let before = bytes[byte] & mask != 0;
        assert_ne!(before, is_referenced, "block {block} gets and loses its first reference in turn");
        bytes[byte] ^= mask;
    }

    pub fn is_referenced(&self, pages: &Pages, block: u32) -> bool {
        let (number, byte, mask) = self.place(block);
        pages.get(number).expect("the bitmap stays in memory").bytes()[byte] & mask != 0
    }

    /// Calls `visit` with every block that is referred to.
    pub fn for_each(&self, pages: &Pages, mut visit: impl FnMut(u32)) {
        for number in 0..self.page_count() {
            let page = pages.get(number).expect("the bitmap stays in memory");
            self.for_each_in(number, page, &mut visit);
        }
    }

    /// Calls `visit` with every block that one of the pages refers to. It may be behind the region if the page is
    /// damaged.
    pub fn for_each_in(&self, number: u32, page: &Page, mut visit: impl FnMut(u32)) {
        let first = self.first_block + number * BLOCKS_PER_PAGE;
        for (index, &byte) in page.bytes()[HEADER_BYTES..].iter().enumerate() {
            let mut rest = byte;
            while rest != 0 {
                visit(first.saturating_add(index as u32 * 8 + rest.trailing_zeros()));
                rest &= rest - 1;
            }
        }
    }

    /// The blocks of one of the pages: the first one, and how many.
    pub fn blocks_of(&self, number: u32) -> (u32, u32) {
        let index = number * BLOCKS_PER_PAGE;
        (self.first_block + index, BLOCKS_PER_PAGE.min(self.block_count - index))
    }
}
