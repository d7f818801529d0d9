//! Accounts, which operators make, and an account's information about itself.

use atoll_types::identities::{AccountRecord, FIRST_ACCOUNT};
use atoll_types::records::RECORD_FORMAT;

use super::{Answer, Call, IamError, Outcome, Value};
use crate::identities::{Record, RecordName};

const ACCOUNTS_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 64;
const EMAIL_CHARS_MAX: usize = 254;

fn details(account: &AccountRecord) -> Answer {
    Answer::new()
        .text("Id", &account.id)
        .text("Name", &account.name)
        .optional("Email", account.email.as_ref())
        .text("CanonicalId", &account.canonical_id)
        .time("CreateDate", account.created_unix_ms)
}

fn email(call: &mut Call<'_>) -> Result<Option<String>, IamError> {
    let Some(email) = call.parameters.take("Email") else { return Ok(None) };
    let is_email = email.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
    let is_plain = email.chars().all(|c| !c.is_whitespace() && !c.is_control()) && email.len() <= EMAIL_CHARS_MAX;
    if !is_email || !is_plain {
        return IamError::invalid(format!("'{email}' is not an email address"));
    }
    Ok(Some(email))
}

/// A name that looks like a number would be taken for another account's.
fn check_is_no_number(name: &str) -> Result<(), IamError> {
    match name.bytes().all(|byte| byte.is_ascii_digit()) {
        true => IamError::invalid("The name of an account must not be a number"),
        false => Ok(()),
    }
}

/// Makes sure that no other account has the name or the address.
fn check_is_free(call: &Call<'_>, record: &AccountRecord) -> Result<(), IamError> {
    for other in
        call.context.identities.accounts().map(|entry| &entry.record).filter(|other| other.id != record.id)
    {
        if other.name.eq_ignore_ascii_case(&record.name) {
            let text = format!("Account with name {} already exists.", record.name);
            return Err(IamError::EntityAlreadyExists(text));
        }
        if let (Some(one), Some(two)) = (&other.email, &record.email)
            && one.eq_ignore_ascii_case(two)
        {
            return Err(IamError::EntityAlreadyExists(format!("Account with email {two} already exists.")));
        }
    }
    Ok(())
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = call.parameters.name("AccountName", NAME_CHARS_MAX)?;
    check_is_no_number(&name)?;
    let email = email(call)?;
    if call.context.identities.accounts().count() >= ACCOUNTS_MAX {
        return Err(IamError::LimitExceeded { quota: "Accounts", limit: ACCOUNTS_MAX });
    }
    let (digits, canonical) = call.context.random.split_at(16);
    let digits = digits.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    let record = AccountRecord {
        format: RECORD_FORMAT,
        id: (200_000_000_000 + digits % 800_000_000_000).to_string(),
        canonical_id: hex::encode(canonical),
        name,
        email,
        created_unix_ms: call.context.now_ms,
    };
    check_is_free(call, &record)?;
    if call.context.identities.account(&record.id).is_some() {
        return Err(IamError::EntityAlreadyExists("An account has got this number; try again".into()));
    }
    let answer = Answer::new().fields("Account", details(&record));
    Outcome::put(Record::Account(record), answer)
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let accounts = call.context.identities.accounts().map(|entry| details(&entry.record));
    Outcome::answer(Answer::new().list("Accounts", accounts))
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    Outcome::answer(Answer::new().fields("Account", details(&call.context.account.record)))
}

/// Changes the name or the address of the account that acts; an empty address takes it away.
pub(super) fn update(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut record = call.context.account.record.clone();
    if let Some(name) = call.parameters.optional_name("AccountName", NAME_CHARS_MAX)? {
        check_is_no_number(&name)?;
        record.name = name;
    }
    if call.parameters.get("Email").is_some() {
        record.email = email(call)?;
    }
    check_is_free(call, &record)?;
    let answer = Answer::new().fields("Account", details(&record));
    Outcome::put(Record::Account(record), answer)
}

/// Deletes the account that acts, if nothing is left of it. The caller checks its buckets.
pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let (identities, account) = (call.context.identities, call.context.account_id());
    if account == FIRST_ACCOUNT {
        return Err(IamError::DeleteConflict("The first account cannot be deleted.".into()));
    }
    let has_keys = identities.access_keys().any(|key| key.record.account() == account);
    let left = [
        ("access keys", has_keys),
        ("users", identities.users(account).next().is_some()),
        ("groups", identities.groups(account).next().is_some()),
        ("roles", identities.roles(account).next().is_some()),
        ("policies", identities.policies(account).next().is_some()),
        ("keys of the key service", identities.kms_keys().any(|key| key.record.account == account)),
        ("OpenID Connect providers", identities.oidc_providers(account).next().is_some()),
    ];
    match left.iter().find(|(_, is_left)| *is_left) {
        Some((what, _)) => {
            Err(IamError::DeleteConflict(format!("Cannot delete the account, must delete its {what} first.")))
        }
        None => Outcome::delete(RecordName::Account(account.into())),
    }
}

/// Accounts have names, but no aliases of AWS's kind.
pub(super) fn list_aliases(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    super::paging::Paging::take(&mut call.parameters)?;
    Outcome::answer(Answer::new().texts("AccountAliases", [""; 0]).text("IsTruncated", false))
}

pub(super) fn summary(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let (identities, account) = (call.context.identities, call.context.account_id());
    let has_root_keys = super::access_keys::of_user(call.context, None).next().is_some();
    let numbers = [
        ("AccountAccessKeysPresent", usize::from(has_root_keys)),
        ("Groups", identities.groups(account).count()),
        ("Policies", identities.policies(account).count()),
        ("Providers", identities.oidc_providers(account).count()),
        ("Roles", identities.roles(account).count()),
        ("Users", identities.users(account).count()),
    ];
    let numbers = numbers.into_iter().map(|(name, number)| (name.to_owned(), number.to_string()));
    Outcome::answer(Answer::new().value("SummaryMap", Value::Map(numbers.collect())))
}
