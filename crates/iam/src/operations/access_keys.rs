//! Access keys of users, of an account's root, and of service accounts.

use atoll_types::identities::{ACCESS_KEY_FORMAT_OF_ACCOUNTS, AccessKeyRecord, FIRST_ACCOUNT};
use atoll_types::records::RECORD_FORMAT;

use super::paging::Paging;
use super::users::named_or_own;
use super::{Answer, Call, Context, IamError, Outcome};
use crate::identities::{Record, RecordName};
use crate::policy_kind::PolicyKind;

/// Two in AWS.
const KEYS_MAX: usize = 16;
const POLICY_CHARS_MAX: usize = 2_048;
const KEY_BYTES_MAX: usize = 128;

/// The keys of a user, or of the root of the account.
pub(super) fn of_user<'a>(
    context: &'a Context<'_>,
    user: Option<&'a str>,
) -> impl Iterator<Item = AccessKeyRecord> + use<'a> {
    let account = context.account_id();
    let keys = context.identities.access_keys().map(|key| &key.record);
    keys.filter(move |key| key.account() == account && is_of(key, user)).cloned()
}

fn is_of(key: &AccessKeyRecord, user: Option<&str>) -> bool {
    match (&key.user, user) {
        (Some(owner), Some(user)) => owner.eq_ignore_ascii_case(user),
        (None, None) => true,
        _ => false,
    }
}

/// Gives a record the format that its fields need. Releases that know keys alone, and give each all rights, must
/// not read one that has fewer.
fn with_format(mut key: AccessKeyRecord) -> AccessKeyRecord {
    if key.is_of_first_root() && key.account.is_none() && !key.is_disabled {
        key.format = RECORD_FORMAT;
    } else {
        key.account = Some(key.account().to_owned());
        key.format = ACCESS_KEY_FORMAT_OF_ACCOUNTS;
    }
    key
}

fn status(key: &AccessKeyRecord) -> &'static str {
    if key.is_disabled { "Inactive" } else { "Active" }
}

fn summary(key: &AccessKeyRecord) -> Answer {
    Answer::new()
        .optional("UserName", key.user.as_ref())
        .text("AccessKeyId", &key.access_key)
        .text("Status", status(key))
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let user = named_or_own(call)?.map(|user| user.name);
    let is_operator = call.context.caller.is_none();
    // AWS has no such thing.
    let policy = match is_operator && call.parameters.get("PolicyDocument").is_some() {
        true => Some(call.parameters.document("PolicyDocument", PolicyKind::Session)?),
        false => None,
    };
    if policy.as_deref().is_some_and(|policy| super::document_size(policy) > POLICY_CHARS_MAX) {
        return Err(IamError::LimitExceeded { quota: "PolicySize", limit: POLICY_CHARS_MAX });
    }
    let description = if is_operator { call.parameters.description()? } else { None };
    if of_user(call.context, user.as_deref()).count() >= KEYS_MAX {
        return Err(IamError::LimitExceeded { quota: "AccessKeysPerUser", limit: KEYS_MAX });
    }
    let new = call.context.new_access_key;
    let new = new.ok_or_else(|| IamError::InvalidInput("No access key was made for the operation".into()))?;
    let account = call.context.account_id();
    let key = with_format(AccessKeyRecord {
        format: RECORD_FORMAT,
        access_key: new.access_key.clone(),
        wrapped_secret_key: new.wrapped_secret.clone(),
        display_name: description.or_else(|| user.clone()).unwrap_or_else(|| "root".into()),
        created_unix_ms: call.context.now_ms,
        account: (account != FIRST_ACCOUNT).then(|| account.to_owned()),
        user,
        is_disabled: false,
        policy,
    });
    let answer = summary(&key).text("SecretAccessKey", &new.secret).time("CreateDate", key.created_unix_ms);
    Outcome::put(Record::AccessKey(key), Answer::new().fields("AccessKey", answer))
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let user = named_or_own(call)?.map(|user| user.name);
    let paging = Paging::take(&mut call.parameters)?;
    let keys = of_user(call.context, user.as_deref());
    let page = paging.page(keys.map(|key| {
        let created = key.created_unix_ms;
        (format!("{created:016x}{}", key.access_key), summary(&key).time("CreateDate", created))
    }));
    Outcome::answer(page.end(Answer::new().list("AccessKeyMetadata", page.items.clone())))
}

/// The key that is named. Without a user name it is one of the caller; operators need none.
fn named(call: &mut Call<'_>) -> Result<AccessKeyRecord, IamError> {
    let id = call.parameters.name("AccessKeyId", KEY_BYTES_MAX)?;
    let is_any_owner = call.context.caller.is_none() && call.parameters.get("UserName").is_none();
    let user = named_or_own(call)?.map(|user| user.name);
    let key = call.context.identities.access_key(&id).map(|key| &key.record);
    let is_meant = |key: &&AccessKeyRecord| {
        key.account() == call.context.account_id() && (is_any_owner || is_of(key, user.as_deref()))
    };
    key.filter(is_meant).cloned().ok_or_else(|| no_such_key(&id))
}

fn no_such_key(id: &str) -> IamError {
    IamError::NoSuchEntity(format!("The Access Key with id {id} cannot be found."))
}

pub(super) fn update(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let key = named(call)?;
    let status = call.parameters.required("Status")?;
    let is_disabled = match status.as_str() {
        "Active" => false,
        "Inactive" => true,
        _ => return IamError::invalid(format!("'{status}' is neither Active nor Inactive")),
    };
    Outcome::put(Record::AccessKey(with_format(AccessKeyRecord { is_disabled, ..key })), Answer::new())
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let key = named(call)?;
    Outcome::delete(RecordName::AccessKey(key.access_key))
}

pub(super) fn last_used(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let id = call.parameters.name("AccessKeyId", KEY_BYTES_MAX)?;
    let key = call.context.identities.access_key(&id).map(|key| &key.record);
    let key = key.filter(|key| key.account() == call.context.account_id()).ok_or_else(|| no_such_key(&id))?;
    let used = match call.context.last_used {
        Some(used) => Answer::new()
            .time("LastUsedDate", used.used_unix_ms)
            .text("ServiceName", &used.service)
            .text("Region", &used.region),
        None => Answer::new().text("ServiceName", "N/A").text("Region", "N/A"),
    };
    let answer = Answer::new().optional("UserName", key.user.as_ref()).fields("AccessKeyLastUsed", used);
    Outcome::answer(answer)
}
