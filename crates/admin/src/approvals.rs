//! Operations that need a second operator: a request that one makes, and that another approves within a day. It is
//! good once.

use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{KeyService, random_bytes};
use atoll_types::approvals::{ApprovalDecision, ApprovalRecord};
use atoll_types::operators::{OperatorRecord, OperatorRole};
use atoll_types::records::RECORD_FORMAT;

use crate::error::AdminError;
use crate::operators;
use crate::second_factor::{self, Verdict};

/// Time after which a request expires, with any decision.
const LIFETIME_MS: u64 = 24 * 60 * 60 * 1_000;
const ID_BYTES: usize = 4;

/// A code of an operator's second factor, and the key service that can look at it.
#[derive(Clone, Copy)]
pub struct SecondProof<'a> {
    /// Opens the secret of the second factor.
    pub service: &'a dyn KeyService,
    /// A code of the authenticator, or a recovery code.
    pub code: &'a str,
}

/// An operator who has proved to be one, by a password or a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvedOperator(String);

impl ProvedOperator {
    /// By a password, and by a code if the operator has a second factor, as a log-in.
    pub async fn by_password(
        client: &ClusterClient,
        name: &str,
        password: &str,
        proof: Option<SecondProof<'_>>,
    ) -> Result<Self, AdminError> {
        let found = operators::find(client, name).await?.map(|(record, _)| record);
        let Some(operator) = found.as_ref().filter(|_| operators::is_password(found.as_ref(), password)) else {
            return AdminError::refused("there is no such operator, or the password is another");
        };
        if operator.has_second_factor() {
            let Some(SecondProof { service, code }) = proof else {
                return AdminError::refused(format!(
                    "'{name}' has a second factor: give a code of it as well, with --code-file"
                ));
            };
            match second_factor::check(client, service, name, code).await? {
                Verdict::Right => {}
                Verdict::Wrong => {
                    return AdminError::refused("the code is wrong, or was used already; wait for the next one");
                }
                Verdict::Pause(seconds) => {
                    return AdminError::refused(format!(
                        "there were too many wrong codes; try again in {seconds} s"
                    ));
                }
            }
        }
        Ok(ProvedOperator(name.to_owned()))
    }

    /// By a session that the caller has looked at.
    pub fn by_session(name: &str) -> Self {
        ProvedOperator(name.to_owned())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }

    async fn record(&self, client: &ClusterClient) -> Result<OperatorRecord, AdminError> {
        match operators::find(client, &self.0).await? {
            Some((record, _)) if record.role.has(OperatorRole::Admin) => Ok(record),
            _ => AdminError::refused(format!("'{}' is no operator with the role admin", self.0)),
        }
    }
}

/// A request as scripts see it.
pub fn document(id: &str, record: &ApprovalRecord) -> serde_json::Value {
    serde_json::json!({
        "id": id,
        "action": record.action,
        "requested_by": record.requested_by,
        "requested_unix_ms": record.requested_unix_ms,
        "expires_unix_ms": record.expires_unix_ms,
        "decision": record.decision,
    })
}

type Approvals = Vec<(String, ApprovalRecord)>;

/// Requests by id, without those that are over.
pub async fn list(client: &ClusterClient) -> Result<Approvals, AdminError> {
    Ok(listed(client).await?.into_iter().map(|(id, record, _)| (id, record)).collect())
}

async fn listed(client: &ClusterClient) -> Result<Vec<(String, ApprovalRecord, i64)>, AdminError> {
    let now_unix_ms = unix_ms();
    let found = client.list::<ApprovalRecord>(keys::APPROVALS).await?.entries;
    let id = |key: String| key.strip_prefix(keys::APPROVALS).unwrap_or(&key).to_owned();
    let live = found.into_iter().filter(|(_, record, _)| record.expires_unix_ms > now_unix_ms);
    Ok(live.map(|(key, record, revision)| (id(key), record, revision)).collect())
}

