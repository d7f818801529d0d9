//! Operators who change their own passwords.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::AdminError;
use atoll_admin::operators::{self, Reach};
use atoll_cluster::ClusterClient;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::document::Given;
use super::login;
use super::password::Attempt;
use super::refusal::Refusal;
use super::session_keeping;
use super::sessions::Session;
use crate::peer::Peer;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(10);

/// Changes the password of a session's operator; that session stays valid, and all others of the operator end.
pub(super) async fn change(
    shared: &Arc<Shared>,
    peer: Option<&Peer>,
    session: &Session,
    given: &Given,
) -> Result<Response, Refusal> {
    let text = |name: &str| given.text(name).unwrap_or_default().to_owned();
    let (old, new) = (text("password"), text("new_password"));
    operators::check_password(&new).map_err(|error| Refusal::unfit_password(format!("{error}.")))?;
    if old == new {
        return Err(Refusal::unfit_password("The new password is the old one.".into()));
    }
    let user = session.record.user.clone();
    login::prove_with_code(shared, Attempt { user: &user, password: &old, peer }, given.text("code")).await?;
    let id = session.id.clone();
    let write = |client: ClusterClient| async move {
        operators::set(&client, &user, None, Some(&new), Reach::All).await?;
        match operators::find(&client, &user).await? {
            Some((operator, _)) => session_keeping::go_on(&client, &id, &operator).await,
            None => Ok::<_, AdminError>(()),
        }
    };
    let written = shared.state.read(STATE_LIMIT, write).await;
    written.map_err(|error| Refusal::unavailable(format!("The password cannot be changed: {error}.")))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
