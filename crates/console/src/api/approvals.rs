//! The word of a second operator, by a session.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::AdminError;
use atoll_admin::approvals::{self, ProvedOperator};
use serde_json::Value;

use super::document::Given;
use super::refusal::Refusal;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(10);

/// The operator of a session approves or denies the request of another.
pub(super) async fn decide(
    shared: &Arc<Shared>,
    given: &Given,
    user: &str,
    is_approved: bool,
) -> Result<Value, Refusal> {
    let id = given.name("approval");
    let unavailable = |error: String| Refusal::unavailable(format!("Cluster state does not answer: {error}."));
    let client = shared.state.client().await.map_err(unavailable)?;
    let operator = ProvedOperator::by_session(user);
    let decided = approvals::decide(&client, &id, &operator, is_approved);
    match tokio::time::timeout(STATE_LIMIT, decided).await {
        Ok(Ok(record)) => Ok(approvals::document(&id, &record)),
        Ok(Err(AdminError::Refused(reason))) => {
            Err(Refusal::conflict(format!("It was not done: {reason}."), "Look at the list of requests."))
        }
        Ok(Err(error)) => Err(unavailable(error.to_string())),
        Err(_) => Err(unavailable(format!("nothing for {} s", STATE_LIMIT.as_secs()))),
    }
}
