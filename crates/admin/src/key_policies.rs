//! Owners of keys of the key service, and their users for SSE-KMS.

use atoll_cluster::ClusterClient;
use atoll_iam::operations::{Answer, Parameters};
use atoll_keys::KeyService;

use crate::error::AdminError;
use crate::identities::{current, find_account, perform};

fn named(name: &str) -> Parameters {
    Parameters::default().with("KeyId", name)
}

/// AWS's default key policy: the account decides by the policies of its users and roles.
pub fn default_policy(account: &str) -> String {
    format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Sid":"Enable IAM User Permissions","Effect":"Allow","Principal":{{"AWS":"arn:aws:iam::{account}:root"}},"Action":"kms:*","Resource":"*"}}]}}"#
    )
}

/// Gives a new key to an account; without one, to the first. A cluster without accounts has no owner for it.
pub(crate) async fn give(
    state: &ClusterClient,
    service: &dyn KeyService,
    account: Option<&str>,
    name: &str,
) -> Result<(), AdminError> {
    if account.is_none() && find_account(&current(state).await?, None).is_err() {
        return Ok(());
    }
    perform(state, service, account, "CreateKey", named(name)).await.map(drop)
}

/// Deletes the records of a key that is destroyed.
pub(crate) async fn forget(state: &ClusterClient, service: &dyn KeyService, name: &str) -> Result<(), AdminError> {
    if current(state).await?.kms_key(name).is_none() {
        return Ok(());
    }
    perform(state, service, None, "DeleteKey", named(name)).await.map(drop)
}

/// The policy of a key.
pub async fn get(state: &ClusterClient, service: &dyn KeyService, name: &str) -> Result<Answer, AdminError> {
    perform(state, service, None, "GetKeyPolicy", named(name)).await
}

/// Sets the policy of a key; without a document AWS's default. The key then belongs to the account, or to the one that
/// has it, or to the first.
pub async fn set(
    state: &ClusterClient,
    service: &dyn KeyService,
    account: Option<&str>,
    name: &str,
    document: Option<String>,
) -> Result<Answer, AdminError> {
    if !service.list().await?.iter().any(|key| key.name == name) {
        return Err(AdminError::NoSuchKey(name.to_owned()));
    }
    let identities = current(state).await?;
    let owner = identities.kms_key(name).map(|key| key.record.account.clone());
    let account = find_account(&identities, account.or(owner.as_deref()))?;
    let id = account.record.id.as_str();
    let document = document.unwrap_or_else(|| default_policy(id));
    perform(state, service, Some(id), "PutKeyPolicy", named(name).with("Policy", document)).await
}

/// Takes the policy of a key away.
pub async fn remove(state: &ClusterClient, service: &dyn KeyService, name: &str) -> Result<Answer, AdminError> {
    perform(state, service, None, "DeleteKeyPolicy", named(name)).await
}
