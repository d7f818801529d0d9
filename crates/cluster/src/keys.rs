//! The names of all keys in cluster state. Each kind of record lives under a prefix of its own, so
//! that a prefix can be listed and watched without meeting another kind.

use std::hash::{BuildHasher, RandomState};

use atoll_types::{OsdId, PgId, PoolId};

/// Prefix of all keys.
pub const ROOT: &str = "/atoll/";
/// Begin of the range with all OSDs, pools and PGs, and their records.
pub const OSDS_TO_POOLS: &str = "/atoll/osd";
/// Where that range ends.
const OSDS_TO_POOLS_END: &str = "/atoll/pools0";
/// Ranges of the cluster map. OSDs come first, so that keys and settings are read no older.
pub const MAP_RANGES: [&str; 5] = [OSDS_TO_POOLS, REMOVED_POOLS, "/atoll/s", "/atoll/f", AUTHORIZED_KEYS];
/// The one record of the cluster.
pub const CLUSTER: &str = "/atoll/cluster";
/// Keys that sign records.
pub const AUTHORITY: &str = "/atoll/authority";
/// Which signed records must be there.
pub const MANIFEST: &str = "/atoll/manifest";
/// Prefix of OSD records.
pub const OSDS: &str = "/atoll/osds/";
/// Prefix of the presence of running OSDs.
pub const OSD_UP: &str = "/atoll/osd_up/";
/// Prefix of running OSDs' reports about their devices.
pub const OSD_USAGE: &str = "/atoll/osd_usage/";
/// How old the devices of OSDs are.
pub const OSD_STORES: &str = "/atoll/osd_stores/";
/// Prefix of pools.
pub const POOLS: &str = "/atoll/pools/";
/// Prefix of pools that were removed: OSDs may delete their copies.
pub const REMOVED_POOLS: &str = "/atoll/removed_pools/";
/// Begin of the range with all records about PGs.
pub(crate) const OF_PGS: &str = "/atoll/pg";
/// Prefix of PG configurations.
pub const PGS: &str = "/atoll/pgs/";
/// Prefix of where the balancer wants PGs.
pub const PG_TARGETS: &str = "/atoll/pg_targets/";
/// Prefix of the results of PGs' last scrubs.
pub const PG_SCRUBS: &str = "/atoll/pg_scrubs/";
/// Prefix of scrubs that operators have asked for.
pub const SCRUB_REQUESTS: &str = "/atoll/scrub_requests/";
/// Actions that operators have suspended.
pub const FLAGS: &str = "/atoll/flags";
/// Settings of operators for the whole cluster.
pub const SETTINGS: &str = "/atoll/settings";
/// How frames are protected on new connections.
pub const FRAMES: &str = "/atoll/frames";
/// The current coordinator.
pub const COORDINATOR: &str = "/atoll/coordinator/leader";
/// Notes of one coordinator for the next.
pub const COORDINATOR_NOTES: &str = "/atoll/coordinator/notes";
/// The current time.
pub const CLOCK: &str = "/atoll/coordinator/clock";
/// Prefix of OSDs that the coordinator has marked out.
pub const AUTO_OUT: &str = "/atoll/coordinator/auto_out/";
/// The number of the next pool.
pub const NEXT_POOL: &str = "/atoll/next_pool";
/// The number that is the lowest for a new OSD.
pub const NEXT_OSD: &str = "/atoll/next_osd";
/// Prefix of images.
pub const IMAGES: &str = "/atoll/images/";
/// Prefix of images that were removed.
pub const REMOVED_IMAGES: &str = "/atoll/removed_images/";
/// Prefix of those who read images.
pub const IMAGE_WATCHERS: &str = "/atoll/image_watchers/";
/// Prefix of writers' locks on images.
pub const IMAGE_LOCKS: &str = "/atoll/image_locks/";
/// Prefix of NVMe hosts that must prove themselves.
pub const NVME_HOSTS: &str = "/atoll/nvme_hosts/";
/// Prefix of NVMe hosts that have keys for TLS.
pub const NVME_TLS: &str = "/atoll/nvme_tls/";
/// Prefix of buckets.
pub const BUCKETS: &str = "/atoll/buckets/";
/// Prefix of access keys. Its name is from releases in which each key was a user.
pub const ACCESS_KEYS: &str = "/atoll/users/";
/// Prefix of accounts, users, groups, roles, policies and other identities.
pub const IDENTITIES: &str = "/atoll/iam/";
/// Raised by every change of identities.
pub const IDENTITIES_REVISION: &str = "/atoll/iam/revision";
/// The key under which temporary credentials are made.
pub const STS_KEY: &str = "/atoll/iam/sts_key";
/// Prefix of accounts.
pub const ACCOUNTS: &str = "/atoll/iam/accounts/";
/// Prefix of keys of the key service that have an owner or a policy.
pub const KMS_KEYS: &str = "/atoll/iam/kms_keys/";
/// Prefix of when access keys were last used.
pub const LAST_USED: &str = "/atoll/access_keys_last_used/";
/// Prefix of the static keys that may connect to OSDs.
pub const AUTHORIZED_KEYS: &str = "/atoll/authorized_keys/";