/// Says whether a request is approved. The requester may only withdraw it.
pub async fn decide(
    client: &ClusterClient,
    id: &str,
    operator: &ProvedOperator,
    is_approved: bool,
) -> Result<ApprovalRecord, AdminError> {
    let found = listed(client).await?.into_iter().find(|(known, ..)| known == id);
    let Some((_, record, revision)) = found else {
        return AdminError::refused(format!(
            "there is no request '{id}', or it is over; 'atoll approval ls' lists them"
        ));
    };
    let own = operator.record(client).await?;
    if is_approved && record.requested_by == operator.0 {
        return AdminError::refused(format!(
            "'{}' has asked for it; another operator has to approve it",
            operator.0
        ));
    }
    // The requester could create an approver for it, or take one over.
    if is_approved && record.approvers.get(&operator.0) != Some(&own.proof()) {
        return AdminError::refused(format!(
            "the operator '{}' was made, or got a role or a password, after the request; take it back ('atoll approval deny \
             {id}') and ask again",
            operator.0
        ));
    }
    if let Some(decision) = &record.decision {
        let word = if decision.is_approved { "approved" } else { "denied" };
        return AdminError::refused(format!("'{}' has {word} it already", decision.operator));
    }
    let decision = ApprovalDecision { operator: operator.0.clone(), is_approved, unix_ms: unix_ms() };
    let decided = ApprovalRecord { decision: Some(decision), ..record };
    client.compare_and_swap(&keys::approval(id), revision, &decided).await?;
    Ok(decided)
}

/// Uses up the approval of an action that an operator has asked for; returns who has approved it. If there is none, the
/// operator asks for one now, and that is an error, too.
pub async fn require(
    client: &ClusterClient,
    action: &str,
    operator: &ProvedOperator,
) -> Result<String, AdminError> {
    operator.record(client).await?;
    let own = |(_, record, _): &(String, ApprovalRecord, i64)| {
        record.action == action && record.requested_by == operator.0
    };
    let found = listed(client).await?.into_iter().find(own);
    match found {
        None => ask(client, action, operator).await,
        Some((id, ApprovalRecord { decision: None, .. }, _)) => waits(&id),
        Some((id, ApprovalRecord { decision: Some(decision), .. }, revision)) => {
            let transaction =
                Transaction::new().check(&keys::approval(&id), revision).delete(&keys::approval(&id));
            match client.transact(&transaction).await {
                Ok(_) if decision.is_approved => Ok(decision.operator),
                Ok(_) => AdminError::refused(format!("'{}' has denied it", decision.operator)),
                Err(ClusterError::Conflict { .. }) => {
                    AdminError::refused("another operator has used the approval meanwhile".to_owned())
                }
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn waits<T>(id: &str) -> Result<T, AdminError> {
    AdminError::refused(format!(
        "a second operator has to approve it within a day: 'atoll approval approve {id} --operator NAME', or in the admin \
         API; then give this command again"
    ))
}

async fn ask(client: &ClusterClient, action: &str, operator: &ProvedOperator) -> Result<String, AdminError> {
    let mut others = operators::list(client).await?;
    others.retain(|(name, record)| *name != operator.0 && record.role.has(OperatorRole::Admin));
    if others.is_empty() {
        return AdminError::refused(format!(
            "a second operator has to approve it, and there is none with the role admin beside '{}'; 'atoll operator create \
             NAME --role admin' makes one, for another person",
            operator.0
        ));
    }
    let (id, requested_unix_ms) = (hex::encode(random_bytes::<ID_BYTES>()), unix_ms());
    let record = ApprovalRecord {
        format: RECORD_FORMAT,
        action: action.to_owned(),
        requested_by: operator.0.clone(),
        requested_unix_ms,
        expires_unix_ms: requested_unix_ms + LIFETIME_MS,
        approvers: others.into_iter().map(|(name, record)| (name, record.proof())).collect(),
        decision: None,
    };
    client.create(&keys::approval(&id), &record).await?;
    forget_old(client).await?;
    waits(&id)
}

async fn forget_old(client: &ClusterClient) -> Result<(), AdminError> {
    let now_unix_ms = unix_ms();
    for (key, record, revision) in client.list::<ApprovalRecord>(keys::APPROVALS).await?.entries {
        if record.expires_unix_ms <= now_unix_ms {
            match client.delete_if(&key, revision).await {
                Ok(_) | Err(ClusterError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
