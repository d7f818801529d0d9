//! All identities at one moment: records with their policies compiled, and the callers of access keys.

mod aws_managed;
mod compiled;
mod kms_key;
mod principal_ids;
mod record;
pub(crate) mod session;
mod stored_policies;

use std::sync::Arc;

use atoll_types::identities::{
    AccessKeyRecord, AccountRecord, AttachedPolicies, FIRST_ACCOUNT, GroupRecord, ManagedPolicyRecord,
    OidcProviderRecord, RoleRecord, StsKeyRecord, UserRecord,
};
use atoll_types::records::RECORD_FORMAT;
use imbl::{OrdMap, OrdSet};

pub use aws_managed::{AWS_MANAGED_POLICIES, AwsManagedPolicy, aws_managed_policy};
pub use kms_key::KmsKeyEntry;
pub use record::{Record, RecordName, provider_id};
pub use stored_policies::StoredPolicy;

use compiled::{DENY_ALL, compiled};

use crate::arn::{entity_arn, oidc_provider_arn, parse_oidc_provider_arn, parse_policy_arn, parse_role_arn};
use crate::caller::Caller;
use crate::caller_identity::{Account, CallerIdentity, CallerKind};
use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

/// A policy with the name that explanations give it.
pub type NamedPolicy = (String, Arc<Policy>);

/// An account and its properties for decisions.
#[derive(Debug)]
pub struct AccountEntry {
    /// As it is kept.
    pub record: AccountRecord,
    /// As decisions see it.
    pub account: Arc<Account>,
}

/// A user, group or role with its inline policies compiled.
#[derive(Debug)]
pub struct Entry<R> {
    /// As it is kept.
    pub record: R,
    /// One that does not parse denies everything.
    pub inline: Vec<NamedPolicy>,
}

/// A managed policy with its default version compiled.
#[derive(Debug)]
pub struct ManagedPolicyEntry {
    /// As it is kept.
    pub record: ManagedPolicyRecord,
    /// Denies everything if the default version does not parse.
    pub policy: Arc<Policy>,
}

/// An access key with the policy of a service account.
#[derive(Debug)]
pub struct AccessKeyEntry {
    /// As it is kept.
    pub record: AccessKeyRecord,
    /// Denies everything if it does not parse.
    pub policy: Option<NamedPolicy>,
}

/// Result of a look-up of an access key.
#[derive(Clone, Debug)]
pub enum KeyLookup {
    /// There is no such key, or its user or account is gone.
    Unknown,
    /// It was disabled.
    Disabled,
    /// Its caller.
    Found(Box<Caller>),
}

/// Entries of all accounts, by account and name without regard to case.
#[derive(Debug)]
struct Named<T>(OrdMap<String, Arc<T>>);

impl<T> Clone for Named<T> {
    fn clone(&self) -> Self {
        Named(self.0.clone())
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named(OrdMap::new())
    }
}

impl<T> Named<T> {
    fn key(account: &str, name: &str) -> String {
        format!("{account}/{}", name.to_lowercase())
    }

    fn get(&self, account: &str, name: &str) -> Option<&Arc<T>> {
        self.0.get(&Self::key(account, name))
    }

    fn set(&mut self, account: &str, name: &str, entry: Option<T>) {
        match entry {
            Some(entry) => drop(self.0.insert(Self::key(account, name), Arc::new(entry))),
            None => drop(self.0.remove(&Self::key(account, name))),
        }
    }

    fn of_account<'a>(&'a self, account: &str) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        // The character after a slash is a zero.
        self.0.range(format!("{account}/")..format!("{account}0")).map(|(_, entry)| entry)
    }
}

