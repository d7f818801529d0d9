//! Keeping the states of objects for snapshots. Before an object changes for the first time after a snapshot, its
//! state is kept under the number of the newest snapshot: a clone that shares the object's data, or an empty object
//! if there was none.
//!
//! A snapshot is in force once the writer knows its number and no write is in flight that began before it knew.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use atoll_client::PoolClient;
use atoll_types::{Condition, Mutation, PoolId, Refusal};

use crate::ImageError;
use crate::index_set::IndexSet;
use crate::names::{kept_name, object_name};

/// States that a writer must keep, and its pending writes.
#[derive(Default)]
pub(crate) struct Keeping {
    /// The number under which states are kept; `None` while there are no snapshots.
    number: Cell<Option<u64>>,
    /// Raised with every change of the number.
    round: Cell<u64>,
    /// Objects whose states are kept under the number.
    kept: RefCell<IndexSet>,
    /// No write may begin.
    is_held: Cell<bool>,
    /// No write will ever begin again.
    is_over: Cell<bool>,
    /// Writes in flight that began in this round, and those that began before.
    in_flight: Cell<u64>,
    in_flight_earlier: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

/// A write that is in flight until this is dropped.
pub(crate) struct InFlight<'a> {
    keeping: &'a Keeping,
    round: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let keeping = self.keeping;
        let is_earlier = self.round < keeping.round.get();
        let count = if is_earlier { &keeping.in_flight_earlier } else { &keeping.in_flight };
        count.set(count.get().checked_sub(1).expect("a write in flight is counted"));
        if count.get() == 0 {
            keeping.wake_all();
        }
    }
}

impl Keeping {
    pub fn new(number: Option<u64>) -> Self {
        Keeping { number: Cell::new(number), ..Keeping::default() }
    }

    /// Returns true if states must be kept.
    pub fn is_needed(&self) -> bool {
        self.number.get().is_some()
    }

    /// Returns true if an object's state is perhaps not kept yet.
    pub fn must_keep(&self, object: u64) -> bool {
        self.is_needed() && !self.kept.borrow().contains(object)
    }

    /// A write begins, as soon as writes are not held back. `None` if there will be no more.
    pub async fn begin(&self) -> Option<InFlight<'_>> {
        self.wait_until(|| !self.is_held.get()).await;
        if self.is_over.get() {
            return None;
        }
        let round = self.round.get();
        self.in_flight.set(self.in_flight.get() + 1);
        Some(InFlight { keeping: self, round })
    }

    /// Ends all writes: those that wait get an error.
    pub fn end(&self) {
        self.is_over.set(true);
        self.let_go();
    }

    /// From now on states are kept under this number. Returns when no write is in flight that began before.
    pub async fn change(&self, number: Option<u64>) {
        if self.number.get() != number {
            self.number.set(number);
            self.round.set(self.round.get() + 1);
            self.kept.borrow_mut().clear();
            self.in_flight_earlier.set(self.in_flight_earlier.get() + self.in_flight.take());
        }
        self.wait_until(|| self.in_flight_earlier.get() == 0).await;
    }

    /// No write begins from now on. Returns when none is in flight; false if writes were let go before.
    pub async fn hold(&self) -> bool {
        self.is_held.set(true);
        self.wait_until(|| !self.is_held.get() || self.in_flight.get() + self.in_flight_earlier.get() == 0).await;
        self.is_held.get()
    }

    /// Resumes writes.
    pub fn let_go(&self) {
        self.is_held.set(false);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    async fn wait_until(&self, holds: impl Fn() -> bool) {
        poll_fn(|context| {
            if holds() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Must have returned before an object is changed by a write that has begun. `fence` must hold.
    pub async fn keep(
        &self,
        client: &impl PoolClient,
        pool: PoolId,
        image_id: &str,
        object: u64,
        fence: &Condition,
    ) -> Result<(), ImageError> {
        let (Some(number), round) = (self.number.get(), self.round.get()) else { return Ok(()) };
        keep_state(client, pool, image_id, object, number, Some(fence)).await?;
        // The number may have been raised meanwhile; the next write of the object then keeps it again.
        if self.round.get() == round {
            self.kept.borrow_mut().insert(object);
        }
        Ok(())
    }
}

/// Keeps an object's state under a number, unless one is kept there.
pub(crate) async fn keep_state(
    client: &impl PoolClient,
    pool: PoolId,
    image_id: &str,
    object: u64,
    number: u64,
    fence: Option<&Condition>,
) -> Result<(), ImageError> {
    let conditions: Vec<Condition> = fence.cloned().into_iter().chain([Condition::ObjectAbsent]).collect();
    let is_kept = conditions.len() as u16 - 1;
    let source = object_name(image_id, object);
    let keep = async |mutation: Mutation| {
        let kept = kept_name(image_id, object, number);
        match client.change(pool, kept, conditions.clone(), vec![mutation]).await {
            Err(error) if error.failed_condition() == Some(is_kept) => Ok(()),
            result => result,
        }
    };
    let refused = match keep(Mutation::CloneFrom { source: source.clone() }).await {
        Err(error) if matches!(error.refusal(), Some(Refusal::Invalid { .. } | Refusal::NoSuchObject)) => error,
        result => return Ok(result?),
    };
    match client.stat(pool, source).await {
        // There is no object to clone: an empty one says so.
        Err(error) if error.is_no_such_object() => Ok(keep(Mutation::Create).await?),
        // Another write may have made it meanwhile, after it had kept the state.
        Ok(_) if client.stat(pool, kept_name(image_id, object, number)).await.is_ok() => Ok(()),
        Ok(_) => Err(refused.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use atoll_client::ObjectClient;
    use futures::executor::block_on;

    use super::*;
    use crate::memory_client::MemoryClient;

    const POOL: PoolId = PoolId(1);

    /// An empty object would say that there were zeros.
    #[test]
    fn a_refused_clone_is_no_sign_that_there_was_no_object() {
        let client = MemoryClient::new(1);
        let keep = |number| keep_state(&client, POOL, "1", 0, number, None);
        block_on(async {
            keep(1).await.unwrap();
            assert_eq!(client.stat(POOL, kept_name("1", 0, 1)).await.unwrap().0, 0, "there was no object");
            client.change(POOL, object_name("1", 0), Vec::new(), vec![Mutation::Create]).await.unwrap();
            client.refuse_clones(true);
            let error = keep(2).await.unwrap_err();
            assert!(error.to_string().contains("clones nothing"), "{error}");
            assert!(client.stat(POOL, kept_name("1", 0, 2)).await.unwrap_err().is_no_such_object());
            client.refuse_clones(false);
            keep(2).await.unwrap();
            keep(2).await.unwrap();
        });
    }
}
