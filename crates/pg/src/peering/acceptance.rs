//! Copies that an operator has accepted: the PG resumes from them although they may lack acknowledged writes.
//!
//! The decision is a record of the PG: the accepted copies are its members and electors. A copy follows it once, with
//! its first promise of that epoch or a later one, and only if it is the one that was decided on.

use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, OsdId, Touched, Transaction, Version};

use crate::actions::ObjectView;
use crate::config::Configuration;
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{MIXED_SHARDS, mark_of, own_change, set_complete, set_epoch, set_not_behind};
use crate::submissions::Submission;

/// Object of the first entry of a history that starts over: it does not exist.
pub(crate) const NO_OBJECT: &str = "@accepted";

/// An operator's decision about one copy.
#[derive(Clone, Copy, Default)]
pub(crate) struct Decision {
    /// The epoch of the decision; 0 if there is none.
    pub epoch: Epoch,
    /// The newest write of the copy that was accepted.
    pub head: Version,
}

impl Configuration {
    /// Returns an operator's decision about the copy of an OSD.
    pub fn decision_for(&self, osd: OsdId) -> Decision {
        let accepted = self.record.accepted.as_ref();
        let decision = accepted.and_then(|accepted| Some((accepted.epoch, accepted.head_of(osd)?)));
        decision.map_or_else(Decision::default, |(epoch, head)| Decision { epoch, head })
    }

    /// Returns true if an OSD's message under an epoch is from before an operator accepted its copy.
    pub fn is_before_decision(&self, osd: OsdId, epoch: Epoch) -> bool {
        epoch < self.decision_for(osd).epoch
    }
}

impl Pg {
    /// Follows the decision of the record in force.
    pub(crate) fn follow_record_decision(&mut self, view: &impl ObjectView) {
        self.follow_decision(self.config.decision_for(self.config.me), view);
    }

    /// Follows an operator's decision, unless this copy has done so, or has continued without it.
    pub(crate) fn follow_decision(&mut self, decision: Decision, view: &impl ObjectView) {
        let Decision { epoch, head } = decision;
        if epoch <= self.promises.epoch() {
            return;
        }
        let refusal = self.not_accepted_because(head, view);
        let was = self.promises.incompleteness();
        self.stray.stop();
        self.end_roll_back();
        self.promises.decided(epoch, refusal.is_none());
        let me = self.config.me;
        let change = match refusal {
            Some(reason) => {
                self.outbox.warn(format!("the operator has accepted another copy of {me}: {reason}"));
                self.promises.note_incomplete(Incompleteness::LacksPromise);
                let mark = self.promises.incompleteness().map(mark_of);
                own_change(self.config.id, [set_epoch(epoch)].into_iter().chain(mark).collect())
            }
            None => {
                self.outbox.warn(format!("the operator has accepted the copy of {me}, which ends with {head}"));
                self.accepted_change(epoch, head, was.is_some_and(Incompleteness::is_torn))
            }
        };
        self.submit(Submission::Decision { epoch, was }, change);
    }

    /// The store refused to follow a decision: the copy is unchanged.
    pub(crate) fn decision_refused(&mut self, was: Option<Incompleteness>, cause: &str) {
        was.into_iter().for_each(|why| self.promises.note_incomplete(why));
        let me = self.config.me;
        self.outbox.warn(format!("the store of {me} did not follow the operator's decision: {cause}"));
    }

    /// Why this is not the copy that an operator has accepted, if it is not.
    fn not_accepted_because(&self, head: Version, view: &impl ObjectView) -> Option<String> {
        let own_head = view.head(self.config.id);
        if own_head != head || !self.outbox.view_is_current() {
            return Some(format!("it was to end with {head}, and ends with {own_head}"));
        }
        if self.promises.holds_answers() {
            return Some("its objects are being moved to their places".into());
        }
        let is_torn = self.promises.incompleteness().is_some_and(Incompleteness::is_torn);
        let has_one_shard = self.promises.shard().is_some_and(|shard| shard != MIXED_SHARDS);
        let is_shard = self.erasure.is_some();
        (is_shard && (is_torn || !has_one_shard)).then(|| "its objects are of several shards or versions".into())
    }

    /// Returns the change by which an accepted copy counts. The objects of a torn one do not match its history, so
    /// nothing may be concluded from that: its history starts over, with an entry that no other copy has.
    fn accepted_change(&self, epoch: Epoch, head: Version, is_torn: bool) -> Transaction {
        let marks = vec![set_epoch(epoch), set_complete(), set_not_behind()];
        if !is_torn {
            return own_change(self.config.id, marks);
        }
        invariants::shards_keep_their_history(self.erasure.is_some());
        let nothing = Mutation::ResetLog { head: Version::default() };
        let entry = LogEntry {
            version: Version { epoch, sequence: head.sequence + 1 },
            request: None,
            object: ObjectName::new(NO_OBJECT).expect("the name is short"),
            touched: Touched::default(),
            committed_sequence: head.sequence,
            pre_image: None,
        };
        let mutations = [nothing].into_iter().chain(marks).collect();
        Transaction { log: vec![entry], ..own_change(self.config.id, mutations) }
    }
}
