//! Roll back of writes that not all electors have. Every member keeps the pre-image of a write
//! until it knows that all members have the write: from then on it cannot be rolled back.

use std::collections::VecDeque;

use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{LogEntry, Mutation, ObjectName, PgId, Transaction, Version};

use crate::actions::{Action, ObjectView};
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{change, own_change, set_incomplete};
use crate::submissions::Submission;

/// Pre-image clones that are removed by one transaction, unless a tick comes first.
const PRE_IMAGES_DELETED_TOGETHER: usize = 32;

/// A roll back under way.
pub(crate) struct RollBack {
    /// The version that the history is to end with.
    head: Version,
    /// The store has refused a step before.
    was_refused: bool,
    /// The next attempt waits for a tick.
    waits_for_tick: bool,
}

impl Pg {
    /// Submits a write of the history, and notes the clone that is its pre-image, if its log entry
    /// names one.
    pub(crate) fn submit_with_pre_image(&mut self, purpose: Submission, transaction: Transaction) {
        let clone = transaction.log.first().and_then(|entry| entry.pre_image.as_ref()?.clone_object().cloned());
        if let (Some(name), Some(erasure)) = (clone, &mut self.erasure) {
            let is_kept = erasure.pre_images.iter().any(|(_, other)| *other == name);
            invariants::pre_image_clone_is_new(&name, is_kept);
            erasure.pre_images.push_back((transaction.log[0].version, name));
        }
        self.submit(purpose, transaction);
    }

    /// The store refused the newest writes, so it has no pre-images of them. Later writes may get
    /// clones of the same names.
    pub(crate) fn forget_refused_pre_images(&mut self, view: &impl ObjectView) {
        let head = view.head(self.config.id);
        if let Some(erasure) = &mut self.erasure {
            erasure.pre_images.retain(|(version, _)| *version <= head);
        }
    }

    /// All members have the writes up to `through`: their pre-images can be forgotten.
    pub(crate) fn forget_pre_images(&mut self, through: Version) {
        let Some(erasure) = &mut self.erasure else { return };
        if through <= erasure.committed {
            return;
        }
        erasure.committed = through;
        self.delete_pre_images(PRE_IMAGES_DELETED_TOGETHER);
    }

    /// Forgets the pre-images of writes that all members have. Clones are removed if there are at
    /// least
    /// `least` of them.
    pub(crate) fn delete_pre_images(&mut self, least: usize) {
        let Some(erasure) = &mut self.erasure else { return };
        let through = erasure.committed;
        let count = erasure.pre_images.iter().take_while(|(version, _)| *version <= through).count();
        if through == erasure.forgotten || count > 0 && count < least {
            return;
        }
        erasure.forgotten = through;
        let gone = erasure.pre_images.drain(..count).map(|(_, object)| Mutation::RemoveOther { object });
        let gone: Vec<Mutation> = gone.collect();
        if gone.is_empty() {
            return self.outbox.push(Action::ForgetPreImages { through });
        }
        // The log names the clones until their removal is durable.
        let removal = own_change(self.config.id, gone);
        self.submit(Submission::Forget { through }, removal);
    }

    /// A transaction that cuts the history also removes the pre-image clones of later writes, after
    /// the mutation that clones back from one of them.
    pub(crate) fn with_pre_images_deleted(&mut self, head: Version, mut transaction: Transaction) -> Transaction {
        let Some(erasure) = &mut self.erasure else { return transaction };
        let first =
            erasure.pre_images.iter().position(|(version, _)| *version > head).unwrap_or(erasure.pre_images.len());
        let gone =
            erasure.pre_images.split_off(first).into_iter().map(|(_, object)| Mutation::RemoveOther { object });
        let use_of_pre_image = transaction.mutations.iter().position(|mutation| mutation.clone_source().is_some());
        let after = use_of_pre_image.map_or(0, |at| at + 1);
        transaction.mutations.splice(after..after, gone);
        transaction
    }

    /// At the primary, when nothing is in flight: whether members have yet to hear that all have
    /// the newest writes.
    pub(crate) fn has_unannounced_commits(&self) -> bool {
        let is_quiet = self.config.is_active() && self.log.has_none_in_flight();
        is_quiet && self.erasure.as_ref().is_some_and(|erasure| erasure.announced < self.newest_committed())
    }

    /// Tells the members that all have the newest writes, if no later write has told them.
    pub(crate) fn announce_committed(&mut self) {
        if !self.has_unannounced_commits() {
            return;
        }
        let version = self.newest_committed();
        for member in self.config.others() {
            self.outbox.send(
                member,
                atoll_wire::Message::Committed { pg: self.config.id, epoch: self.config.record.epoch, version },
            );
        }
        if let Some(erasure) = &mut self.erasure {
            erasure.announced = version;
        }
        self.forget_pre_images(version);
    }

