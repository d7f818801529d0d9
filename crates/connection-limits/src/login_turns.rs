//! How many log-ins may be under way. To compare a password takes memory and a processor for some tens of milliseconds,
//! and strangers must not make others wait for theirs.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::network_of;

#[derive(Debug)]
struct State {
    network_max: usize,
    all_max: usize,
    by_network: HashMap<IpAddr, usize>,
    all: usize,
}

/// Log-ins that are under way. Clones share them.
#[derive(Clone, Debug)]
pub struct LoginTurns(Arc<Mutex<State>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct LoginTurn {
    turns: LoginTurns,
    network: IpAddr,
}

impl LoginTurns {
    /// Allows at most `network_max` logins of one network, and `all_max` in all, at a time.
    pub fn new(network_max: usize, all_max: usize) -> Self {
        LoginTurns(Arc::new(Mutex::new(State { network_max, all_max, by_network: HashMap::new(), all: 0 })))
    }

    /// Begins a log-in, if not too many are under way.
    pub fn begin(&self, address: IpAddr) -> Option<LoginTurn> {
        let network = network_of(address);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = state.by_network.get(&network).copied().unwrap_or_default();
        if own >= state.network_max || state.all >= state.all_max {
            return None;
        }
        state.by_network.insert(network, own + 1);
        state.all += 1;
        Some(LoginTurn { turns: self.clone(), network })
    }
}

impl Drop for LoginTurn {
    fn drop(&mut self) {
        let mut state = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.all -= 1;
        let own = state.by_network.get_mut(&self.network).expect("a log-in that is under way is counted");
        *own -= 1;
        if *own == 0 {
            state.by_network.remove(&self.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_few_turns_and_leaves_some_to_others() {
        let (turns, here) = (LoginTurns::new(2, 32), IpAddr::from([192, 0, 2, 1]));
        let held: Vec<LoginTurn> = (0..200).filter_map(|_| turns.begin(here)).collect();
        assert_eq!(held.len(), 2);
        assert!(turns.begin(IpAddr::from([192, 0, 2, 2])).is_some());
        drop(held);
        assert!(turns.begin(here).is_some());
        let many: Vec<LoginTurn> =
            (0..200).filter_map(|number| turns.begin(IpAddr::from([10, 0, 0, number]))).collect();
        assert_eq!(many.len(), 32);
    }
}
