//! The garbage collector: removes the data of replaced or deleted objects, once the GETs that may still be reading
//! it have had their time, and unfinished work of dead gateways. Several gateways may collect at once; all that
//! they do can be done twice.
//!
//! A collector measures ages by its own clock and its own sightings: a garbage record that it has seen for the
//! grace period is that old at least, for any clocks of other gateways.

use std::collections::HashSet;
use std::time::Instant;

use atoll_types::{Condition, Mutation, ObjectName};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use crate::clock::unix_ms;
use crate::data::{IntentHead, inline_removals, remove_objects_of};
use crate::error::GatewayError;
use crate::index::{Index, after};
use crate::named::{named_of, names};
use crate::names::{
    DELETING_KEY, GARBAGE_PREFIX, HOLD_PREFIX, INTENT_PREFIX, SIGN_PREFIX, VERSIONING_KEY, garbage_key,
    parse_hold_key,
};
use crate::ops::{Service, tend_deletion, tend_mark};
use crate::record::{Piece, decode_head, decode_pieces};
use crate::sightings::CollectorMemory;
use crate::versions::versioning_value;

const RECORDS_PER_PAGE: u32 = 200;
/// Records whose data is removed at the same time: one after the other would not keep up with clients
/// that replace small objects.
const REMOVALS_AT_ONCE: usize = 16;
/// Results of one walk of the garbage collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorReport {
    /// Garbage records done with.
    pub records: u64,
    /// Bytes of data removed.
    pub bytes: u64,
    /// Objects that no record named, and that were removed.
    pub orphans: u64,
    /// Buckets or records that failed; they are tried again on the next walk.
    pub failures: u64,
}

/// One walk over the buckets. A failure in one of them does not keep the others from being collected.
pub(crate) async fn collect(service: &Service) -> Result<CollectorReport, GatewayError> {
    let (mut memory, begun) = (service.collector.lock().await, Instant::now());
    let mut walk = Walk { service, memory: &mut memory, report: CollectorReport::default() };
    for record in service.directory.buckets().await? {
        walk.collect_bucket(&service.index_of(record)).await;
    }
    let report = walk.report;
    memory.garbage.forget_before(begun);
    memory.signs.forget_before(begun);
    Ok(report)
}

struct Walk<'a> {
    service: &'a Service,
    memory: &'a mut CollectorMemory,
    report: CollectorReport,
}

