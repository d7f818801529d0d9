//! Changes that a writer reads from its image's record: snapshots whose states must be kept, holds, a new size, a
//! flattening, a move of the image, and another writer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use atoll_types::records::{ImageHold, ImageRecord};

use crate::attached_image::Writer;
use crate::held_lock::{ImageChange, RecordChanges};

/// Follows the record of an attached image.
pub(crate) struct Follower {
    writer: Rc<Writer>,
    /// The token of the hold for which writes are held back, or were until it took too long.
    held_for: Option<String>,
    /// Raised with each hold and with its end.
    holds: Rc<Cell<u64>>,
}

impl Follower {
    pub fn new(writer: Rc<Writer>) -> Self {
        Follower { writer, held_for: None, holds: Rc::default() }
    }

    /// Follows until the lock is given back or lost.
    pub async fn follow(mut self, mut changes: RecordChanges) {
        loop {
            let next = self.writer.bridge.run(async move {
                let next = changes.next().await;
                (next, changes)
            });
            let (next, rest) = next.await;
            changes = rest;
            let record = match next {
                Some(ImageChange::Record(record)) => *record,
                // What it would write now would go with the image.
                Some(ImageChange::Gone) => return self.writer.volume().is_lost.set(true),
                None => return,
            };
            let own = self.writer.record();
            if record.id != own.id {
                // No hold of before may let writes go on.
                self.holds.set(self.holds.get() + 1);
                match self.writer.go_over(record).await {
                    Some(of_new_place) => changes = of_new_place,
                    None => return,
                }
            } else if record.writer_generation != own.writer_generation {
                // Another one has taken the image, and its fence holds.
                return self.writer.volume().is_lost.set(true);
            } else {
                self.changed(record).await;
            }
        }
    }

    async fn changed(&mut self, record: ImageRecord) {
        let volume = self.writer.volume();
        volume.size_bytes.set(volume.size_bytes.get().max(record.size_bytes));
        self.writer.flatten(record.flattening.clone());
        volume.keeping.change(record.kept_number()).await;
        let token = record.hold.as_ref().map(|hold| hold.token.clone());
        let is_new = token != self.held_for;
        if is_new {
            self.held_for = token.clone();
            self.holds.set(self.holds.get() + 1);
        }
        if token.is_none() {
            // Before anything is said: writes wait for this.
            volume.keeping.let_go();
        }
        let newest = record.states.as_ref().map_or(0, |states| states.newest);
        if let Some(lock) = self.writer.acknowledger() {
            self.writer.bridge.run(async move { lock.kept(newest).await }).await;
        }
        let is_so = match record.hold {
            Some(hold) if is_new => self.hold(hold).await,
            _ => is_new,
        };
        if let Some(lock) = self.writer.acknowledger().filter(|_| is_so) {
            self.writer.bridge.run(async move { lock.held(token).await }).await;
        }
    }

    /// Holds writes back until the hold ends, but not longer than its limit: the command that wanted it may have
    /// ended. False if that was over before all writes were done.
    async fn hold(&self, hold: ImageHold) -> bool {
        let (volume, runtime) = (self.writer.volume(), self.writer.client.runtime().clone());
        let (holds, own, held) = (Rc::clone(&self.holds), self.holds.get(), Rc::clone(&volume));
        self.writer.client.runtime().spawn(async move {
            runtime.sleep(Duration::from_millis(hold.at_most_ms)).await;
            if holds.get() == own {
                held.keeping.let_go();
            }
        });
        volume.keeping.hold().await
    }
}
