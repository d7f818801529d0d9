//! Counting the references to shared blocks. A store may share very many, so they are counted in
//! portions: for each, the tree is walked once more.

use std::ops::ControlFlow;

use super::bits::Bits;
use super::entries;
use super::problem::{Problem, Problems};
use crate::disk::Disk;
use crate::metadata::keys::{self, ObjectPart};
use crate::metadata::{Chunk, HOLE, Metadata, ObjectInfo, ObjectKey};
use crate::walk::{Visitor, Walk};

/// Blocks that are counted in one walk: 16 bytes each, 64 MiB.
const PORTION_BLOCKS: usize = 4 << 20;

struct Shared {
    block: u32,
    recorded: u16,
    found: u64,
}

/// Reads the counts of the next portion.
struct Portion {
    shared: Vec<Shared>,
    /// The first key that was not taken; empty if all were.
    next: Vec<u8>,
    limit: usize,
}

impl Visitor for Portion {
    fn entry(&mut self, _: &mut dyn Disk, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        if self.shared.len() >= self.limit {
            self.next = key.to_vec();
            return ControlFlow::Break(());
        }
        let counts = entries::shared_counts(key, value).unwrap_or_default();
        self.shared.extend(counts.into_iter().map(|(block, recorded)| Shared { block, recorded, found: 0 }));
        ControlFlow::Continue(())
    }

    fn problem(&mut self, _: Problem) {
        // The walk over the whole tree has reported it.
    }
}

/// Counts the references to the blocks of a portion.
struct Counting<'a> {
    shared: &'a mut [Shared],
    object: Option<(ObjectKey, bool)>,
    problems: &'a mut Problems,
}

impl Visitor for Counting<'_> {
    fn entry(&mut self, _: &mut dyn Disk, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        match keys::parse_object(key) {
            Some((object, ObjectPart::Header)) => {
                let may_share = ObjectInfo::decode(value).is_ok_and(|info| info.may_share);
                self.object = Some((object, may_share));
            }
            Some((_, ObjectPart::Chunk(_))) => {
                let chunk = Chunk::decode(value).unwrap_or_default();
                for meta in chunk.blocks.iter().filter(|meta| **meta != HOLE) {
                    self.count(meta.device_block);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn problem(&mut self, _: Problem) {}
}

impl Counting<'_> {
    fn count(&mut self, block: u32) {
        let Ok(index) = self.shared.binary_search_by_key(&block, |shared| shared.block) else { return };
        self.shared[index].found += 1;
        if let Some((object, false)) = &self.object {
            self.problems.add(Problem::NotMarkedShared { object: object.clone(), block });
        }
    }
}

/// Compares the counts of shared blocks with the references that there are. `again` holds the blocks
/// that are referred to more than once; those without a count stay in it. Returns the number of
/// shared blocks.
pub(super) fn check_counts(
    disk: &mut dyn Disk,
    metadata: &Metadata,
    again: &mut Bits,
    problems: &mut Problems,
) -> u64 {
    let tree = &metadata.tree;
    let end = keys::end_of(&keys::SHARED_BLOCKS);
    let mut from = keys::SHARED_BLOCKS.to_vec();
    let mut count = 0;
    while !from.is_empty() {
        let mut portion = Portion { shared: Vec::new(), next: Vec::new(), limit: PORTION_BLOCKS };
        Walk::new(disk, &tree.pages, &from, &end).run(tree.root, &mut portion);
        from = portion.next;
        if portion.shared.is_empty() {
            continue;
        }
        // Damaged pages may hold entries out of order; they are found all the same.
        portion.shared.sort_unstable_by_key(|shared| shared.block);
        let mut counting = Counting { shared: &mut portion.shared, object: None, problems };
        let objects_end = keys::end_of(&keys::OBJECTS);
        Walk::new(disk, &tree.pages, &keys::OBJECTS, &objects_end).run(tree.root, &mut counting);
        for shared in &portion.shared {
            again.remove(shared.block);
            let recorded = u64::from(shared.recorded) + 1;
            if shared.found != recorded {
                let found = shared.found;
                problems.add(Problem::ReferenceCount { block: shared.block, found, recorded });
            }
        }
        count += portion.shared.len() as u64;
    }
    count
}
