//! Taking writes back. Every member keeps how it undoes a write until all members are known to have
//! it: then nobody will ever want it back.

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::{Mutation, ObjectName, Transaction, Version};

use crate::actions::{Action, ObjectView};
use crate::group::{Pg, PgState, Submission};
use crate::promises::incomplete;

/// Clones that are removed by one change, if no tick comes before.
const KEPT_TOGETHER: usize = 32;

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

    /// A change after which the history ends earlier also removes what was kept for later writes.
    pub(crate) fn with_kept_removed(&mut self, head: Version, mut transaction: Transaction) -> Transaction {
        let Some(coded) = &mut self.coded else { return transaction };
        let first = coded.kept.iter().position(|(version, _)| *version > head).unwrap_or(coded.kept.len());
        let gone = coded.kept.split_off(first).into_iter().map(|(_, object)| Mutation::RemoveOther { object });
        transaction.mutations.splice(0..0, gone);
        transaction
    }

    /// At the primary, when nothing is in flight: members that have not heard so from later writes
    /// are told that all have everything.
    pub(crate) fn tell_committed(&mut self) {
        let version = self.newest_committed();
        let is_quiet = self.state == PgState::Active && self.in_flight.is_empty();
        let Some(coded) = self.coded.as_mut().filter(|coded| is_quiet && coded.told < version) else { return };
        coded.told = version;
        for member in self.others() {
            self.send(member, atoll_wire::Message::Committed { pg: self.id, epoch: self.record.epoch, version });
        }
        self.forget_undo(version);
    }

    /// Takes back everything newer, when the view shows all that was submitted.
    pub(crate) fn roll_back(&mut self, head: Version, view: &impl ObjectView) {
        if let Some(coded) = &mut self.coded {
            coded.roll_back_to = Some(head);
        }
        self.go_on_with_roll_back(view);
    }

    pub(crate) fn go_on_with_roll_back(&mut self, view: &impl ObjectView) {
        let is_current = self.view_is_current();
        let Some(head) = self.coded.as_mut().filter(|_| is_current).and_then(|coded| coded.roll_back_to.take())
        else {
            return;
        };
        if view.head(self.id) <= head {
            return self.rolled_back(view);
        }
        let log = view.log(self.id);
        let newer = || log.iter().rev().take_while(|entry| entry.version > head);
        let is_known = head == Version::default() || log.iter().any(|entry| entry.version == head);
        if !is_known || newer().any(|entry| entry.undo.is_none()) {
            self.warn(format!("{} cannot go back to {head}; it must be filled", self.me));
            return self.note_incomplete_here(view);
        }
        let text =
            format!("{} takes back {} writes behind {head}, which not all members had", self.me, newer().count());
        self.warn(text);
        for entry in newer() {
            let undo = entry.undo.clone().expect("looked at above");
            let mut back = self.change_of(entry.object.clone(), undo.mutations);
            back.payload = undo.payload;
            self.submit(Submission::RollBack, back);
        }
        let first = newer().last().expect("the head is newer").version;
        self.abandon(first);
        self.withdraw_refusals();
        let last = self.own_change(vec![Mutation::ResetLog { head }]);
        self.submit(Submission::RolledBack, last);
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

    /// What was to be taken back is gone, durably.
    pub(crate) fn rolled_back(&mut self, view: &impl ObjectView) {
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
