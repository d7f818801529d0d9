//! Listing keys of a bucket in UTF-8 binary order: the shards' sorted records are merged, and where
//! a delimiter folds many keys into one common prefix, the rest of them is skipped, not read.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;

use crate::error::GatewayError;
use crate::index::Index;
use crate::names::prefix_end;
use crate::record::is_delete_marker;

pub(crate) mod versions;

/// Delete markers that one listing passes over: later keys are for the next.
const MARKERS_MAX: usize = 10_000;

/// Sorted pages of the records of one shard.
#[async_trait]
pub(crate) trait Shards: Sync {
    /// How many shards there are.
    fn count(&self) -> u32;

    /// Records with `prefix` at or after `from`, in key order, and whether more follow.
    async fn page(
        &self,
        shard: u32,
        prefix: Bytes,
        from: Bytes,
        limit: u32,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool), GatewayError>;
}

#[async_trait]
impl Shards for Index {
    fn count(&self) -> u32 {
        self.shards()
    }

    async fn page(
        &self,
        shard: u32,
        prefix: Bytes,
        from: Bytes,
        limit: u32,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool), GatewayError> {
        Index::page(self, shard, prefix, from, limit).await
    }
}

/// Selection of keys. Keys here are index keys without their namespace prefix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// `o/` or `u/`.
    pub namespace: Bytes,
    pub prefix: Vec<u8>,
    /// Empty for none.
    pub delimiter: Vec<u8>,
    /// List only keys at or after this one.
    pub from: Vec<u8>,
    pub limit: usize,
    /// A key that ends here counts only up to this byte when a delimiter is looked for.
    pub key_end: Option<u8>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A record: key without namespace, value.
    Record(Bytes, Bytes),
    /// A common prefix of keys up to and including the delimiter.
    CommonPrefix(Vec<u8>),
}

/// A page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub items: Vec<Item>,
    /// Where the next page starts; `None` when nothing follows.
    pub next: Option<Vec<u8>>,
    /// The last key that was passed over, if the page ends because of their number.
    pub passed_over: Option<Vec<u8>>,
}

struct Cursor {
    shard: u32,
    records: VecDeque<(Bytes, Bytes)>,
    from: Bytes,
    more: bool,
}

impl Cursor {
    fn needs_page(&self) -> bool {
        self.records.is_empty() && self.more
    }

    async fn fill(&mut self, shards: &dyn Shards, prefix: &Bytes, limit: u32) -> Result<(), GatewayError> {
        while self.needs_page() {
            let (page, more) = shards.page(self.shard, prefix.clone(), self.from.clone(), limit).await?;
            if let Some((last, _)) = page.last() {
                self.from = [last, &b"\0"[..]].concat().into();
            } else if more {
                return Err(GatewayError::Malformed {
                    what: format!("index shard {}", self.shard),
                    detail: "it sent an empty page and says that more follows".into(),
                });
            }
            self.more = more;
            self.records.extend(page);
        }
        Ok(())
    }

    fn skip_to(&mut self, target: &Bytes) {
        while self.records.front().is_some_and(|(key, _)| key < target) {
            self.records.pop_front();
        }
        if self.records.is_empty() && self.from < *target {
            self.from = target.clone();
        }
    }
}

/// The common prefix that `key` folds into, if it does.
pub(crate) fn common_prefix(key: &[u8], prefix: &[u8], delimiter: &[u8]) -> Option<Vec<u8>> {
    let rest = key.get(prefix.len()..)?;
    let found =
        (!delimiter.is_empty()).then(|| rest.windows(delimiter.len()).position(|part| part == delimiter))??;
    Some(key[..prefix.len() + found + delimiter.len()].to_vec())
}

