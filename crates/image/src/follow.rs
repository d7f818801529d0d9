//! What a writer learns from its image's record: snapshots for which states must be kept, holds, a new size, and
//! that another writer has taken the image.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_reactor::LocalRuntime;
use atoll_types::records::{ImageHold, ImageRecord};

use crate::Bridge;
use crate::held_lock::{Acknowledger, HeldLock, RecordChanges};
use crate::volume::Volume;

/// Follows the record of an attached image.
pub(crate) struct Follower {
    pub volume: Rc<Volume<LocalClient>>,
    /// The writer's.
    pub generation: u64,
    pub lock: Rc<RefCell<Option<HeldLock>>>,
    pub bridge: Bridge,
    pub runtime: LocalRuntime,
    /// The token of the hold for which writes are held back, or were until it took too long.
    pub held_for: Option<String>,
    /// Raised with each hold and with its end.
    pub holds: Rc<Cell<u64>>,
}

impl Follower {
    /// Follows until the lock is given back or lost.
    pub async fn follow(mut self, mut changes: RecordChanges) {
        loop {
            let next = self.bridge.run(async move {
                let next = changes.next().await;
                (next, changes)
            });
            let (next, rest) = next.await;
            changes = rest;
            let Some(record) = next else { return };
            if record.writer_generation != self.generation {
                // Another one has taken the image, and its fence holds.
                return self.volume.is_lost.set(true);
            }
            self.changed(record).await;
        }
    }

    async fn changed(&mut self, record: ImageRecord) {
        self.volume.size_bytes.set(self.volume.size_bytes.get().max(record.size_bytes));
        self.volume.keeping.change(record.kept_number()).await;
        let token = record.hold.as_ref().map(|hold| hold.token.clone());
        let is_new = token != self.held_for;
        if is_new {
            self.held_for = token.clone();
            self.holds.set(self.holds.get() + 1);
        }
        if token.is_none() {
            // Before anything is said: writes wait for this.
            self.volume.keeping.let_go();
        }
        let newest = record.states.as_ref().map_or(0, |states| states.newest);
        if let Some(lock) = self.acknowledger() {
            self.bridge.run(async move { lock.kept(newest).await }).await;
        }
        let is_so = match record.hold {
            Some(hold) if is_new => self.hold(hold).await,
            _ => is_new,
        };
        if let Some(lock) = self.acknowledger().filter(|_| is_so) {
            self.bridge.run(async move { lock.held(token).await }).await;
        }
    }

    fn acknowledger(&self) -> Option<Acknowledger> {
        self.lock.borrow().as_ref().map(HeldLock::acknowledger)
    }

    /// Holds writes back until the hold ends, but not longer than it says: who wanted it may be gone. False if that
    /// was over before all writes were done.
    async fn hold(&self, hold: ImageHold) -> bool {
        let (volume, runtime) = (Rc::clone(&self.volume), self.runtime.clone());
        let (holds, own) = (Rc::clone(&self.holds), self.holds.get());
        self.runtime.spawn(async move {
            runtime.sleep(Duration::from_millis(hold.at_most_ms)).await;
            if holds.get() == own {
                volume.keeping.let_go();
            }
        });
        self.volume.keeping.hold().await
    }
}
