//! Answers of this host's admin server to other hosts. The caller has been admitted.

use std::sync::Arc;

use atoll_coordinator::unix_ms;
use atoll_metrics::slow::SlowOperation;
use atoll_types::pg_copies::PgCopy;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use axum::{Json, Router};

use super::local::{OfHost, Tells, ask_processes};
use crate::figures::{HostFigures, Wanted};
use crate::shared::Shared;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route(<Vec<SlowOperation>>::HOST_ROUTE, get(of_processes::<Vec<SlowOperation>>))
        .route(<Vec<PgCopy>>::HOST_ROUTE, get(of_processes::<Vec<PgCopy>>))
        .route(String::HOST_ROUTE, get(of_processes::<String>))
        .route("/figures", get(figures))
}

async fn of_processes<T: Tells>(State(shared): State<Arc<Shared>>) -> Json<OfHost<T>> {
    Json(ask_processes(&shared.directory, &shared.processes()).await)
}

async fn figures(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Json<HostFigures> {
    let query: Vec<(String, String)> =
        form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
    let now_unix_ms = unix_ms();
    Json(shared.figures.own(&Wanted::of(&query, now_unix_ms), now_unix_ms))
}
