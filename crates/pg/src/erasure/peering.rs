//! Peering of an erasure-coded PG. All electors have every acknowledged write. A write that an
//! elector lacks was not acknowledged, and the others may have too few shards of it to give it to
//! that one: so it is rolled back. A write that all electors have stays.

use atoll_types::{OsdId, Version};

use crate::config::Configuration;
use crate::peering::{Next, Peering};

impl Peering {
    /// A member that has more than some elector rolls that back; a member that was no elector and
    /// has less is backfilled.
    pub fn compare_shards(&self, own_head: Version, config: &Configuration) -> Next {
        let heads: Vec<(OsdId, Version)> = self.heads().chain([(config.me, own_head)]).collect();
        let mut of_electors = heads.iter().filter(|(osd, _)| config.electors().contains(osd));
        let Some(head) = of_electors.clone().map(|(_, head)| *head).min() else { return Next::Wait };
        if own_head < head {
            let (elector, _) = of_electors.next().expect("there is one");
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
