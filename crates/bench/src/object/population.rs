//! Existing objects of a client, pending operations on them, and the possible answers.

use std::ops::Range;

use crate::error::BenchError;

/// The most objects of one client; each takes some 40 bytes of memory.
pub(super) const OBJECTS_MAX: u64 = 100_000_000;

/// Existence of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    Present,
    /// An operation that decides it is on its way, has failed, or was that of an earlier run.
    Uncertain,
}

#[derive(Clone, Copy)]
struct Object {
    state: State,
    /// Number, over all objects, of the change that made this state.
    since: u64,
    is_being_changed: bool,
    readers: u32,
    /// The newest PUT that was acknowledged, and the newest that was begun.
    acknowledged: u64,
    begun: u64,
    /// Where it stands among those that are present.
    position: u32,
}

/// A client's objects. Two changes of the same object are never on their way at once, nor is a
/// DELETE while it is read: the result would be unknown.
pub(super) struct Population {
    objects: Vec<Object>,
    /// Objects that can be read.
    present: Vec<u32>,
    /// Objects that a PUT should bring first.
    absent: Vec<u32>,
    changes: u64,
    sequence: u64,
}

impl Population {
    pub fn new(count: u64) -> Self {
        let object = Object {
            state: State::Uncertain,
            since: 0,
            is_being_changed: false,
            readers: 0,
            acknowledged: 0,
            begun: 0,
            position: 0,
        };
        // The lowest number is taken first, from the end.
        let absent = (0..count as u32).rev().collect();
        let objects = vec![object; count as usize];
        Population { objects, present: Vec::new(), absent, changes: 0, sequence: 0 }
    }

    /// Objects that can be read.
    pub fn present_count(&self) -> usize {
        self.present.len()
    }

    /// An object to read, searched from `draw` on.
    pub fn begin_get(&mut self, draw: u64) -> Option<u64> {
        let number = *self.present.get((draw % self.present.len().max(1) as u64) as usize)?;
        self.objects[number as usize].readers += 1;
        Some(number.into())
    }

    pub fn end_get(&mut self, number: u64) {
        self.objects[number as usize].readers -= 1;
    }

    /// The PUT that a GET which begins now must see, or a later one.
    pub fn acknowledged(&self, number: u64) -> u64 {
        self.objects[number as usize].acknowledged
    }

    /// Checks if a GET may see this PUT: one from the last that was acknowledged when it began to the last that
    /// was begun before it ended.
    pub fn check_get(&self, number: u64, acknowledged: u64, seen: u64) -> Result<(), BenchError> {
        let newest = self.objects[number as usize].begun;
        if (acknowledged..=newest).contains(&seen) {
            return Ok(());
        }
        let age = if seen < acknowledged { "older" } else { "newer" };
        Err(BenchError::WrongData(format!(
            "object {number} is of operation {seen}, which is {age} than the data of operations {acknowledged} \
             to {newest}"
        )))
    }

    /// An object to write and the number of the PUT: one that is not there, else one searched from `draw` on.
    pub fn begin_put(&mut self, draw: u64) -> Option<(u64, u64)> {
        let number = match self.absent.pop() {
            Some(number) => {
                self.enter(number, State::Uncertain);
                number
            }
            None => self.find_idle(draw, |object| !object.is_being_changed)?,
        };
        self.sequence += 1;
        let object = &mut self.objects[number as usize];
        object.is_being_changed = true;
        object.begun = self.sequence;
        Some((number.into(), self.sequence))
    }

    pub fn end_put(&mut self, number: u64, sequence: u64, is_acknowledged: bool) {
        let object = &mut self.objects[number as usize];
        object.is_being_changed = false;
        let was_present = object.state == State::Present;
        if is_acknowledged {
            object.acknowledged = sequence;
        }
        match (was_present, is_acknowledged) {
            (true, _) => {}
            (false, true) => {
                self.list_present(number as u32);
                self.enter(number as u32, State::Present);
            }
            (false, false) => self.absent.push(number as u32),
        }
    }

    /// An object to delete, searched from `draw` on.
    pub fn begin_delete(&mut self, draw: u64) -> Option<u64> {
        let number = self.find_idle(draw, |object| !object.is_being_changed && object.readers == 0)?;
        self.objects[number as usize].is_being_changed = true;
        let position = self.objects[number as usize].position as usize;
        self.present.swap_remove(position);
        if let Some(&moved) = self.present.get(position) {
            self.objects[moved as usize].position = position as u32;
        }
        self.enter(number, State::Uncertain);
        Some(number.into())
    }

    pub fn end_delete(&mut self, number: u64, is_acknowledged: bool) {
        self.objects[number as usize].is_being_changed = false;
        if is_acknowledged {
            self.enter(number as u32, State::Absent);
        }
        self.absent.push(number as u32);
    }

