//! Scrubs: now and then during a run, and once at its end, when copies have rotted in many ways.
//! The last scrub must find and repair all of that.

use std::collections::{BTreeMap, BTreeSet};

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{Pg, PgState, ScrubReport};
use atoll_types::{Epoch, Mutation, ObjectName, PgId, Transaction, Version};
use atoll_wire::{ScrubFinding, ShardOf};
use bytes::Bytes;

use crate::check::check_copies;
use crate::state::{Object, name, pg_of};
use crate::store::Store;
use crate::world::World;

/// The progress of the last scrub.
#[derive(Default)]
pub struct LastScrub {
    /// The number of objects with a rotten copy.
    rotten: u64,
    reports: BTreeMap<PgId, ScrubReport>,
    /// PGs whose scrub has begun.
    begun: BTreeSet<PgId>,
}

impl World {
    /// Asks a PG for a scrub; one that does not serve ignores it.
    pub fn scrub(&mut self, pg: PgId, is_deep: bool) {
        let at = self.primary_of(pg);
        self.note("scrub", &[at as u64, is_deep.into()]);
        self.with_pg(at, pg, |pg, _| {
            pg.start_scrub(is_deep);
        });
    }

    pub fn scrub_done(&mut self, at: usize, pg: PgId, report: ScrubReport) {
        self.note("scrubbed", &[at as u64, report.objects, report.errors, report.repaired]);
        self.statistics.scrubs += 1;
        self.statistics.scrub_repairs += report.repaired;
        assert!(report.repaired <= report.errors && report.errors <= report.objects);
        match &mut self.last_scrub {
            Some(last) => drop(last.reports.insert(pg, report)),
            // Clones of damaged objects are damaged, too.
            None => assert!(report.errors == 0 || !self.damaged.is_empty(), "only damage is an error: {report:?}"),
        }
    }

    /// Lets copies rot, at most one of each object, and scrubs all PGs. True once that is done.
    pub fn scrub_is_over(&mut self) -> bool {
        let pgs = self.cluster.pgs();
        let primary_is = |world: &Self, pg: PgId, holds: fn(&Pg) -> bool| {
            world.members[world.primary_of(pg)].pgs.get(&pg).is_some_and(holds)
        };
        if self.last_scrub.is_none() {
            if !pgs.iter().all(|pg| primary_is(self, *pg, |pg| !pg.is_scrubbing())) {
                return false;
            }
            check_copies(self);
            let rotten = (0..self.options.objects + 1).filter(|index| self.rot(*index)).count() as u64;
            self.last_scrub = Some(LastScrub { rotten, ..LastScrub::default() });
        }
        let last = self.last_scrub.as_ref().expect("made above");
        if self.members.iter().any(|member| member.store.device.as_ref().is_some_and(|device| device.is_waiting()))
        {
            // What is to rot waits for the store.
            return false;
        }
        let missing = pgs.iter().find(|pg| !last.reports.contains_key(pg)).copied();
        if let Some(pg) = missing {
            if primary_is(self, pg, |pg| *pg.state() == PgState::Active && !pg.is_scrubbing()) {
                self.scrub(pg, true);
                let last = self.last_scrub.as_mut().expect("made above");
                if !last.begun.insert(pg) {
                    // A change of the configuration ended a scrub, which may have repaired some
                    // objects.
                    last.rotten = 0;
                }
            }
            return false;
        }
        let errors: u64 = last.reports.values().map(|report| report.errors).sum();
        let repaired: u64 = last.reports.values().map(|report| report.repaired).sum();
        assert!(errors >= last.rotten, "{} objects are rotten: {:?}", last.rotten, last.reports);
        assert_eq!(repaired, errors, "everything is repaired");
        for pg in pgs {
            for member in &self.cluster.of(pg).expect("it is listed").record.members {
                let store = &self.members[member.0 as usize - 1].store;
                assert!(store.damaged_objects(pg).is_empty(), "{member} has damaged blocks");
            }
        }
        true
    }

