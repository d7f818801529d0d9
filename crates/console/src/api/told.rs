//! Calls that no command answers: events by their numbers, slow operations of all processes, objects of a bucket.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::AdminError;
use atoll_admin::events::{self, EventFilter};
use atoll_admin::pgs;
use atoll_cluster::ClusterClient;
use atoll_metrics::slow::{SLOW_MIN, SlowOperation, SlowStep};
use atoll_types::PgId;
use atoll_types::events::Severity;
use serde::Serialize;
use serde_json::{Value, json};

use super::document::Given;
use super::refusal::Refusal;
use crate::bucket_listing::{self, Asked};
use crate::hosts::Unanswered;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(10);
const EVENTS_DEFAULT: usize = 200;
const SLOW_DEFAULT: usize = 100;

fn limit(given: &Given, otherwise: usize) -> usize {
    given.asked("limit").and_then(|limit| limit.parse().ok()).unwrap_or(otherwise)
}

/// Returns past events, as `atoll events` does.
pub(super) async fn events(shared: &Arc<Shared>, given: &Given) -> Result<Value, Refusal> {
    let filter = EventFilter {
        after: given.asked("after").and_then(|after| after.parse().ok()),
        limit: limit(given, EVENTS_DEFAULT),
        severity_min: Severity::Note,
    };
    let read = |client: ClusterClient| async move { events::list(&client, &filter).await };
    let listed = shared.state.read(STATE_LIMIT, read).await;
    document(listed.map_err(|error| Refusal::unavailable(format!("Events cannot be read: {error}.")))?)
}

/// Returns the result of a PG's last scrub, as `atoll pg query` does.
pub(super) async fn scrub(shared: &Arc<Shared>, given: &Given) -> Result<Value, Refusal> {
    let name = given.name("pg");
    let pg: PgId = name.parse().map_err(|_| Refusal::invalid(format!("'{name}' is no PG, such as 1.1f.")))?;
    let read = |client: ClusterClient| async move {
        match pgs::last_scrub(&client, pg).await {
            Err(AdminError::NoSuchPg(_)) => Ok(None),
            found => found.map(Some),
        }
    };
    let read = shared.state.read(STATE_LIMIT, read).await;
    let found = read.map_err(|error| Refusal::unavailable(format!("The scrub cannot be read: {error}.")))?;
    let missing = || Refusal::not_found(format!("There is no PG {name}."), "Look at the list of PGs.");
    document(found.ok_or_else(missing)?)
}

fn document(told: impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(told).map_err(|error| Refusal::internal(error.to_string()))
}

/// The steps of an operation. The reason of a pending one is the last.
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
