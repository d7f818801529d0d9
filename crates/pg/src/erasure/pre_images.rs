//! Pre-images of writes. Every member keeps the pre-image of a write until it knows that all members
//! have the write: from then on it cannot be rolled back.

use std::collections::VecDeque;

use atoll_types::{LogEntry, Mutation, ObjectName, PgId, SharedTransaction, Transaction, Version};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView};
use crate::config::Configuration;
use crate::group::Pg;
use crate::invariants;
use crate::outbox::Outbox;
use crate::own_object::own_change;
use crate::replication::log::Log;
use crate::submissions::Submission;

/// Pre-image clones that are removed by one transaction, unless a tick comes first.
const DELETED_TOGETHER: usize = 32;

/// The pre-images that this OSD keeps.
pub(crate) struct PreImages {
    /// Clones that are pre-images of writes which some member may lack, oldest first.
    clones: VecDeque<(Version, ObjectName)>,
    /// All members have the writes up to here, so none of them will be rolled back.
    committed: Version,
    /// Pre-images up to here are forgotten.
    forgotten: Version,
    /// Members have heard that all have the writes up to here.
    announced: Version,
}

impl PreImages {
    /// The pre-images that the log names.
    pub fn find(id: PgId, view: &impl ObjectView) -> Self {
        let none = Version::default();
        PreImages { clones: clones_in_log(id, view), committed: none, forgotten: none, announced: none }
    }

    /// The store refused to cut the history, so it has the clones that the log names.
    pub(super) fn find_again(&mut self, id: PgId, view: &impl ObjectView) {
        self.clones = clones_in_log(id, view);
    }

    /// Returns true if the clone that a write would make as its pre-image is kept already. No primary sends such a
    /// write.
    fn keeps_clone_of(&self, entry: &LogEntry) -> bool {
        let name = entry.pre_image.as_ref().and_then(|pre_image| pre_image.clone_object());
        name.is_some_and(|name| self.clones.iter().any(|(_, other)| other == name))
    }

    /// Notes the clone that is a write's pre-image, if the log entry names one.
    fn note(&mut self, entry: &LogEntry) {
        let Some(name) = entry.pre_image.as_ref().and_then(|pre_image| pre_image.clone_object()) else { return };
        invariants::pre_image_clone_is_new(name, self.clones.iter().any(|(_, other)| other == name));
        self.clones.push_back((entry.version, name.clone()));
    }

    /// The store refused the writes after `head`, so it has no pre-images of them. Later writes may
    /// get clones of the same names.
    pub fn forget_refused(&mut self, head: Version) {
        self.clones.retain(|(version, _)| *version <= head);
    }

    /// All members have the writes up to `through`: their pre-images can be forgotten.
    pub fn forget(&mut self, through: Version, id: PgId, outbox: &mut Outbox) {
        if through > self.committed {
            self.committed = through;
            self.delete(DELETED_TOGETHER, id, outbox);
        }
    }

    /// Forgets the pre-images of writes that all members have. Clones are removed if there are at
    /// least `least` of them.
    pub fn delete(&mut self, least: usize, id: PgId, outbox: &mut Outbox) {
        let through = self.committed;
        let count = self.clones.iter().take_while(|(version, _)| *version <= through).count();
        if through == self.forgotten || count > 0 && count < least {
            return;
        }
        self.forgotten = through;
        let gone = self.clones.drain(..count).map(|(_, object)| Mutation::RemoveOther { object });
        let gone: Vec<Mutation> = gone.collect();
        if gone.is_empty() {
            return outbox.push(Action::ForgetPreImages { through });
        }
        // The log names the clones until their removal is durable.
        outbox.submit(Submission::Forget { through }, own_change(id, gone));
    }

