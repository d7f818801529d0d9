//! Accounts, users, groups, policies and access keys: the operations of AWS's IAM, by their names, as an operator
//! of the cluster who may act for any account; and decisions on requests with their reasons.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use atoll_audit::DocumentChange;
use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_iam::operations::{
    Answer, Context, IamError, NewAccessKey, Operation, Parameters, PolicyChange, RANDOM_BYTES, policy_changes,
};
use atoll_iam::{
    AWS_MANAGED_POLICIES, AccountEntry, Caller, ConditionValues, Decision, Identities, KeyLookup, KeyQuestion,
    Policy, PolicyKind, Question, ResourceSide, arn, decide, decide_key,
};
use atoll_identities::{ChangeCondition, IdentityError, IdentityStore};
use atoll_keys::{KeyService, random_bytes};
use atoll_types::access::ObjectOwnership;
use atoll_types::identities::{FIRST_ACCOUNT, LastUsedRecord};
use atoll_types::records::BucketRecord;

use crate::error::AdminError;

/// Largest number of items on one page of a list.
const PAGE_ITEMS: &str = "1000";

pub(crate) fn refused(error: IdentityError) -> AdminError {
    match error {
        IdentityError::Cluster(error) => error.into(),
        IdentityError::Refused(error) => error.into(),
        other => AdminError::Refused(other.to_string()),
    }
}

/// The account of this name or number; without one, the first.
pub fn find_account(identities: &Identities, account: Option<&str>) -> Result<Arc<AccountEntry>, AdminError> {
    let wanted = account.unwrap_or(FIRST_ACCOUNT);
    let by_number = identities.account(wanted);
    let by_name = || identities.accounts().find(|entry| entry.record.name.eq_ignore_ascii_case(wanted));
    by_number.or_else(by_name).cloned().ok_or_else(|| AdminError::NoSuchAccount(wanted.to_owned()))
}

/// The ARN of a managed policy by its name: one of the account's own, or one that AWS has.
pub fn policy_arn(identities: &Identities, account: &AccountEntry, name: &str) -> Result<String, AdminError> {
    if name.starts_with("arn:") {
        return Ok(name.to_owned());
    }
    let id = &account.record.id;
    if let Some(policy) = identities.policy(id, name) {
        return Ok(format!("arn:aws:iam::{id}:policy{}{}", policy.record.path, policy.record.name));
    }
    match AWS_MANAGED_POLICIES.iter().find(|policy| policy.name.eq_ignore_ascii_case(name)) {
        Some(policy) => Ok(format!("arn:aws:iam::aws:policy/{}", policy.name)),
        None => Err(AdminError::NoSuchPolicy { account: account.record.name.clone(), policy: name.to_owned() }),
    }
}

/// All identities as they are now.
pub async fn current(state: &ClusterClient) -> Result<Identities, AdminError> {
    Ok(IdentityStore::new(state.clone()).current().await?)
}

async fn last_used(state: &ClusterClient, access_key: &str) -> Result<Option<LastUsedRecord>, ClusterError> {
    Ok(state.get(&keys::last_used(access_key)).await?.map(|(record, _)| record))
}

/// The account to be deleted owns no buckets: no other could reach them.
struct OwnsNothing<'a>(Option<&'a str>);

#[async_trait]
impl ChangeCondition for OwnsNothing<'_> {
    async fn check(&self, state: &ClusterClient, identities: &Identities) -> Result<Transaction, IdentityError> {
        let account = find_account(identities, self.0);
        let account = account.map_err(|error| IamError::NoSuchEntity(error.to_string()))?;
        let buckets = state.list::<BucketRecord>(keys::BUCKETS).await?;
        let mut owned = buckets.entries.iter().map(|(_, bucket, _)| bucket);
        match owned.find(|bucket| bucket.owner == account.record.canonical_id) {
            Some(bucket) => Err(IamError::DeleteConflict(format!(
                "account '{}' owns buckets, such as '{}'; its root has to delete them first",
                account.record.name, bucket.name
            ))
            .into()),
            // Nor has it got one since.
            None => Ok(Transaction::new().check_prefix(keys::BUCKETS, buckets.revision)),
        }
    }
}

