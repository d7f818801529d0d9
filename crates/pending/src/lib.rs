//! Pending entries, by numbers that are given out in ascending order and end in nearly the same order: requests,
//! submissions, disk operations. [`Pending`] finds and removes them by a few comparisons and without allocating,
//! where an ordered map takes some hundred instructions.
//!
//! This crate knows nothing about the entries and uses no other crate.

use std::collections::VecDeque;

/// Places of entries that are gone and that are kept at least, before they are given up.
const GONE_MIN: usize = 64;

/// A map by ascending numbers. Places of entries that are gone are given up when all before them are gone, too, or
/// when they are most.
#[derive(Clone, Debug)]
pub struct Pending<T> {
    /// By number, ascending.
    entries: VecDeque<(u64, Option<T>)>,
    count: usize,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Pending { entries: VecDeque::new(), count: 0 }
    }
}

impl<T> Pending<T> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn position(&self, number: u64) -> Result<usize, usize> {
        let (first, _) = self.entries.front().ok_or(0_usize)?;
        // Numbers without gaps are where they belong.
        let guess = usize::try_from(number.wrapping_sub(*first)).unwrap_or(usize::MAX);
        match self.entries.get(guess) {
            Some((found, _)) if *found == number => Ok(guess),
            _ => self.entries.binary_search_by_key(&number, |(number, _)| *number),
        }
    }

    /// Adds an entry; one with the same number is replaced and returned. A number that does not ascend costs a
    /// move of the entries behind it.
    pub fn insert(&mut self, number: u64, value: T) -> Option<T> {
        let is_next = self.entries.back().is_none_or(|(last, _)| *last < number);
        let before = if is_next {
            self.entries.push_back((number, Some(value)));
            None
        } else {
            match self.position(number) {
                Ok(index) => self.entries[index].1.replace(value),
                Err(index) => {
                    self.entries.insert(index, (number, Some(value)));
                    None
                }
            }
        };
        self.count += usize::from(before.is_none());
        before
    }

    /// Takes an entry out.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.position(number).ok()?;
        let value = self.entries[index].1.take()?;
        self.count -= 1;
        while self.entries.front().is_some_and(|(_, value)| value.is_none()) {
            self.entries.pop_front();
        }
        while self.entries.back().is_some_and(|(_, value)| value.is_none()) {
            self.entries.pop_back();
        }
        // One that lasts must not keep the places of all that come behind it.
        if self.entries.len() > GONE_MIN + 4 * self.count {
            self.entries.retain(|(_, value)| value.is_some());
        }
        Some(value)
    }

    /// The entry with a number.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.entries[self.position(number).ok()?].1.as_ref()
    }

    /// The entry with a number, to be changed.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let index = self.position(number).ok()?;
        self.entries[index].1.as_mut()
    }

    /// All entries, by ascending number.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        self.entries.iter().filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    /// The entry with the lowest number.
    pub fn first(&self) -> Option<(u64, &T)> {
        let (number, value) = self.entries.front()?;
        Some((*number, value.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64),
        Insert(u64),
        Remove(u64),
        Change(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u64..4).prop_map(Step::Add),
            1 => (0u64..60).prop_map(Step::Insert),
            4 => (0u64..60).prop_map(Step::Remove),
            1 => (0u64..60).prop_map(Step::Change),
        ]
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map(steps in proptest::collection::vec(step(), 1..200)) {
            let (mut pending, mut model, mut last) = (Pending::default(), BTreeMap::new(), 0);
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Add(gap) => {
                        last += gap;
                        prop_assert_eq!(pending.insert(last, value), model.insert(last, value));
                    }
                    Step::Insert(number) => {
                        last = last.max(number);
                        prop_assert_eq!(pending.insert(number, value), model.insert(number, value));
                    }
                    Step::Remove(number) => prop_assert_eq!(pending.remove(number), model.remove(&number)),
                    Step::Change(number) => {
                        let (one, other) = (pending.get_mut(number), model.get_mut(&number));
                        prop_assert_eq!(&one, &other);
                        one.into_iter().chain(other).for_each(|found| *found += 1000);
                    }
                }
                prop_assert_eq!(pending.len(), model.len());
                prop_assert_eq!(pending.is_empty(), model.is_empty());
                prop_assert!(pending.iter().eq(model.iter().map(|(number, value)| (*number, value))));
                prop_assert_eq!(pending.first(), model.first_key_value().map(|(number, value)| (*number, value)));
                prop_assert_eq!(pending.get(last), model.get(&last));
            }
        }
    }

    #[test]
    fn removed_entries_keep_no_space() {
        let mut pending = Pending::default();
        pending.insert(0, ());
        for number in 1..10_000 {
            assert!(pending.insert(number, ()).is_none());
            assert!(pending.insert(number + 10_000, ()).is_none());
            assert!(pending.remove(number).is_some() && pending.remove(number + 10_000).is_some());
            assert!(pending.entries.len() <= GONE_MIN + 8 && pending.get(0).is_some());
        }
        let mut pending = Pending::default();
        (0..100).for_each(|number| assert!(pending.insert(number, ()).is_none()));
        (1..100).for_each(|number| assert!(pending.remove(number).is_some()));
        assert_eq!(pending.entries.len(), 1);
        pending.remove(0);
        assert!(pending.entries.is_empty());
    }
}
