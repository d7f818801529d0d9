//! Staging: a member that catches up while its PG peers gets the objects under other names. Its copy stays
//! unchanged, and counts, until all are there; then its history grows and the objects move to their places, which
//! the member finishes by itself. So a primary that is lost for good in between takes nothing with it. The same
//! names serve scrubs, which replace an object of several parts when all of them are there.

use std::collections::BTreeSet;

use atoll_types::limits::PG_IN_FLIGHT_MAX;
use atoll_types::operation::PRE_IMAGE_PREFIX;
use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, OsdId, PgId, Transaction, Version};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::ObjectView;
use crate::group::Pg;
use crate::own_object::{STAGED_KEY, change, own_change, own_object};
use crate::submissions::Submission;

/// Bytes of the log entries that a member may lack to be staged: they go with one message.
const ENTRIES_BYTES_MAX: usize = 1 << 20;

/// The backfill, by its primary, epoch and tag, that waits until the objects have moved.
pub(crate) type Awaited = (OsdId, Epoch, u64);

/// The objects that are staged in this copy.
#[derive(Default)]
pub(crate) enum Staged {
    #[default]
    None,
    /// Some are there, or were, under the first names. The copy is as if there were none.
    Coming { count: u32 },
    /// All are there, and the history has their writes, the first of them after `since`. They move to their
    /// places.
    Whole { count: u32, since: Version, step: Step, awaited: Option<Awaited> },
}

/// How far the objects have moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The note that all are there is not durable.
    Noted,
    /// Number of moves that are not durable.
    Moving { left: usize, was_refused: bool },
    /// All have moved, and their other names are being removed.
    Ending,
    /// The store refused one; all move again at the next tick.
    Refused,
}

/// Note about staged objects in the PG's own object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Coming { count: u32 },
    Whole { count: u32, since: Version },
}

impl Note {
    pub fn set(self) -> Mutation {
        let value = match self {
            Note::Coming { count } => count.to_be_bytes().to_vec(),
            Note::Whole { count, since } => {
                [&count.to_be_bytes()[..], &since.epoch.0.to_be_bytes()[..], &since.sequence.to_be_bytes()[..]]
                    .concat()
            }
        };
        Mutation::OmapSet { key: Bytes::from_static(STAGED_KEY), value: value.into() }
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let (count, rest) = value.split_first_chunk::<4>()?;
        let count = u32::from_be_bytes(*count).min(PG_IN_FLIGHT_MAX as u32);
        if rest.is_empty() {
            return Some(Note::Coming { count });
        }
        let (epoch, sequence) = rest.split_first_chunk::<8>()?;
        let sequence = u64::from_be_bytes(sequence.try_into().ok()?);
        let since = Version { epoch: Epoch(u64::from_be_bytes(*epoch)), sequence };
        Some(Note::Whole { count, since })
    }

    /// The note that a transaction makes.
    fn of(transaction: &Transaction) -> Option<Self> {
        let is_own = transaction.object == own_object();
        let mut mutations = transaction.mutations.iter().filter(|_| is_own);
        mutations.find_map(|mutation| match mutation {
            Mutation::OmapSet { key, value } if key[..] == *STAGED_KEY => Note::parse(value),
            _ => None,
        })
    }
}

/// Returns true if a member that lacks these writes can be staged.
pub(crate) fn can_be_staged(entries: &[&LogEntry]) -> bool {
    let bytes: usize = entries.iter().map(|entry| entry.encoded_bytes_bound()).sum();
    entries.len() <= PG_IN_FLIGHT_MAX && bytes <= ENTRIES_BYTES_MAX
}

/// The objects that writes change, but for the PG's own, each with the name under which it is staged.
pub(crate) fn staged_names<'a>(
    pg: PgId,
    entries: impl Iterator<Item = &'a LogEntry>,
) -> Vec<(ObjectName, ObjectName)> {
    let objects: BTreeSet<&ObjectName> = entries.map(|entry| &entry.object).collect();
    let objects = objects.into_iter().filter(|object| **object != own_object());
    objects.enumerate().map(|(index, object)| (object.clone(), staged_name(pg, index))).collect()
}

/// The name contains the PG's index, as that of a pre-image does.
pub(crate) fn staged_name(pg: PgId, index: usize) -> ObjectName {
    ObjectName::new(&format!("{PRE_IMAGE_PREFIX}{:x}.new.{index}", pg.index)).expect("the name is short")
}

/// Removes the note, and the first of the other names.
fn end_of_staging(pg: PgId, count: u32) -> Transaction {
    let mut mutations = vec![Mutation::OmapRemove { key: Bytes::from_static(STAGED_KEY) }];
    let names = (0..count as usize).map(|index| staged_name(pg, index));
    mutations.extend(names.map(|object| Mutation::RemoveOther { object }));
    own_change(pg, mutations)
}

impl Staged {
    /// Returns true if the copy has to be finished before it counts.
    pub fn is_whole(&self) -> bool {
        matches!(self, Staged::Whole { .. })
    }
}

