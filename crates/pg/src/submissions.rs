//! What this OSD's store was asked to make durable, and what follows from its answers.

use atoll_base::{Epoch, OsdId, Version};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView, Token};
use crate::group::Pg;

/// Why something was submitted to the store.
pub(crate) enum Submission {
    /// A client's write, at the primary.
    Write { version: Version },
    /// A client's write, at another member.
    Replica { primary: OsdId, epoch: Epoch, version: Version },
    /// The promise not to heed lower epochs.
    Promise { epoch: Epoch },
    /// What this member lacked.
    Sync { from: OsdId, epoch: Epoch, tag: u64 },
    /// A damaged block written anew.
    Repair,
    /// A part of a good copy in place of this primary's.
    Mend { tag: u64, is_last: bool },
    /// An object removed from a copy that nobody needs.
    Purge,
    /// Clones removed that were kept for writes which nobody will take back.
    Forget { through: Version },
    /// A write taken back.
    RollBack,
}

impl Pg {
    /// A submission is durable.
    pub fn committed(&mut self, token: Token, view: &impl ObjectView) {
        match self.submissions.remove(&token).expect("commits belong to submissions") {
            Submission::Write { version } => self.acknowledged(self.me, version, view),
            Submission::Replica { primary, epoch, version } => {
                // The shell fills in whether the device is full.
                let ack = Message::ReplicateAck { pg: self.id, epoch, version, is_full: false };
                self.send(primary, ack);
            }
            Submission::Promise { epoch } => self.promise_is_durable(epoch, view),
            Submission::Sync { from, epoch, tag } => {
                if self.broken_sync != Some((epoch, tag)) {
                    self.send(from, Message::PeerSynced { pg: self.id, epoch, tag });
                }
            }
            Submission::Mend { tag, is_last: true } => self.mended(tag, view),
            Submission::Repair | Submission::Mend { .. } => {}
            Submission::Forget { through } => self.actions.push_back(Action::ForgetUndo { through }),
            Submission::RollBack => self.rolled_back(view),
            Submission::Purge => self.removed(view),
        }
    }

    /// The store did not take a submission.
    pub fn submit_failed(&mut self, token: Token, cause: &str, view: &impl ObjectView) {
        let submission = self.submissions.remove(&token).expect("answers belong to submissions");
        if let Submission::Sync { epoch, tag, .. } = submission {
            self.broken_sync = Some((epoch, tag));
        }
        let leader = match submission {
            Submission::Repair => {
                let text = format!("{} could not repair a damaged block: {cause}", self.me);
                return self.warn(text);
            }
            Submission::Forget { .. } => {
                let text = format!("{} could not remove what it kept of old writes: {cause}", self.me);
                return self.warn(text);
            }
            Submission::RollBack => return self.roll_back_refused(cause, view),
            Submission::Mend { .. } => return self.mend_failed(cause, view),
            Submission::Purge => return self.removed(view),
            Submission::Write { version } => {
                self.abandon(version);
                // They have it in their history, and would get objects as they are without it.
                self.learners.clear();
                self.me
            }
            _ if self.leads() => self.me,
            Submission::Replica { primary, .. } => primary,
            Submission::Sync { from, .. } => from,
            Submission::Promise { .. } => self.promises.asked_by.unwrap_or(self.me),
        };
        // Copies may differ by what was not taken, which is no damage.
        self.scrub = None;
        // What follows cannot be taken either: the store refuses a gap.
        self.last_sequence = view.head(self.id).sequence;
        if self.history_broken.replace(leader).is_none() {
            let text =
                format!("the store of {} did not take a write ({cause}); the group waits until it does", self.me);
            self.warn(text);
        }
    }
}
