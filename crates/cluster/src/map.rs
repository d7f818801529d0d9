//! The cluster map: the records that routing, PGs and access control follow.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::coordination::SettingsRecord;
use atoll_types::frames::FramesRecord;
use atoll_types::limits::PG_NUM_MAX;
use atoll_types::record_json::read_record;
use atoll_types::records::{
    AuthorizedKeyRecord, FlagsRecord, OsdRecord, OsdUpRecord, PeerRole, PgRecord, PgScrubRecord, PgTargetRecord,
    PoolRecord, ScrubRequestRecord,
};
use atoll_types::{ObjectName, OsdId, PgId, PoolId};
use serde::de::DeserializeOwned;

use crate::keys;

/// A PG's record and the revision at which it was written, for compare-and-swap.
pub type PgEntry = (PgRecord, i64);

/// The records as they were at some moment.
#[derive(Clone, Debug, Default)]
pub struct ClusterMap {
    /// All OSDs.
    pub osds: BTreeMap<OsdId, OsdRecord>,
    /// Running OSDs.
    pub up: BTreeMap<OsdId, OsdUpRecord>,
    /// All pools.
    pub pools: BTreeMap<PoolId, PoolRecord>,
    /// Pools that were removed; their numbers are not given again.
    pub removed_pools: BTreeSet<PoolId>,
    /// The configurations of all PGs.
    pub pgs: BTreeMap<PgId, PgEntry>,
    /// Where the balancer wants PGs, if not where the CRUSH tree puts them.
    pub pg_targets: BTreeMap<PgId, PgTargetRecord>,
    /// Results of PGs' last scrubs.
    pub pg_scrubs: BTreeMap<PgId, PgScrubRecord>,
    /// Scrubs that operators have asked for, and the revisions of the requests.
    pub scrub_requests: BTreeMap<PgId, (ScrubRequestRecord, i64)>,
    /// Actions that operators have suspended.
    pub flags: FlagsRecord,
    /// How frames are protected on new connections.
    pub frames: FramesRecord,
    /// Settings of operators for the whole cluster.
    pub settings: SettingsRecord,
    /// The static keys that may connect to OSDs, by their hexadecimal.
    pub authorized_keys: BTreeMap<String, AuthorizedKeyRecord>,
    /// Keys of PGs' records and targets whose last change was refused, with the revision that is stored there; 0 if the key
    /// is gone. This map has the state before such a change.
    pub refused: BTreeMap<String, i64>,
}

/// One change of the map.
#[derive(Clone, Debug)]
pub enum MapChange {
    /// An OSD's record; `None` when it was removed.
    Osd(OsdId, Option<OsdRecord>),
    /// An OSD's presence; `None` when it went away.
    Up(OsdId, Option<OsdUpRecord>),
    /// A pool; `None` when it was removed.
    Pool(PoolId, Option<PoolRecord>),
    /// A pool that was removed, for ever.
    RemovedPool(PoolId),
    /// A PG's configuration; `None` when its pool was removed.
    Pg(PgId, Option<PgEntry>),
    /// Where the balancer wants a PG; `None` when the CRUSH tree decides again.
    PgTarget(PgId, Option<PgTargetRecord>),
    /// Result of the last scrub of a PG.
    PgScrub(PgId, Option<PgScrubRecord>),
    /// A scrub that an operator has asked for; `None` when it is done.
    ScrubRequest(PgId, Option<(ScrubRequestRecord, i64)>),
    /// The flags.
    Flags(FlagsRecord),
    /// How frames are protected.
    Frames(FramesRecord),
    /// Settings of the whole cluster.
    Settings(SettingsRecord),
    /// An authorised key; `None` when it was revoked.
    AuthorizedKey(String, Option<AuthorizedKeyRecord>),
    /// A change of a PG that does not count.
    Refused(RefusedChange),
}

/// A change of a PG's record or target by a process that may not make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedChange {
    /// The key.
    pub key: String,
    /// The revision that stands there; 0 if the key is gone.
    pub revision: i64,
    /// Why it does not count.
    pub cause: String,
}

fn parse<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    match read_record(value) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::warn!("ignoring the record {key} in cluster state, which cannot be read: {error}");
            None
        }
    }
}