/// A snapshot of all identities. Clones are cheap and share their common parts.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    accounts: OrdMap<String, Arc<AccountEntry>>,
    by_canonical_id: OrdMap<String, String>,
    by_email: OrdMap<String, String>,
    users: Named<Entry<UserRecord>>,
    groups: Named<Entry<GroupRecord>>,
    roles: Named<Entry<RoleRecord>>,
    policies: Named<ManagedPolicyEntry>,
    providers: Named<OidcProviderRecord>,
    access_keys: OrdMap<String, Arc<AccessKeyEntry>>,
    /// Creation and name of the root keys of the first account, oldest first: earlier releases know no others.
    first_root_keys: OrdSet<(u64, String)>,
    kms_keys: OrdMap<String, Arc<KmsKeyEntry>>,
    sts_key: Option<Arc<StsKeyRecord>>,
    /// Stands in until the first account has a record.
    first_account: Option<Arc<AccountEntry>>,
    changes: u64,
}

fn compiled_inline(policies: &AttachedPolicies, of: &str) -> Vec<NamedPolicy> {
    let inline = policies.inline.iter();
    let named = inline
        .map(|(name, document)| (format!("policy {name} of {of}"), compiled(document, PolicyKind::Identity)));
    named.collect()
}

impl AccountEntry {
    fn new(record: AccountRecord) -> Self {
        let account = Account {
            id: record.id.clone(),
            canonical_id: record.canonical_id.clone(),
            name: record.name.clone(),
        };
        AccountEntry { record, account: Arc::new(account) }
    }
}

impl Identities {
    /// A snapshot of these records.
    pub fn from_records(records: impl IntoIterator<Item = Record>) -> Self {
        let mut identities = Identities::default();
        for record in records {
            identities.put(record);
        }
        identities.find_first_account();
        identities
    }

    /// Takes over a record that was written, or forgets one that was deleted or cannot be read.
    pub fn apply(&mut self, name: &RecordName, record: Option<Record>) {
        match record {
            Some(record) => self.put(record),
            None => self.forget(name),
        }
        self.find_first_account();
    }

    fn put(&mut self, record: Record) {
        match record {
            Record::Account(record) => self.put_account(record),
            Record::User(record) => {
                let inline = compiled_inline(&record.policies, &format!("user {}", record.name));
                let (account, name) = (record.account.clone(), record.name.clone());
                self.users.set(&account, &name, Some(Entry { record, inline }));
            }
            Record::Group(record) => {
                let inline = compiled_inline(&record.policies, &format!("group {}", record.name));
                let (account, name) = (record.account.clone(), record.name.clone());
                self.groups.set(&account, &name, Some(Entry { record, inline }));
            }
            Record::Role(record) => {
                let inline = compiled_inline(&record.policies, &format!("role {}", record.name));
                let (account, name) = (record.account.clone(), record.name.clone());
                self.roles.set(&account, &name, Some(Entry { record, inline }));
            }
            Record::Policy(record) => {
                let default = record.versions.get(&record.default_version);
                let document = default.map_or("", |version| version.document.as_str());
                let policy = compiled(document, PolicyKind::Identity);
                let (account, name) = (record.account.clone(), record.name.clone());
                self.policies.set(&account, &name, Some(ManagedPolicyEntry { record, policy }));
            }
            Record::OidcProvider(record) => {
                let (account, id) = (record.account.clone(), provider_id(&record.url).to_owned());
                self.providers.set(&account, &id, Some(record));
            }
            Record::AccessKey(record) => self.put_access_key(record),
            Record::KmsKey(record) => {
                self.kms_keys.insert(record.name.clone(), Arc::new(KmsKeyEntry::new(record)));
            }
            Record::StsKey(record) => self.sts_key = Some(Arc::new(record)),
            Record::Revision(record) => self.changes = record.changes,
        }
    }

    fn forget(&mut self, name: &RecordName) {
        match name {
            RecordName::Account(id) => self.forget_account(id),
            RecordName::User { account, name } => self.users.set(account, name, None),
            RecordName::Group { account, name } => self.groups.set(account, name, None),
            RecordName::Role { account, name } => self.roles.set(account, name, None),
            RecordName::Policy { account, name } => self.policies.set(account, name, None),
            RecordName::OidcProvider { account, id } => self.providers.set(account, id, None),
            RecordName::AccessKey(key) => self.forget_access_key(key),
            RecordName::KmsKey(name) => drop(self.kms_keys.remove(name)),
            RecordName::StsKey => self.sts_key = None,
            RecordName::Revision => self.changes = 0,
        }
    }