impl Walk<'_> {
    async fn collect_bucket(&mut self, index: &Index) {
        // A deletion comes first: some of the index may be gone already.
        match tend_deletion(self.service, index).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => self.note_failure(index, &error),
        }
        for shard in 0..index.shards() {
            match self.collect_shard(index, shard).await {
                // A bucket that is just being deleted.
                Ok(()) | Err(GatewayError::NoSuchBucket(_)) => {}
                Err(error) => self.note_failure(index, &error),
            }
        }
    }

    fn note_failure(&mut self, index: &Index, error: &GatewayError) {
        self.report.failures += 1;
        tracing::warn!(bucket = index.bucket.record.name, %error, "garbage of this bucket stays for now");
    }

    async fn collect_shard(&mut self, index: &Index, shard: u32) -> Result<(), GatewayError> {
        self.tend_signs(index, shard).await?;
        let mut held = None;
        let mut from = Bytes::from_static(GARBAGE_PREFIX);
        loop {
            let prefix = Bytes::from_static(GARBAGE_PREFIX);
            let (records, more) = index.page(shard, prefix, from.clone(), RECORDS_PER_PAGE).await?;
            let Some((last, _)) = records.last() else { return Ok(()) };
            from = after(last);
            let (old, has_room) = self.old(&index.object(shard), records);
            if !old.is_empty() {
                if held.is_none() {
                    held = Some(self.held(index, shard).await?);
                }
                self.remove(index, shard, old, held.as_ref()).await?;
            }
            if !has_room || !more {
                return Ok(());
            }
        }
    }

    /// Those of a page that have waited long enough, and whether all others are waiting now.
    fn old(&mut self, object: &ObjectName, records: Vec<(Bytes, Bytes)>) -> (Vec<(Bytes, Vec<Piece>)>, bool) {
        let (now, mut old, mut has_room) = (Instant::now(), Vec::new(), true);
        for (key, value) in records {
            let Some(age) = self.memory.garbage.age((object.as_str(), &key), now) else {
                has_room = false;
                continue;
            };
            if age < self.service.garbage_grace {
                continue;
            }
            match decode_pieces(&value) {
                Ok(pieces) => old.push((key, pieces)),
                Err(error) => {
                    // Without its record the data could never be found again: leave both.
                    self.report.failures += 1;
                    tracing::error!(key = %String::from_utf8_lossy(&key), %error, "garbage record is damaged");
                }
            }
        }
        (old, has_room)
    }

    /// Removes the data that garbage records name, and then the records, except held data.
    async fn remove(
        &mut self,
        index: &Index,
        shard: u32,
        old: Vec<(Bytes, Vec<Piece>)>,
        held: Option<&HashSet<[u8; 16]>>,
    ) -> Result<(), GatewayError> {
        let is_held = |piece: &Piece| held.is_some_and(|held| held.contains(&piece.data_id));
        let (mut done, mut removals) = (Vec::new(), Vec::new());
        for (key, pieces) in old {
            if pieces.iter().any(is_held) {
                continue;
            }
            self.report.records += 1;
            self.report.bytes += pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            done.push(Mutation::OmapRemove { key });
            done.extend(inline_removals(&pieces));
            removals.push(async move { remove_objects_of(index, shard, &pieces).await });
        }
        stream::iter(removals).buffer_unordered(REMOVALS_AT_ONCE).try_collect::<()>().await?;
        if done.is_empty() {
            return Ok(());
        }
        index.change_shard(shard, vec![Condition::ObjectExists], done).await.map_err(|error| index.explain(error))
    }

    /// The data that GETs hold. A hold that is not renewed is removed.
    async fn held(&mut self, index: &Index, shard: u32) -> Result<HashSet<[u8; 16]>, GatewayError> {
        let (mut held, object) = (HashSet::new(), index.object(shard));
        for (key, value) in index.all(shard, Bytes::from_static(HOLD_PREFIX)).await? {
            let age = self.memory.signs.age((object.as_str(), &key, &value), Instant::now());
            if age.is_some_and(|age| age >= self.service.garbage_grace) {
                index.remove_if(shard, key, value).await?;
            } else {
                held.extend(parse_hold_key(&key));
            }
        }
        Ok(held)
    }

    /// Cleans up unfinished work of dead gateways in a shard.
    async fn tend_signs(&mut self, index: &Index, shard: u32) -> Result<(), GatewayError> {
        let versioning = index.bucket.record.versioning.map(versioning_value);
        let (mut is_told, mut suspects) = (versioning.is_none(), Vec::new());
        for (key, value) in index.all(shard, Bytes::from_static(SIGN_PREFIX)).await? {
            match &key[..] {
                DELETING_KEY => tend_mark(self.service, index, shard, value).await?,
                VERSIONING_KEY => is_told |= Some(&value) == versioning.as_ref(),
                name if name.starts_with(INTENT_PREFIX) => {
                    suspects.extend(self.tend_intent(index, shard, key, value).await?);
                }
                _ => {}
            }
        }
        if !is_told {
            index.align_versioning(shard).await?;
        }
        if suspects.is_empty() { Ok(()) } else { self.settle_suspects(index, shard, suspects).await }
    }

    /// Makes garbage of the data of a writer that is gone. Returns a suspect that has waited long enough.
    async fn tend_intent(
        &mut self,
        index: &Index,
        shard: u32,
        key: Bytes,
        value: Bytes,
    ) -> Result<Option<Suspect>, GatewayError> {
        let object = index.object(shard);
        let age = self.memory.signs.age((object.as_str(), &key, &value), Instant::now());
        if age.is_none_or(|age| age < self.service.abandoned_after) {
            return Ok(None);
        }
        let head = decode_head::<IntentHead>(&value)?;
        if head.is_suspect {
            return Ok(Some(Suspect { pieces: decode_pieces(&value)?, key, value }));
        }
        if let Some(object_key) = head.named_by {
            let pieces = decode_pieces(&value)?;
            // The record goes last: as long as it is there, nothing can come to name the data.
            if !names(index, &object_key, &pieces).await? {
                remove_objects_of(index, shard, &pieces).await?;
            }
            return index.remove_if(shard, key, value).await.map(|()| None);
        }
        let is_same = Condition::OmapEquals { key: key.clone(), value };
        let discard = Mutation::OmapReplace { key, value: None, displaced_to: garbage_key(unix_ms()) };
        match index.change_shard(shard, vec![is_same], vec![discard]).await {
            // It was renewed or published.
            Err(error) if error.failed_condition().is_some() => Ok(None),
            changed => changed.map(|()| None).map_err(|error| index.explain(error)),
        }
    }

    /// Removes the data of suspects that no record names. No record can come to name it any more.
    async fn settle_suspects(
        &mut self,
        index: &Index,
        shard: u32,
        suspects: Vec<Suspect>,
    ) -> Result<(), GatewayError> {
        let ids = suspects.iter().flat_map(|suspect| &suspect.pieces).map(|piece| piece.data_id).collect();
        let named = named_of(index, shard, &ids).await?;
        for Suspect { key, value, pieces } in suspects {
            if !pieces.iter().any(|piece| named.contains(&piece.data_id)) {
                remove_objects_of(index, shard, &pieces).await?;
                self.report.orphans += 1;
            }
            index.remove_if(shard, key, value).await?;
        }
        Ok(())
    }
}

/// An intent for data that a search has found without a record.
struct Suspect {
    key: Bytes,
    value: Bytes,
    pieces: Vec<Piece>,
}
