//! When leases run out. The terms live in memory only: after a restart every lease gets its whole
//! term again, as in etcd, since its holder may have been keeping it alive all the while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::limits;
use super::state::State;

/// The ends of all terms.
#[derive(Debug, Default)]
pub struct LeaseClock {
    ends: HashMap<i64, Instant>,
    last_tick: Option<Instant>,
}

impl LeaseClock {
    /// Begins a whole term.
    pub fn start(&mut self, id: i64, seconds: i64, now: Instant) {
        self.ends.insert(id, now + term(seconds));
    }

    /// Begins a new term unless the last one is over. An expired lease never comes back: its keys
    /// may be on their way out.
    pub fn renew(&mut self, id: i64, seconds: i64, now: Instant) -> bool {
        let end = self.ends.entry(id).or_insert_with(|| now + term(seconds));
        if *end <= now {
            return false;
        }
        *end = now + term(seconds);
        true
    }

    /// Time left.
    pub fn left(&self, id: i64, now: Instant) -> Option<Duration> {
        self.ends.get(&id).map(|end| end.saturating_duration_since(now))
    }

    /// Brings the table in line with the leases that exist and returns those to revoke.
    pub fn tick(&mut self, state: &State, now: Instant) -> Vec<i64> {
        // If this process itself was held up, its leases' holders could not reach it meanwhile.
        let late =
            self.last_tick.map_or(Duration::ZERO, |last| (now - last).saturating_sub(limits::LEASE_TICK * 4));
        self.last_tick = Some(now);
        self.ends.retain(|id, _| state.leases.contains_key(id));
        let mut expired = Vec::new();
        for (id, lease) in &state.leases {
            let end = self.ends.entry(*id).or_insert_with(|| now + term(lease.granted_seconds));
            *end += late;
            if *end <= now {
                expired.push(*id);
            }
        }
        expired
    }
}

fn term(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::change::Change;

    #[test]
    fn an_expired_lease_cannot_be_renewed() {
        let mut change = Change::begin(&State::new());
        change.grant_lease(7, 5, None).unwrap();
        let state = change.finish().state;
        let mut clock = LeaseClock::default();
        let start = Instant::now();
        let at = |tenths: u64| start + Duration::from_millis(tenths * 100);
        assert!(clock.tick(&state, start).is_empty());
        assert!(clock.renew(7, 5, at(10)));
        assert!(!clock.renew(7, 5, at(60)));
        for tenths in (2..60).step_by(2) {
            assert!(clock.tick(&state, at(tenths)).is_empty());
        }
        assert_eq!(clock.tick(&state, at(61)), vec![7]);
    }

    #[test]
    fn a_stalled_server_does_not_expire_leases() {
        let mut change = Change::begin(&State::new());
        change.grant_lease(7, 5, None).unwrap();
        let state = change.finish().state;
        let mut clock = LeaseClock::default();
        let start = Instant::now();
        clock.tick(&state, start);
        assert!(clock.tick(&state, start + Duration::from_secs(100)).is_empty());
    }
}
