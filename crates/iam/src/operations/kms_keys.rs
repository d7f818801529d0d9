//! Keys of the key service: whose they are, and their policies. Operators make both.

use std::collections::BTreeMap;

use atoll_types::identities::KmsKeyRecord;
use atoll_types::records::RECORD_FORMAT;

use super::{Answer, Call, IamError, Outcome, Value};
use crate::identities::{Record, RecordName};
use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

/// Longest key policy, as in AWS.
const POLICY_CHARS_MAX: usize = 32_768;
const NAME_CHARS_MAX: usize = 64;

fn name(call: &mut Call<'_>) -> Result<String, IamError> {
    call.parameters.name("KeyId", NAME_CHARS_MAX)
}

fn found(call: &Call<'_>, name: &str) -> Result<KmsKeyRecord, IamError> {
    let key = call.context.identities.kms_key(name);
    let nobodys = || format!("The key {name} belongs to no account, and has no policy: all accounts may use it.");
    key.map(|key| key.record.clone()).ok_or_else(|| IamError::NoSuchEntity(nobodys()))
}

fn without_policy(record: &KmsKeyRecord) -> IamError {
    let KmsKeyRecord { name, account, .. } = record;
    IamError::NoSuchEntity(format!("The key {name} has no policy: the users of account {account} may use it."))
}

fn details(record: &KmsKeyRecord) -> Answer {
    let has_policy = record.policy.is_some();
    Answer::new().text("KeyId", &record.name).text("Account", &record.account).text("HasPolicy", has_policy)
}

/// Gives a key to the account that acts.
pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = name(call)?;
    let record = KmsKeyRecord {
        format: RECORD_FORMAT,
        name,
        account: call.context.account_id().into(),
        policy: None,
        policy_principals: BTreeMap::new(),
    };
    let answer = Answer::new().fields("KeyMetadata", details(&record));
    Outcome::put(Record::KmsKey(record), answer)
}

/// Forgets whose a key is, and its policy.
pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = name(call)?;
    match call.context.identities.kms_key(&name) {
        Some(_) => Outcome::delete(RecordName::KmsKey(name)),
        None => Outcome::answer(Answer::new()),
    }
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    super::paging::Paging::take(&mut call.parameters)?;
    let keys = call.context.identities.kms_keys().map(|key| details(&key.record));
    Outcome::answer(Answer::new().list("Keys", keys).text("IsTruncated", false))
}

/// Sets the policy of a key, which is the acting account's from then on.
pub(super) fn put_policy(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = name(call)?;
    let document = call.parameters.document("Policy", PolicyKind::Key)?;
    if document.chars().count() > POLICY_CHARS_MAX {
        return Err(IamError::LimitExceeded { quota: "KeyPolicySize", limit: POLICY_CHARS_MAX });
    }
    let malformed = |text: String| IamError::MalformedPolicyDocument(text);
    let policy = Policy::parse(&document, PolicyKind::Key).map_err(|error| malformed(error.to_string()))?;
    let ids = call.context.identities.principal_ids(&policy);
    let policy_principals = ids.map_err(|arn| malformed(format!("Invalid principal in policy: {arn}")))?;
    let account = call.context.account_id().into();
    let record = KmsKeyRecord { format: RECORD_FORMAT, name, account, policy: Some(document), policy_principals };
    let answer = Answer::new().fields("KeyMetadata", details(&record));
    Outcome::put(Record::KmsKey(record), answer)
}

pub(super) fn get_policy(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = name(call)?;
    let record = found(call, &name)?;
    let document = record.policy.clone().ok_or_else(|| without_policy(&record))?;
    let answer = Answer::new().text("KeyId", &name).text("Account", record.account);
    Outcome::answer(answer.value("Policy", Value::Document(document)))
}

/// Takes the policy of a key away. Its account keeps it.
pub(super) fn delete_policy(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = name(call)?;
    let record = found(call, &name)?;
    if record.policy.is_none() {
        return Err(without_policy(&record));
    }
    let record = KmsKeyRecord { policy: None, policy_principals: BTreeMap::new(), ..record };
    let answer = Answer::new().fields("KeyMetadata", details(&record));
    Outcome::put(Record::KmsKey(record), answer)
}
