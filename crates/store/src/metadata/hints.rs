//! Where keys were found last. A way down the tree reads some ten lines of memory that no cache holds; a hint
//! is one. The user of a hint checks that the key is there.

use std::cell::Cell;

/// Hints of a tree; those of keys whose hashes agree take each other's place. A client that overwrites all over
/// an image uses a key for each 64 KiB of it.
const HINT_COUNT: usize = 1 << 15;

/// Where a key may be.
#[derive(Clone, Copy)]
pub(crate) struct Hint {
    pub leaf: u32,
    pub index: u16,
    /// Bits of the hash of the key, so that hints of other keys lead nowhere.
    tag: u16,
    /// Value of [`Pages::turn`](super::pages::Pages::turn) then: until the next turn the way to the leaf stays in
    /// memory. Later it must be looked at again even if it is there, or used pages would look unused and be
    /// evicted.
    pub turn: u64,
}

/// The hints of one tree.
pub(crate) struct Hints(Box<[Cell<Hint>]>);

/// The hint for one key, if there is any, and the place for it.
pub(crate) struct HintOf<'a> {
    cell: &'a Cell<Hint>,
    tag: u16,
}

impl Hints {
    pub fn new() -> Self {
        let hint = Hint { leaf: 0, index: 0, tag: 0, turn: u64::MAX };
        Hints(vec![Cell::new(hint); HINT_COUNT].into())
    }

    pub fn of(&self, key: &[u8]) -> HintOf<'_> {
        // Multiplying by an odd number with many bits set mixes upwards: FxHash, as rustc uses it.
        let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        let (words, rest) = key.as_chunks::<8>();
        let hash = words.iter().fold(0, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        let hash = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
        HintOf { cell: &self.0[(hash >> 32) as usize % HINT_COUNT], tag: (hash >> 48) as u16 }
    }
}

impl HintOf<'_> {
    pub fn get(&self) -> Option<Hint> {
        Some(self.cell.get()).filter(|hint| hint.tag == self.tag)
    }

    /// Keeps where the key is, or would be.
    pub fn set(&self, leaf: u32, index: usize, turn: u64) {
        let index = u16::try_from(index).expect("a page of 4 KiB has fewer entries");
        self.cell.set(Hint { leaf, index, tag: self.tag, turn });
    }
}
