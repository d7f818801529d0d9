//! Peering of an erasure-coded PG. A write that is on enough electors to rebuild the shards of all others is
//! rolled forward: it may have been acknowledged. A write on fewer electors cannot be given to the others and was
//! never acknowledged, because that takes all members: it is rolled back. So is a write that is missing on an
//! elector that has run since before it: this elector has not acknowledged it.

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
    // Another write in the same place is another history: a device that forgets a roll back has a write again that the
    // others have replaced.
    let has_reached =
        |other: &Version, head: &Version| other == head || other > head && other.sequence > head.sequence;
    let has_enough = |head: &Version| {
        let reached = electors.iter().filter(|(_, other)| has_reached(other, head)).map(|(osd, _)| osd);
        config.copies_on(reached) >= config.copies_needed()
    };
    electors.iter().map(|(_, head)| *head).filter(has_enough).max()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use atoll_types::records::{PgRecord, RECORD_FORMAT};
    use atoll_types::{Epoch, PgId, PoolId};

    use super::*;
    use crate::backfill::Answer;
    use crate::config::{CodeShape, PgState, PoolPolicy};
    use crate::replication::log::Log;

    fn version(sequence: u64) -> Version {
        Version { epoch: Epoch(3), sequence }
    }

    /// Three members with a shard each; the last is no elector.
    fn config() -> Configuration {
        let members: Vec<OsdId> = (1..=4).map(OsdId).collect();
        let record = PgRecord {
            format: RECORD_FORMAT,
            epoch: Epoch(5),
            primary: members[0],
            last_active_members: members[..3].to_vec(),
            activated_epoch: Epoch(3),
            pg_num: 0,
            shards: vec![0, 1, 2, 3],
            last_active_shards: vec![0, 1, 2],
            accepted: None,
            members,
        };
        let shape = Some(CodeShape { data: 2, parity: 2, chunk_bytes: 4096 });
        let policy = PoolPolicy { pg_num: 1, pg_num_first: 1, size: 4, min_size: 3, may_backfill: true, shape };
        let id = PgId { pool: PoolId(1), index: 0 };
        let (target, state) = (record.members.clone(), PgState::Peering);
        Configuration { id, me: OsdId(1), policy, target, state, record, pg_num_noted: 0, elsewhere: Epoch(0) }
    }

    /// A device forgets that it has rolled a write back. It is the only one that has it: the others have another
    /// write in its place, on too few of them, and all return to the state before.
    #[test]
    fn a_write_in_the_place_of_another_is_another_one() {
        let (config, mut peering) = (config(), Peering::default());
        let at = |epoch, sequence| Version { epoch: Epoch(epoch), sequence };
        let own = at(3, 62);
        for (osd, head) in [(2, at(4, 63)), (3, at(3, 63)), (4, at(3, 62))] {
            let answer = Answer {
                head,
                committed_sequence: 61,
                since_epoch: Epoch(5),
                is_complete: true,
                log: Vec::new(),
                shard: Some(osd as u8 - 1),
                unreadable: None,
                elsewhere: Epoch(0),
            };
            peering.note(OsdId(osd), &answer, &config);
        }
        let Next::RollBack { members, head } = peering.compare_shards(own, &config) else {
            panic!("they roll back")
        };
        assert_eq!((members, head), (vec![OsdId(2), OsdId(3)], own));
    }

    /// In any state and with any messages of members, also of one that is no elector: a write that one of them
    /// knows to be committed is not rolled back, which is asserted, and no elector without it counts.
    #[test]
    fn what_anybody_knows_to_be_committed_stays() {
        let config = config();
        let mut decided = BTreeSet::new();
        for case in 0..4_u64.pow(4) * 4_u64.pow(3) * 8 {
            let digit = |place: u32| case / 4_u64.pow(place) % 4;
            let own = version(digit(0));
            let log = Log::new(own, &[]);
            let mut peering = Peering::default();
            for other in 1..4 {
                let answer = Answer {
                    head: version(digit(other)),
                    committed_sequence: digit(3 + other),
                    since_epoch: if case >> (14 + other - 1) & 1 == 1 { Epoch(3) } else { Epoch(4) },
                    is_complete: true,
                    log: Vec::new(),
                    shard: Some(other as u8),
                    unreadable: None,
                    elsewhere: Epoch(0),
                };
                peering.note(OsdId(other + 1), &answer, &config);
            }
            let next = peering.without_committed(own, &log, &config);
            let next = next.unwrap_or_else(|| peering.compare_shards(own, &config));
            decided.insert(match next {
                Next::LeaveOut { .. } => "left out",
                Next::HandOver { .. } => "handed over",
                Next::RollBack { .. } => "rolled back",
                Next::CatchUp { .. } => "caught up",
                Next::Activate => "active",
                Next::Wait => "waiting",
            });
        }
        let all = ["active", "caught up", "handed over", "left out", "rolled back"];
        assert_eq!(decided, BTreeSet::from(all));
    }
}