    /// Changes one copy of an object. False if nothing is changed.
    fn rot(&mut self, index: u64) -> bool {
        if self.random.chance(30) {
            return false;
        }
        let object = name(&format!("object{index}"));
        let pg = pg_of(&object, self.policy.pg_num);
        let members = &self.cluster.of(pg).expect("all PGs are clean").record.members;
        let chosen = members[self.random.below(members.len() as u64) as usize];
        let mut kind = self.random.below(6);
        if let Some(shape) = self.options.shape {
            // Shards have no omap. Parity shows wrong data that the store does not notice, and a
            // second parity shard tells which shard is wrong.
            kind = match kind {
                1 if shape.parity > 1 => 6,
                1 | 5 => 2,
                kind => kind,
            };
        }
        // A block may be bad on one member already. If another copy rotted, too, there might be no
        // good one left.
        let is_damaged = |member: &atoll_types::OsdId| {
            self.members[member.0 as usize - 1].store.damaged_objects(pg).contains(&&object)
        };
        if members.iter().any(|member| *member != chosen && is_damaged(member)) {
            return false;
        }
        self.note("rot", &[chosen.0.into(), index, kind]);
        let at = chosen.0 as usize - 1;
        let store = &mut self.members[at].store;
        if kind == 0 {
            let blocks: Vec<u32> =
                store.visible.of(pg).objects.get(&object).into_iter().flat_map(Object::block_numbers).collect();
            store.bad.extend(blocks.iter().map(|block| (object.clone(), *block)));
            return !blocks.is_empty();
        }
        let (mutations, payload) = rot(store.visible.of(pg).objects.get(&object), kind);
        let (payload, log) = (payload.into(), Vec::new());
        self.change_copy(at, Transaction { pg, object, mutations, payload, payload_sealed: false, log });
        true
    }
}

/// Returns the change that makes a copy of an object differ.
fn rot(found: Option<&Object>, kind: u64) -> (Vec<Mutation>, Vec<u8>) {
    let block_bytes = BLOCK_BYTES as u64;
    let version = |version| (vec![Mutation::SetVersion { version }], Vec::new());
    let longer_from = |size: u64| {
        let offset = size.next_multiple_of(block_bytes);
        let write = Mutation::Write { offset, length: BLOCK_BYTES as u32, seals: None };
        (vec![write, Mutation::Zero { offset, length: block_bytes }], vec![0; BLOCK_BYTES])
    };
    // An object appears that does not exist.
    let Some(found) = found else { return longer_from(0) };
    match (kind, found.blocks.keys().next(), found.omap.keys().next()) {
        (1, ..) => (vec![Mutation::OmapSet { key: Bytes::from_static(b"rot"), value: Bytes::new() }], Vec::new()),
        (2, ..) => version(Version { epoch: Epoch(1), sequence: 1 << 40 }),
        (3, ..) if found.seal_shape.is_none() => longer_from(found.size),
        (4, ..) => (vec![Mutation::Remove], Vec::new()),
        (6, Some(block), _) if found.seal_shape.is_none() => {
            let offset = u64::from(*block) * block_bytes;
            let write = Mutation::Write { offset, length: BLOCK_BYTES as u32, seals: None };
            (vec![write], vec![0xbd; BLOCK_BYTES])
        }
        (5, _, Some(key)) => (vec![Mutation::OmapRemove { key: key.clone() }], Vec::new()),
        _ => version(Version::default()),
    }
}

impl Store {
    /// Examines a copy of an object.
    pub fn scrub(&self, pg: PgId, object: &ObjectName, deep: bool) -> ScrubFinding {
        let Some(found) = self.visible.of(pg).objects.get(object) else { return ScrubFinding::Absent };
        let bad = found.block_numbers().filter(|block| deep && self.is_bad(pg, object, *block));
        ScrubFinding::Present {
            version: found.version,
            size_bytes: found.size,
            digest: found.digest(),
            bad_block_count: bad.count() as u32,
            shard_of: found.whole_size.map(|object_bytes| ShardOf {
                object_bytes,
                seal_unit_bytes: 0,
                seal_bytes: 0,
            }),
        }
    }

    /// Objects with a damaged block.
    pub fn damaged_objects(&self, pg: PgId) -> Vec<&ObjectName> {
        let damaged = self.bad.iter().filter(|(object, block)| self.is_bad(pg, object, *block));
        damaged.map(|(object, _)| object).collect()
    }
}

impl Object {
    fn block_numbers(&self) -> impl Iterator<Item = u32> {
        self.blocks.keys().copied()
    }

    fn digest(&self) -> u64 {
        let mut bytes = self.data(0, self.size).to_vec();
        for (key, value) in &self.omap {
            bytes.extend([key, &b"="[..], value, b"\0"].concat());
        }
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
    }
}
