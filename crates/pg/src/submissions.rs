//! The PG's submissions to its store, and the effects of the store's answers.

use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, OsdId, Room, Version};
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
    /// Effect of an operator's decision about this copy, which was incomplete for this reason.
    Decision { epoch: Epoch, was: Option<Incompleteness> },
    /// A part of a backfill of this OSD.
    Push { from: OsdId, epoch: Epoch, tag: u64 },
    /// Damaged blocks written again, or the mark that the copy is incomplete.
    Repair,
    /// A part of a good copy, in place of this primary's bad one; `is_last` of those that are submitted together.
    RewriteOwnCopy { tag: u64, is_last: bool },
    /// A deletion in a stray copy.
    StrayCopy,
    /// The removal of pre-image clones of writes that all members have.
    Forget { through: Version },
    /// A write rolled back.
    RollBack,
    /// The last part of a backfill of this OSD as a member that is staged.
    Staged { from: OsdId, epoch: Epoch, tag: u64 },
    /// A staged object at its place.
    MoveStaged,
    /// The removal of the other names of staged objects, which are all at their places.
    EndStaging,
    /// The removal of staged objects that are not all.
    DropStaged { count: u32 },
    /// The note of the write that all members have.
    NoteCommitted,
    /// The note of the pool's number of PGs.
    NotePgNum,
}

impl Pg {
    /// A submission is durable.
    pub fn committed(&mut self, token: Token, view: &impl ObjectView) {
        match self.outbox.answered(token) {
            Submission::Write { version } => self.acknowledged(self.config.me, version, view),
            Submission::Replica { primary, epoch, version } => {
                // The shell fills in what room the device has.
                let ack = Message::ReplicateAck { pg: self.config.id, epoch, version, room: Room::Enough };
                self.outbox.send(primary, ack);
            }
            Submission::Promise { epoch } | Submission::Decision { epoch, .. } => {
                self.promise_is_durable(epoch, view);
            }
            Submission::Push { from, epoch, tag } => {
                if self.intake.is_backfill_whole(epoch, tag) {
                    self.outbox.send(from, Message::PeerPushed { pg: self.config.id, epoch, tag });
                }
            }
            Submission::RewriteOwnCopy { tag, is_last: true, .. } => self.own_copy_rewritten(tag, view),
            Submission::Repair
            | Submission::RewriteOwnCopy { .. }
            | Submission::NoteCommitted
            | Submission::NotePgNum => {}
            Submission::Forget { through } => self.outbox.push(Action::ForgetPreImages { through }),
            Submission::RollBack => self.rolled_back(view),
            Submission::StrayCopy => self.removed(view),
            Submission::Staged { .. } => self.move_staged(view),
            Submission::MoveStaged => self.staged_moved(false),
            Submission::EndStaging => self.staging_ended(false, view),
            Submission::DropStaged { .. } => {}
        }
    }

    /// The store refused a submission.
    pub fn submit_failed(&mut self, token: Token, cause: &str, view: &impl ObjectView) {
        let submission = self.outbox.answered(token);
        if let Submission::Push { epoch, tag, .. } | Submission::Staged { epoch, tag, .. } = submission {
            self.intake.break_backfill(epoch, tag);
        }
        if let Submission::Decision { was, .. } = submission {
            self.decision_refused(was, cause);
        }
        let leader = match submission {
            Submission::Repair => {
                let text = format!("{} could not repair a damaged block: {cause}", self.config.me);
                return self.outbox.warn(text);
            }
            Submission::Forget { .. } => {
                let text = format!("{} could not remove the pre-images of old writes: {cause}", self.config.me);
                return self.outbox.warn(text);
            }
            Submission::RollBack => return self.roll_back_refused(cause, view),
            Submission::NoteCommitted | Submission::NotePgNum => return self.forget_notes(),
            Submission::RewriteOwnCopy { tag, .. } => return self.own_copy_rewrite_refused(tag, cause, view),
            Submission::StrayCopy => return self.removed(view),
            Submission::MoveStaged => return self.staged_moved(true),
            Submission::EndStaging => return self.staging_ended(true, view),
            Submission::DropStaged { count } => return self.drop_staged_refused(count),
            Submission::Staged { from, .. } => {
                self.staged_refused();
                from
            }
            Submission::Write { version } => {
                self.own_store_refused(version);
                self.abandon(version);
                // Learners have the write in their history and would get objects without it.
                self.learners.clear();
                self.config.me
            }
            _ if self.leads() => self.config.me,
            Submission::Replica { primary, .. } => primary,
            Submission::Push { from, .. } => from,
            Submission::Promise { .. } | Submission::Decision { .. } => {
                self.promises.asked_by().unwrap_or(self.config.me)
            }
        };
        // Copies may differ by the refused write, which is no damage.
        self.scrub = None;
        // What follows cannot be taken either: the store refuses a gap.
        let head = view.head(self.config.id);
        self.log.ends_at(head.sequence);
        self.duplicates.catch_up(&view.log(self.config.id), head);
        if let Some(erasure) = &mut self.erasure {
            erasure.pre_images.forget_refused(head);
        }
        if self.intake.refuse(leader) {
            let text = format!(
                "the store of {} did not take a write ({cause}); the PG waits until it does",
                self.config.me
            );
            self.outbox.warn(text);
        }
    }
}
