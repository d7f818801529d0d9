//! Parts of the history that the store refused, and the backfill that this copy is getting.

use atoll_types::{Epoch, ObjectName, OsdId};

/// State of writes from the primary.
#[derive(Default)]
pub(crate) struct Intake {
    /// The primary whose write the store refused. It must hear of that, so that histories are
    /// compared again.
    refused: Option<OsdId>,
    /// The object that could not be read here, so that a write of it was not taken.
    unreadable: Option<ObjectName>,
    /// The backfill that sent a part last, by epoch and tag.
    newest_backfill: Option<(Epoch, u64)>,
    /// The store refused a part of this backfill, so later parts do not count.
    broken_backfill: Option<(Epoch, u64)>,
}

impl Intake {
    /// Returns true if the store has taken all of the history.
    pub fn is_whole(&self) -> bool {
        self.refused.is_none()
    }

    /// The primary that has to hear that the store refused a write.
    pub fn refused(&self) -> Option<OsdId> {
        self.refused
    }

    /// The store refused a write of this primary. True if it had refused none before.
    pub fn refuse(&mut self, leader: OsdId) -> bool {
        self.refused.replace(leader).is_none()
    }

    /// Notes that a write was not taken because its replaced data could not be read here.
    pub fn note_unreadable(&mut self, object: ObjectName) {
        self.unreadable = Some(object);
    }

    /// Takes the object that could not be read; a primary hears of it now.
    pub fn take_unreadable(&mut self) -> Option<ObjectName> {
        self.unreadable.take()
    }

    /// Takes the primary that hears of it now.
    pub fn take_refused(&mut self) -> Option<OsdId> {
        self.refused.take()
    }

    /// A part of a backfill has come. False if an earlier part was refused.
    pub fn begin_part(&mut self, epoch: Epoch, tag: u64) -> bool {
        let is_whole = self.is_backfill_whole(epoch, tag);
        if is_whole {
            self.newest_backfill = Some((epoch, tag));
        }
        is_whole
    }

    pub fn is_backfill_whole(&self, epoch: Epoch, tag: u64) -> bool {
        self.broken_backfill != Some((epoch, tag))
    }

    /// Nothing more of this backfill counts.
    pub fn break_backfill(&mut self, epoch: Epoch, tag: u64) {
        self.broken_backfill = Some((epoch, tag));
    }

    /// Nothing more of the newest backfill counts.
    pub fn break_newest_backfill(&mut self) {
        self.broken_backfill = self.newest_backfill;
    }
}