    /// A transaction that cuts the history also removes the pre-image clones of later writes, after
    /// the mutation that clones back from one of them.
    pub fn delete_with(&mut self, head: Version, transaction: &mut Transaction) {
        let first = self.clones.iter().position(|(version, _)| *version > head).unwrap_or(self.clones.len());
        let gone = self.clones.split_off(first).into_iter().map(|(_, object)| Mutation::RemoveOther { object });
        let use_of_pre_image = transaction.mutations.iter().position(|mutation| mutation.clone_source().is_some());
        let after = use_of_pre_image.map_or(0, |at| at + 1);
        transaction.mutations.splice(after..after, gone);
    }

    /// Returns true if there are none, and all members know that.
    pub(super) fn are_idle(&self, config: &Configuration, log: &Log) -> bool {
        self.committed == self.forgotten && self.unannounced(config, log).is_none()
    }

    /// At the primary, when nothing is in flight: the newest write, if members have yet to hear that
    /// all have it.
    fn unannounced(&self, config: &Configuration, log: &Log) -> Option<Version> {
        let newest = log.newest_committed(config.record.epoch);
        let is_quiet = config.is_active() && log.has_none_in_flight();
        (is_quiet && self.announced < newest).then_some(newest)
    }

    /// A write informs the members that all have the writes up to `committed`.
    pub(super) fn are_announced(&mut self, committed: Version) {
        self.announced = committed;
    }

    /// Informs the members that all have the newest writes, if no later write has.
    pub fn announce(&mut self, config: &Configuration, log: &Log, outbox: &mut Outbox) {
        if self.unannounced(config, log).is_some() {
            self.announce_at_once(config, log, outbox);
        }
    }

    /// Informs the members of the committed sequence, with writes in flight or not.
    pub fn announce_at_once(&mut self, config: &Configuration, log: &Log, outbox: &mut Outbox) {
        let (pg, epoch) = (config.id, config.record.epoch);
        let version = log.newest_committed(epoch);
        if self.announced >= version {
            return;
        }
        for member in config.others() {
            outbox.send(member, Message::Committed { pg, epoch, version });
        }
        self.announced = version;
        self.forget(version, pg, outbox);
    }
}

impl Pg {
    /// Submits a write of the history, and notes its pre-image. Another member's write that cannot be is dropped, as
    /// if it had been lost.
    pub(crate) fn submit_with_pre_image(&mut self, purpose: Submission, transaction: SharedTransaction) {
        if let (Some(entry), Some(erasure)) = (transaction.log.first(), &mut self.erasure) {
            if matches!(purpose, Submission::Replica { .. }) && erasure.pre_images.keeps_clone_of(entry) {
                return;
            }
            erasure.pre_images.note(entry);
        }
        match transaction.reset_head() {
            None => self.submit_write(purpose, transaction),
            // No primary sends this.
            Some(_) => self.submit(purpose, Transaction::clone(&transaction)),
        }
    }

    /// All members have the writes up to `through`: their pre-images can be forgotten.
    pub(crate) fn forget_pre_images(&mut self, through: Version) {
        if let Some(erasure) = &mut self.erasure {
            erasure.pre_images.forget(through, self.config.id, &mut self.outbox);
        }
    }

    /// Has all members forget the pre-images of writes that all have.
    pub(super) fn forget_pre_images_everywhere(&mut self) {
        if let Some(erasure) = &mut self.erasure {
            erasure.pre_images.announce_at_once(&self.config, &self.log, &mut self.outbox);
        }
    }

    /// Forgets the pre-images of writes that all members have, few as they may be.
    pub(crate) fn delete_pre_images(&mut self) {
        if let Some(erasure) = &mut self.erasure {
            erasure.pre_images.delete(1, self.config.id, &mut self.outbox);
        }
    }
}

fn clones_in_log(id: PgId, view: &impl ObjectView) -> VecDeque<(Version, ObjectName)> {
    let log = view.log(id).into_iter();
    log.filter_map(|entry| Some((entry.version, entry.pre_image?.clone_object()?.clone()))).collect()
}
