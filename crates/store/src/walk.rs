//! Walking the metadata tree page by page, outside of the event loop: for checking and dumping whole
//! stores. Pages are read from the device, or taken from memory where replay has changed them, and
//! forgotten at once, so that a walk takes no memory but one page for each level.
//!
//! No content of a page is trusted: the walk reports errors and continues with the rest.

use std::ops::ControlFlow;

use atoll_codec::crc32c;

use crate::check::Problem;
use crate::disk::{Disk, read_blocks};
use crate::metadata::page::Page;
use crate::metadata::tree::DEPTH_MAX;
use crate::metadata::{PageKind, Pages};

/// Items that a walk meets.
pub(crate) trait Visitor {
    /// An entry of a leaf, in key order as far as the tree is sound. `Break` ends the walk.
    fn entry(&mut self, disk: &mut dyn Disk, key: &[u8], value: &[u8]) -> ControlFlow<()>;

    /// A live page was reached from `parent`. False if it must not be entered.
    fn enter(&mut self, _number: u32, _parent: u32) -> bool {
        true
    }

    /// Something is wrong.
    fn problem(&mut self, problem: Problem);
}

/// A walk over the entries from `from` (included) to `to` (excluded).
pub(crate) struct Walk<'a> {
    pub disk: &'a mut dyn Disk,
    pub pages: &'a Pages,
    pub from: &'a [u8],
    pub to: &'a [u8],
    /// Depth of the first leaf; all others must have the same.
    leaf_depth: Option<usize>,
}

/// Where a page hangs in the tree: its keys must be at least `lower` and below `upper`.
struct Place<'a> {
    number: u32,
    depth: usize,
    lower: &'a [u8],
    upper: Option<&'a [u8]>,
}

impl<'a> Walk<'a> {
    pub fn new(disk: &'a mut dyn Disk, pages: &'a Pages, from: &'a [u8], to: &'a [u8]) -> Self {
        Walk { disk, pages, from, to, leaf_depth: None }
    }

    /// Walks the tree below `root`. Returns the depth of its leaves; 0 if the root is one.
    pub fn run(mut self, root: u32, visitor: &mut impl Visitor) -> usize {
        if visitor.enter(root, root) {
            let _ = self.page(Place { number: root, depth: 0, lower: &[], upper: None }, visitor);
        }
        self.leaf_depth.unwrap_or(0)
    }

    fn page(&mut self, place: Place, visitor: &mut impl Visitor) -> ControlFlow<()> {
        let page = match read_page(self.disk, self.pages, place.number) {
            Ok(page) => page,
            Err(problem) => {
                visitor.problem(problem);
                return ControlFlow::Continue(());
            }
        };
        if let Some(detail) = misplaced(&page, &place) {
            visitor.problem(Problem::MisplacedKeys { page: place.number, detail });
        }
        match page.kind() {
            PageKind::Leaf => self.leaf(&page, &place, visitor),
            PageKind::Branch => self.branch(&page, &place, visitor),
            PageKind::Bitmap => {
                visitor.problem(self.damaged(place.number, "it is part of the bitmap, not of the tree"));
                ControlFlow::Continue(())
            }
        }
    }

    fn leaf(&mut self, page: &Page, place: &Place, visitor: &mut impl Visitor) -> ControlFlow<()> {
        let expected = *self.leaf_depth.get_or_insert(place.depth);
        if place.depth != expected {
            visitor.problem(Problem::UnevenDepth { page: place.number, depth: place.depth, expected });
        }
        if page.count() == 0 && place.depth > 0 {
            visitor.problem(self.damaged(place.number, "it is an empty leaf"));
        }
        let mut key = page.prefix().to_vec();
        let prefix_bytes = key.len();
        for index in 0..page.count() {
            key.truncate(prefix_bytes);
            key.extend_from_slice(page.suffix(index));
            if &key[..] >= self.from && &key[..] < self.to {
                visitor.entry(self.disk, &key, page.value(index))?;
            }
        }
        ControlFlow::Continue(())
    }

    fn branch(&mut self, page: &Page, place: &Place, visitor: &mut impl Visitor) -> ControlFlow<()> {
        if place.depth >= DEPTH_MAX {
            visitor.problem(self.damaged(place.number, "it is too deep in the tree"));
            return ControlFlow::Continue(());
        }
        let mut lower = place.lower.to_vec();
        for index in 0..page.count() {
            let next = (index + 1 < page.count()).then(|| page.key(index + 1));
            let upper = next.as_deref().or(place.upper);
            let is_wanted = &lower[..] < self.to && upper.is_none_or(|upper| upper > self.from);
            let child = page.child(index);
            if is_wanted && !self.pages.is_live(child) {
                visitor.problem(Problem::MissingPage { page: child, parent: place.number });
            } else if is_wanted && visitor.enter(child, place.number) {
                let below = Place { number: child, depth: place.depth + 1, lower: &lower, upper };
                self.page(below, visitor)?;
            }
            lower = next.unwrap_or_default();
        }
        ControlFlow::Continue(())
    }

    fn damaged(&self, page: u32, detail: &str) -> Problem {
        Problem::DamagedPage { page, block: self.pages.location(page).block, detail: detail.into() }
    }
}

/// The page with this live number, checked on its own.
pub(crate) fn read_page(disk: &mut dyn Disk, pages: &Pages, number: u32) -> Result<Page, Problem> {
    if let Ok(page) = pages.get(number) {
        return Ok(page.clone());
    }
    let location = pages.location(number);
    let damaged = |detail: String| Problem::DamagedPage { page: number, block: location.block, detail };
    let block = read_blocks(disk, u64::from(location.block), 1).map_err(|error| damaged(error.to_string()))?;
    if crc32c(block.as_slice()) != location.crc {
        return Err(damaged("its checksum does not fit".into()));
    }
    Page::from_block(block, number).ok_or_else(|| damaged("its number, kind or structure is wrong".into()))
}

/// Returns the error in the order of a page's keys, or in the page's place.
fn misplaced(page: &Page, place: &Place) -> Option<String> {
    if page.kind() == PageKind::Bitmap {
        return None;
    }
    // The first entry of a branch stands for everything below the second, whatever its own key says.
    let first = usize::from(page.kind() == PageKind::Branch);
    let keys = || (0..page.count()).map(|index| page.key(index));
    if let Some(index) = keys().skip(first).zip(keys().skip(first + 1)).position(|(key, next)| key >= next) {
        return Some(format!("entry {} is not above the one before", first + index + 1));
    }
    let outside = |key: &Vec<u8>| &key[..] < place.lower || place.upper.is_some_and(|upper| &key[..] >= upper);
    let index = keys().skip(first).position(|key| outside(&key))?;
    Some(format!("entry {} is outside of the parent's range", index + first))
}
