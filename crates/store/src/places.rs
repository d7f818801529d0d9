//! A set of places on the device, in order: a bitmap of the parts that have any.

use std::collections::BTreeMap;

const WORDS: usize = 16;
/// Places of a part.
const PART_BLOCKS: u32 = WORDS as u32 * u64::BITS;

/// Numbers of blocks.
#[derive(Default)]
pub(crate) struct Places {
    /// Bits by part; none is empty.
    parts: BTreeMap<u32, [u64; WORDS]>,
}

impl Places {
    pub fn insert(&mut self, block: u32) {
        let (part, word, bit) = split(block);
        self.parts.entry(part).or_default()[word] |= bit;
    }

    pub fn remove(&mut self, block: u32) {
        let (part, word, bit) = split(block);
        let Some(words) = self.parts.get_mut(&part) else { return };
        words[word] &= !bit;
        if words.iter().all(|word| *word == 0) {
            self.parts.remove(&part);
        }
    }

    /// The first place from this one on.
    pub fn next_from(&self, block: u32) -> Option<u32> {
        let first_in = |(part, words): (&u32, &[u64; WORDS])| {
            let (_, first, bit) = split(block.max(part * PART_BLOCKS));
            let rest = |word: usize| if word == first { words[word] & !(bit - 1) } else { words[word] };
            let word = (first..WORDS).find(|&word| rest(word) != 0)?;
            Some(part * PART_BLOCKS + word as u32 * u64::BITS + rest(word).trailing_zeros())
        };
        // Only the first part may have nothing from there on.
        self.parts.range(block / PART_BLOCKS..).take(2).find_map(first_in)
    }

    /// The places from this one on, in order.
    pub fn range_from(&self, block: u32) -> impl Iterator<Item = u32> {
        let next = |block: &u32| self.next_from(block.checked_add(1)?);
        std::iter::successors(self.next_from(block), next)
    }
}

/// The part that a place is in, its word there, and its bit in the word.
fn split(block: u32) -> (u32, usize, u64) {
    let in_part = block % PART_BLOCKS;
    (block / PART_BLOCKS, (in_part / u64::BITS) as usize, 1 << (in_part % u64::BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Near others and far from them, and at both ends.
    fn blocks() -> impl Strategy<Value = u32> {
        prop_oneof![0..3 * PART_BLOCKS, any::<u32>(), Just(u32::MAX), (u32::MAX - PART_BLOCKS)..]
    }

    proptest! {
        #[test]
        fn are_an_ordered_set(changes in prop::collection::vec((blocks(), any::<bool>()), 0..200), from in blocks()) {
            let (mut places, mut model) = (Places::default(), BTreeSet::new());
            for (block, is_added) in changes {
                if is_added {
                    places.insert(block);
                    model.insert(block);
                } else {
                    // Mostly one that is there.
                    let block = model.range(block..).next().copied().unwrap_or(block);
                    places.remove(block);
                    model.remove(&block);
                }
            }
            prop_assert!(places.range_from(from).eq(model.range(from..).copied()));
            prop_assert!(places.range_from(0).eq(model.iter().copied()));
            prop_assert!(places.parts.values().all(|words| words.iter().any(|word| *word != 0)));
        }
    }
}
