//! The kinds of records in cluster state: which of them only a holder of the key service can write.
//!
//! A signed record lets somebody in, or decides how data is protected. A kind is unsigned if a process without the
//! key service writes it, or if nobody is let in by it.

use crate::keys;

/// How records of a kind are protected against writers of cluster state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A holder of the key service signs it, and those who have the key service refuse any other.
    Signed,
    /// It carries its own signature.
    Authority,
    /// Nobody is let in by it, and no data is protected by it.
    Harmless,
    /// It should be signed, and is written where the key service is not, for this reason.
    Open(&'static str),
}

/// All kinds, by their prefix or key.
pub const KINDS: [(&str, Protection); 49] = [
    (keys::AUTHORITY, Protection::Authority),
    (keys::IDENTITIES, Protection::Signed),
    (keys::IDENTITIES_REVISION, Protection::Signed),
    (keys::STS_KEY, Protection::Signed),
    (keys::ACCOUNTS, Protection::Signed),
    (keys::ACCESS_KEYS, Protection::Signed),
    (keys::BUCKETS, Protection::Signed),
    (keys::OPERATORS, Protection::Signed),
    (keys::APPROVALS, Protection::Signed),
    (keys::OPERATOR_SESSIONS, Protection::Signed),
    (keys::LOGIN_SETTINGS, Protection::Signed),
    (keys::API_TOKENS, Protection::Signed),
    (keys::METRICS_TOKENS, Protection::Signed),
    (keys::IMAGES, Protection::Signed),
    (keys::REMOVED_IMAGES, Protection::Signed),
    (keys::NVME_HOSTS, Protection::Signed),
    (keys::NVME_TLS, Protection::Signed),
    (keys::POOLS, Protection::Signed),
    (keys::SETTINGS, Protection::Signed),
    (keys::FRAMES, Protection::Signed),
    (keys::AUTHORIZED_KEYS, Protection::Open("hosts with OSDs only add the keys of their own processes")),
    (keys::OSDS, Protection::Open("hosts with OSDs only add their own, and the coordinator marks them out")),
    (keys::OSD_UP, Protection::Open("OSDs write it")),
    (keys::PGS, Protection::Open("OSDs and the coordinator write it")),
    (keys::PG_TARGETS, Protection::Open("the coordinator writes it")),
    (keys::JOIN_TOKENS, Protection::Open("a host that joins marks its own token as used")),
    (keys::HOSTS, Protection::Harmless),
    (keys::ADMIN_SERVERS, Protection::Open("the admin server of each host writes it")),
    (keys::CLUSTER, Protection::Open("the first start reads it before it can verify anything")),
    (keys::REMOVED_POOLS, Protection::Open("OSDs act on it, and cannot verify it")),
    (keys::FLAGS, Protection::Open("OSDs and the coordinator act on it, and cannot verify it")),
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

/// Prefixes of signed records, none of which holds another.
pub fn signed_prefixes() -> impl Iterator<Item = &'static str> {
    let signed =
        KINDS.iter().filter(|(_, protection)| *protection == Protection::Signed).map(|(prefix, _)| *prefix);
    let all = signed.clone().collect::<Vec<_>>();
    signed.filter(move |prefix| !all.iter().any(|other| other != prefix && prefix.starts_with(other)))
}

/// Returns whether records under this key are signed once the cluster is.
pub fn is_signed(key: &str) -> bool {
    KINDS.iter().any(|(prefix, protection)| {
        *protection == Protection::Signed
            && if prefix.ends_with('/') { key.starts_with(prefix) } else { key == *prefix }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind of record that is added is one that somebody has thought about.
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
    }
}
