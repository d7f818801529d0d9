//! A set of block or page numbers: one bit each.

const WORD_BITS: u32 = u64::BITS;

/// The set of some of `count` numbers from `first` on.
pub(super) struct Bits {
    first: u32,
    count: u32,
    words: Vec<u64>,
}

impl Bits {
    pub fn new(first: u32, count: u32) -> Self {
        Bits { first, count, words: vec![0; count.div_ceil(WORD_BITS) as usize] }
    }

    fn place(&self, number: u32) -> Option<(usize, u64)> {
        let index = number.checked_sub(self.first).filter(|&index| index < self.count)?;
        Some(((index / WORD_BITS) as usize, 1 << (index % WORD_BITS)))
    }

    /// Returns true if the number could be in the set.
    pub fn covers(&self, number: u32) -> bool {
        self.place(number).is_some()
    }

    pub fn contains(&self, number: u32) -> bool {
        self.place(number).is_some_and(|(word, mask)| self.words[word] & mask != 0)
    }

    /// Adds a number. False if it is in the set already or could not be.
    pub fn insert(&mut self, number: u32) -> bool {
        let Some((word, mask)) = self.place(number) else { return false };
        let is_new = self.words[word] & mask == 0;
        self.words[word] |= mask;
        is_new
    }

    pub fn remove(&mut self, number: u32) {
        if let Some((word, mask)) = self.place(number) {
            self.words[word] &= !mask;
        }
    }

    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Calls `visit` with the first number and the length of every run of numbers that this set has
    /// and the other, of the same numbers, has not.
    pub fn for_each_run_without(&self, other: &Bits, mut visit: impl FnMut(u32, u32)) {
        let mut run: Option<(u32, u32)> = None;
        for (index, (word, other)) in self.words.iter().zip(&other.words).enumerate() {
            let mut rest = word & !other;
            while rest != 0 {
                let number = self.first + index as u32 * WORD_BITS + rest.trailing_zeros();
                rest &= rest - 1;
                match &mut run {
                    Some((first, count)) if *first + *count == number => *count += 1,
                    run => {
                        if let Some((first, count)) = run.replace((number, 1)) {
                            visit(first, count);
                        }
                    }
                }
            }
        }
        if let Some((first, count)) = run {
            visit(first, count);
        }
    }
}
