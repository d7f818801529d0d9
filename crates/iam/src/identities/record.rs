//! Records of identities and how cluster state names them.

use atoll_types::identities::{
    AccessKeyRecord, AccountRecord, GroupRecord, IdentitiesRevision, KmsKeyRecord, ManagedPolicyRecord,
    OidcProviderRecord, RoleRecord, StsKeyRecord, UserRecord,
};
use atoll_types::record_json::{RecordError, read_record};
use atoll_types::records::RECORD_FORMAT;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Which record it is. Names of users, groups, roles and policies are in lower case here, since they are
/// unique whatever the case of their letters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordName {
    /// An account, by its id.
    Account(String),
    /// A user.
    User {
        /// Id of its account.
        account: String,
        /// Its name.
        name: String,
    },
    /// A group.
    Group {
        /// Id of its account.
        account: String,
        /// Its name.
        name: String,
    },
    /// A role.
    Role {
        /// Id of its account.
        account: String,
        /// Its name.
        name: String,
    },
    /// A managed policy.
    Policy {
        /// Id of its account.
        account: String,
        /// Its name.
        name: String,
    },
    /// An issuer of OpenID Connect tokens.
    OidcProvider {
        /// Id of its account.
        account: String,
        /// Its URL without the scheme.
        id: String,
    },
    /// An access key.
    AccessKey(String),
    /// A key of the key service, by its name.
    KmsKey(String),
    /// The key under which temporary credentials are made.
    StsKey,
    /// The number of changes.
    Revision,
}

impl RecordName {
    /// Names a user.
    pub fn user(account: &str, name: &str) -> Self {
        RecordName::User { account: account.into(), name: name.to_lowercase() }
    }

    /// Names a group.
    pub fn group(account: &str, name: &str) -> Self {
        RecordName::Group { account: account.into(), name: name.to_lowercase() }
    }

    /// Names a role.
    pub fn role(account: &str, name: &str) -> Self {
        RecordName::Role { account: account.into(), name: name.to_lowercase() }
    }

    /// Names a managed policy.
    pub fn policy(account: &str, name: &str) -> Self {
        RecordName::Policy { account: account.into(), name: name.to_lowercase() }
    }

    /// Names an issuer by its URL.
    pub fn oidc_provider(account: &str, url: &str) -> Self {
        RecordName::OidcProvider { account: account.into(), id: provider_id(url).into() }
    }

    /// Where the record is, such as `users/100000000000/alice`. Access keys are not kept beside the others,
    /// so theirs is only a name.
    pub fn path(&self) -> String {
        match self {
            RecordName::Account(id) => format!("accounts/{id}"),
            RecordName::User { account, name } => format!("users/{account}/{name}"),
            RecordName::Group { account, name } => format!("groups/{account}/{name}"),
            RecordName::Role { account, name } => format!("roles/{account}/{name}"),
            RecordName::Policy { account, name } => format!("policies/{account}/{name}"),
            RecordName::OidcProvider { account, id } => format!("oidc_providers/{account}/{id}"),
            RecordName::AccessKey(key) => format!("access_keys/{key}"),
            RecordName::KmsKey(name) => format!("kms_keys/{name}"),
            RecordName::StsKey => "sts_key".into(),
            RecordName::Revision => "revision".into(),
        }
    }

    /// The record at a path; `None` if no record of this release is there.
    pub fn parse(path: &str) -> Option<Self> {
        match path {
            "sts_key" => return Some(RecordName::StsKey),
            "revision" => return Some(RecordName::Revision),
            _ => {}
        }
        let (kind, rest) = path.split_once('/')?;
        let of_account = || {
            let (account, name) = rest.split_once('/')?;
            (!account.is_empty() && !name.is_empty()).then(|| (account.to_owned(), name.to_owned()))
        };
        match kind {
            "accounts" => Some(RecordName::Account(rest.into())),
            "access_keys" => Some(RecordName::AccessKey(rest.into())),
            "kms_keys" => Some(RecordName::KmsKey(rest.into())),
            "users" => of_account().map(|(account, name)| RecordName::User { account, name }),
            "groups" => of_account().map(|(account, name)| RecordName::Group { account, name }),
            "roles" => of_account().map(|(account, name)| RecordName::Role { account, name }),
            "policies" => of_account().map(|(account, name)| RecordName::Policy { account, name }),
            "oidc_providers" => of_account().map(|(account, id)| RecordName::OidcProvider { account, id }),
            _ => None,
        }
    }
}

