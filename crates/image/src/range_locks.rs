//! Keeps a read-modify-write of partly covered blocks apart from other writes to those blocks.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

#[derive(Default)]
struct State {
    next_id: u64,
    held: Vec<(u64, Range<u64>, bool)>,
    waiting: Vec<Waker>,
}

/// Locks on ranges of blocks, shared or exclusive, for tasks of one thread.
#[derive(Default)]
pub(crate) struct RangeLocks(RefCell<State>);

/// A lock; it is given back when dropped.
pub(crate) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    id: u64,
}

impl RangeLocks {
    /// Waits until no conflicting lock is held, then takes one. Shared locks do not conflict with
    /// each other: writes of whole blocks may run beside each other in any order.
    pub async fn lock(&self, blocks: Range<u64>, exclusive: bool) -> RangeGuard<'_> {
        let id = poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            let conflicts = |(_, held, held_exclusive): &(u64, Range<u64>, bool)| {
                (exclusive || *held_exclusive) && held.start < blocks.end && blocks.start < held.end
            };
            if state.held.iter().any(conflicts) {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            state.next_id += 1;
            let id = state.next_id;
            state.held.push((id, blocks.clone(), exclusive));
            Poll::Ready(id)
        })
        .await;
        RangeGuard { locks: self, id }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.0.borrow_mut();
        state.held.retain(|(id, _, _)| *id != self.id);
        state.waiting.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn exclusive_ranges_wait_for_everyone() {
        let locks = RangeLocks::default();
        let first = locks.lock(0..4, false).now_or_never().expect("nothing is held");
        let second = locks.lock(2..6, false).now_or_never().expect("shared locks do not conflict");
        assert!(locks.lock(3..4, true).now_or_never().is_none());
        let other = locks.lock(6..7, true).now_or_never().expect("another range is free");
        drop((first, second));
        let exclusive = locks.lock(3..4, true).now_or_never().expect("the range is free now");
        assert!(locks.lock(3..4, false).now_or_never().is_none());
        drop((exclusive, other));
        assert!(locks.lock(0..9, true).now_or_never().is_some());
    }
}
