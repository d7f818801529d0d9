//! Taking writes back. Every member keeps how it undoes a write until all members are known to have
//! it: then nobody will ever want it back.

use std::collections::VecDeque;

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::{LogEntry, Mutation, ObjectName, PgId, Transaction, Version};

use crate::actions::{Action, ObjectView};
use crate::group::{Pg, PgState};
use crate::promises::incomplete;
use crate::submissions::Submission;

/// Clones that are removed by one change, if no tick comes before.
const KEPT_TOGETHER: usize = 32;

/// Writes that are being taken back.
pub(crate) struct RollBack {
    /// Where the history is to end.
    head: Version,
    /// The store has refused a part of it before.
    was_refused: bool,
    /// It is not tried again before the next tick.
    waits_for_tick: bool,
}

impl Pg {
    /// Submits a write of the history. What its log entry cannot hold of what it replaces, a clone of
    /// the object does.
    pub(crate) fn submit_undoable(&mut self, purpose: Submission, transaction: Transaction) {
        let kept = transaction.log.first().and_then(|entry| entry.undo.as_ref()?.kept_object().cloned());
        if let (Some(name), Some(coded)) = (kept, &mut self.coded) {
            coded.kept.push_back((transaction.log[0].version, name));
        }
        self.submit(purpose, transaction);
    }

    fn change_of(&self, object: ObjectName, mutations: Vec<Mutation>) -> Transaction {
        Transaction { object, ..self.own_change(mutations) }
    }

    /// All members have everything up to a write: nobody will take that back.
    pub(crate) fn forget_undo(&mut self, through: Version) {
        let Some(coded) = &mut self.coded else { return };
        if through <= coded.committed {
            return;
        }
        coded.committed = through;
        self.remove_kept(KEPT_TOGETHER);
    }

    /// Removes the clones of writes that nobody will take back, if there are so many.
    pub(crate) fn remove_kept(&mut self, least: usize) {
        let Some(coded) = &mut self.coded else { return };
        let through = coded.committed;
        let count = coded.kept.iter().take_while(|(version, _)| *version <= through).count();
        if through == coded.forgotten || count > 0 && count < least {
            return;
        }
        coded.forgotten = through;
        let gone = coded.kept.drain(..count).map(|(_, object)| Mutation::RemoveOther { object });
        let gone: Vec<Mutation> = gone.collect();
        if gone.is_empty() {
            return self.actions.push_back(Action::ForgetUndo { through });
        }
        // The log names the clones until they are gone, durably.
        let removal = self.own_change(gone);
        self.submit(Submission::Forget { through }, removal);
    }

    /// A change after which the history ends earlier also removes what was kept for later writes, once
    /// it has made use of it.
    pub(crate) fn with_kept_removed(&mut self, head: Version, mut transaction: Transaction) -> Transaction {
        let Some(coded) = &mut self.coded else { return transaction };
        let first = coded.kept.iter().position(|(version, _)| *version > head).unwrap_or(coded.kept.len());
        let gone = coded.kept.split_off(first).into_iter().map(|(_, object)| Mutation::RemoveOther { object });
        let use_of_kept = transaction.mutations.iter().position(|mutation| mutation.clone_source().is_some());
        let after = use_of_kept.map_or(0, |at| at + 1);
        transaction.mutations.splice(after..after, gone);
        transaction
    }

    /// At the primary, when nothing is in flight: whether members have not heard yet that all have
    /// everything.
    pub(crate) fn has_news_of_committed(&self) -> bool {
        let is_quiet = self.state == PgState::Active && self.in_flight.is_empty();
        is_quiet && self.coded.as_ref().is_some_and(|coded| coded.told < self.newest_committed())
    }

    /// Members that have not heard so from later writes are told that all have everything.
    pub(crate) fn tell_committed(&mut self) {
        if !self.has_news_of_committed() {
            return;
        }
        let version = self.newest_committed();
        for member in self.others() {
            self.send(member, atoll_wire::Message::Committed { pg: self.id, epoch: self.record.epoch, version });
        }
        if let Some(coded) = &mut self.coded {
            coded.told = version;
        }
        self.forget_undo(version);
    }

    /// Takes back everything newer, the newest first: one write after the other, each together with its
    /// entry in the log, so that the history says at any time what the objects are.
    pub(crate) fn roll_back(&mut self, head: Version, view: &impl ObjectView) {
        let Some(coded) = &mut self.coded else { return };
        coded.roll_back = Some(RollBack { head, was_refused: false, waits_for_tick: false });
        if view.head(self.id) > head {
            self.warn(format!("{} takes back what is newer than {head}, which not all members had", self.me));
        }
        self.go_on_with_roll_back(view);
    }

