//! `/metrics/PROCESS` and `/metrics/targets`.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin_socket::{AskError, ask};
use atoll_cluster::{ClusterClient, keys};
use atoll_metrics::TextFormat;
use atoll_types::monitoring::AdminServerRecord;
use axum::extract::{Extension, Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::hosts::is_remembered;
use crate::peer::Peer;
use crate::shared::{ADMIN_PROCESS, Shared};

const STATE_LIMIT: Duration = Duration::from_secs(4);

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/metrics/targets", get(targets)).route("/metrics/{process}", get(metrics))
}

type Refusal = (StatusCode, String);

/// The metrics of one process of this host.
async fn metrics(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    Path(process): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    shared.tokens.check(&headers, peer.map(|peer| peer.0), &shared.state).await?;
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    if process == ADMIN_PROCESS {
        let _unchanged = shared.cluster_metrics.refresh(&shared.state, &shared.directory, &shared.cluster).await;
        let format = TextFormat::accepted(accept);
        let text = atoll_metrics::encode(format).expect("writing to a string does not fail");
        return Ok(([(CONTENT_TYPE, format.content_type())], text).into_response());
    }
    // Only names of processes are asked for, so that no other path can be meant.
    if !shared.processes().contains(&process) {
        let text = format!("no process '{process}' on this host: there are {}\n", shared.processes().join(", "));
        return Err((StatusCode::NOT_FOUND, text));
    }
    match ask(&shared.directory.admin_socket(&process), "/metrics", accept).await {
        Ok(answer) => Ok(([(CONTENT_TYPE, answer.content_type)], answer.body).into_response()),
        Err(AskError::NotReached { .. }) => Err((
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{process} does not run, or has only just been started\n"),
        )),
        Err(error) => Err((StatusCode::BAD_GATEWAY, format!("{error}\n"))),
    }
}

/// Targets of one admin server, as Prometheus' HTTP service discovery takes them.
#[derive(Serialize)]
struct TargetGroup {
    targets: [String; 1],
    labels: TargetLabels,
}

#[derive(Serialize)]
struct TargetLabels {
    #[serde(rename = "__metrics_path__")]
    metrics_path: String,
    host: String,
    process: String,
}

/// Returns the targets for Prometheus, on all hosts whose admin servers run.
async fn targets(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Result<Json<Vec<TargetGroup>>, Refusal> {
    shared.tokens.check(&headers, peer.map(|peer| peer.0), &shared.state).await?;
    let read = |client: ClusterClient| async move { client.list::<AdminServerRecord>(keys::ADMIN_SERVERS).await };
    let listing = shared.state.read(STATE_LIMIT, read).await;
    // Prometheus goes on with the targets that it knows.
    let listing = listing.map_err(|error| {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("cluster state, which knows all hosts, cannot be read: {error}\n"),
        )
    })?;
    let servers = listing.entries.into_iter().map(|(_, record, _)| record).filter(is_remembered);
    Ok(Json(servers.flat_map(groups).collect()))
}

fn groups(server: AdminServerRecord) -> Vec<TargetGroup> {
    let group = |process: &String| TargetGroup {
        targets: [server.address.clone()],
        labels: TargetLabels {
            metrics_path: format!("/metrics/{process}"),
            host: server.host.clone(),
            process: process.clone(),
        },
    };
    server.processes.iter().map(group).collect()
}
