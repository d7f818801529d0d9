//! Submitting transactions: in the order of each PG, when the log has room and metadata is in memory.

use atoll_pg::Token;
use atoll_store::{LoadRequest, StoreError, TransactionId};
use atoll_types::{PgId, PoolId, SharedTransaction, Transaction};

use crate::invariants;
use crate::{Loader, Storage, StorageEvent, Submitter};

impl Storage {
    /// Returns true if a PG's submission would reach the log at once.
    pub fn has_room_for(&self, pg: PgId) -> bool {
        !self.backlog.is_before(pg) && self.store.has_log_room()
    }

    /// Submissions of a PG that have not reached the store.
    pub fn waiting_count(&self, pg: PgId) -> usize {
        self.backlog.count_of(pg)
    }

    /// Submits a PG's transaction, behind those that already wait: those of its PG, and those of any PG that wait for
    /// room. A large one would otherwise never get any beside small ones, which come all the time.
    pub fn submit(&mut self, pg: PgId, token: Token, transaction: SharedTransaction) {
        if !self.has_room_for(pg) {
            self.waits_for_room |= !self.store.has_log_room();
            self.backlog.push(pg, token, transaction);
        } else if !self.submit_now(pg, token, &transaction) {
            self.backlog.push(pg, token, transaction);
            self.backlog.defer(pg);
        }
    }

    /// False if metadata must be loaded first, which is then under way.
    fn submit_now(&mut self, pg: PgId, token: Token, transaction: &SharedTransaction) -> bool {
        match self.store.submit_shared(transaction) {
            Ok(id) => {
                let before = self.submitted.insert(id.0, Submitter::Pg { pg, token });
                invariants::ids_are_fresh("submission", before.is_some());
            }
            Err(StoreError::Cold(cold)) => {
                self.load(LoadRequest::Pages(cold), Loader::Submissions(pg));
                return false;
            }
            Err(error) => {
                self.events.push_back(StorageEvent::SubmitFailed { pg, token, error: error.to_string() });
            }
        }
        true
    }

    /// Submits waiting transactions, in the order of their arrival, until the log has no room. PGs for which
    /// metadata must be loaded first hold up only themselves.
    pub(crate) fn submit_waiting(&mut self) {
        while self.store.has_log_room()
            && let Some((pg, token, transaction)) = self.backlog.next()
        {
            match self.submit_now(pg, token, &transaction) {
                true => {
                    self.backlog.submitted(pg);
                    self.events.push_back(StorageEvent::MayGoOn(pg));
                }
                false => self.backlog.defer(pg),
            }
        }
        self.waits_for_room |= !self.backlog.is_ready_for_nothing();
    }

    /// Once the log has room again, submits the waiting ones. True if that is now.
    pub fn submit_backlog(&mut self) -> bool {
        if !self.store.has_log_room() {
            self.waits_for_room = true;
            return false;
        }
        if !std::mem::take(&mut self.waits_for_room) {
            return false;
        }
        self.submit_waiting();
        true
    }

    /// Submits the removal of an object of a removed pool.
    pub fn submit_removal(&mut self, removal: &Transaction) -> Result<(), StoreError> {
        let id = self.store.submit(removal)?;
        let before = self.submitted.insert(id.0, Submitter::RemovedPool);
        invariants::ids_are_fresh("submission", before.is_some());
        Ok(())
    }

    pub(crate) fn committed(&mut self, id: TransactionId) -> StorageEvent {
        match self.submitted.remove(id.0).expect(invariants::EVERY_COMMIT_HAS_A_SUBMITTER) {
            Submitter::Pg { pg, token } => {
                if cfg!(debug_assertions) {
                    let mut earlier = self.submitted.iter().take_while(|(other, _)| *other < id.0);
                    let is_of_pg =
                        |submitter: &Submitter| matches!(submitter, Submitter::Pg { pg: of, .. } if *of == pg);
                    invariants::commits_come_in_order(pg, earlier.any(|(_, submitter)| is_of_pg(submitter)));
                }
                StorageEvent::Committed { pg, token }
            }
            Submitter::RemovedPool => StorageEvent::RemovalCommitted,
        }
    }

    /// Checks invariants between the turns of the loop.
    pub fn check(&self) {
        self.backlog.check();
    }

    /// A pool was removed: drops the submissions of its PGs that wait.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.backlog.forget_pool(pool);
    }
}