impl Pg {
    /// Takes the note about staged objects in the PG's own object when this OSD started.
    pub(crate) fn find_staged(&mut self, view: &impl ObjectView) {
        let found = view.omap_value(self.config.id, &own_object(), STAGED_KEY).ok().flatten();
        match found.and_then(|value| Note::parse(&value)) {
            None => {}
            Some(Note::Coming { count }) => {
                self.staged = Staged::Coming { count };
                self.drop_staged();
            }
            Some(Note::Whole { count, since }) => {
                self.staged = Staged::Whole { count, since, step: Step::Noted, awaited: None };
                self.promises.hold_answers(true);
                self.move_staged(view);
            }
        }
    }

    /// A part of a backfill comes in. True if it is the last one of a member that is staged: the primary hears
    /// of it when the objects have moved.
    pub(crate) fn note_staged(&mut self, transaction: &Transaction, awaited: Awaited) -> bool {
        match Note::of(transaction) {
            None => false,
            Some(Note::Coming { count }) => {
                self.staged = Staged::Coming { count };
                false
            }
            Some(Note::Whole { count, since }) => {
                self.staged = Staged::Whole { count, since, step: Step::Noted, awaited: Some(awaited) };
                self.promises.hold_answers(true);
                true
            }
        }
    }

    /// The store refused the note that all objects are there: the copy is unchanged.
    pub(crate) fn staged_refused(&mut self) {
        if let Staged::Whole { count, .. } = self.staged {
            self.staged = Staged::Coming { count };
            self.promises.hold_answers(false);
        }
    }

    /// Another primary may lead, so nothing comes any more: removes the staged objects, unless they are all there.
    pub(crate) fn drop_staged(&mut self) {
        if let Staged::Coming { count } = self.staged {
            self.staged = Staged::None;
            let end = end_of_staging(self.config.id, count);
            self.submit(Submission::DropStaged { count }, end);
        }
    }

    /// The store refused that: it is tried again for the next primary, or after a start.
    pub(crate) fn drop_staged_refused(&mut self, count: u32) {
        if matches!(self.staged, Staged::None) {
            self.staged = Staged::Coming { count };
        }
    }

    /// All objects are there, durably: they move to their places. To repeat that changes nothing.
    pub(crate) fn move_staged(&mut self, view: &impl ObjectView) {
        let Staged::Whole { count, since, step, .. } = &mut self.staged else { return };
        let (pg, log) = (self.config.id, view.log(self.config.id));
        let names = staged_names(pg, log.iter().filter(|entry| entry.version > *since));
        if names.len() != *count as usize {
            // The device says what no primary says.
            self.staged = Staged::None;
            self.promises.hold_answers(false);
            return self.note_incomplete_here(Incompleteness::Torn, view);
        }
        *step = Step::Moving { left: names.len(), was_refused: false };
        for (object, staged) in names {
            // An object that is staged as absent is removed.
            let take = change(pg, staged, vec![Mutation::ClonePreImage { copy: object }]);
            self.submit(Submission::MoveStaged, take);
        }
        self.end_moves();
    }

    /// The store has taken a move, or refused it.
    pub(crate) fn staged_moved(&mut self, is_refused: bool) {
        if let Staged::Whole { step: Step::Moving { left, was_refused }, .. } = &mut self.staged {
            *left -= 1;
            *was_refused |= is_refused;
            self.end_moves();
        }
    }

    /// When all objects have moved, removes their other names.
    fn end_moves(&mut self) {
        let Staged::Whole { count, step, .. } = &mut self.staged else { return };
        let Step::Moving { left: 0, was_refused } = *step else { return };
        *step = if was_refused { Step::Refused } else { Step::Ending };
        if !was_refused {
            let end = end_of_staging(self.config.id, *count);
            self.submit(Submission::EndStaging, end);
        }
    }

    /// The copy matches its history, or the store refused the last change, and all is done again.
    pub(crate) fn staging_ended(&mut self, is_refused: bool, view: &impl ObjectView) {
        let Staged::Whole { step, awaited, .. } = &mut self.staged else { return };
        if is_refused {
            *step = Step::Refused;
            return;
        }
        let awaited = *awaited;
        self.staged = Staged::None;
        self.refusals.takes(self.config.me);
        self.promises.hold_answers(false);
        if let Some((from, epoch, tag)) = awaited
            && self.intake.is_backfill_whole(epoch, tag)
        {
            self.outbox.send(from, Message::PeerPushed { pg: self.config.id, epoch, tag });
        }
        self.with_promises(view, |promises, context| promises.answer_if_released(context));
        self.advance(view);
    }

    /// Repeats the moves that the store refused.
    pub(crate) fn move_staged_again(&mut self, view: &impl ObjectView) {
        if matches!(self.staged, Staged::Whole { step: Step::Refused, .. }) {
            self.staging_refused(view);
            self.move_staged(view);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let since = Version { epoch: Epoch(7), sequence: 9 };
        for note in [Note::Coming { count: 3 }, Note::Whole { count: 256, since }] {
            let transaction = own_change(PgId { pool: atoll_types::PoolId(1), index: 0 }, vec![note.set()]);
            assert_eq!(Note::of(&transaction), Some(note));
        }
        for torn in [&b""[..], b"abc", b"abcdefgh", &[0; 21]] {
            assert_eq!(Note::parse(torn), None, "{torn:?}");
        }
    }
}
