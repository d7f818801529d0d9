//! A bound on the bytes of all requests being served at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

struct State {
    free_bytes: u64,
    next_ticket: u64,
    /// In the order in which they came: the one at the front is next, however much it needs.
    waiting: BTreeMap<u64, Option<Waker>>,
}

impl State {
    fn wake_first(&mut self) {
        if let Some(waker) = self.waiting.first_entry().and_then(|mut first| first.get_mut().take()) {
            waker.wake();
        }
    }
}

/// Hands out bytes to tasks of one thread.
#[derive(Clone)]
pub struct ByteBudget(Rc<RefCell<State>>);

/// Bytes that are given back when dropped.
pub struct ByteGrant {
    budget: ByteBudget,
    bytes: u64,
}

/// A place in the queue, given up when dropped.
struct Ticket<'a> {
    budget: &'a ByteBudget,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.0.borrow_mut();
        state.waiting.remove(&self.number);
        state.wake_first();
    }
}

impl ByteBudget {
    /// Returns a budget of `total_bytes` bytes.
    pub fn new(total_bytes: u64) -> Self {
        let state = State { free_bytes: total_bytes, next_ticket: 0, waiting: BTreeMap::new() };
        ByteBudget(Rc::new(RefCell::new(state)))
    }

    /// Waits until there are this many bytes, behind those who wait already. `bytes` must not be more than the total.
    pub async fn take(&self, bytes: u64) -> ByteGrant {
        if bytes == 0 {
            return ByteGrant { budget: self.clone(), bytes };
        }
        let number = {
            let mut state = self.0.borrow_mut();
            state.next_ticket += 1;
            let number = state.next_ticket;
            state.waiting.insert(number, None);
            number
        };
        let _ticket = Ticket { budget: self, number };
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            let is_first = state.waiting.first_key_value().is_some_and(|(first, _)| *first == number);
            if !is_first || state.free_bytes < bytes {
                state.waiting.insert(number, Some(context.waker().clone()));
                return Poll::Pending;
            }
            state.free_bytes -= bytes;
            Poll::Ready(())
        })
        .await;
        ByteGrant { budget: self.clone(), bytes }
    }

    /// Returns true if a request waits for bytes.
    pub fn is_short(&self) -> bool {
        !self.0.borrow().waiting.is_empty()
    }
}

impl ByteGrant {
    /// How many there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off `bytes` bytes, or all if there are fewer.
    pub fn split(&mut self, bytes: u64) -> ByteGrant {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        ByteGrant { budget: self.budget.clone(), bytes }
    }
}

impl Drop for ByteGrant {
    fn drop(&mut self) {
        let mut state = self.budget.0.borrow_mut();
        state.free_bytes += self.bytes;
        state.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    fn is_ready<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn bytes_are_handed_out_in_order_and_never_more_than_there_are() {
        let budget = ByteBudget::new(10);
        let mut first = is_ready(pin!(budget.take(6))).unwrap();
        let (mut large, mut small) = (Box::pin(budget.take(8)), Box::pin(budget.take(1)));
        assert!(is_ready(large.as_mut()).is_none() && is_ready(small.as_mut()).is_none());
        assert!(budget.is_short());
        let half = first.split(3);
        assert_eq!((first.bytes(), half.bytes()), (3, 3));
        drop(first);
        assert!(is_ready(large.as_mut()).is_none() && is_ready(small.as_mut()).is_none(), "in their order");
        drop(half);
        assert!(is_ready(small.as_mut()).is_none());
        let taken = is_ready(large.as_mut()).unwrap();
        drop(large);
        assert!(is_ready(small.as_mut()).is_some());
        drop(small);
        assert!(!budget.is_short());
        // Who leaves the queue makes way.
        let mut leaves = Box::pin(budget.take(10));
        assert!(is_ready(leaves.as_mut()).is_none());
        let mut next = Box::pin(budget.take(2));
        assert!(is_ready(next.as_mut()).is_none());
        drop(leaves);
        assert!(is_ready(next.as_mut()).is_some());
        drop(taken);
    }
}
