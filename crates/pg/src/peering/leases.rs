//! Read leases between OSDs. A primary answers reads only while it holds a lease of every other
//! member: that member helps no other primary before the lease has run out. One lease covers all
//! PGs of two OSDs, and the pings between them renew it. Each OSD uses its own monotonic clock:
//! only the rates of two clocks are compared, never their readings.

use std::collections::BTreeMap;

use atoll_types::OsdId;

use crate::invariants;

/// For how long a lease binds the OSD that granted it, from its answer to the ping.
const GRANTED_MS: u64 = 1_000;
/// For how long the holder relies on it, from when it sent the ping. The difference allows for
/// clocks whose rates differ by a tenth.
const HELD_MS: u64 = 900;

/// How often an OSD should ask its peers for leases, in milliseconds.
pub const LEASE_RENEWAL_MS: u64 = 200;

/// The leases that one OSD has granted and holds.
pub struct Leases {
    /// Leases granted before this process started are not known. They have run out by then.
    floor_ms: u64,
    granted_until_ms: BTreeMap<OsdId, u64>,
    held_until_ms: BTreeMap<OsdId, u64>,
    /// When this OSD's clock was found to have stood still. Earlier requests are no longer relied on.
    stood_still_ms: Option<u64>,
}

impl Leases {
    /// The leases of a process that starts now.
    pub fn new(now_ms: u64) -> Self {
        invariants::lease_binds_longer_than_it_is_relied_on(GRANTED_MS, HELD_MS);
        let (granted_until_ms, held_until_ms) = (BTreeMap::new(), BTreeMap::new());
        Leases { floor_ms: now_ms + GRANTED_MS, granted_until_ms, held_until_ms, stood_still_ms: None }
    }

    /// A ping of a peer is answered now. All messages of PGs to that peer must have been sent
    /// before.
    pub fn granted(&mut self, peer: OsdId, now_ms: u64) {
        self.granted_until_ms.insert(peer, now_ms + GRANTED_MS);
    }

    /// The answer to a ping that was sent at `sent_ms` has come. True if there was no lease.
    pub fn renewed(&mut self, peer: OsdId, sent_ms: u64, now_ms: u64) -> bool {
        if self.stood_still_ms.is_some_and(|stood_still_ms| sent_ms <= stood_still_ms) {
            // Nobody knows how long ago the ping was sent.
            return false;
        }
        let until_ms = sent_ms.min(now_ms) + HELD_MS;
        let held = self.held_until_ms.entry(peer).or_default();
        let had_lapsed = *held <= now_ms;
        *held = until_ms.max(*held);
        had_lapsed
    }

    /// This OSD's clock stood still for a while, as that of a paused virtual machine does: the age of the leases
    /// that it holds is unknown. Those that it has granted bind it for longer, which does no harm.
    pub fn clock_stood_still(&mut self, now_ms: u64) {
        self.held_until_ms.clear();
        self.stood_still_ms = Some(now_ms);
    }

    /// The connection to a peer is lost: its word that it is fenced may not reach this OSD.
    pub fn disconnected(&mut self, peer: OsdId) {
        self.held_until_ms.remove(&peer);
    }

    /// Until when a peer's lease binds it to this OSD.
    pub fn held_until_ms(&self, peer: OsdId) -> u64 {
        self.held_until_ms.get(&peer).copied().unwrap_or(0)
    }

    /// Until when this OSD's lease binds it to a peer. Without a peer: until when leases may bind
    /// it that it granted before it started.
    pub fn granted_until_ms(&self, peer: Option<OsdId>) -> u64 {
        let granted = peer.and_then(|peer| self.granted_until_ms.get(&peer)).copied().unwrap_or(0);
        granted.max(self.floor_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_relied_on_for_less_than_it_binds() {
        let (mut holder, mut granter) = (Leases::new(0), Leases::new(0));
        let peer = OsdId(1);
        granter.granted(peer, 5_010);
        holder.renewed(peer, 5_000, 5_020);
        assert!(holder.held_until_ms(peer) < granter.granted_until_ms(Some(peer)));
        // A late answer does not shorten the lease, and an absurd time does not stretch it.
        holder.renewed(peer, 4_000, 5_030);
        holder.renewed(peer, u64::MAX, 5_030);
        assert_eq!(holder.held_until_ms(peer), 5_030 + HELD_MS);
        holder.disconnected(peer);
        assert_eq!(holder.held_until_ms(peer), 0);
        holder.renewed(peer, 5_100, 5_110);
        holder.clock_stood_still(5_120);
        assert_eq!(holder.held_until_ms(peer), 0);
        assert!(!holder.renewed(peer, 5_115, 5_130), "it was sent before");
        assert_eq!(holder.held_until_ms(peer), 0);
        assert!(holder.renewed(peer, 5_125, 5_130));
        assert_eq!(holder.held_until_ms(peer), 5_125 + HELD_MS);
        assert_eq!(Leases::new(7).granted_until_ms(None), 7 + GRANTED_MS);
    }
}