    /// Rolls back all writes after `head`, the newest first. Each goes together with its log entry,
    /// so the log matches the objects at any time.
    pub(crate) fn roll_back(&mut self, head: Version, view: &impl ObjectView) {
        let Some(erasure) = &mut self.erasure else { return };
        erasure.roll_back = Some(RollBack { head, was_refused: false, waits_for_tick: false });
        if view.head(self.config.id) > head {
            self.outbox
                .warn(format!("{} rolls back the writes after {head}, which not all members had", self.config.me));
        }
        self.continue_roll_back(view);
    }

    /// Tries the step again that the store refused.
    pub(crate) fn try_roll_back_again(&mut self, view: &impl ObjectView) {
        if let Some(back) = self.erasure.as_mut().and_then(|erasure| erasure.roll_back.as_mut()) {
            back.waits_for_tick = false;
            self.continue_roll_back(view);
        }
    }

    /// Rolls back the newest write, when the view shows everything submitted.
    pub(crate) fn continue_roll_back(&mut self, view: &impl ObjectView) {
        let back = self.erasure.as_ref().and_then(|erasure| erasure.roll_back.as_ref());
        let Some(head) = back.filter(|back| !back.waits_for_tick).map(|back| back.head) else { return };
        if !self.outbox.view_is_current() || !view.has_room(self.config.id) {
            return;
        }
        if view.head(self.config.id) <= head {
            self.end_roll_back();
            return self.rolled_back(view);
        }
        let log = view.log(self.config.id);
        let mut newest = log.iter().rev();
        let undone = newest.next().and_then(|entry| Some((entry, entry.pre_image.clone()?)));
        let before = newest.next().map_or(Version::default(), |entry| entry.version);
        let is_step = |entry: &LogEntry| before >= head && before.sequence + 1 == entry.version.sequence;
        let Some((entry, pre_image)) = undone.filter(|(entry, _)| is_step(entry)) else {
            self.end_roll_back();
            self.outbox.warn(format!("{} cannot roll back to {head}; it must be backfilled", self.config.me));
            return self.note_incomplete_here(view);
        };
        let mutations = [vec![Mutation::ResetLog { head: before }], pre_image.mutations].concat();
        let change =
            Transaction { payload: pre_image.payload, ..change(self.config.id, entry.object.clone(), mutations) };
        self.abandon(entry.version);
        self.withdraw_refusals();
        self.submit(Submission::RollBack, change);
    }

    pub(crate) fn end_roll_back(&mut self) {
        if let Some(erasure) = &mut self.erasure {
            erasure.roll_back = None;
        }
    }

    /// The store refused to roll back a write, which stays in the history until the store takes
    /// that.
    pub(crate) fn roll_back_refused(&mut self, cause: &str, view: &impl ObjectView) {
        let clones = pre_image_clones(self.config.id, view);
        self.log.ends_at(view.head(self.config.id).sequence);
        let Some(erasure) = &mut self.erasure else { return };
        erasure.pre_images = clones;
        let Some(back) = &mut erasure.roll_back else { return };
        back.waits_for_tick = true;
        if !std::mem::replace(&mut back.was_refused, true) {
            let text = format!(
                "the store of {} did not roll back a write ({cause}); the PG waits until it does",
                self.config.me
            );
            self.outbox.warn(text);
        }
    }

    /// Marks this copy as incomplete, and tells the primary.
    pub(crate) fn note_incomplete_here(&mut self, view: &impl ObjectView) {
        self.promises.note_incomplete();
        let note = own_change(self.config.id, vec![set_incomplete()]);
        self.submit(Submission::Repair, note);
        if self.config.is_primary() {
            self.restart_peering();
        } else if let Some(leader) = self.promises.asked_by() {
            self.send_peer_info(leader, false, view);
        }
        self.advance(view);
    }

    /// Whether a roll back is under way or not durable yet. A crash may undo a step that is not
    /// durable, so nothing may rest on it.
    pub(crate) fn is_rolling_back(&self) -> bool {
        let Some(erasure) = &self.erasure else { return false };
        erasure.roll_back.is_some()
            || self.outbox.submissions().any(|submission| matches!(submission, Submission::RollBack))
    }

    /// If the roll back is durable, tells the primary, or continues as the primary.
    pub(crate) fn rolled_back(&mut self, view: &impl ObjectView) {
        if self.is_rolling_back() {
            return;
        }
        match self.promises.asked_by() {
            Some(leader) if leader != self.config.me && self.promises.is_durable() => {
                self.send_peer_info(leader, false, view);
            }
            _ => self.advance(view),
        }
    }
}

/// Whether an object belongs to its OSD alone: the PG's own object, or a pre-image clone. Such
/// objects are not listed.
pub fn is_hidden(object: &ObjectName) -> bool {
    object.as_str() == PG_META_OBJECT || object.as_str().starts_with(atoll_types::operation::PRE_IMAGE_PREFIX)
}

/// The clones that are pre-images of writes in the log, oldest first.
pub(crate) fn pre_image_clones(id: PgId, view: &impl ObjectView) -> VecDeque<(Version, ObjectName)> {
    let log = view.log(id).into_iter();
    log.filter_map(|entry| Some((entry.version, entry.pre_image?.clone_object()?.clone()))).collect()
}