    /// To be remembered at the beginning of a LIST.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Checks if a LIST that began `since` may have named these objects, and no others, of a range. Objects that
    /// changed meanwhile may be in it or not.
    pub fn check_list(&self, range: Range<u64>, listed: &[u64], since: u64) -> Result<(), BenchError> {
        let mut listed = listed.iter().copied().peekable();
        for number in range {
            let is_listed = listed.next_if_eq(&number).is_some();
            let Some(object) = self.objects.get(number as usize) else { continue };
            let expected = match object.state {
                _ if object.since > since => is_listed,
                State::Present => true,
                State::Absent => false,
                State::Uncertain => is_listed,
            };
            if expected != is_listed {
                let what = if expected { "is there and was not listed" } else { "was deleted and is listed" };
                return Err(BenchError::WrongData(format!("object {number} {what}")));
            }
        }
        match listed.next() {
            None => Ok(()),
            Some(number) => Err(BenchError::WrongData(format!("object {number} is listed out of order or twice"))),
        }
    }

    fn enter(&mut self, number: u32, state: State) {
        self.changes += 1;
        let object = &mut self.objects[number as usize];
        (object.state, object.since) = (state, self.changes);
    }

    fn list_present(&mut self, number: u32) {
        self.objects[number as usize].position = self.present.len() as u32;
        self.present.push(number);
    }

    fn find_idle(&self, draw: u64, is_idle: impl Fn(&Object) -> bool) -> Option<u32> {
        /// More operations than that are hardly on their way at once.
        const TRIED_MAX: usize = 100_000;
        let count = self.present.len();
        let from = (draw % count.max(1) as u64) as usize;
        let mut tried = (0..count.min(TRIED_MAX)).map(|more| self.present[(from + more) % count]);
        tried.find(|number| is_idle(&self.objects[*number as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u64) -> Population {
        let mut population = Population::new(count);
        for expected in 0..count {
            let (number, sequence) = population.begin_put(0).unwrap();
            assert_eq!(number, expected);
            population.end_put(number, sequence, true);
        }
        population
    }

    #[test]
    fn a_get_sees_acknowledged_or_pending_writes() {
        let mut population = filled(4);
        let (number, sequence) = population.begin_put(2).unwrap();
        assert_eq!((number, sequence), (2, 5));
        let acknowledged = population.acknowledged(2);
        assert_eq!(acknowledged, 3);
        assert!(population.check_get(2, acknowledged, 3).is_ok());
        assert!(population.check_get(2, acknowledged, 5).is_ok(), "the PUT may be there before its answer");
        population.end_put(2, sequence, true);
        assert!(population.check_get(2, acknowledged, 3).is_ok(), "the GET began before the PUT was acknowledged");
        let error = population.check_get(2, population.acknowledged(2), 3).unwrap_err().to_string();
        assert!(error.contains("older"), "{error}");
        assert!(population.check_get(2, 5, 6).is_err(), "a PUT that nobody has begun");
    }

    #[test]
    fn changes_keep_out_of_each_others_way() {
        let mut population = filled(2);
        let (written, _) = population.begin_put(0).unwrap();
        let read = population.begin_get(1).unwrap();
        assert_eq!((written, read), (0, 1));
        assert_eq!(population.begin_delete(0), None, "one is written, the other is read");
        population.end_get(read);
        assert_eq!(population.begin_delete(0), Some(1));
        assert_eq!(population.begin_put(0), None);
        population.end_delete(1, true);
        assert_eq!(population.begin_put(0).unwrap().0, 1, "what is not there comes first");
        assert_eq!(population.present_count(), 1);
    }

    #[test]
    fn deletes_run_out() {
        let mut population = filled(3);
        let mut deleted: Vec<u64> = (0..3).map(|draw| population.begin_delete(draw).unwrap()).collect();
        deleted.sort_unstable();
        assert_eq!(deleted, [0, 1, 2]);
        assert!(population.begin_delete(0).is_none() && population.begin_get(0).is_none());
    }

    #[test]
    fn a_list_names_exactly_the_existing_keys() {
        let mut population = filled(5);
        let since = population.changes();
        assert!(population.check_list(0..5, &[0, 1, 2, 3, 4], since).is_ok());
        assert!(population.check_list(0..5, &[0, 1, 3, 4], since).is_err());
        assert!(population.check_list(0..5, &[0, 2, 1, 3, 4], since).is_err());
        let deleted = population.begin_delete(2).unwrap();
        assert!(population.check_list(0..5, &[0, 1, 2, 3, 4], since).is_ok(), "on its way");
        assert!(population.check_list(0..5, &[0, 1, 3, 4], population.changes()).is_ok(), "on its way");
        population.end_delete(deleted, true);
        assert!(population.check_list(0..5, &[0, 1, 2, 3, 4], since).is_ok(), "the LIST began before");
        assert!(population.check_list(0..5, &[0, 1, 2, 3, 4], population.changes()).is_err());
        assert!(population.check_list(0..5, &[0, 1, 3, 4], population.changes()).is_ok());
        assert!(population.check_list(1..3, &[1], population.changes()).is_ok());
    }

    #[test]
    fn of_failed_operations_nothing_is_claimed() {
        let mut population = filled(2);
        let deleted = population.begin_delete(1).unwrap();
        population.end_delete(deleted, false);
        let since = population.changes();
        assert!(
            population.check_list(0..2, &[0], since).is_ok()
                && population.check_list(0..2, &[0, 1], since).is_ok()
        );
        let (number, sequence) = population.begin_put(0).unwrap();
        population.end_put(number, sequence, false);
        assert_eq!(population.begin_put(0).unwrap().0, number, "it is tried again");
    }
}