/// The change that a key's new value means; `None` for keys that the map does not hold and for
/// records that cannot be read.
pub(crate) fn change(key: &str, value: Option<(&[u8], i64)>) -> Option<MapChange> {
    fn record<T: DeserializeOwned>(key: &str, value: Option<(&[u8], i64)>) -> Option<Option<T>> {
        match value {
            None => Some(None),
            Some((bytes, _)) => parse(key, bytes).map(Some),
        }
    }
    if key.starts_with(keys::OSDS) {
        Some(MapChange::Osd(keys::parse_osd(key)?, record(key, value)?))
    } else if key.starts_with(keys::OSD_UP) {
        Some(MapChange::Up(keys::parse_osd(key)?, record(key, value)?))
    } else if let Some(id) = key.strip_prefix(keys::POOLS) {
        Some(MapChange::Pool(PoolId(id.parse().ok()?), record(key, value)?))
    } else if let Some(id) = key.strip_prefix(keys::REMOVED_POOLS) {
        // Data is deleted by it: one that is refused, or reserved, says nothing.
        let _: PoolRecord = record(key, value)??;
        Some(MapChange::RemovedPool(PoolId(id.parse().ok()?)))
    } else if let Some(id) = keys::parse_pg(key) {
        let revision = value.map_or(0, |(_, revision)| revision);
        let entry: Option<PgRecord> = record(key, value)?;
        Some(MapChange::Pg(id, entry.map(|record| (record, revision))))
    } else if let Some(id) = keys::parse_pg_target(key) {
        Some(MapChange::PgTarget(id, record(key, value)?))
    } else if let Some(id) = key.strip_prefix(keys::PG_SCRUBS) {
        Some(MapChange::PgScrub(id.parse().ok()?, record(key, value)?))
    } else if let Some(id) = key.strip_prefix(keys::SCRUB_REQUESTS) {
        let revision = value.map_or(0, |(_, revision)| revision);
        let request: Option<ScrubRequestRecord> = record(key, value)?;
        Some(MapChange::ScrubRequest(id.parse().ok()?, request.map(|request| (request, revision))))
    } else if key == keys::FLAGS {
        let flags: Option<FlagsRecord> = record(key, value)?;
        Some(MapChange::Flags(flags.unwrap_or_default()))
    } else if key == keys::SETTINGS {
        let settings: Option<SettingsRecord> = record(key, value)?;
        Some(MapChange::Settings(settings.unwrap_or_default()))
    } else if key == keys::FRAMES {
        let frames: Option<FramesRecord> = record(key, value)?;
        Some(MapChange::Frames(frames.unwrap_or_default()))
    } else {
        let key_name = key.strip_prefix(keys::AUTHORIZED_KEYS)?;
        Some(MapChange::AuthorizedKey(key_name.to_owned(), record(key, value)?))
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

impl ClusterMap {
    pub(crate) fn from_entries(entries: &[(String, Vec<u8>, i64)]) -> Self {
        let mut map = ClusterMap::default();
        for (key, value, revision) in entries {
            if let Some(change) = change(key, Some((value, *revision))) {
                map.apply(change);
            }
        }
        map
    }

    /// Returns this map with a range of keys read again. A record that is there and cannot be read was not removed:
    /// it stays as it was, as it does when it changes.
    pub(crate) fn with_range_again(&self, range: &str, entries: &[(String, Vec<u8>, i64)]) -> ClusterMap {
        let mut newer = ClusterMap::default();
        for (key, value, revision) in entries {
            let found = change(key, Some((value, *revision)));
            if let Some(found) = found.or_else(|| self.present(change(key, None)?)) {
                newer.apply(found);
            }
        }
        self.with_range(range, newer)
    }

    /// Returns the record that a change would remove, if it is there.
    fn present(&self, removal: MapChange) -> Option<MapChange> {
        Some(match removal {
            MapChange::Osd(id, _) => MapChange::Osd(id, Some(self.osds.get(&id)?.clone())),
            MapChange::Up(id, _) => MapChange::Up(id, Some(self.up.get(&id)?.clone())),
            MapChange::Pool(id, _) => MapChange::Pool(id, Some(self.pools.get(&id)?.clone())),
            MapChange::RemovedPool(id) => MapChange::RemovedPool(*self.removed_pools.get(&id)?),
            MapChange::Pg(id, _) => MapChange::Pg(id, Some(self.pgs.get(&id)?.clone())),
            MapChange::PgTarget(id, _) => MapChange::PgTarget(id, Some(self.pg_targets.get(&id)?.clone())),
            MapChange::PgScrub(id, _) => MapChange::PgScrub(id, Some(self.pg_scrubs.get(&id)?.clone())),
            MapChange::ScrubRequest(id, _) => {
                MapChange::ScrubRequest(id, Some(self.scrub_requests.get(&id)?.clone()))
            }
            MapChange::Flags(_) => MapChange::Flags(self.flags.clone()),
            MapChange::Frames(_) => MapChange::Frames(self.frames),
            MapChange::Settings(_) => MapChange::Settings(self.settings.clone()),
            MapChange::AuthorizedKey(key, _) => {
                let record = self.authorized_keys.get(&key)?.clone();
                MapChange::AuthorizedKey(key, Some(record))
            }
            // No removal of a key is one.
            MapChange::Refused(_) => return None,
        })
    }

    /// Applies a change.
    pub fn apply(&mut self, change: MapChange) {
        match change {
            MapChange::Osd(id, record) => set(&mut self.osds, id, record),
            MapChange::Up(id, record) => set(&mut self.up, id, record),
            MapChange::Pool(id, record) => set(&mut self.pools, id, record),
            MapChange::RemovedPool(id) => drop(self.removed_pools.insert(id)),
            MapChange::Pg(id, entry) => {
                self.refused.remove(&keys::pg(id));
                set(&mut self.pgs, id, entry);
            }
            MapChange::PgTarget(id, record) => {
                self.refused.remove(&keys::pg_target(id));
                set(&mut self.pg_targets, id, record);
            }
            MapChange::PgScrub(id, record) => set(&mut self.pg_scrubs, id, record),
            MapChange::ScrubRequest(id, request) => set(&mut self.scrub_requests, id, request),
            MapChange::Flags(flags) => self.flags = flags,
            MapChange::Frames(frames) => self.frames = frames,
            MapChange::Settings(settings) => self.settings = settings,
            MapChange::AuthorizedKey(key, record) => set(&mut self.authorized_keys, key, record),
            MapChange::Refused(change) => self.refuse(change),
        }
    }

    /// Keeps the state before a change. The next change replaces the stored one.
    fn refuse(&mut self, change: RefusedChange) {
        let entry = keys::parse_pg(&change.key).and_then(|pg| self.pgs.get_mut(&pg));
        if let Some((_, revision)) = entry {
            *revision = change.revision;
        }
        self.refused.insert(change.key, change.revision);
    }

    /// Returns true if a key, in hexadecimal, is that of this OSD and was not revoked.
    pub fn is_key_of(&self, osd: OsdId, key: &str) -> bool {
        self.authorized_keys.get(key).is_some_and(|record| record.role == PeerRole::Osd && record.osd == Some(osd))
    }

    /// The pool's number of PGs after all splits, of its record or so far. It is more than that of the pool's
    /// record if cluster state was put back from a snapshot that is older than the last split.
    pub fn pg_num(&self, pool: &PoolRecord) -> u32 {
        let all = PgId { pool: pool.id, index: 0 }..PgId { pool: pool.id, index: PG_NUM_MAX };
        let last = self.pgs.range(all).next_back();
        last.map_or(pool.pg_num, |(pg, _)| pool.pg_num.max((pg.index + 1).next_power_of_two()))
    }

    /// The PG of an object.
    pub fn pg_of_object(&self, pool: &PoolRecord, object: &ObjectName) -> PgId {
        pool.pg_of_object(object, self.pg_num(pool), |pg| self.pgs.contains_key(&pg))
    }

    /// The changes that lead from nothing to this map.
    pub fn into_changes(self) -> Vec<MapChange> {
        ClusterMap::default().changes_to(self)
    }

    /// This map with all of one range of keys from another map.
    pub(crate) fn with_range(&self, range: &str, other: ClusterMap) -> ClusterMap {
        let mut map = self.clone();
        match range {
            keys::OSDS_TO_POOLS => {
                let ClusterMap { osds, up, pools, pgs, pg_targets, pg_scrubs, refused, .. } = other;
                map = ClusterMap { osds, up, pools, pgs, pg_targets, pg_scrubs, refused, ..map };
            }
            keys::REMOVED_POOLS => map.removed_pools = other.removed_pools,
            keys::AUTHORIZED_KEYS => map.authorized_keys = other.authorized_keys,
            _ if keys::FLAGS.starts_with(range) => (map.flags, map.frames) = (other.flags, other.frames),
            _ => (map.settings, map.scrub_requests) = (other.settings, other.scrub_requests),
        }
        map
    }

    /// The changes that lead from this map to `newer`.
    pub(crate) fn changes_to(&self, newer: ClusterMap) -> Vec<MapChange> {
        fn gone<K: Ord + Clone, V>(old: &BTreeMap<K, V>, new: &BTreeMap<K, V>) -> Vec<K> {
            old.keys().filter(|key| !new.contains_key(key)).cloned().collect()
        }
        let mut changes = Vec::new();
        changes.extend(gone(&self.osds, &newer.osds).into_iter().map(|id| MapChange::Osd(id, None)));
        changes.extend(gone(&self.up, &newer.up).into_iter().map(|id| MapChange::Up(id, None)));
        changes.extend(gone(&self.pools, &newer.pools).into_iter().map(|id| MapChange::Pool(id, None)));
        changes.extend(gone(&self.pgs, &newer.pgs).into_iter().map(|id| MapChange::Pg(id, None)));
        changes
            .extend(gone(&self.pg_targets, &newer.pg_targets).into_iter().map(|id| MapChange::PgTarget(id, None)));
        changes.extend(gone(&self.pg_scrubs, &newer.pg_scrubs).into_iter().map(|id| MapChange::PgScrub(id, None)));
        let done = gone(&self.scrub_requests, &newer.scrub_requests);
        changes.extend(done.into_iter().map(|id| MapChange::ScrubRequest(id, None)));
        let revoked = gone(&self.authorized_keys, &newer.authorized_keys);
        changes.extend(revoked.into_iter().map(|key| MapChange::AuthorizedKey(key, None)));
        // Before the OSDs that are up, to which connections are made at once.
        changes.push(MapChange::Frames(newer.frames));
        changes.push(MapChange::Settings(newer.settings));
        let keys = newer.authorized_keys.into_iter();
        changes.extend(keys.map(|(key, record)| MapChange::AuthorizedKey(key, Some(record))));
        changes.extend(newer.osds.into_iter().map(|(id, record)| MapChange::Osd(id, Some(record))));
        changes.extend(newer.up.into_iter().map(|(id, record)| MapChange::Up(id, Some(record))));
        changes.extend(newer.pools.into_iter().map(|(id, record)| MapChange::Pool(id, Some(record))));
        let removed = newer.removed_pools.into_iter().filter(|id| !self.removed_pools.contains(id));
        changes.extend(removed.map(MapChange::RemovedPool));
        changes.extend(newer.pgs.into_iter().map(|(id, entry)| MapChange::Pg(id, Some(entry))));
        changes.extend(newer.pg_targets.into_iter().map(|(id, record)| MapChange::PgTarget(id, Some(record))));
        changes.extend(newer.pg_scrubs.into_iter().map(|(id, record)| MapChange::PgScrub(id, Some(record))));
        let requests = newer.scrub_requests.into_iter();
        changes.extend(requests.map(|(id, request)| MapChange::ScrubRequest(id, Some(request))));
        changes.push(MapChange::Flags(newer.flags));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_lead_from_one_map_to_another() {
        let key = |name: &str| AuthorizedKeyRecord {
            format: 1,
            role: atoll_types::records::PeerRole::Client,
            osd: None,
            name: name.into(),
        };
        let (mut old, mut new) = (ClusterMap::default(), ClusterMap::default());
        old.authorized_keys.insert("aa".into(), key("revoked"));
        new.authorized_keys.insert("bb".into(), key("added"));
        for change in old.changes_to(new.clone()) {
            old.apply(change);
        }
        assert_eq!(old.authorized_keys, new.authorized_keys);
    }

    /// A key of any kind is in one range, and reading one range again leaves the others unchanged.
    #[test]
    fn ranges_make_the_map() {
        let kinds = [
            keys::OSDS,
            keys::OSD_UP,
            keys::POOLS,
            keys::REMOVED_POOLS,
            keys::PGS,
            keys::PG_TARGETS,
            keys::PG_SCRUBS,
            keys::SCRUB_REQUESTS,
            keys::FLAGS,
            keys::FRAMES,
            keys::SETTINGS,
            keys::AUTHORIZED_KEYS,
        ];
        let is_in = |key: &str, range: &str| range <= key && key.as_bytes() < keys::range_end(range).as_slice();
        for key in kinds {
            assert_eq!(keys::MAP_RANGES.iter().filter(|range| is_in(key, range)).count(), 1, "{key}");
        }
        let mut map = ClusterMap::default();
        map.removed_pools.insert(PoolId(1));
        map.flags.format = 7;
        map.settings.format = 8;
        let resynced = keys::MAP_RANGES.map(|range| map.with_range(range, ClusterMap::default()));
        let kept = |map: &ClusterMap| (map.removed_pools.len(), map.flags.format, map.settings.format);
        let (flags, settings) = (FlagsRecord::default().format, SettingsRecord::default().format);
        let expected = [(1, 7, 8), (0, 7, 8), (1, 7, settings), (1, flags, 8), (1, 7, 8)];
        assert_eq!(resynced.each_ref().map(kept), expected);
    }

    /// It would count as removed: a pool with data in it, or the key of an OSD.
    #[test]
    fn a_record_that_cannot_be_read_again_stays_as_it_was() {
        let entry = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec(), 5);
        let key = r#"{"format":1,"role":"osd","osd":3,"name":"osd.3"}"#;
        let request = r#"{"format":1,"is_deep":true,"requested_unix_ms":7}"#;
        let target = r#"{"format":1,"members":[1,2]}"#;
        let settings = r#"{"format":1,"osd_down_out_seconds":5}"#;
        let all = [
            (keys::AUTHORIZED_KEYS, format!("{}aa", keys::AUTHORIZED_KEYS), key),
            (keys::OSDS_TO_POOLS, keys::pg_target(PgId { pool: PoolId(1), index: 0 }), target),
            ("/atoll/s", keys::scrub_request(PgId { pool: PoolId(1), index: 0 }), request),
            ("/atoll/s", keys::SETTINGS.to_owned(), settings),
        ];
        let entries: Vec<_> = all.iter().map(|(_, key, value)| entry(key, value)).collect();
        let map = ClusterMap::from_entries(&entries);
        let count = |map: &ClusterMap| (map.authorized_keys.len(), map.pg_targets.len(), map.scrub_requests.len());
        assert_eq!((count(&map), map.settings.osd_down_out_seconds), ((1, 1, 1), 5));
        for value in ["", "not json", r#"{"format":9}"#] {
            let mut again = map.clone();
            for range in keys::MAP_RANGES {
                let of_range = all.iter().filter(|(at, ..)| *at == range);
                let unreadable: Vec<_> = of_range.map(|(_, key, _)| entry(key, value)).collect();
                let newer = again.with_range_again(range, &unreadable);
                again.changes_to(newer).into_iter().for_each(|change| again.apply(change));
            }
            assert_eq!((count(&again), again.settings.osd_down_out_seconds), ((1, 1, 1), 5), "{value}");
        }
        // One that is not there was removed.
        let mut removed = map.clone();
        for range in keys::MAP_RANGES {
            removed = removed.with_range_again(range, &[]);
        }
        assert_eq!(count(&removed), (0, 0, 0));
    }

    #[test]
    fn unreadable_records_are_ignored() {
        assert!(change("/atoll/pools/1", Some((b"not json", 1))).is_none());
        let of_a_later_release = br#"{"format":2,"flags":{}}"#;
        assert!(change("/atoll/flags", Some((of_a_later_release, 1))).is_none());
        assert!(change("/atoll/images/x", Some((b"{}", 1))).is_none());
        assert!(matches!(change("/atoll/pools/1", None), Some(MapChange::Pool(PoolId(1), None))));
    }
}