/// Does an operation of AWS's IAM, or one on accounts, for an account.
pub async fn perform(
    state: &ClusterClient,
    service: &dyn KeyService,
    account: Option<&str>,
    operation: &str,
    parameters: Parameters,
) -> Result<Answer, AdminError> {
    let operation = Operation::find(operation)?;
    let new_access_key: Option<NewAccessKey> = match operation.needs_access_key() {
        true => Some(atoll_credentials::new_access_key(service).await?),
        false => None,
    };
    let last_used = match operation.asks_last_use(&parameters) {
        Some(access_key) => last_used(state, access_key).await?,
        None => None,
    };
    let random: [u8; RANDOM_BYTES] = random_bytes();
    let now_ms = atoll_coordinator::unix_ms();
    let changed = Mutex::default();
    let run = |identities: &Identities| {
        let account = find_account(identities, account);
        let account = account.map_err(|error| IamError::NoSuchEntity(error.to_string()))?;
        let context = Context {
            identities,
            account,
            caller: None,
            now_ms,
            random,
            new_access_key: new_access_key.as_ref(),
            last_used: last_used.as_ref(),
        };
        let outcome = operation.run(&context, parameters.clone())?;
        let policies = policy_changes(identities, &outcome.changes);
        *changed.lock().unwrap_or_else(PoisonError::into_inner) = policies;
        Ok(outcome)
    };
    let store = IdentityStore::new(state.clone());
    let changed_by = match operation.name {
        "DeleteAccount" => store.change_if(&OwnsNothing(account), &run).await,
        _ => store.change(&run).await,
    };
    let answer = changed_by.map_err(refused)?.answer;
    note_policies(operation, changed.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(answer)
}

/// Notes changes of policies in the audit log of this process.
fn note_policies(operation: &Operation, changes: Vec<PolicyChange>) {
    let audited = |change: PolicyChange| {
        DocumentChange::new(change.document, change.before.as_deref(), change.after.as_deref())
    };
    let policies: Vec<DocumentChange> = changes.into_iter().filter_map(audited).collect();
    if !policies.is_empty() {
        let record = serde_json::json!({ "action": format!("iam:{}", operation.name), "policies": policies });
        atoll_audit::note_change("command", "ChangePolicies", &record);
    }
}

/// Does an operation that lists something, page by page.
pub async fn list(
    state: &ClusterClient,
    service: &dyn KeyService,
    account: Option<&str>,
    operation: &str,
    parameters: Parameters,
) -> Result<Answer, AdminError> {
    let mut all = Answer::new();
    let mut marker: Option<String> = None;
    loop {
        let mut page = parameters.clone().with("MaxItems", PAGE_ITEMS);
        if let Some(marker) = &marker {
            page = page.with("Marker", marker);
        }
        let answer = perform(state, service, account, operation, page).await?;
        marker = answer.text_at(&["Marker"]).map(str::to_owned);
        all.append(answer);
        if marker.is_none() {
            return Ok(all);
        }
    }
}

/// Caller in a simulation.
#[derive(Clone, Debug)]
pub enum Asker {
    /// A request signed with this access key.
    AccessKey(String),
    /// A request without a signature.
    Anonymous,
}

/// Condition keys of a simulated request, in lower case.
pub struct GivenConditions(pub BTreeMap<String, Vec<String>>);

impl ConditionValues for GivenConditions {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        let values = self.0.get(&key.to_ascii_lowercase()).into_iter().flatten();
        values.map(|value| Cow::Borrowed(value.as_str())).collect()
    }
}

