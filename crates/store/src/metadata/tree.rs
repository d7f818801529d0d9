//! The ordered key space: a B+tree of [`Page`]s (Bayer and McCreight 1972; leaves hold all values).
//! Every operation that needs a page which is not in memory fails with [`PageError::Cold`] before it
//! has changed anything.
//!
//! A page is checked by itself when it is loaded, but pages that are sound one by one may contradict
//! each other if a bug or another program wrote them. The error is then
//! [`PageError::Contradiction`].

use std::ops::ControlFlow;

use super::hints::{HintOf, Hints};
use super::page::{
    KEY_BYTES_MAX, PAGE_CAPACITY_BYTES, Page, PageKind, VALUE_BYTES_MAX, common_bytes, common_prefix_bytes,
    entry_bytes,
};
use super::pages::{Cold, PageError, Pages};

/// Children of a branch that a scan which meets a cold one asks for at once.
const READ_AHEAD_PAGES: usize = 16;
/// A leaf below this is merged with a neighbour, if one is in memory and both fit well.
const MERGE_BELOW_BYTES: usize = PAGE_CAPACITY_BYTES / 4;
const MERGED_BYTES_MAX: usize = PAGE_CAPACITY_BYTES / 4 * 3;
/// Deeper than any tree of 2^32 pages; a longer way down means damaged pages.
pub(crate) const DEPTH_MAX: usize = 64;

type Entry = (Vec<u8>, Vec<u8>);

/// The way from the root to a leaf: branches and the entry taken in each.
type Path = Vec<(u32, usize)>;

/// The tree over the pages.
pub(crate) struct Tree {
    pub pages: Pages,
    pub root: u32,
    /// Leaf and place of the entry that was inserted last. The next insertion just behind it probably continues in
    /// order, and then splitting in halves would leave half-full pages behind.
    inserted_last: Option<(u32, usize)>,
    /// Where ways down led to.
    hints: Hints,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    leaf: u32,
    index: usize,
}

/// Like [`Page::search`], but tries the hint first.
fn search_by(hint: &HintOf<'_>, page: &Page, leaf: u32, key: &[u8]) -> Result<usize, usize> {
    let known = hint.get().filter(|known| known.leaf == leaf);
    if let Some(index) = known.map(|known| usize::from(known.index))
        && page.has_at(index, key)
    {
        return Ok(index);
    }
    let place = page.search(key);
    if let (Some(known), Ok(index)) = (known, place) {
        hint.set(leaf, index, known.turn);
    }
    place
}

impl Tree {
    pub fn new(pages: Pages, root: u32) -> Self {
        Tree { pages, root, inserted_last: None, hints: Hints::new() }
    }

    /// The value of a key. Branches above its leaf need not be in memory afterwards: see
    /// [`Tree::touch`].
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, PageError> {
        let hint = self.hints.of(key);
        match hint.get().and_then(|known| self.get_by(&hint, known.leaf, key)) {
            Some(found) => Ok(found),
            None => Ok(self.descend_for(&hint, key)?.0),
        }
    }

    /// The value of a key, if this is a leaf in memory and one that must have the key if any has: it has
    /// keys on both sides of it, or the key itself.
    pub fn get_in(&self, leaf: u32, key: &[u8]) -> Option<Option<&[u8]>> {
        self.get_by(&self.hints.of(key), leaf, key)
    }

    fn get_by(&self, hint: &HintOf<'_>, leaf: u32, key: &[u8]) -> Option<Option<&[u8]>> {
        let page = self.pages.get(leaf).ok().filter(|page| page.is_leaf())?;
        match search_by(hint, page, leaf, key) {
            Ok(index) => Some(Some(page.value(index))),
            Err(index) => (0 < index && index < page.count()).then_some(None),
        }
    }

    /// The value of a key, and the leaf that has it or would have it. The way there is in memory.
    pub fn get_with_leaf(&self, key: &[u8]) -> Result<(Option<&[u8]>, u32), PageError> {
        let hint = self.hints.of(key);
        match self.place_by(&hint, key).filter(|(_, turn)| *turn == self.pages.turn()) {
            Some((place, _)) => Ok((Some(self.value_at(place)?), place.leaf)),
            None => self.descend_for(&hint, key),
        }
    }

    fn descend_for(&self, hint: &HintOf<'_>, key: &[u8]) -> Result<(Option<&[u8]>, u32), PageError> {
        let (leaf, place) = self.descend_to(hint, key)?;
        let value = place.ok().map(|index| self.value_at(Place { leaf, index })).transpose()?;
        Ok((value, leaf))
    }