    fn put_account(&mut self, record: AccountRecord) {
        self.forget_account(&record.id);
        self.by_canonical_id.insert(record.canonical_id.clone(), record.id.clone());
        if let Some(email) = &record.email {
            self.by_email.insert(email.to_lowercase(), record.id.clone());
        }
        self.accounts.insert(record.id.clone(), Arc::new(AccountEntry::new(record)));
    }

    fn forget_account(&mut self, id: &str) {
        let Some(old) = self.accounts.remove(id) else { return };
        self.by_canonical_id.remove(&old.record.canonical_id);
        if let Some(email) = &old.record.email {
            self.by_email.remove(&email.to_lowercase());
        }
    }

    fn put_access_key(&mut self, record: AccessKeyRecord) {
        self.forget_access_key(&record.access_key);
        if record.is_of_first_root() {
            self.first_root_keys.insert((record.created_unix_ms, record.access_key.clone()));
        }
        let policy = record.policy.as_ref().map(|document| {
            (format!("policy of access key {}", record.access_key), compiled(document, PolicyKind::Session))
        });
        self.access_keys.insert(record.access_key.clone(), Arc::new(AccessKeyEntry { record, policy }));
    }

    fn forget_access_key(&mut self, key: &str) {
        if let Some(old) = self.access_keys.remove(key) {
            self.first_root_keys.remove(&(old.record.created_unix_ms, key.to_owned()));
        }
    }

    /// Clusters of earlier releases have no record of an account, only a key.
    fn find_first_account(&mut self) {
        let oldest = match self.accounts.contains_key(FIRST_ACCOUNT) {
            true => None,
            false => self.first_root_keys.get_min(),
        };
        let is_current = match (&self.first_account, oldest) {
            (Some(entry), Some((_, key))) => entry.record.canonical_id == *key,
            (None, None) => true,
            _ => false,
        };
        if !is_current {
            let record = oldest.map(|(created, key)| first_account_record(key, *created));
            self.first_account = record.map(|record| Arc::new(AccountEntry::new(record)));
        }
    }
}

/// The record of the first account, which the access key that `atoll up` has made names in ACLs.
pub fn first_account_record(first_access_key: &str, created_unix_ms: u64) -> AccountRecord {
    AccountRecord {
        format: RECORD_FORMAT,
        id: FIRST_ACCOUNT.into(),
        canonical_id: first_access_key.into(),
        name: "admin".into(),
        email: None,
        created_unix_ms,
    }
}

/// Lookups.
impl Identities {
    /// How many changes there were.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// All accounts, by id.
    pub fn accounts(&self) -> impl Iterator<Item = &Arc<AccountEntry>> {
        self.first_account.iter().chain(self.accounts.values())
    }

    /// The account with this id.
    pub fn account(&self, id: &str) -> Option<&Arc<AccountEntry>> {
        self.accounts.get(id).or_else(|| self.first_account.as_ref().filter(|first| first.record.id == id))
    }

    /// Returns the account with this id, for decisions.
    pub fn account_by_id(&self, id: &str) -> Option<Arc<Account>> {
        self.account(id).map(|entry| entry.account.clone())
    }

    /// The account with this canonical id. Earlier releases made buckets belong to access keys, so a root key
    /// of the first account stands for it.
    pub fn account_by_canonical_id(&self, canonical_id: &str) -> Option<Arc<Account>> {
        if let Some(id) = self.by_canonical_id.get(canonical_id) {
            return self.account_by_id(id);
        }
        let key = self.access_keys.get(canonical_id);
        key.filter(|key| key.record.is_of_first_root()).and_then(|_| self.account_by_id(FIRST_ACCOUNT))
    }

    /// The account with this email address.
    pub fn account_by_email(&self, email: &str) -> Option<Arc<Account>> {
        self.account_by_id(self.by_email.get(&email.to_lowercase())?)
    }