/// The first page of `query`.
pub(crate) async fn list(shards: &dyn Shards, query: &Query) -> Result<Page, GatewayError> {
    let mut page = Page::default();
    if query.limit == 0 {
        return Ok(page);
    }
    let space = query.namespace.len();
    let index_prefix = Bytes::from([&query.namespace[..], &query.prefix].concat());
    let start = Bytes::from([&query.namespace[..], &query.from].concat()).max(index_prefix.clone());
    let mut cursors: Vec<Cursor> = (0..shards.count())
        .map(|shard| Cursor { shard, records: VecDeque::new(), from: start.clone(), more: true })
        .collect();

    let mut markers = 0;
    loop {
        // Keys are spread evenly, so each shard will give about its share of what is missing.
        // Where many delete markers were passed over, many more may follow.
        let missing = (query.limit - page.items.len() + 1).max(markers).div_ceil(cursors.len());
        let limit = (missing as u32 + missing as u32 / 4 + 4).min(atoll_types::limits::OMAP_LIST_MAX);
        try_join_all(
            cursors.iter_mut().filter(|c| c.needs_page()).map(|cursor| cursor.fill(shards, &index_prefix, limit)),
        )
        .await?;
        let smallest = cursors
            .iter_mut()
            .filter(|cursor| !cursor.records.is_empty())
            .min_by(|a, b| a.records[0].0.cmp(&b.records[0].0));
        let Some((index_key, value)) = smallest.and_then(|cursor| cursor.records.pop_front()) else {
            return Ok(page);
        };
        let key = index_key.slice(space..);
        if is_delete_marker(&value) {
            markers += 1;
            if markers == MARKERS_MAX {
                page.next = Some([&key, &b"\0"[..]].concat());
                page.passed_over = Some(key.to_vec());
                return Ok(page);
            }
            continue;
        }
        if page.items.len() == query.limit {
            page.next = Some(key.to_vec());
            return Ok(page);
        }
        let name_end =
            query.key_end.and_then(|end| key.iter().rposition(|&byte| byte == end)).unwrap_or(key.len());
        match common_prefix(&key[..name_end], &query.prefix, &query.delimiter) {
            None => page.items.push(Item::Record(key, value)),
            Some(folded) => {
                let end = prefix_end(&[&query.namespace[..], &folded].concat());
                page.items.push(Item::CommonPrefix(folded));
                let Some(end) = end.map(Bytes::from) else { return Ok(page) };
                cursors.iter_mut().for_each(|cursor| cursor.skip_to(&end));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{EntryHead, encode_version};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    pub(super) struct Model {
        pub shards: Vec<BTreeMap<Bytes, Bytes>>,
        pub page_max: usize,
        pub records_read: AtomicUsize,
    }

    #[async_trait]
    impl Shards for Model {
        fn count(&self) -> u32 {
            self.shards.len() as u32
        }

        async fn page(
            &self,
            shard: u32,
            prefix: Bytes,
            from: Bytes,
            limit: u32,
        ) -> Result<(Vec<(Bytes, Bytes)>, bool), GatewayError> {
            let limit = self.page_max.min(limit as usize);
            let mut found = self.shards[shard as usize]
                .range(from.max(prefix.clone())..)
                .take_while(|(key, _)| key.starts_with(&prefix))
                .map(|(key, value)| (key.clone(), value.clone()));
            let page: Vec<_> = found.by_ref().take(limit).collect();
            self.records_read.fetch_add(page.len(), Ordering::Relaxed);
            Ok((page, found.next().is_some()))
        }
    }

    fn model(keys: &[String], shards: usize, page_max: usize) -> Model {
        let mut model = Model { shards: vec![BTreeMap::new(); shards], page_max, ..Default::default() };
        for key in keys {
            let shard = crate::names::shard_of(key, shards as u32) as usize;
            model.shards[shard].insert(crate::names::entry_key(key), Bytes::from(key.clone()));
            // Records of other namespaces must never show.
            model.shards[shard].insert(Bytes::from(format!("p/{key}")), Bytes::new());
        }
        model
    }

    /// The plainest listing there is: everything in one sorted set.
    fn expected(keys: &[String], query: &Query) -> Vec<String> {
        let sorted: std::collections::BTreeSet<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut lines: Vec<String> = Vec::new();
        for key in sorted.into_iter().filter(|key| key.starts_with(&query.prefix) && *key >= &query.from[..]) {
            let line = common_prefix(key, &query.prefix, &query.delimiter).unwrap_or(key.to_vec());
            let line = String::from_utf8(line).unwrap();
            if lines.last() != Some(&line) {
                lines.push(line);
            }
        }
        lines
    }

    fn all_pages(model: &Model, mut query: Query) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let page = futures::executor::block_on(list(model, &query)).unwrap();
            assert!(page.items.len() <= query.limit);
            lines.extend(page.items.iter().map(|item| match item {
                Item::Record(key, value) => {
                    assert_eq!(key, value);
                    String::from_utf8(key.to_vec()).unwrap()
                }
                Item::CommonPrefix(prefix) => String::from_utf8(prefix.clone()).unwrap(),
            }));
            match page.next {
                Some(next) => query.from = next,
                None => return lines,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn merged_listing_equals_a_sorted_set(
            keys in prop::collection::vec("[ab/é𝄞]{1,6}", 0..60),
            prefix in "[ab/é]{0,2}",
            delimiter in prop::sample::select(vec!["", "/", "b/", "é"]),
            from in "[ab/é]{0,3}",
            limit in 1usize..8,
            shards in 1usize..5,
            page_max in 1usize..5,
        ) {
            let query = Query {
                namespace: Bytes::from_static(b"o/"),
                prefix: prefix.into_bytes(),
                delimiter: delimiter.as_bytes().to_vec(),
                from: from.into_bytes(),
                limit,
                key_end: None,
            };
            let expected = expected(&keys, &query);
            prop_assert_eq!(all_pages(&model(&keys, shards, page_max), query), expected);
        }
    }

    /// A listing over many delete markers reaches the keys behind them, in pages that each read a limited number.
    #[test]
    fn delete_markers_are_passed_over_in_pages() {
        let count = 4 * MARKERS_MAX;
        let keys: Vec<String> = (0..count).map(|i| format!("{i:06}")).chain(["last".into()]).collect();
        let mut model = model(&keys, 8, 1_000);
        let marker = encode_version(&EntryHead { is_delete_marker: true, ..Default::default() }, &[]);
        for (key, value) in model.shards.iter_mut().flatten() {
            if key.starts_with(b"o/0") {
                *value = marker.clone();
            }
        }
        let mut query = Query { namespace: Bytes::from_static(b"o/"), limit: 10, ..Default::default() };
        let mut pages = 0;
        loop {
            let before = model.records_read.load(Ordering::Relaxed);
            let page = futures::executor::block_on(list(&model, &query)).unwrap();
            let read = model.records_read.load(Ordering::Relaxed) - before;
            assert!(read <= 2 * MARKERS_MAX + 8 * 1_000, "{read} records for one page");
            pages += 1;
            let Some(next) = page.next else {
                assert_eq!(page.items.len(), 1);
                break;
            };
            assert!(page.items.is_empty() && page.passed_over.is_some_and(|key| key < next));
            query.from = next;
        }
        assert_eq!(pages, 5);
    }

    #[test]
    fn folded_keys_are_skipped_and_not_read() {
        let keys: Vec<String> = (0..20_000).map(|i| format!("{}/{i:05}", i % 4)).collect();
        let model = model(&keys, 8, 1_000);
        let query = Query {
            namespace: Bytes::from_static(b"o/"),
            delimiter: b"/".to_vec(),
            limit: 10,
            ..Default::default()
        };
        assert_eq!(all_pages(&model, query), ["0/", "1/", "2/", "3/"]);
        assert!(model.records_read.load(Ordering::Relaxed) < 500);
    }
}