    /// The leaf that has a key or would have it, and the place there; the hint gets both.
    fn descend_to(&self, hint: &HintOf<'_>, key: &[u8]) -> Result<(u32, Result<usize, usize>), PageError> {
        let mut leaf = self.root;
        for _ in 0..DEPTH_MAX {
            let page = self.pages.get(leaf)?;
            if page.is_leaf() {
                let place = page.search(key);
                let (Ok(index) | Err(index)) = place;
                hint.set(leaf, index, self.pages.turn());
                return Ok((leaf, place));
            }
            leaf = page.child(page.child_index(key));
        }
        Err(self.leads_in_circles())
    }

    /// Where a key is, until something is put or removed or pages are evicted. The way there need not be in memory.
    pub fn place(&self, key: &[u8]) -> Result<Option<Place>, PageError> {
        let hint = self.hints.of(key);
        if let Some((place, _)) = self.place_by(&hint, key) {
            return Ok(Some(place));
        }
        let (leaf, place) = self.descend_to(&hint, key)?;
        Ok(place.ok().map(|index| Place { leaf, index }))
    }

    /// Where the hint has the key, and the turn of the hint.
    fn place_by(&self, hint: &HintOf<'_>, key: &[u8]) -> Option<(Place, u64)> {
        let known = hint.get()?;
        let index = usize::from(known.index);
        let page = self.pages.get(known.leaf).ok()?;
        (page.is_leaf() && page.has_at(index, key)).then_some((Place { leaf: known.leaf, index }, known.turn))
    }

    /// The value at a place.
    pub fn value_at(&self, place: Place) -> Result<&[u8], PageError> {
        Ok(self.pages.get(place.leaf)?.value(place.index))
    }

    /// The value at a place, to be changed without changing its length.
    pub fn value_at_mut(&mut self, place: Place) -> &mut [u8] {
        self.pages.get_mut(place.leaf).value_mut(place.index)
    }

    /// Makes sure that `put` or `remove` of the key would find its leaf in memory, and the way to it. The
    /// same holds afterwards for whatever `get` finds, until pages are evicted.
    pub fn touch(&self, key: &[u8]) -> Result<(), PageError> {
        self.get_with_leaf(key).map(|_| ())
    }

    /// The error for a way down from the root that never ends.
    fn leads_in_circles(&self) -> PageError {
        PageError::Contradiction { page: self.root }
    }

    fn descend(&self, key: &[u8]) -> Result<(Path, u32), PageError> {
        let mut path = Path::new();
        let mut number = self.root;
        while path.len() < DEPTH_MAX {
            let page = self.pages.get(number)?;
            if page.is_leaf() {
                return Ok((path, number));
            }
            let index = page.child_index(key);
            path.push((number, index));
            number = page.child(index);
        }
        Err(self.leads_in_circles())
    }

