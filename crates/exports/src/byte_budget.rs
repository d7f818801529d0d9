//! A bound on the bytes of all requests being served at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

struct State {
    free_bytes: u64,
    waiting: VecDeque<Waker>,
}

/// Hands out bytes to tasks of one thread.
#[derive(Clone)]
pub struct ByteBudget(Rc<RefCell<State>>);

/// Bytes that are given back when dropped.
pub struct ByteGrant {
    budget: ByteBudget,
    bytes: u64,
}

impl ByteBudget {
    /// So many bytes.
    pub fn new(total_bytes: u64) -> Self {
        ByteBudget(Rc::new(RefCell::new(State { free_bytes: total_bytes, waiting: VecDeque::new() })))
    }

    /// Waits until there are this many bytes. `bytes` must not be more than the total.
    pub async fn take(&self, bytes: u64) -> ByteGrant {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if state.free_bytes < bytes {
                state.waiting.push_back(context.waker().clone());
                return Poll::Pending;
            }
            state.free_bytes -= bytes;
            Poll::Ready(())
        })
        .await;
        ByteGrant { budget: self.clone(), bytes }
    }
}

impl Drop for ByteGrant {
    fn drop(&mut self) {
        let mut state = self.budget.0.borrow_mut();
        state.free_bytes += self.bytes;
        state.waiting.drain(..).for_each(Waker::wake);
    }
}
