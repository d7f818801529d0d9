//! The search for small data beside the index that no record names: its gateway died between the write of the data and
//! the change of the index. Other data has intents, which the collector finds without a search.
//!
//! The search compares the objects beside an index object with its records, slowly, and suspects those that stay without
//! a record. Suspicion is an intent, so from then on no change can name the data. The collector then looks at all
//! records again, exactly, and removes the data if none names it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use atoll_types::{Condition, Mutation, ObjectName};
use bytes::Bytes;

use crate::data::suspect_record;
use crate::error::GatewayError;
use crate::index::{Index, after};
use crate::names::{ENTRY_PREFIX, GARBAGE_PREFIX, INTENT_PREFIX, VERSION_PREFIX, beside_data_id, intent_key};
use crate::record::decode_pieces;
use crate::sightings::Sightings;

/// Ids of data that are compared with an index at the same time.
const IDS_MAX: usize = 250_000;
/// Records of an index that are read at once.
const RECORDS_PER_PAGE: u32 = 500;

type Ids = HashSet<[u8; 16]>;

/// Results of one search for data that no record names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchReport {
    /// Objects that were compared with the records.
    pub objects: u64,
    /// Those of them that were left to the collector, because no record seems to name them.
    pub suspects: u64,
    /// Index objects whose search failed.
    pub failures: u64,
}

/// A search, which remembers the objects that had no record at the one before.
pub(crate) struct Search<'a> {
    pub unnamed: &'a mut Sightings,
    /// Time after which an object without a record is suspected.
    pub abandoned_after: Duration,
    /// Pause after each read.
    pub pause: Duration,
    pub report: SearchReport,
}

impl Search<'_> {
    /// Searches in buckets.
    pub(crate) async fn run(mut self, indexes: impl Iterator<Item = Index>) -> SearchReport {
        let begun = Instant::now();
        for index in indexes {
            for shard in 0..index.shards() {
                match self.shard(&index, shard).await {
                    // A bucket that is just being deleted.
                    Ok(()) | Err(GatewayError::NoSuchBucket(_)) => {}
                    Err(error) => {
                        self.report.failures += 1;
                        let bucket = &index.bucket.record.name;
                        tracing::warn!(bucket, shard, %error, "the search for data that nothing names ends early");
                    }
                }
            }
        }
        self.unnamed.forget_before(begun);
        self.report
    }

    async fn shard(&mut self, index: &Index, shard: u32) -> Result<(), GatewayError> {
        if !index.is_data_with_index() {
            return Ok(());
        }
        let mut last = None;
        loop {
            let listed = self.list(index, shard, &mut last).await?;
            self.report.objects += listed.len() as u64;
            let unnamed = self.without_record(index, shard, listed).await?;
            for id in unnamed {
                let seen = (index.object(shard).as_str().to_owned(), id);
                let age = self.unnamed.age(seen, Instant::now());
                if age.is_some_and(|age| age >= self.abandoned_after) {
                    self.report.suspects += u64::from(suspect(index, shard, &id).await?);
                }
            }
            if last.is_none() {
                return Ok(());
            }
        }
    }

    /// The ids of the next objects beside an index object. They are listed before the records are read: whoever
    /// wrote one of them has the time of the whole walk to name it.
    async fn list(&self, index: &Index, shard: u32, last: &mut Option<ObjectName>) -> Result<Ids, GatewayError> {
        let mut ids = Ids::new();
        while ids.len() < IDS_MAX {
            let (objects, next) = index.list_beside(shard, last.take()).await?;
            ids.extend(objects.iter().filter_map(beside_data_id));
            tokio::time::sleep(self.pause).await;
            *last = next;
            if last.is_none() {
                break;
            }
        }
        Ok(ids)
    }

    /// Those of some ids that the walk meets in no record. Records move meanwhile, so it may miss some.
    async fn without_record(&self, index: &Index, shard: u32, mut ids: Ids) -> Result<Ids, GatewayError> {
        for prefix in [ENTRY_PREFIX, VERSION_PREFIX, GARBAGE_PREFIX, INTENT_PREFIX].map(Bytes::from_static) {
            let mut from = prefix.clone();
            while !ids.is_empty() {
                let (records, more) = index.page(shard, prefix.clone(), from, RECORDS_PER_PAGE).await?;
                for (_, record) in &records {
                    // A record that cannot be read may name any of them.
                    for piece in decode_pieces(record)? {
                        ids.remove(&piece.data_id);
                    }
                }
                tokio::time::sleep(self.pause).await;
                match records.last() {
                    Some((key, _)) if more => from = after(key),
                    _ => break,
                }
            }
        }
        Ok(ids)
    }
}

/// Notes in the index that nothing may name this data any more; false if it has an intent already.
async fn suspect(index: &Index, shard: u32, id: &[u8; 16]) -> Result<bool, GatewayError> {
    let (key, value) = (intent_key(id), suspect_record(id));
    let conditions = vec![Condition::ObjectExists, Condition::OmapAbsent { key: key.clone() }];
    match index.change_shard(shard, conditions, vec![Mutation::OmapSet { key, value }]).await {
        Ok(()) => Ok(true),
        Err(error) if error.failed_condition().is_some() => Ok(false),
        Err(error) => Err(index.explain(error)),
    }
}
