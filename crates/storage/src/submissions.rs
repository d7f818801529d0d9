//! Submitting transactions: in the order of each PG, when the log has room and metadata is in memory.

use std::collections::VecDeque;

use atoll_pg::Token;
use atoll_store::{LoadRequest, StoreError, TransactionId};
use atoll_types::{PgId, PoolId, SharedTransaction, Transaction};

use crate::invariants;
use crate::{Loader, Storage, StorageEvent, Submitter};

impl Storage {
    /// Whether a PG's submission would reach the log at once.
    pub fn has_room_for(&self, pg: PgId) -> bool {
        !self.backlog.contains_key(&pg) && self.store.has_log_room()
    }

    /// Submissions of a PG that have not reached the store.
    pub fn waiting_count(&self, pg: PgId) -> usize {
        self.backlog.get(&pg).map_or(0, VecDeque::len)
    }

    /// Submits a PG's transaction, behind those that already wait.
    pub fn submit(&mut self, pg: PgId, token: Token, transaction: SharedTransaction) {
        let waits = self.backlog.contains_key(&pg) || !self.store.has_log_room();
        if waits || !self.submit_now(pg, token, &transaction) {
            self.backlog.entry(pg).or_default().push_back((token, transaction));
            self.waits_for_room |= !self.store.has_log_room();
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
                self.loading_for_submit.insert(pg);
                return false;
            }
            Err(error) => {
                self.events.push_back(StorageEvent::SubmitFailed { pg, token, error: error.to_string() });
            }
        }
        true
    }

    /// Submits what a PG has waiting, until the log has no room or metadata must be loaded first.
    pub(crate) fn submit_waiting(&mut self, pg: PgId) {
        self.events.push_back(StorageEvent::MayGoOn(pg));
        if self.loading_for_submit.contains(&pg) {
            return;
        }
        let Some(mut queue) = self.backlog.remove(&pg) else { return };
        while self.store.has_log_room()
            && let Some((token, transaction)) = queue.front()
            && self.submit_now(pg, *token, transaction)
        {
            queue.pop_front();
        }
        if !queue.is_empty() {
            self.backlog.insert(pg, queue);
            self.waits_for_room |= !self.store.has_log_room();
        }
    }

    /// Once the log has room again, all PGs that waited for it get another chance. True if that is now.
    pub fn submit_backlog(&mut self) -> bool {
        if !self.store.has_log_room() {
            self.waits_for_room = true;
            return false;
        }
        if !std::mem::take(&mut self.waits_for_room) {
            return false;
        }
        for pg in self.backlog.keys().copied().collect::<Vec<_>>() {
            self.submit_waiting(pg);
        }
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

    /// What must hold between the turns of the loop.
    pub fn check(&self) {
        invariants::backlogs_hold_something(self.backlog.values().map(|queue| queue.len()));
    }

    /// A pool was removed: drops the submissions of its PGs that wait.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.backlog.retain(|pg, _| pg.pool != pool);
        self.loading_for_submit.retain(|pg| pg.pool != pool);
    }
}