/// Prefix of the tokens with which hosts join.
pub const JOIN_TOKENS: &str = "/atoll/join_tokens/";

/// Prefix of hosts that have credentials of their own.
pub const HOSTS: &str = "/atoll/hosts/";

/// Prefix of past events, by time.
pub const EVENTS: &str = "/atoll/events/";
/// Prefix of admin servers that run, by host.
pub const ADMIN_SERVERS: &str = "/atoll/admin_servers/";
/// Prefix of those who may log in to the console, by name.
pub const OPERATORS: &str = "/atoll/operators/";
/// Prefix of operations that operators ask other operators to approve, by id.
pub const APPROVALS: &str = "/atoll/approvals/";
/// Prefix of operators' sessions, by the digest of their tokens.
pub const OPERATOR_SESSIONS: &str = "/atoll/operator_sessions/";
/// Prefix of tokens for the admin API, by their digests.
pub const API_TOKENS: &str = "/atoll/api_tokens/";
/// Settings of log-ins.
pub const LOGIN_SETTINGS: &str = "/atoll/login_settings";
/// The OpenID Connect provider for log-ins.
pub const LOGIN_OIDC: &str = "/atoll/login_oidc";
/// Prefix of the tokens that may read metrics, by name.
pub const METRICS_TOKENS: &str = "/atoll/metrics_tokens/";

/// Prefix of notes about hosts' backups of their keys.
pub const KEY_BACKUPS: &str = "/atoll/key_backups/";
/// Prefix of the latest lines of audit logs, by host, run of a process and hour.
pub const AUDIT_HEADS: &str = "/atoll/audit_heads/";
/// Prefix of why OSDs cannot start.
pub const OSD_FAILURES: &str = "/atoll/osd_failures/";
/// Prefix of how often OSDs ended by themselves, and why.
pub const OSD_ENDS: &str = "/atoll/osd_ends/";

/// The latest line of an audit log in an hour, which is counted from the Unix epoch.
pub fn audit_head(host: &str, run: &str, hour: u64) -> String {
    format!("{AUDIT_HEADS}{host}/{run}/{hour:08}")
}

/// Prefix of the latest lines of the audit logs of a host.
pub fn audit_heads_of(host: &str) -> String {
    format!("{AUDIT_HEADS}{host}/")
}

/// The host and the hour of the latest line of an audit log.
pub fn parse_audit_head(key: &str) -> Option<(&str, u64)> {
    let mut parts = key.strip_prefix(AUDIT_HEADS)?.split('/');
    let (host, run, hour) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !host.is_empty() && !run.is_empty() && hour.len() == 8;
    Some((host, hour.parse().ok().filter(|_| is_whole)?))
}