/// Returns if a request would be allowed, and the reason. The resource is a bucket or an object, as `BUCKET` or
/// `BUCKET/KEY`, or the key of the key service that an action of `kms:` is about. ACLs of objects, and their
/// owners and tags, are with the objects and do not count here.
pub async fn simulate(
    state: &ClusterClient,
    asker: &Asker,
    action: &str,
    resource: &str,
    conditions: &GivenConditions,
) -> Result<Decision, AdminError> {
    let identities = current(state).await?;
    let caller = match asker {
        Asker::Anonymous => None,
        Asker::AccessKey(key) => match identities.caller(key) {
            KeyLookup::Found(caller) => Some(*caller),
            KeyLookup::Disabled => {
                return AdminError::refused(format!(
                    "the access key {key} is disabled: all of its requests are \
                    denied"
                ));
            }
            KeyLookup::Unknown => return AdminError::refused(format!("there is no access key {key}")),
        },
    };
    let lower = action.to_ascii_lowercase();
    if lower.starts_with("kms:") {
        return Ok(simulate_key(&identities, caller.as_ref(), action, resource, conditions));
    }
    let resource = resource.strip_prefix("arn:aws:s3:::").unwrap_or(resource);
    let name = resource.split('/').next().unwrap_or_default();
    let arn = if resource.starts_with("arn:") { resource.to_owned() } else { format!("arn:aws:s3:::{resource}") };
    let is_of_account =
        !lower.starts_with("s3:") || ["s3:createbucket", "s3:listallmybuckets"].contains(&lower.as_str());
    let record = match is_of_account {
        true => None,
        false => {
            let found = state.get::<BucketRecord>(&keys::bucket(name)).await?;
            Some(found.ok_or_else(|| AdminError::NoSuchBucket(name.to_owned()))?.0)
        }
    };
    let document = record.as_ref().and_then(|record| record.access.as_ref()?.policy.as_deref());
    let policy = document.map(|document| Policy::parse(document, PolicyKind::Resource)).transpose();
    let policy = policy.map_err(|error| AdminError::Refused(format!("the policy of bucket '{name}': {error}")))?;
    let ids = record.as_ref().and_then(|record| Some(record.access.as_ref()?.policy_principals.clone()));
    let policy = policy.map(|policy| policy.bound(&ids.unwrap_or_default()));
    let resource_side = record.as_ref().map(|record| ResourceSide {
        bucket_owner: &record.owner,
        object_owner: None,
        policy: policy.as_ref(),
        acl: None,
        public_access_block: record.public_access_block.unwrap_or_default(),
    });
    let question = Question { caller: caller.as_ref(), action, resource: &arn, resource_side, conditions };
    Ok(decide(&question))
}

/// Returns if a use of a key would be allowed, and the reason. The key is named as S3 clients name it.
fn simulate_key(
    identities: &Identities,
    caller: Option<&Caller>,
    action: &str,
    key_id: &str,
    conditions: &GivenConditions,
) -> Decision {
    let name = key_id.rsplit('/').next().unwrap_or_default();
    let entry = identities.kms_key(name);
    let owner = entry.map(|entry| entry.record.account.as_str());
    let account = owner.or(caller.map(|caller| caller.account.id.as_str())).unwrap_or(FIRST_ACCOUNT);
    let arn = match arn::parse_kms_key_arn(key_id) {
        Some(_) => key_id.replacen(":alias/", ":key/", 1),
        None => arn::kms_key_arn("us-east-1", account, name),
    };
    let policy = entry.and_then(|entry| entry.policy.as_deref());
    decide_key(&KeyQuestion { caller, action, key_arn: &arn, owner, policy, conditions })
}

/// Returns true if ACLs count in a bucket, so that a simulation covers only a part.
pub async fn counts_acls(state: &ClusterClient, bucket: &str) -> Result<bool, AdminError> {
    let found = state.get::<BucketRecord>(&keys::bucket(bucket)).await?;
    let access = found.and_then(|(record, _)| record.access);
    Ok(access.is_some_and(|access| access.ownership != ObjectOwnership::BucketOwnerEnforced))
}