    /// Visits the entries from `from` (included) to `to` (excluded) in key order.
    pub fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), PageError> {
        let mut from = from.to_vec();
        let mut key = Vec::new();
        while &from[..] < to {
            let (leaf, next) = self.leaf_from(&from, to)?;
            let page = self.pages.get(leaf)?;
            let start = page.search(&from).unwrap_or_else(|index| index);
            key.clear();
            key.extend_from_slice(page.prefix());
            let prefix_bytes = key.len();
            for index in start..page.count() {
                key.truncate(prefix_bytes);
                key.extend_from_slice(page.suffix(index));
                if &key[..] >= to || visit(&key, page.value(index)).is_break() {
                    return Ok(());
                }
            }
            match next {
                Some((branch, index)) => {
                    let lower_bound = self.pages.get(branch)?.key(index);
                    if lower_bound <= from {
                        return Err(PageError::Contradiction { page: branch });
                    }
                    from = lower_bound;
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The leaf that holds `from`, and the branch and its entry with the lower bound of the leaf behind.
    fn leaf_from(&self, from: &[u8], to: &[u8]) -> Result<(u32, Option<(u32, usize)>), PageError> {
        let mut next = None;
        let mut number = self.root;
        for _ in 0..DEPTH_MAX {
            let page = self.pages.get(number)?;
            if page.is_leaf() {
                return Ok((number, next));
            }
            let index = page.child_index(from);
            if index + 1 < page.count() {
                next = Some((number, index + 1));
            }
            let child = page.child(index);
            if !self.pages.is_live(child) {
                return Err(PageError::Contradiction { page: child });
            }
            if !self.pages.is_resident(child) {
                let ahead = (index..page.count())
                    .take(READ_AHEAD_PAGES)
                    .take_while(|&sibling| sibling == index || &page.key(sibling)[..] < to)
                    .map(|sibling| page.child(sibling));
                let is_missing = |child: &u32| self.pages.is_live(*child) && !self.pages.is_resident(*child);
                return Err(PageError::Cold(Cold(ahead.filter(is_missing).collect())));
            }
            number = child;
        }
        Err(self.leads_in_circles())
    }

    /// As [`Tree::put`], with the leaf that the key was in. If it still has the key, it is the right one.
    pub fn put_in(&mut self, leaf: u32, key: &[u8], value: &[u8]) -> Result<(), PageError> {
        let page = self.pages.get(leaf).ok().filter(|page| page.is_leaf());
        let hint = self.hints.of(key);
        if let Some(Ok(index)) = page.map(|page| search_by(&hint, page, leaf, key))
            && self.pages.get_mut(leaf).replace(index, value)
        {
            return Ok(());
        }
        self.put(key, value)
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PageError> {
        assert!(key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX, "entries are within their limits");
        let (path, leaf) = self.descend(key)?;
        let page = self.pages.get_mut(leaf);
        let mut entries;
        let place = page.search(key);
        match place {
            Ok(index) if page.replace(index, value) => return Ok(()),
            Err(index) if page.insert(index, key, value) => {
                self.inserted_last = Some((leaf, index));
                return Ok(());
            }
            Ok(index) => {
                entries = page.entries();
                entries[index].1 = value.to_vec();
            }
            Err(index) => {
                entries = page.entries();
                entries.insert(index, (key.to_vec(), value.to_vec()));
            }
        }
        let cuts = match place {
            Err(index) if index == entries.len() - 1 => vec![index],
            Err(index) if index > 0 && self.inserted_last == Some((leaf, index - 1)) => vec![index + 1, index],
            _ => Vec::new(),
        };
        self.split(path, leaf, &entries, &cuts);
        self.inserted_last = place.err().map(|index| (leaf, index));
        Ok(())
    }

    /// Spreads `entries`, which do not fit into page `number`, over it and fresh pages behind it. The
    /// first of the `cuts` at which both parts fit is taken, otherwise the middle.
    fn split(&mut self, mut path: Path, number: u32, entries: &[Entry], cuts: &[usize]) {
        let kind = self.pages.get_mut(number).kind();
        let groups = partition(entries, cuts);
        let mut children: Vec<Entry> = Vec::new();
        for (position, group) in groups.iter().enumerate() {
            let is_first = position == 0;
            let page_number = match is_first && number != self.root {
                true => number,
                false => self.pages.create(kind),
            };
            self.pages.get_mut(page_number).fill(&entries[group.clone()]);
            let lower_bound = match (is_first, kind) {
                (true, _) => Vec::new(),
                (false, PageKind::Leaf) => separator(&entries[group.start - 1].0, &entries[group.start].0),
                (false, _) => entries[group.start].0.clone(),
            };
            children.push((lower_bound, page_number.to_le_bytes().to_vec()));
        }
        if number == self.root {
            // The root keeps its number and becomes the parent of all parts.
            let page = self.pages.get_mut(number);
            *page = Page::new(number, PageKind::Branch);
            return page.fill(&children);
        }
        let (parent, index) = path.pop().expect("every page but the root has a parent");
        self.insert_children(path, parent, index + 1, &children[1..]);
    }

    fn insert_children(&mut self, path: Path, parent: u32, index: usize, children: &[Entry]) {
        let page = self.pages.get_mut(parent);
        let mut inserted = 0;
        for (position, (key, value)) in children.iter().enumerate() {
            if !page.insert(index + position, key, value) {
                break;
            }
            inserted += 1;
        }
        if inserted == children.len() {
            return;
        }
        let mut entries = page.entries();
        let is_append = index + inserted == entries.len();
        let rest = children[inserted..].iter().cloned();
        entries.splice(index + inserted..index + inserted, rest);
        let is_append = is_append && children.len() - inserted == 1;
        let last = [entries.len() - 1];
        self.split(path, parent, &entries, &last[..usize::from(is_append)]);
    }

    /// Removes a key. False if it was not there.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, PageError> {
        let (path, leaf) = self.descend(key)?;
        let Ok(index) = self.pages.get(leaf)?.search(key) else { return Ok(false) };
        let page = self.pages.get_mut(leaf);
        page.remove(index);
        if page.count() == 0 {
            self.remove_empty(path, leaf);
        } else if page.used_bytes() < MERGE_BELOW_BYTES {
            self.merge(path, leaf)?;
        }
        Ok(true)
    }

    /// Takes an empty page out of the tree.
    fn remove_empty(&mut self, mut path: Path, number: u32) {
        let Some((parent, index)) = path.pop() else {
            // An empty tree is one empty leaf.
            *self.pages.get_mut(number) = Page::new(number, PageKind::Leaf);
            return;
        };
        self.pages.free(number);
        let page = self.pages.get_mut(parent);
        page.remove(index);
        if page.count() == 0 {
            self.remove_empty(path, parent);
        } else {
            self.lower_root();
        }
    }

    /// Merges a small leaf with a neighbour under the same parent.
    fn merge(&mut self, mut path: Path, number: u32) -> Result<(), PageError> {
        let Some((parent, index)) = path.pop() else { return Ok(()) };
        let page = self.pages.get(parent)?;
        let neighbours = [index.checked_sub(1).map(|left| (left, index)), Some((index, index + 1))];
        let pairs = neighbours.into_iter().flatten().filter(|&(_, right)| right < page.count());
        let pairs: Vec<(u32, u32, usize)> =
            pairs.map(|(left, right)| (page.child(left), page.child(right), right)).collect();
        for (left, right, right_index) in pairs {
            assert!(left == number || right == number, "one of the two is the small leaf");
            let (Ok(left_page), Ok(right_page)) = (self.pages.get(left), self.pages.get(right)) else { continue };
            if !left_page.is_leaf() || !right_page.is_leaf() || !left_page.is_before(right_page) {
                let page = if left == number { right } else { left };
                return Err(PageError::Contradiction { page });
            }
            let entries: Vec<Entry> = left_page.entries().into_iter().chain(right_page.entries()).collect();
            if filled_bytes(&entries) > MERGED_BYTES_MAX {
                continue;
            }
            self.pages.get_mut(left).fill(&entries);
            self.pages.free(right);
            self.pages.get_mut(parent).remove(right_index);
            self.lower_root();
            return Ok(());
        }
        Ok(())
    }

    /// A root with a single child becomes that child, if it is in memory.
    fn lower_root(&mut self) {
        while let Ok(root) = self.pages.get(self.root)
            && !root.is_leaf()
            && root.count() == 1
            && let child = root.child(0)
            && let Ok(page) = self.pages.get(child)
        {
            let (kind, entries) = (page.kind(), page.entries());
            let root = self.pages.get_mut(self.root);
            *root = Page::new(self.root, kind);
            root.fill(&entries);
            self.pages.free(child);
        }
    }
}

/// Bytes that these entries take in a page of their own, at most.
fn filled_bytes(entries: &[Entry]) -> usize {
    let common = common_prefix_bytes(entries);
    common + entries.iter().map(|(key, value)| entry_bytes(key, value) - common).sum::<usize>()
}

/// Cuts entries that do not fit into one page into groups that do.
fn partition(entries: &[Entry], cuts: &[usize]) -> Vec<std::ops::Range<usize>> {
    let count = entries.len();
    let fits = |range: std::ops::Range<usize>| filled_bytes(&entries[range]) <= PAGE_CAPACITY_BYTES;
    if let Some(&cut) = cuts.iter().find(|&&cut| fits(0..cut) && fits(cut..count)) {
        // Keys that come in order leave full pages behind.
        return vec![0..cut, cut..count];
    }
    let common = common_prefix_bytes(entries);
    let sizes = entries.iter().map(|(key, value)| entry_bytes(key, value) - common);
    let total: usize = sizes.clone().sum();
    let mut left = 0;
    let middle = sizes
        .take_while(|size| {
            left += size;
            left <= total / 2
        })
        .count()
        .clamp(1, count - 1);
    if fits(0..middle) && fits(middle..count) {
        return vec![0..middle, middle..count];
    }
    let mut groups = Vec::new();
    let mut start = 0;
    for index in 1..=count {
        if index == count || !fits(start..index + 1) {
            groups.push(start..index);
            start = index;
        }
    }
    groups
}

/// The shortest key that is above `left` and not above `right`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    right[..common_bytes(left, right) + 1].to_vec()
}
