//! The garbage collector: removes the data of objects that were replaced or deleted, once the GETs
//! that may still be reading it have had their time. Several gateways may collect at once; all that
//! they do can be done twice.

use std::time::Duration;

use atoll_types::Mutation;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use crate::clock::unix_ms;
use crate::data::{inline_removals, remove_objects_of};
use crate::error::GatewayError;
use crate::gateway::CollectorReport;
use crate::index::Index;
use crate::names::{GARBAGE_PREFIX, parse_garbage_time};
use crate::ops::{Service, tend_deletion};
use crate::record::decode_pieces;

const RECORDS_PER_PAGE: u32 = 200;
/// Records whose data is removed at the same time: one after the other would not keep up with clients
/// that replace small objects.
const REMOVALS_AT_ONCE: usize = 16;

/// One walk over the garbage of all buckets. A failure in one bucket does not keep the others from
/// being collected.
pub(crate) async fn collect(service: &Service, grace: Duration) -> Result<CollectorReport, GatewayError> {
    let mut report = CollectorReport::default();
    for record in service.directory.buckets().await? {
        let name = record.name.clone();
        let result = async {
            let index = service.index_of(record);
            for shard in 0..index.shards() {
                // The gateway that changed it may have died before it told all.
                index.align_versioning(shard).await?;
                collect_shard(&index, shard, grace, &mut report).await?;
            }
            tend_deletion(service, &index).await
        };
        match result.await {
            // A bucket that is just being made or deleted.
            Ok(()) | Err(GatewayError::NoSuchBucket(_)) => {}
            Err(error) => {
                report.failures += 1;
                tracing::warn!(bucket = name, %error, "garbage of this bucket stays for now");
            }
        }
    }
    Ok(report)
}

async fn collect_shard(
    index: &Index,
    shard: u32,
    grace: Duration,
    report: &mut CollectorReport,
) -> Result<(), GatewayError> {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let mut from = Bytes::from_static(GARBAGE_PREFIX);
    loop {
        let page = index.page(shard, Bytes::from_static(GARBAGE_PREFIX), from.clone(), RECORDS_PER_PAGE).await?;
        let (records, more) = page;
        let Some((last, _)) = records.last() else { return Ok(()) };
        from = [last, &b"\0"[..]].concat().into();
        let cutoff = unix_ms().saturating_sub(grace_ms);
        // Keys begin with the time, so what follows the first young record is young, too.
        let is_old = |key: &Bytes| parse_garbage_time(key).is_some_and(|time| time <= cutoff);
        let reached_young = records.iter().any(|(key, _)| !is_old(key));
        let mut old = Vec::new();
        for (key, value) in records.into_iter().take_while(|(key, _)| is_old(key)) {
            match decode_pieces(&value) {
                Ok(pieces) => old.push((key, pieces)),
                Err(error) => {
                    // Without its record the data could never be found again: leave both.
                    report.failures += 1;
                    tracing::error!(key = %String::from_utf8_lossy(&key), %error, "garbage record is damaged");
                }
            }
        }
        let (mut done, mut removals) = (Vec::new(), Vec::new());
        for (key, pieces) in old {
            report.records += 1;
            report.bytes += pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            done.push(Mutation::OmapRemove { key });
            done.extend(inline_removals(&pieces));
            removals.push(async move { remove_objects_of(index, shard, &pieces).await });
        }
        stream::iter(removals).buffer_unordered(REMOVALS_AT_ONCE).try_collect::<()>().await?;
        if !done.is_empty() {
            let pool = index.bucket.record.pool;
            let exists = vec![atoll_types::Condition::ObjectExists];
            let removed = index.store.change(pool, index.object(shard), exists, done).await;
            removed.map_err(|error| index.explain(error))?;
        }
        if reached_young || !more {
            return Ok(());
        }
    }
}
