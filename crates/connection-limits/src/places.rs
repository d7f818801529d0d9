//! Places of connections, for servers in which each connection is a task of its own.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::{Limits, Strangers};

/// All places of a listener. Clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    strangers: Strangers,
    slots: HashMap<u64, Arc<Mutex<Slot>>>,
    members: usize,
    members_max: usize,
}

/// State of a connection.
#[derive(Debug, Default)]
struct Slot {
    is_evicted: bool,
    /// Nothing can evict it any more, because it has logged in or is gone.
    is_safe: bool,
    waker: Option<Waker>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    number: u64,
    slot: Arc<Mutex<Slot>>,
    has_taken_another: bool,
    is_member: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in them is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(slot: &Mutex<Slot>, change: impl FnOnce(&mut Slot)) {
    let mut slot = lock(slot);
    change(&mut slot);
    let waker = slot.waker.take();
    drop(slot);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Places {
    /// All are free.
    pub fn new(limits: Limits) -> Self {
        let strangers = Strangers::new(limits);
        let state = State { strangers, slots: HashMap::new(), members: 0, members_max: limits.members_max };
        Places(Arc::new(Mutex::new(state)))
    }

    /// A connection has come. Without an address, as over a Unix socket or from a trusted proxy, only the limit of all
    /// strangers holds.
    pub fn enter(&self, address: Option<IpAddr>) -> Place {
        let mut state = lock(&self.0);
        let entered = state.strangers.enter(address);
        let slot = Arc::default();
        state.slots.insert(entered.number, Arc::clone(&slot));
        let evicted = entered.evicted.and_then(|number| state.slots.remove(&number));
        drop(state);
        if let Some(evicted) = &evicted {
            change(evicted, |slot| slot.is_evicted = true);
        }
        Place {
            places: self.clone(),
            number: entered.number,
            slot,
            has_taken_another: evicted.is_some(),
            is_member: Mutex::new(false),
        }
    }

    /// Connections of strangers and of members.
    pub fn counts(&self) -> (usize, usize) {
        let state = lock(&self.0);
        (state.strangers.count(), state.members)
    }
}

impl Place {
    /// Returns true if another stranger has lost its place to this one.
    pub fn has_taken_another(&self) -> bool {
        self.has_taken_another
    }

    /// Counts the peer as authenticated. At the limit of authenticated peers it stays among the strangers, and
    /// another stranger may take its place.
    pub fn log_in(&self) {
        let mut is_member = lock(&self.is_member);
        let mut state = lock(&self.places.0);
        if *is_member || state.members >= state.members_max || !state.strangers.remove(self.number) {
            return;
        }
        state.members += 1;
        state.slots.remove(&self.number);
        *is_member = true;
        drop(state);
        change(&self.slot, |slot| slot.is_safe = true);
    }

    /// Returns true if it has logged in.
    pub fn is_member(&self) -> bool {
        *lock(&self.is_member)
    }

    /// Resolves when the place is another's, with true: the connection is to be closed. With false when that cannot
    /// happen any more.
    pub fn evicted(&self) -> Evicted {
        Evicted(Arc::clone(&self.slot))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.places.0);
        match *lock(&self.is_member) {
            true => state.members -= 1,
            false => {
                state.strangers.remove(self.number);
                state.slots.remove(&self.number);
            }
        }
        drop(state);
        change(&self.slot, |slot| slot.is_safe = true);
    }
}

/// The future of [`Place::evicted`]. One task may wait.
#[derive(Debug)]
pub struct Evicted(Arc<Mutex<Slot>>);

impl Future for Evicted {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let mut slot = lock(&self.0);
        if slot.is_evicted || slot.is_safe {
            return Poll::Ready(slot.is_evicted);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places::new(Limits { strangers_max: 4, address_max: 2, members_max: 2 })
    }

    fn is_evicted(place: &Place) -> Option<bool> {
        match Pin::new(&mut place.evicted()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(evicted) => Some(evicted),
            Poll::Pending => None,
        }
    }

    #[test]
    fn strangers_take_no_place_of_members() {
        let places = places();
        let here = Some(IpAddr::from([192, 0, 2, 1]));
        let member = places.enter(here);
        member.log_in();
        let strangers: Vec<Place> = (0..100).map(|_| places.enter(here)).collect();
        assert_eq!(places.counts(), (2, 1));
        assert_eq!((is_evicted(&member), is_evicted(&strangers[97])), (Some(false), Some(true)));
        assert_eq!((is_evicted(&strangers[98]), strangers[98].has_taken_another()), (None, true));
        strangers[97].log_in();
        assert!(!strangers[97].is_member(), "its place is another's");
        drop((member, strangers));
        assert_eq!(places.counts(), (0, 0));
    }

    #[test]
    fn members_have_a_limit_as_well() {
        let places = places();
        let all: Vec<Place> = (0..3).map(|_| places.enter(None)).collect();
        all.iter().for_each(Place::log_in);
        all.iter().for_each(Place::log_in);
        assert_eq!(places.counts(), (1, 2));
        assert!(!all[2].is_member());
        drop(all);
        assert_eq!(places.counts(), (0, 0));
    }

    #[test]
    fn waiters_are_woken() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        struct Counting(AtomicUsize);
        impl std::task::Wake for Counting {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (places, counting) = (places(), Arc::new(Counting(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&counting));
        let first = places.enter(None);
        let mut evicted = first.evicted();
        assert!(Pin::new(&mut evicted).poll(&mut Context::from_waker(&waker)).is_pending());
        let _others: Vec<Place> = (0..4).map(|_| places.enter(None)).collect();
        assert_eq!(counting.0.load(Ordering::Relaxed), 1);
        assert_eq!(Pin::new(&mut evicted).poll(&mut Context::from_waker(&waker)), Poll::Ready(true));
    }
}