/// The end of a range of keys: of one with a name, or of all keys with a prefix.
pub fn range_end(range: &str) -> Vec<u8> {
    if range == OSDS_TO_POOLS {
        return OSDS_TO_POOLS_END.into();
    }
    let mut end = range.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A key for an event of this time. Keys are in the order of time, and no other event has this one.
pub fn new_event(unix_ms: u64) -> String {
    // The standard library draws the keys of each such state at random.
    let unique = RandomState::new().hash_one(std::process::id());
    format!("{EVENTS}{unix_ms:013}-{unique:016x}")
}

/// Returns the key of an operator of the console.
pub fn operator(name: &str) -> String {
    format!("{OPERATORS}{name}")
}

/// Returns the key of an operation that an operator asks others to approve.
pub fn approval(id: &str) -> String {
    format!("{APPROVALS}{id}")
}

/// A session of an operator, by the digest of its token.
pub fn operator_session(id: &str) -> String {
    format!("{OPERATOR_SESSIONS}{id}")
}

/// A token for the admin API, by its digest.
pub fn api_token(digest: &str) -> String {
    format!("{API_TOKENS}{digest}")
}

/// The admin server of a host.
pub fn admin_server(host: &str) -> String {
    format!("{ADMIN_SERVERS}{host}")
}

/// A token that may read metrics.
pub fn metrics_token(name: &str) -> String {
    format!("{METRICS_TOKENS}{name}")
}

/// An NVMe host that must prove itself.
pub fn nvme_host(host: &str) -> String {
    format!("{NVME_HOSTS}{host}")
}

/// An NVMe host that has a key for TLS.
pub fn nvme_tls(host: &str) -> String {
    format!("{NVME_TLS}{host}")
}

/// Says that a host has a backup of its keys.
pub fn key_backup(host: &str) -> String {
    format!("{KEY_BACKUPS}{host}")
}

/// Why an OSD could not start.
pub fn osd_failure(id: OsdId) -> String {
    format!("{OSD_FAILURES}{}", id.0)
}

/// How often an OSD ended by itself, and why.
pub fn osd_ends(id: OsdId) -> String {
    format!("{OSD_ENDS}{}", id.0)
}

/// The record of an OSD.
pub fn osd(id: OsdId) -> String {
    format!("{OSDS}{}", id.0)
}

/// The presence of a running OSD.
pub fn osd_up(id: OsdId) -> String {
    format!("{OSD_UP}{}", id.0)
}

/// Returns the key of a running OSD's report about its device.
pub fn osd_usage(id: OsdId) -> String {
    format!("{OSD_USAGE}{}", id.0)
}

/// How old the device of an OSD is.
pub fn osd_store(id: OsdId) -> String {
    format!("{OSD_STORES}{}", id.0)
}

/// A pool.
pub fn pool(id: PoolId) -> String {
    format!("{POOLS}{}", id.0)
}

/// That a pool was removed.
pub fn removed_pool(id: PoolId) -> String {
    format!("{REMOVED_POOLS}{}", id.0)
}

/// The configuration of a PG.
pub fn pg(id: PgId) -> String {
    format!("{PGS}{id}")
}

/// Where the balancer wants a PG.
pub fn pg_target(id: PgId) -> String {
    format!("{PG_TARGETS}{id}")
}

/// Says that the coordinator has marked an OSD out.
pub fn auto_out(id: OsdId) -> String {
    format!("{AUTO_OUT}{}", id.0)
}

/// Returns the key of the result of a PG's last scrub.
pub fn pg_scrub(id: PgId) -> String {
    format!("{PG_SCRUBS}{id}")
}

/// A scrub that an operator has asked for; gone when it is done.
pub fn scrub_request(id: PgId) -> String {
    format!("{SCRUB_REQUESTS}{id}")
}

/// Prefix of the PGs of one pool.
pub fn pgs_of_pool(pool: PoolId) -> String {
    format!("{PGS}{}.", pool.0)
}

/// The PG that a key configures, if it is such a key.
pub fn parse_pg(key: &str) -> Option<PgId> {
    key.strip_prefix(PGS)?.parse().ok().filter(|id| pg(*id) == key)
}

/// The PG that a key names a target for, if it is such a key.
pub fn parse_pg_target(key: &str) -> Option<PgId> {
    key.strip_prefix(PG_TARGETS)?.parse().ok().filter(|id| pg_target(*id) == key)
}

/// The OSD that a key under [`OSDS`], [`OSD_UP`], [`OSD_USAGE`] or [`AUTO_OUT`] is about.
pub fn parse_osd(key: &str) -> Option<OsdId> {
    let prefixes = [OSDS, OSD_UP, OSD_USAGE, OSD_FAILURES, OSD_ENDS, AUTO_OUT];
    let id = prefixes.iter().find_map(|prefix| key.strip_prefix(prefix))?;
    id.parse().ok().map(OsdId)
}

/// An image.
pub fn image(name: &str) -> String {
    format!("{IMAGES}{name}")
}

/// An image that was removed.
pub fn removed_image(image_id: &str) -> String {
    format!("{REMOVED_IMAGES}{image_id}")
}

/// Prefix of those who read an image.
pub fn image_watchers(image_id: &str) -> String {
    format!("{IMAGE_WATCHERS}{image_id}/")
}

/// The lock of an image's writer.
pub fn image_lock(image_id: &str) -> String {
    format!("{IMAGE_LOCKS}{image_id}")
}

/// A bucket.
pub fn bucket(name: &str) -> String {
    format!("{BUCKETS}{name}")
}

/// An access key.
pub fn access_key(access_key: &str) -> String {
    format!("{ACCESS_KEYS}{access_key}")
}

/// An account.
pub fn account(id: &str) -> String {
    format!("{ACCOUNTS}{id}")
}

/// When an access key was last used.
pub fn last_used(access_key: &str) -> String {
    format!("{LAST_USED}{access_key}")
}

/// A static key that may connect to OSDs, in hexadecimal.
pub fn authorized_key(hex_public_key: &str) -> String {
    format!("{AUTHORIZED_KEYS}{hex_public_key}")
}

/// A host with credentials of its own.
pub fn host(name: &str) -> String {
    format!("{HOSTS}{name}")
}

/// A token with which a host joins.
pub fn join_token(id: &str) -> String {
    format!("{JOIN_TOKENS}{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_operators_see() {
        let pg_id = PgId { pool: PoolId(2), index: 0x1f };
        assert_eq!(pg(pg_id), "/atoll/pgs/2.1f");
        assert_eq!(parse_pg("/atoll/pgs/2.1f"), Some(pg_id));
        assert_eq!(parse_pg("/atoll/pools/2"), None);
        assert_eq!(osd(OsdId(3)), "/atoll/osds/3");
        assert_eq!(parse_osd(&osd_up(OsdId(3))), Some(OsdId(3)));
        assert_eq!(image_lock("ab"), "/atoll/image_locks/ab");
    }

    #[test]
    fn ranges_end_behind_their_keys() {
        assert_eq!(range_end("/a/"), b"/a0");
        assert_eq!(range_end(""), [0]);
        for prefix in [OSDS, OSD_UP, OSD_ENDS, PGS, PG_TARGETS, PG_SCRUBS, POOLS] {
            assert!(OSDS_TO_POOLS < prefix && range_end(prefix) <= range_end(OSDS_TO_POOLS), "{prefix}");
        }
        assert!(OPERATORS < OSDS_TO_POOLS && range_end(OSDS_TO_POOLS).as_slice() < REMOVED_IMAGES.as_bytes());
    }

    #[test]
    fn no_prefix_holds_another() {
        let all = [
            OSDS,
            OSD_UP,
            OSD_USAGE,
            OSD_STORES,
            POOLS,
            REMOVED_POOLS,
            PGS,
            PG_TARGETS,
            PG_SCRUBS,
            SCRUB_REQUESTS,
            FLAGS,
            SETTINGS,
            FRAMES,
            COORDINATOR,
            COORDINATOR_NOTES,
            CLOCK,
            AUTO_OUT,
            NEXT_POOL,
            NEXT_OSD,
            IMAGES,
            IMAGE_LOCKS,
            IMAGE_WATCHERS,
            REMOVED_IMAGES,
            BUCKETS,
            ACCESS_KEYS,
            IDENTITIES,
            LAST_USED,
            AUTHORIZED_KEYS,
            JOIN_TOKENS,
            HOSTS,
            EVENTS,
            ADMIN_SERVERS,
            METRICS_TOKENS,
            OPERATORS,
            APPROVALS,
            OPERATOR_SESSIONS,
            API_TOKENS,
            LOGIN_SETTINGS,
            LOGIN_OIDC,
            KEY_BACKUPS,
            AUDIT_HEADS,
            OSD_FAILURES,
            OSD_ENDS,
            CLUSTER,
            AUTHORITY,
            MANIFEST,
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all.iter().enumerate().all(|(other, prefix)| other == index || !prefix.starts_with(one)));
        }
    }
}
