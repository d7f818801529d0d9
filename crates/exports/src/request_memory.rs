//! Memory for the pending requests of all connections of a process.

use std::future::poll_fn;
use std::pin::pin;

use crate::byte_budget::{ByteBudget, ByteGrant};

/// Bytes of all requests of all connections that are being received or served, or whose answers wait to be sent.
pub const REQUEST_BYTES_ALL: u64 = 256 << 20;
/// The part for small requests alone: large ones never keep them waiting.
const SMALL_BYTES_ALL: u64 = 64 << 20;
/// Largest size of a small request.
const SMALL_BYTES_MAX: u64 = 256 << 10;

/// Most bytes that one connection may receive of a message before it has memory for it.
pub const UNGRANTED_BYTES_MAX: usize = SMALL_BYTES_MAX as usize;

/// How long a connection may hold memory for something that its client does not end, while others wait: a message that
/// is not whole, an answer that is not taken.
pub const PATIENCE_MS: u64 = 60_000;

/// The memory that the connections of a process share.
#[derive(Clone)]
pub struct RequestMemory {
    small: ByteBudget,
    large: ByteBudget,
}

impl Default for RequestMemory {
    fn default() -> Self {
        RequestMemory {
            small: ByteBudget::new(SMALL_BYTES_ALL),
            large: ByteBudget::new(REQUEST_BYTES_ALL - SMALL_BYTES_ALL),
        }
    }
}

impl RequestMemory {
    /// Waits for memory for a request, behind those that wait already; returns true in the second part if it had
    /// to wait.
    pub async fn take(&self, bytes: u64) -> (ByteGrant, bool) {
        let pool = if bytes <= SMALL_BYTES_MAX { &self.small } else { &self.large };
        let (mut taking, mut has_waited) = (pin!(pool.take(bytes)), false);
        let grant = poll_fn(|context| {
            let polled = taking.as_mut().poll(context);
            has_waited |= polled.is_pending();
            polled
        });
        (grant.await, has_waited)
    }

    /// Returns true if a request waits for memory.
    pub fn is_short(&self) -> bool {
        self.small.is_short() || self.large.is_short()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn taken(memory: &RequestMemory, bytes: u64) -> Option<ByteGrant> {
        match pin!(memory.take(bytes)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((grant, _)) => Some(grant),
            Poll::Pending => None,
        }
    }

    #[test]
    fn all_connections_share_a_limit_and_small_requests_have_a_reserve() {
        let memory = RequestMemory::default();
        let mut held: Vec<ByteGrant> = std::iter::from_fn(|| taken(&memory, 32 << 20)).collect();
        let small = taken(&memory, 4 << 10);
        assert!(small.is_some(), "large ones do not keep it waiting");
        held.extend(std::iter::from_fn(|| taken(&memory, SMALL_BYTES_MAX)));
        let bytes: u64 = held.iter().map(ByteGrant::bytes).sum();
        assert!((REQUEST_BYTES_ALL - (1 << 20)..=REQUEST_BYTES_ALL).contains(&bytes), "{bytes}");
    }
}
