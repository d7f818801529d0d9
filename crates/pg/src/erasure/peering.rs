//! Peering of an erasure-coded PG. A write that is on enough electors to rebuild the shards of all others
//! is rolled forward: it may have been acknowledged. What fewer have cannot be given to the others and was
//! never acknowledged, because that takes all members: it is rolled back. So is what an elector lacks that
//! has run since before the write: it knows that it has not acknowledged it.

use atoll_types::{OsdId, Version};

use crate::config::Configuration;
use crate::invariants;
use crate::peering::{Next, Peering};

impl Peering {
    /// A member that has more than enough electors have rolls that back; a member that has less catches
    /// up.
    pub fn compare_shards(&self, own_head: Version, config: &Configuration) -> Next {
        let heads: Vec<(OsdId, Version)> = self.heads().chain([(config.me, own_head)]).collect();
        let electors: Vec<(OsdId, Version)> =
            heads.iter().copied().filter(|(osd, _)| config.electors().contains(osd)).collect();
        let Some(reached) = newest_of_enough(&electors, config) else { return Next::Wait };
        let of_witnesses = electors.iter().filter(|(osd, _)| self.witnesses.contains(osd));
        let head = of_witnesses.map(|(_, head)| *head).min().map_or(reached, |least| least.min(reached));
        invariants::committed_writes_stay(self.committed_sequence, head);
        if own_head < head {
            let ahead = electors.iter().find(|(_, other)| *other >= head);
            let (elector, _) = ahead.expect("enough electors have it");
            return Next::HandOver { to: *elector };
        }
        if own_head > head {
            // Writes that were submitted and do not show yet are rolled back, too, when they show.
            return Next::RollBack { members: vec![config.me], head };
        }
        let ahead = heads.iter().filter(|(_, other)| *other > head);
        let members: Vec<OsdId> = ahead.map(|(osd, _)| *osd).collect();
        if members.is_empty() { self.next_to_catch_up(head) } else { Next::RollBack { members, head } }
    }
}

/// The newest head that electors with enough different shards have reached. `None` if all of them
/// together hold too few.
fn newest_of_enough(electors: &[(OsdId, Version)], config: &Configuration) -> Option<Version> {
    let has_enough = |head: &Version| {
        let reached = electors.iter().filter(|(_, other)| other >= head).map(|(osd, _)| osd);
        config.copies_on(reached) >= config.copies_needed()
    };
    electors.iter().map(|(_, head)| *head).filter(has_enough).max()
}