/// An issuer's URL without its scheme, as ARNs and condition keys have it.
pub fn provider_id(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.trim_end_matches('/')
}

/// Any record of identities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Record {
    /// An account.
    Account(AccountRecord),
    /// A user.
    User(UserRecord),
    /// A group.
    Group(GroupRecord),
    /// A role.
    Role(RoleRecord),
    /// A managed policy.
    Policy(ManagedPolicyRecord),
    /// An issuer of OpenID Connect tokens.
    OidcProvider(OidcProviderRecord),
    /// An access key.
    AccessKey(AccessKeyRecord),
    /// A key of the key service.
    KmsKey(KmsKeyRecord),
    /// The key under which temporary credentials are made.
    StsKey(StsKeyRecord),
    /// The number of changes.
    Revision(IdentitiesRevision),
}

impl Record {
    /// Its name.
    pub fn name(&self) -> RecordName {
        match self {
            Record::Account(record) => RecordName::Account(record.id.clone()),
            Record::User(record) => RecordName::user(&record.account, &record.name),
            Record::Group(record) => RecordName::group(&record.account, &record.name),
            Record::Role(record) => RecordName::role(&record.account, &record.name),
            Record::Policy(record) => RecordName::policy(&record.account, &record.name),
            Record::OidcProvider(record) => RecordName::oidc_provider(&record.account, &record.url),
            Record::AccessKey(record) => RecordName::AccessKey(record.access_key.clone()),
            Record::KmsKey(record) => RecordName::KmsKey(record.name.clone()),
            Record::StsKey(_) => RecordName::StsKey,
            Record::Revision(_) => RecordName::Revision,
        }
    }

    /// Stands in for a record that cannot be read, if something would be open to all without it.
    pub fn closed(name: &RecordName) -> Option<Self> {
        let RecordName::KmsKey(name) = name else { return None };
        let (account, policy) = (String::new(), Some(String::new()));
        Some(Record::KmsKey(KmsKeyRecord {
            format: RECORD_FORMAT,
            name: name.clone(),
            account,
            policy,
            policy_principals: Default::default(),
        }))
    }

    /// Reads the JSON of the record of this name.
    pub fn read(name: &RecordName, json: &[u8]) -> Result<Self, RecordError> {
        fn read<T: DeserializeOwned>(json: &[u8], kind: fn(T) -> Record) -> Result<Record, RecordError> {
            read_record(json).map(kind)
        }
        match name {
            RecordName::Account(_) => read(json, Record::Account),
            RecordName::User { .. } => read(json, Record::User),
            RecordName::Group { .. } => read(json, Record::Group),
            RecordName::Role { .. } => read(json, Record::Role),
            RecordName::Policy { .. } => read(json, Record::Policy),
            RecordName::OidcProvider { .. } => read(json, Record::OidcProvider),
            RecordName::AccessKey(_) => read(json, Record::AccessKey),
            RecordName::KmsKey(_) => read(json, Record::KmsKey),
            RecordName::StsKey => read(json, Record::StsKey),
            RecordName::Revision => read(json, Record::Revision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_back_to_names() {
        let names = [
            RecordName::Account("100000000000".into()),
            RecordName::user("100000000000", "Alice"),
            RecordName::group("100000000000", "Staff"),
            RecordName::role("100000000000", "Reader"),
            RecordName::policy("100000000000", "ReadAll"),
            RecordName::oidc_provider("100000000000", "https://issuer.example/realms/a/"),
            RecordName::AccessKey("AKIAX".into()),
            RecordName::KmsKey("project-x".into()),
            RecordName::StsKey,
            RecordName::Revision,
        ];
        for name in names {
            assert_eq!(RecordName::parse(&name.path()), Some(name.clone()), "{}", name.path());
        }
        assert_eq!(RecordName::user("1", "Alice").path(), "users/1/alice");
        for unknown in ["", "users", "users/1", "users//a", "teams/1/a", "sts_key/1"] {
            assert_eq!(RecordName::parse(unknown), None, "{unknown}");
        }
    }
}
