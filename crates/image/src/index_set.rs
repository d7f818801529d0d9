//! A set of numbers of objects: one bit each, up to the highest in it.

/// 2 MiB for all objects of the largest image.
#[derive(Debug, Default)]
pub(crate) struct IndexSet(Vec<u64>);

impl IndexSet {
    pub fn insert(&mut self, index: u64) {
        let word = (index / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (index % 64);
    }

    pub fn contains(&self, index: u64) -> bool {
        self.0.get((index / 64) as usize).is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_inserted_entries() {
        let (mut set, mut model) = (IndexSet::default(), BTreeSet::new());
        for number in 0..500_u64 {
            let index = number * number * 7919 % 10_007;
            set.insert(index);
            model.insert(index);
        }
        assert!((0..11_000).all(|index| set.contains(index) == model.contains(&index)));
        set.clear();
        assert!(!model.iter().any(|index| set.contains(*index)));
    }
}
