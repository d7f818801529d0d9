//! The kinds of records in cluster state: which of them only a holder of the key service can write.
//!
//! A signed record grants access, or decides about the protection of data. A kind is unsigned if a process without
//! the key service writes it, or if it grants no access.

use crate::keys;

/// How records of a kind are protected against writers of cluster state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A holder of the key service signs it, and those who have the key service refuse any other.
    Signed(Absence),
    /// A holder of the key service signs it so that all processes verify it: also those without the key service obey it.
    SignedForAll(Absence),
    /// It carries its own signature.
    Authority,
    /// It grants no access, and protects no data.
    Harmless,
    /// It should be signed, and is written where the key service is not, for this reason.
    Open(&'static str),
}

/// Effect of the removal of a signed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// That grants no access, and reduces no protection, for this reason.
    Denies(&'static str),
    /// It would loosen this. The manifest names the record, so its removal by hand is refused as a change would be.
    Named(&'static str),
}

const fn denies(reason: &'static str) -> Protection {
    Protection::Signed(Absence::Denies(reason))
}

const fn named(what: &'static str) -> Protection {
    Protection::Signed(Absence::Named(what))
}

const fn denies_to_all(reason: &'static str) -> Protection {
    Protection::SignedForAll(Absence::Denies(reason))
}

const fn named_for_all(what: &'static str) -> Protection {
    Protection::SignedForAll(Absence::Named(what))
}

impl Protection {
    /// Returns the meaning of the absence of such a record, if it is signed.
    pub fn absence(self) -> Option<Absence> {
        match self {
            Protection::Signed(absence) | Protection::SignedForAll(absence) => Some(absence),
            Protection::Authority | Protection::Harmless | Protection::Open(_) => None,
        }
    }
}

/// Kinds that releases did not sign which signed nothing for all: until a cluster does, they may be without a signature.
const SIGNED_FOR_ALL_ONLY: [&str; 3] = [keys::REMOVED_POOLS, keys::FLAGS, keys::AUTHORIZED_KEYS];

/// All kinds, by their prefix or key.
pub const KINDS: [(&str, Protection); 52] = [
    (keys::AUTHORITY, Protection::Authority),
    (keys::MANIFEST, denies_to_all("no absence of a record of the named kinds is accepted")),
    (
        keys::IDENTITIES,
        denies("a missing group or policy denies everything to its members; a missing user or role has no rights"),
    ),
    (keys::IDENTITIES_REVISION, denies("the next change writes it again, and every revocation is a change")),
    (keys::STS_KEY, denies("temporary credentials end")),
    (keys::ACCOUNTS, denies("keys of the account sign nothing; the first account follows from its oldest key")),
    (keys::KMS_KEYS, named("the key would be open to all accounts")),
    (keys::ACCESS_KEYS, denies("the key signs nothing")),
    (keys::BUCKETS, denies("there is no such bucket, and a new one of that name has another id")),
    (keys::OPERATORS, denies("a login as the operator is refused")),
    (keys::APPROVALS, denies("its operation is not approved")),
    (keys::OPERATOR_SESSIONS, denies("the session has ended")),
    (keys::LOGIN_SETTINGS, named("lifetimes of sessions would be the defaults")),
    (keys::LOGIN_OIDC, denies("log-ins by OpenID Connect are off, and such sessions have ended")),
    (keys::API_TOKENS, denies("the token is refused")),
    (keys::METRICS_TOKENS, denies("the token reads no metrics")),
    (keys::IMAGES, denies("the image cannot be attached")),
    (keys::REMOVED_IMAGES, denies("the image does not come back from the trash")),
    (keys::NVME_HOSTS, named("the host would connect without its secret")),
    (keys::NVME_TLS, named("the host would connect without TLS")),
    (keys::POOLS, denies_to_all("nothing is read or written in the pool")),
    (keys::SETTINGS, named_for_all("limits set by operators would become the defaults")),
    (keys::FRAMES, named_for_all("the next start would write the first modes of the cluster")),
    (keys::AUTHORIZED_KEYS, denies_to_all("the key connects to no OSD")),
    (keys::OSDS, Protection::Open("hosts with OSDs only add their own, and the coordinator marks them out")),
    (keys::OSD_UP, Protection::Open("OSDs write it")),
    (keys::PGS, Protection::Open("members and the coordinator write it, and sign it with keys of their own")),
    (
        keys::PG_TARGETS,
        Protection::Open("members and the coordinator write it, and sign it with keys of their own"),
    ),
    (keys::JOIN_TOKENS, Protection::Open("a host that joins marks its own token as used")),
    (keys::HOSTS, Protection::Harmless),
    (keys::ADMIN_SERVERS, Protection::Open("the admin server of each host writes it")),
    (keys::CLUSTER, Protection::Open("the first start reads it before it can verify anything")),
    (keys::REMOVED_POOLS, denies_to_all("OSDs keep the data of the pool")),
    (keys::FLAGS, denies_to_all("nothing is suspended")),
    (keys::NEXT_POOL, Protection::Harmless),
    (keys::NEXT_OSD, Protection::Harmless),
    (keys::OSD_USAGE, Protection::Harmless),
    (keys::OSD_STORES, Protection::Harmless),
    (keys::OSD_FAILURES, Protection::Harmless),
    (keys::OSD_ENDS, Protection::Harmless),
    (keys::PG_SCRUBS, Protection::Harmless),
    (keys::SCRUB_REQUESTS, Protection::Harmless),
    (keys::COORDINATOR, Protection::Harmless),
    (keys::COORDINATOR_NOTES, Protection::Harmless),
    (keys::CLOCK, Protection::Open("the coordinator writes it; a gateway trusts it only to wait longer")),
    (keys::AUTO_OUT, Protection::Harmless),
    (keys::LAST_USED, Protection::Harmless),
    (keys::EVENTS, Protection::Harmless),
    (keys::KEY_BACKUPS, Protection::Harmless),
    (keys::AUDIT_HEADS, Protection::Harmless),
    (keys::IMAGE_WATCHERS, Protection::Harmless),
    (keys::IMAGE_LOCKS, Protection::Open("it changes with every turn of a lease; OSDs keep the fence")),
];

/// Returns prefixes of signed records, none of which contains another.
pub fn signed_prefixes() -> impl Iterator<Item = &'static str> {
    let signed = KINDS.iter().filter(|(_, protection)| protection.absence().is_some()).map(|(prefix, _)| *prefix);
    let all = signed.clone().collect::<Vec<_>>();
    signed.filter(move |prefix| !all.iter().any(|other| other != prefix && prefix.starts_with(other)))
}

