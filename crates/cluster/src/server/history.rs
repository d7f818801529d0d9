//! The latest events, for watches that begin in the past or fall behind. Watches read it with
//! their own cursors, so a slow one costs no memory: it loses its place instead.

use std::collections::VecDeque;
use std::sync::Arc;

use super::change::Event;
use super::limits;

/// All events of one revision.
#[derive(Debug)]
pub struct Revision {
    pub number: i64,
    pub events: Vec<Event>,
    bytes: usize,
}

/// Revisions without gaps, up to the newest.
#[derive(Debug)]
pub struct History {
    revisions: VecDeque<Arc<Revision>>,
    /// The oldest revision from which all events are here.
    floor: i64,
    events: usize,
    bytes: usize,
}

/// The events asked for are gone; the number is the oldest revision to ask for.
#[derive(Debug, PartialEq, Eq)]
pub struct TooOld(pub i64);

impl History {
    /// Empty, at the revision of a server that starts.
    pub fn new(revision: i64) -> History {
        History { revisions: VecDeque::new(), floor: revision + 1, events: 0, bytes: 0 }
    }

    /// Appends the next revision; drops old ones to stay within its limits.
    pub fn push(&mut self, number: i64, events: Vec<Event>) {
        let value_bytes = |entry: &Option<Arc<_>>| {
            entry.as_ref().map_or(0, |entry: &Arc<super::state::Entry>| entry.value.len())
        };
        let bytes = events
            .iter()
            .map(|event| event.key.len() + value_bytes(&event.now) + value_bytes(&event.before))
            .sum();
        assert_eq!(number, self.floor + self.revisions.len() as i64, "revisions are pushed without gaps");
        self.events += events.len();
        self.bytes += bytes;
        self.revisions.push_back(Arc::new(Revision { number, events, bytes }));
        while self.events > limits::HISTORY_EVENTS || self.bytes > limits::HISTORY_BYTES {
            if !self.drop_oldest() {
                break;
            }
        }
    }

    /// Forgets everything before `revision`.
    pub fn compact(&mut self, revision: i64) {
        while self.floor < revision && self.drop_oldest() {}
    }

    /// Revisions from `from` on, up to about a megabyte of them, but at least one if there is one.
    pub fn since(&self, from: i64) -> Result<Vec<Arc<Revision>>, TooOld> {
        if from < self.floor {
            return Err(TooOld(self.floor));
        }
        let mut bytes = 0;
        let mut found = Vec::new();
        for revision in self.revisions.iter().skip((from - self.floor) as usize) {
            bytes += revision.bytes;
            found.push(revision.clone());
            if bytes > limits::WATCH_RESPONSE_BYTES {
                break;
            }
        }
        Ok(found)
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.revisions.pop_front() else { return false };
        self.events -= oldest.events.len();
        self.bytes -= oldest.bytes;
        self.floor = oldest.number + 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_says_where_it_begins() {
        let mut history = History::new(1);
        let event = Event { key: Arc::from(&b"k"[..]), now: None, before: None };
        for number in 2..=(limits::HISTORY_EVENTS as i64 + 10) {
            history.push(number, vec![event.clone()]);
        }
        assert_eq!(history.since(2).unwrap_err(), TooOld(11));
        assert_eq!(history.since(11).unwrap().len(), limits::HISTORY_EVENTS);
        history.compact(20);
        assert_eq!(history.since(19).unwrap_err(), TooOld(20));
        assert_eq!(history.since(20).unwrap()[0].number, 20);
    }
}
