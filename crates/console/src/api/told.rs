//! Calls that no command answers: events by their numbers, slow operations of all processes, objects of a bucket.

use std::sync::Arc;
use std::time::Duration;

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_metrics::slow::{SLOW_MIN, SlowOperation, SlowStep};
use atoll_types::PgId;
use atoll_types::events::EventRecord;
use atoll_types::records::{PgRecord, PgScrubRecord};
use serde_json::{Value, json};

use super::document::Given;
use super::refusal::Refusal;
use crate::bucket_listing::{self, Asked};
use crate::hosts::Unanswered;
use crate::server::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(10);
const EVENTS_DEFAULT: usize = 200;
const SLOW_DEFAULT: usize = 100;

fn limit(given: &Given, otherwise: usize) -> usize {
    given.asked("limit").and_then(|limit| limit.parse().ok()).unwrap_or(otherwise)
}

/// Events. An event's number is the revision of cluster state that brought it.
pub(super) async fn events(shared: &Arc<Shared>, given: &Given) -> Result<Value, Refusal> {
    let read = |client: ClusterClient| async move { client.list::<EventRecord>(keys::EVENTS).await };
    let read = shared.state.read(STATE_LIMIT, read).await;
    let listing = read.map_err(|error| Refusal::unavailable(format!("Events cannot be read: {error}.")))?;
    let mut events: Vec<(i64, EventRecord)> =
        listing.entries.into_iter().map(|(_, event, revision)| (revision, event)).collect();
    // Those of one revision keep the order of their times.
    events.sort_by_key(|(revision, _)| *revision);
    let (first, last) = (events.first().map(|(number, _)| *number), events.last().map(|(number, _)| *number));
    let limit = limit(given, EVENTS_DEFAULT);
    let after = given.asked("after").and_then(|after| after.parse::<i64>().ok());
    let told: Vec<&(i64, EventRecord)> = match after {
        Some(after) => events.iter().filter(|(number, _)| *number > after).take(limit).collect(),
        None => events[events.len().saturating_sub(limit)..].iter().collect(),
    };
    let told = told.into_iter().map(|(number, event)| {
        let cause = event.cause.as_ref().map(|cause| format!(", because {cause}")).unwrap_or_default();
        json!({
            "number": number, "time_unix_ms": event.unix_ms, "severity": event.severity, "code": event.code,
            "summary": format!("{}{cause}", event.summary), "subjects": event.subjects,
            "user": event.user, "host": event.host,
        })
    });
    Ok(json!({ "events": told.collect::<Vec<_>>(), "first_number": first, "last_number": last }))
}

/// What the last scrub of a PG has found.
pub(super) async fn scrub(shared: &Arc<Shared>, given: &Given) -> Result<Value, Refusal> {
    let name = given.name("pg");
    let pg: PgId = name.parse().map_err(|_| Refusal::invalid(format!("'{name}' is no PG, such as 1.1f.")))?;
    let read = |client: ClusterClient| async move {
        let is_there = client.get::<PgRecord>(&keys::pg(pg)).await?.is_some();
        let scrub = client.get::<PgScrubRecord>(&keys::pg_scrub(pg)).await?;
        Ok::<_, ClusterError>(is_there.then_some(scrub))
    };
    let read = shared.state.read(STATE_LIMIT, read).await;
    let found = read.map_err(|error| Refusal::unavailable(format!("The scrub cannot be read: {error}.")))?;
    let missing = || Refusal::not_found(format!("There is no PG {name}."), "Look at the list of PGs.");
    let scrub = found.ok_or_else(missing)?.map(|(record, _)| record);
    Ok(json!({ "pg": name, "scrub": scrub }))
}

/// The steps of an operation. What one in flight waits for is the last.
fn steps_of(operation: &SlowOperation) -> Vec<SlowStep> {
    let waits = operation.waits_for.iter();
    let last = waits.map(|what| SlowStep {
        name: format!("waits for {what}"),
        after_us: operation.duration_us,
        since_us: operation.steps.last().map_or(0, |step| step.after_us),
    });
    operation.steps.iter().cloned().chain(last).collect()
}

/// Slow operations of the processes of all hosts, the slowest first.
pub(super) async fn slow_operations(shared: &Arc<Shared>, given: &Given) -> Result<Value, Refusal> {
    let (others, without_state) = shared.others().await;
    let everywhere = shared.this_host().ask::<Vec<SlowOperation>>(&others, true).await;
    let unanswered: Vec<Unanswered> = without_state.into_iter().chain(everywhere.unanswered).collect();
    let mut all: Vec<(String, String, SlowOperation)> = Vec::new();
    for (host, process, operations) in everywhere.told {
        all.extend(operations.into_iter().map(|operation| (host.clone(), process.clone(), operation)));
    }
    all.sort_by_key(|(_, _, operation)| std::cmp::Reverse(operation.duration_us));
    let told = all.iter().take(limit(given, SLOW_DEFAULT)).map(|(host, process, operation)| {
        let osd = process.strip_prefix("osd.").and_then(|number| number.parse::<u32>().ok());
        json!({
            "id": format!("{host}-{process}-{}-{}", operation.begun_unix_ms, operation.duration_us),
            "host": host, "process": process,
            "kind": operation.kind, "client": operation.client, "object": operation.object, "pool": operation.pool,
            "pg": operation.pg, "osd": osd, "begun_unix_ms": operation.begun_unix_ms,
            "duration_us": operation.duration_us, "has_ended": operation.waits_for.is_none(), "steps": steps_of(operation),
        })
    });
    let told = told.collect::<Vec<_>>();
    Ok(json!({ "slower_than_us": SLOW_MIN.as_micros() as u64, "operations": told, "unanswered": unanswered }))
}

/// A page of a bucket's objects, as the gateway of this host lists them to the account that owns it.
pub(super) async fn objects(shared: &Arc<Shared>, given: &Given, user: &str) -> Result<Value, Refusal> {
    let asked = Asked {
        user: user.to_owned(),
        bucket: given.name("bucket"),
        prefix: given.asked("prefix").unwrap_or_default().to_owned(),
        delimiter: given.asked("delimiter").map(str::to_owned),
        continuation: given.asked("continuation").map(str::to_owned),
        limit: limit(given, 1_000),
    };
    bucket_listing::list(shared, &asked).await
}
