//! Histories of one key against a plain list of versions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::names::{GARBAGE_PREFIX, is_version_id, versions_prefix};

const KEY: &str = "photo";

/// The omap of the index object.
#[derive(Default)]
struct Omap(BTreeMap<Bytes, Bytes>);

impl Omap {
    fn get(&self, key: &Bytes) -> Option<Bytes> {
        self.0.get(key).cloned()
    }

    fn found(&self) -> KeyRecords {
        KeyRecords { newest: self.get(&entry_key(KEY)), null_place: self.get(&null_key(KEY)) }
    }

    fn older(&self) -> Vec<(String, Bytes)> {
        let prefix = versions_prefix(KEY);
        let records = self.0.iter().filter(|(key, _)| key.starts_with(&prefix));
        let place = |key: &Bytes| String::from_utf8(key[prefix.len()..].to_vec()).unwrap();
        records.map(|(key, value)| (place(key), value.clone())).collect()
    }

    fn apply(&mut self, change: Change) {
        for condition in change.conditions {
            match condition {
                Condition::OmapEquals { key, value } => assert_eq!(self.get(&key), Some(value)),
                Condition::OmapAbsent { key } => assert_eq!(self.get(&key), None),
                other => panic!("{other:?}"),
            }
        }
        for mutation in change.mutations {
            match mutation {
                Mutation::OmapSet { key, value } => drop(self.0.insert(key, value)),
                Mutation::OmapRemove { key } => drop(self.0.remove(&key)),
                Mutation::OmapReplace { key, value, displaced_to } => {
                    let old = self.0.remove(&key);
                    self.0.extend(value.map(|value| (key, value)));
                    self.0.extend(old.map(|old| (displaced_to, old)));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// ETags and ids of all versions, the newest first.
    fn versions(&self) -> Vec<(String, Option<String>)> {
        let records = self.found().newest.into_iter().chain(self.older().into_iter().map(|(_, value)| value));
        let heads = records.map(|value| decode_head::<EntryHead>(&value).unwrap());
        heads.map(|head| (head.etag, head.version_id)).collect()
    }

    fn garbage(&self) -> Vec<String> {
        let records = self.0.iter().filter(|(key, _)| key.starts_with(GARBAGE_PREFIX));
        let mut etags: Vec<_> = records.map(|(_, value)| decode_head::<EntryHead>(value).unwrap().etag).collect();
        etags.sort();
        etags
    }

    fn remove(&mut self, index: usize) {
        let older = self.older();
        let change = match index.checked_sub(1) {
            None => {
                let newest = self.found().newest.unwrap();
                let next = older.first().map(|(place, value)| (place.as_str(), value));
                remove_newest(KEY, &newest, next, 1)
            }
            Some(index) => remove_older(KEY, &older[index].0, &older[index].1, 1),
        };
        self.apply(change.unwrap());
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A write, and the gateway's clock.
    Write { is_enabled: bool, is_delete_marker: bool, now_ms: u64 },
    /// Removes a version by its number.
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (any::<bool>(), any::<bool>(), 1_000u64..1_010)
        .prop_map(|(is_enabled, is_delete_marker, now_ms)| Step::Write { is_enabled, is_delete_marker, now_ms });
    prop::collection::vec(prop_oneof![3 => write, 2 => (0usize..8).prop_map(Step::Remove)], 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn versions_are_a_list_with_the_newest_first(was_there: bool, steps in steps()) {
        let mut omap = Omap::default();
        let mut model: Vec<(String, Option<String>)> = Vec::new();
        let mut removed: Vec<String> = Vec::new();
        if was_there {
            // Written before the bucket had versions.
            let head = EntryHead { etag: "before".into(), modified_ms: 1_005, ..Default::default() };
            omap.apply(replace(KEY, &head, &[]));
            model.push(("before".into(), None));
        }
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { is_enabled, is_delete_marker, now_ms } => {
                    let etag = format!("{number}");
                    let mut head =
                        EntryHead { etag: etag.clone(), modified_ms: now_ms, is_delete_marker, ..Default::default() };
                    let versioning = BucketVersioning { generation: 1, is_enabled };
                    omap.apply(add(KEY, versioning, &omap.found(), &mut head, &[]).unwrap());
                    prop_assert_eq!(head.version_id.is_some(), is_enabled);
                    prop_assert!(head.version_id.iter().all(|id| is_version_id(id)));
                    if !is_enabled {
                        removed.extend(model.extract_if(.., |(_, id)| id.is_none()).map(|(etag, _)| etag));
                    }
                    model.insert(0, (etag, head.version_id));
                }
                Step::Remove(index) if index < model.len() => {
                    omap.remove(index);
                    removed.push(model.remove(index).0);
                }
                Step::Remove(_) => {}
            }
            prop_assert_eq!(omap.versions(), model.clone());
            removed.sort();
            prop_assert_eq!(omap.garbage(), removed.clone());
            let null_behind = model.iter().skip(1).any(|(_, id)| id.is_none());
            prop_assert_eq!(omap.found().null_place.is_some(), null_behind);
            if let Some(place) = omap.found().null_place {
                let place = String::from_utf8(place.to_vec()).unwrap();
                let record = omap.get(&version_key(KEY, &place)).unwrap();
                prop_assert_eq!(decode_head::<EntryHead>(&record).unwrap().version_id, None);
            }
        }
    }
}

/// A writer that does not know that the bucket has versions would throw one away.
#[test]
fn a_writer_must_know_what_versioning_is() {
    let on = BucketVersioning { generation: 1, is_enabled: true };
    let off = BucketVersioning { generation: 2, is_enabled: false };
    assert_eq!(versioning_is(None), Condition::OmapAbsent { key: VERSIONING_KEY.into() });
    assert!(versioning_is(Some(on)) != versioning_is(Some(off)));
}