    /// The store may take by now what it refused.
    pub(crate) fn try_roll_back_again(&mut self, view: &impl ObjectView) {
        if let Some(back) = self.coded.as_mut().and_then(|coded| coded.roll_back.as_mut()) {
            back.waits_for_tick = false;
            self.go_on_with_roll_back(view);
        }
    }

    /// Takes back the newest write, when the view shows all that was submitted.
    pub(crate) fn go_on_with_roll_back(&mut self, view: &impl ObjectView) {
        let back = self.coded.as_ref().and_then(|coded| coded.roll_back.as_ref());
        let Some(head) = back.filter(|back| !back.waits_for_tick).map(|back| back.head) else { return };
        if !self.view_is_current() || !view.has_room(self.id) {
            return;
        }
        if view.head(self.id) <= head {
            self.end_roll_back();
            return self.rolled_back(view);
        }
        let log = view.log(self.id);
        let mut newest = log.iter().rev();
        let undone = newest.next().and_then(|entry| Some((entry, entry.undo.clone()?)));
        let before = newest.next().map_or(Version::default(), |entry| entry.version);
        let is_step = |entry: &LogEntry| before >= head && before.sequence + 1 == entry.version.sequence;
        let Some((entry, undo)) = undone.filter(|(entry, _)| is_step(entry)) else {
            self.end_roll_back();
            self.warn(format!("{} cannot go back to {head}; it must be filled", self.me));
            return self.note_incomplete_here(view);
        };
        let mutations = [vec![Mutation::ResetLog { head: before }], undo.mutations].concat();
        let change = Transaction { payload: undo.payload, ..self.change_of(entry.object.clone(), mutations) };
        self.abandon(entry.version);
        self.withdraw_refusals();
        self.submit(Submission::RollBack, change);
    }

    pub(crate) fn end_roll_back(&mut self) {
        if let Some(coded) = &mut self.coded {
            coded.roll_back = None;
        }
    }

    /// The store did not take it that a write is taken back: until it does, the write is in the history.
    pub(crate) fn roll_back_refused(&mut self, cause: &str, view: &impl ObjectView) {
        let kept = kept_clones(self.id, view);
        self.last_sequence = view.head(self.id).sequence;
        let Some(coded) = &mut self.coded else { return };
        coded.kept = kept;
        let Some(back) = &mut coded.roll_back else { return };
        back.waits_for_tick = true;
        if !std::mem::replace(&mut back.was_refused, true) {
            let text = format!(
                "the store of {} did not take a write back ({cause}); the group waits until it does",
                self.me
            );
            self.warn(text);
        }
    }

    /// This OSD's objects are not what its history says.
    pub(crate) fn note_incomplete_here(&mut self, view: &impl ObjectView) {
        self.promises.is_incomplete = true;
        let note = self.own_change(vec![incomplete()]);
        self.submit(Submission::Repair, note);
        if self.is_primary() {
            self.restart_peering();
        } else if let Some(leader) = self.promises.asked_by {
            self.tell_what_is_here(leader, false, view);
        }
        self.advance(view);
    }

    /// Whether writes are being taken back, or that is not durable yet: after a crash they may be there
    /// again, so nothing may rest on it.
    pub(crate) fn is_taking_back(&self) -> bool {
        let Some(coded) = &self.coded else { return false };
        coded.roll_back.is_some()
            || self.submissions.values().any(|submission| matches!(submission, Submission::RollBack))
    }

    /// If all that was to be taken back is gone, durably, whoever waits for that hears so.
    pub(crate) fn rolled_back(&mut self, view: &impl ObjectView) {
        if self.is_taking_back() {
            return;
        }
        match self.promises.asked_by {
            Some(leader) if leader != self.me && self.promises.is_durable() => {
                self.tell_what_is_here(leader, false, view);
            }
            _ => self.advance(view),
        }
    }
}

/// Whether an object is one that only its OSD knows of, so that it is not listed.
pub fn is_hidden(object: &ObjectName) -> bool {
    object.as_str() == PG_META_OBJECT || object.as_str().starts_with(atoll_base::operation::KEPT_OBJECT_PREFIX)
}

/// The clones that are kept for writes which may have to be taken back.
pub(crate) fn kept_clones(id: PgId, view: &impl ObjectView) -> VecDeque<(Version, ObjectName)> {
    let log = view.log(id).into_iter();
    log.filter_map(|entry| Some((entry.version, entry.undo?.kept_object()?.clone()))).collect()
}
