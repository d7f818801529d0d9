//! Listing all versions of the keys of a bucket: entries, which are the newest versions, and behind
//! each of them the older ones.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::future::try_join_all;

use super::{Cursor, Shards, common_prefix};
use crate::error::GatewayError;
use crate::names::{ENTRY_PREFIX, VERSION_PREFIX, escaped, parse_version_key, prefix_end};
use crate::record::decode_head;
use crate::versions::place_of;

/// Selection of versions.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionQuery {
    pub prefix: Vec<u8>,
    /// Empty for none.
    pub delimiter: Vec<u8>,
    pub after: After,
    pub limit: usize,
}

/// Position behind which a page begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum After {
    #[default]
    Nothing,
    /// All versions of the keys before this one.
    KeysBefore(Vec<u8>),
    /// All versions of this key.
    Key(Vec<u8>),
    /// The version of this key with this id, or at this place.
    Version(Vec<u8>, String),
}

impl After {
    /// Returns true if an entry was shown by an earlier page.
    fn has_shown(&self, key: &str, record: &[u8]) -> Result<bool, GatewayError> {
        match self {
            After::Version(last, place) if last == key.as_bytes() => Ok(place_of(&decode_head(record)?) <= *place),
            _ => Ok(false),
        }
    }

    /// Where to begin among entries, and among older versions.
    fn starts(&self) -> (Vec<u8>, Vec<u8>) {
        match self {
            After::Nothing => (Vec::new(), Vec::new()),
            After::KeysBefore(key) => (key.clone(), escaped(key)),
            // Places are hexadecimal, and a zero byte of a longer key is followed by 0xff.
            After::Key(key) => ([key, &b"\0"[..]].concat(), [&escaped(key), &b"\0g"[..]].concat()),
            // The entry of the key may be one that was behind this version, and has become the newest.
            After::Version(key, place) => {
                (key.clone(), [&escaped(key), &b"\0"[..], place.as_bytes(), b"\0"].concat())
            }
        }
    }
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionItem {
    Version {
        key: String,
        /// Empty for the newest.
        place: String,
        record: Bytes,
    },
    /// A common prefix of keys up to and including the delimiter.
    CommonPrefix(Vec<u8>),
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(crate) struct VersionPage {
    pub items: Vec<VersionItem>,
    pub is_truncated: bool,
}

/// The records of one kind in one shard.
struct Source {
    is_newest: bool,
    prefix: Bytes,
    cursor: Cursor,
}

impl Source {
    fn new(shard: u32, is_newest: bool, query: &VersionQuery) -> Self {
        let (of_entries, of_older) = query.after.starts();
        let (space, start, prefix) = match is_newest {
            true => (ENTRY_PREFIX, of_entries, query.prefix.clone()),
            false => (VERSION_PREFIX, of_older, escaped(&query.prefix)),
        };
        let prefix = Bytes::from([space, &prefix].concat());
        let from = Bytes::from([space, &start].concat()).max(prefix.clone());
        Source { is_newest, prefix, cursor: Cursor { shard, records: VecDeque::new(), from, more: true } }
    }

    /// Key and place of the next record.
    fn position(&self) -> Result<Option<(String, String)>, GatewayError> {
        let Some((index_key, _)) = self.cursor.records.front() else { return Ok(None) };
        let rest = &index_key[ENTRY_PREFIX.len()..];
        let parsed = match self.is_newest {
            true => std::str::from_utf8(rest).ok().map(|key| (key.to_owned(), String::new())),
            false => parse_version_key(rest).map(|(key, place)| (key, place.to_owned())),
        };
        let malformed = || GatewayError::Malformed {
            what: "a key of the bucket index".into(),
            detail: format!("{:?} cannot be taken apart", String::from_utf8_lossy(index_key)),
        };
        parsed.map(Some).ok_or_else(malformed)
    }

    /// Skips all keys that fold into a common prefix. False if no key can follow.
    fn skip(&mut self, folded: &[u8]) -> bool {
        let target = match self.is_newest {
            true => prefix_end(&[ENTRY_PREFIX, folded].concat()),
            false => prefix_end(&[VERSION_PREFIX, &escaped(folded)].concat()),
        };
        let Some(target) = target else { return false };
        self.cursor.skip_to(&Bytes::from(target));
        true
    }
}

/// The first page of `query`: versions in the order of their keys, the newest of each key first.
pub(crate) async fn list_versions(shards: &dyn Shards, query: &VersionQuery) -> Result<VersionPage, GatewayError> {
    let mut page = VersionPage::default();
    if query.limit == 0 {
        return Ok(page);
    }
    let kinds = (0..shards.count()).flat_map(|shard| [(shard, true), (shard, false)]);
    let mut sources: Vec<Source> = kinds.map(|(shard, is_newest)| Source::new(shard, is_newest, query)).collect();
    loop {
        let missing = (query.limit - page.items.len() + 1).div_ceil(sources.len());
        let limit = (missing as u32 + missing as u32 / 4 + 4).min(atoll_types::limits::OMAP_LIST_MAX);
        let empty = sources.iter_mut().filter(|source| source.cursor.needs_page());
        try_join_all(empty.map(|source| source.cursor.fill(shards, &source.prefix, limit))).await?;
        let mut first: Option<((String, String), usize)> = None;
        for (number, source) in sources.iter().enumerate() {
            if let Some(position) = source.position()?
                && first.as_ref().is_none_or(|(smallest, _)| position < *smallest)
            {
                first = Some((position, number));
            }
        }
        let Some(((key, place), number)) = first else { return Ok(page) };
        let records = &mut sources[number].cursor.records;
        if place.is_empty() && query.after.has_shown(&key, &records[0].1)? {
            records.pop_front();
            continue;
        }
        if page.items.len() == query.limit {
            page.is_truncated = true;
            return Ok(page);
        }
        match common_prefix(key.as_bytes(), &query.prefix, &query.delimiter) {
            Some(folded) => {
                let ended = sources.iter_mut().filter_map(|source| (!source.skip(&folded)).then_some(())).count();
                page.items.push(VersionItem::CommonPrefix(folded));
                if ended > 0 {
                    return Ok(page);
                }
            }
            None => {
                let (_, record) = sources[number].cursor.records.pop_front().expect("it was looked at");
                page.items.push(VersionItem::Version { key, place, record });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::listing::tests::Model;
    use crate::names::{entry_key, shard_of, version_key};
    use crate::record::{EntryHead, encode_version};

    fn place(number: u32) -> String {
        format!("{number:032x}")
    }

    fn record(number: u32) -> Bytes {
        let head = EntryHead { version_id: Some(place(number)), ..Default::default() };
        encode_version(&head, &[])
    }

    /// All keys with their versions, in shards.
    fn model(keys: &BTreeMap<String, u32>, shards: u32, page_max: usize) -> Model {
        let mut model = Model { shards: vec![BTreeMap::new(); shards as usize], page_max, ..Default::default() };
        for (key, count) in keys {
            let shard = &mut model.shards[shard_of(key, shards) as usize];
            shard.insert(entry_key(key), record(0));
            (1..*count).for_each(|number| drop(shard.insert(version_key(key, &place(number)), record(number))));
        }
        model
    }

    /// Key and number of each version, or a common prefix, in one list.
    fn expected(keys: &BTreeMap<String, u32>, prefix: &str, delimiter: &str) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        for (key, count) in keys.iter().filter(|(key, _)| key.starts_with(prefix)) {
            match common_prefix(key.as_bytes(), prefix.as_bytes(), delimiter.as_bytes()) {
                Some(folded) => lines.push((String::from_utf8(folded).unwrap(), "folded".to_owned())),
                None => lines.extend(
                    (0..*count)
                        .map(|number| (key.clone(), if number == 0 { String::new() } else { place(number) })),
                ),
            }
        }
        lines.dedup_by(|a, b| a == b && a.1 == "folded");
        lines
    }

    fn all_pages(model: &Model, mut query: VersionQuery) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        loop {
            let page = futures::executor::block_on(list_versions(model, &query)).unwrap();
            assert!(page.items.len() <= query.limit);
            for item in page.items {
                match item {
                    VersionItem::Version { key, place: found, .. } => {
                        // The id of the newest version is before all places of older ones.
                        let id = if found.is_empty() { place(0) } else { found.clone() };
                        query.after = After::Version(key.clone().into_bytes(), id);
                        lines.push((key, found));
                    }
                    VersionItem::CommonPrefix(folded) => {
                        query.after = After::KeysBefore(prefix_end(&folded).unwrap());
                        lines.push((String::from_utf8(folded).unwrap(), "folded".to_owned()));
                    }
                }
            }
            if !page.is_truncated {
                return lines;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn a_listing_of_versions_equals_a_sorted_list(
            keys in prop::collection::btree_map("[ab/\0\u{1}é]{1,4}", 1u32..5, 0..30),
            prefix in "[ab/\0]{0,2}",
            delimiter in prop::sample::select(vec!["", "/", "b/"]),
            limit in 1usize..8,
            shards in 1u32..4,
            page_max in 1usize..5,
        ) {
            let query = VersionQuery {
                prefix: prefix.clone().into_bytes(),
                delimiter: delimiter.as_bytes().to_vec(),
                after: After::Nothing,
                limit,
            };
            prop_assert_eq!(all_pages(&model(&keys, shards, page_max), query), expected(&keys, &prefix, delimiter));
        }
    }

    /// A client that deletes the items of each page.
    #[test]
    fn a_version_that_becomes_the_newest_between_two_pages_is_shown() {
        let mut model = model(&BTreeMap::from([("k".to_owned(), 3)]), 1, 9);
        let page = |model: &Model, after| {
            let query = VersionQuery { after, limit: 2, ..Default::default() };
            futures::executor::block_on(list_versions(model, &query)).unwrap()
        };
        let first = page(&model, After::Nothing);
        assert!(first.is_truncated && first.items.len() == 2);
        // The two are deleted, so the third stands in the entry.
        model.shards[0] = BTreeMap::from([(entry_key("k"), record(2))]);
        let second = page(&model, After::Version(b"k".to_vec(), place(1)));
        assert!(!second.is_truncated);
        let expected = VersionItem::Version { key: "k".into(), place: String::new(), record: record(2) };
        assert_eq!(second.items, [expected]);
    }

    #[test]
    fn a_key_marker_skips_all_versions_of_the_key() {
        let keys = BTreeMap::from([("a".to_owned(), 3), ("a\0".to_owned(), 2), ("b".to_owned(), 1)]);
        let after = After::Key(b"a".to_vec());
        let lines = all_pages(&model(&keys, 2, 2), VersionQuery { after, limit: 9, ..Default::default() });
        assert_eq!(lines.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a\0", "a\0", "b"]);
    }
}