/// Prefixes of the records that all processes verify.
pub fn prefixes_for_all() -> impl Iterator<Item = &'static str> {
    let is_for_all = |protection: &Protection| matches!(protection, Protection::SignedForAll(_));
    KINDS.iter().filter(move |(_, protection)| is_for_all(protection)).map(|(prefix, _)| *prefix)
}

/// Prefixes of the records that the manifest names.
pub fn named_prefixes() -> impl Iterator<Item = &'static str> {
    let is_named = |protection: &Protection| matches!(protection.absence(), Some(Absence::Named(_)));
    KINDS.iter().filter(move |(_, protection)| is_named(protection)).map(|(prefix, _)| *prefix)
}

fn is_below(key: &str, prefix: &str) -> bool {
    if prefix.ends_with('/') { key.starts_with(prefix) } else { key == prefix }
}

/// Returns whether records under this key are signed once the cluster is.
pub fn is_signed(key: &str) -> bool {
    KINDS.iter().any(|(prefix, protection)| protection.absence().is_some() && is_below(key, prefix))
}

/// Returns whether all processes verify records under this key.
pub fn is_for_all(key: &str) -> bool {
    prefixes_for_all().any(|prefix| is_below(key, prefix))
}

/// Returns whether a record under this key may be without a signature until the cluster signs for all.
pub fn is_signed_for_all_only(key: &str) -> bool {
    SIGNED_FOR_ALL_ONLY.iter().any(|prefix| is_below(key, prefix))
}

/// Returns whether a host without the key service may write a record under this key, which counts when an operator has
/// signed it: keys of its own processes.
pub fn is_proposed(key: &str) -> bool {
    is_below(key, keys::AUTHORIZED_KEYS)
}

/// Returns whether the manifest names a record under this key.
pub fn is_named(key: &str) -> bool {
    named_prefixes().any(|prefix| is_below(key, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new kind of record must have an explicit decision.
    #[test]
    fn every_kind_of_record_is_signed_or_says_why_not() {
        let source = include_str!("keys.rs");
        let named = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once("&str = \""));
        let names: Vec<&str> = named.filter_map(|(_, rest)| rest.strip_suffix("\";")).collect();
        assert!(names.len() > 35, "{names:?}");
        // These are beginnings of several kinds.
        let ranges = [keys::ROOT, keys::OSDS_TO_POOLS];
        for name in names.iter().filter(|name| !ranges.contains(name)) {
            assert_eq!(KINDS.iter().filter(|(kind, _)| kind == name).count(), 1, "{name}");
        }
        assert_eq!(KINDS.len(), names.len() - ranges.len(), "a kind without a name");
    }

    #[test]
    fn keys_are_signed_by_their_kind() {
        for key in
            ["/atoll/users/AK", "/atoll/iam/users/1/a", "/atoll/iam/sts_key", "/atoll/settings", "/atoll/pools/1"]
        {
            assert!(is_signed(key), "{key}");
        }
        for key in ["/atoll/settings/x", "/atoll/authority", "/atoll/pgs/1.0", "/t/x", "/atoll/osd_up/1"] {
            assert!(!is_signed(key), "{key}");
        }
        assert_eq!(signed_prefixes().filter(|prefix| prefix.starts_with("/atoll/iam/")).count(), 1);
        for key in [
            "/atoll/nvme_hosts/nqn.1",
            "/atoll/nvme_tls/nqn.1",
            "/atoll/iam/kms_keys/k",
            "/atoll/settings",
            "/atoll/frames",
        ] {
            assert!(is_named(key) && is_signed(key), "{key}");
        }
        assert!(!is_named("/atoll/users/AK") && !is_named(keys::MANIFEST) && !is_named("/atoll/settings/x"));
    }
}