    /// A user of an account.
    pub fn user(&self, account: &str, name: &str) -> Option<&Arc<Entry<UserRecord>>> {
        self.users.get(account, name)
    }

    /// All users of an account, by name.
    pub fn users<'a>(&'a self, account: &str) -> impl Iterator<Item = &'a Arc<Entry<UserRecord>>> + use<'a> {
        self.users.of_account(account)
    }

    /// A group of an account.
    pub fn group(&self, account: &str, name: &str) -> Option<&Arc<Entry<GroupRecord>>> {
        self.groups.get(account, name)
    }

    /// All groups of an account, by name.
    pub fn groups<'a>(&'a self, account: &str) -> impl Iterator<Item = &'a Arc<Entry<GroupRecord>>> + use<'a> {
        self.groups.of_account(account)
    }

    /// A role of an account.
    pub fn role(&self, account: &str, name: &str) -> Option<&Arc<Entry<RoleRecord>>> {
        self.roles.get(account, name)
    }

    /// All roles of an account, by name.
    pub fn roles<'a>(&'a self, account: &str) -> impl Iterator<Item = &'a Arc<Entry<RoleRecord>>> + use<'a> {
        self.roles.of_account(account)
    }

    /// A managed policy of an account.
    pub fn policy(&self, account: &str, name: &str) -> Option<&Arc<ManagedPolicyEntry>> {
        self.policies.get(account, name)
    }

    /// All managed policies of an account, by name.
    pub fn policies<'a>(&'a self, account: &str) -> impl Iterator<Item = &'a Arc<ManagedPolicyEntry>> + use<'a> {
        self.policies.of_account(account)
    }

    /// An issuer of an account, by its URL with or without the scheme.
    pub fn oidc_provider(&self, account: &str, url: &str) -> Option<&Arc<OidcProviderRecord>> {
        self.providers.get(account, provider_id(url))
    }

    /// All issuers of an account.
    pub fn oidc_providers<'a>(
        &'a self,
        account: &str,
    ) -> impl Iterator<Item = &'a Arc<OidcProviderRecord>> + use<'a> {
        self.providers.of_account(account)
    }

    /// The record of an access key, with its wrapped secret.
    pub fn access_key(&self, access_key: &str) -> Option<&Arc<AccessKeyEntry>> {
        self.access_keys.get(access_key)
    }

    /// All access keys.
    pub fn access_keys(&self) -> impl Iterator<Item = &Arc<AccessKeyEntry>> {
        self.access_keys.values()
    }

    /// The key under which temporary credentials are made.
    pub fn sts_key(&self) -> Option<&Arc<StsKeyRecord>> {
        self.sts_key.as_ref()
    }

    /// The account, and the user if it is not the root, whose access key this is. `None` if either is gone.
    fn bearer(&self, key: &AccessKeyRecord) -> Option<(&AccountEntry, Option<&Entry<UserRecord>>)> {
        let account = self.account(key.account())?;
        let Some(name) = &key.user else { return Some((account, None)) };
        Some((account, Some(self.user(&account.account.id, name)?)))
    }

    /// The record of a long-term access key that can sign: it is not disabled, and whose it is exists.
    pub fn signing_key(&self, access_key: &str) -> Option<&AccessKeyRecord> {
        let key = &self.access_keys.get(access_key)?.record;
        self.bearer(key).filter(|_| !key.is_disabled).map(|_| key)
    }

    /// Returns the caller of a long-term access key.
    pub fn caller(&self, access_key: &str) -> KeyLookup {
        let Some(key) = self.access_keys.get(access_key) else { return KeyLookup::Unknown };
        if key.record.is_disabled {
            return KeyLookup::Disabled;
        }
        let Some((account, user)) = self.bearer(&key.record) else { return KeyLookup::Unknown };
        let mut caller = match user {
            None => root(account.account.clone(), access_key),
            Some(user) => self.user_caller(account.account.clone(), user, access_key),
        };
        caller.key_policy.clone_from(&key.policy);
        KeyLookup::Found(Box::new(caller))
    }

    fn user_caller(&self, account: Arc<Account>, user: &Entry<UserRecord>, access_key: &str) -> Caller {
        let mut policies = user.inline.clone();
        policies.extend(self.managed(&account.id, &user.record.policies));
        for name in &user.record.groups {
            match self.group(&account.id, name) {
                Some(group) => {
                    policies.extend(group.inline.iter().cloned());
                    policies.extend(self.managed(&account.id, &group.record.policies));
                }
                // Its record cannot be read, and may have denied something.
                None => policies.push((format!("group {name}, which cannot be read"), DENY_ALL.clone())),
            }
        }
        let UserRecord { name, path, id, tags, .. } = user.record.clone();
        let kind = CallerKind::User { name, path, id };
        Caller {
            identity: CallerIdentity { account, kind, session_issued_unix_ms: None, tags },
            access_key: access_key.into(),
            policies,
            session_policies: Vec::new(),
            key_policy: None,
        }
    }

    /// The compiled managed policies of a user, group or role.
    fn managed(&self, account: &str, attached: &AttachedPolicies) -> Vec<NamedPolicy> {
        let managed = attached.managed.iter();
        managed.map(|arn| (arn.clone(), self.managed_policy(account, arn).unwrap_or(DENY_ALL.clone()))).collect()
    }

    /// The compiled default version of a managed policy of this account or of AWS.
    pub fn managed_policy(&self, account: &str, arn: &str) -> Option<Arc<Policy>> {
        aws_managed::compiled_aws_managed(arn)
            .or_else(|| self.policy_by_arn(account, arn).map(|entry| entry.policy.clone()))
    }

    /// The document of the default version of a managed policy of this account or of AWS.
    pub fn managed_document(&self, account: &str, arn: &str) -> Option<&str> {
        if let Some(policy) = aws_managed_policy(arn) {
            return Some(policy.document);
        }
        let record = &self.policy_by_arn(account, arn)?.record;
        record.versions.get(&record.default_version).map(|version| version.document.as_str())
    }

    /// A managed policy of this account by its ARN.
    pub fn policy_by_arn(&self, account: &str, arn: &str) -> Option<&Arc<ManagedPolicyEntry>> {
        let parsed = parse_policy_arn(arn).filter(|parsed| parsed.account == account)?;
        let found = self.policy(account, parsed.name)?;
        // Names are found whatever the case of their letters. ARNs differ by it, since rights are asked of ARNs.
        (entity_arn(account, "policy", &found.record.path, &found.record.name) == arn).then_some(found)
    }

    /// A key of the key service, if it has an owner or a policy.
    pub fn kms_key(&self, name: &str) -> Option<&Arc<KmsKeyEntry>> {
        self.kms_keys.get(name)
    }

    /// All keys of the key service that have an owner or a policy, by name.
    pub fn kms_keys(&self) -> impl Iterator<Item = &Arc<KmsKeyEntry>> {
        self.kms_keys.values()
    }

    /// A role by its ARN.
    pub fn role_by_arn(&self, arn: &str) -> Option<&Arc<Entry<RoleRecord>>> {
        let (account, _, name) = parse_role_arn(arn)?;
        let found = self.role(account, name)?;
        (entity_arn(account, "role", &found.record.path, &found.record.name) == arn).then_some(found)
    }

    /// An issuer of OpenID Connect tokens by its ARN.
    pub fn oidc_provider_by_arn(&self, arn: &str) -> Option<&Arc<OidcProviderRecord>> {
        let (account, id) = parse_oidc_provider_arn(arn)?;
        let found = self.oidc_provider(account, id)?;
        (oidc_provider_arn(account, &found.url) == arn).then_some(found)
    }
}

fn root(account: Arc<Account>, access_key: &str) -> Caller {
    let (kind, tags) = (CallerKind::Root, Default::default());
    Caller {
        identity: CallerIdentity { account, kind, session_issued_unix_ms: None, tags },
        access_key: access_key.into(),
        policies: Vec::new(),
        session_policies: Vec::new(),
        key_policy: None,
    }
}

#[cfg(test)]
mod tests;
