//! Rights of each kind of process to read and write cluster state: the roles of hosts' users.
//!
//! It is the table of docs/reference/rights.md. A test compares the two, and the keys that the crates of each kind
//! of process use.

use atoll_types::join::HostRole;

use crate::keys;

/// A kind of process. A host has the roles of all kinds that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// OSDs.
    Osd,
    /// An OSD that decides for the cluster as a whole.
    Coordinator,
    /// S3 gateways.
    Gateway,
    /// NBD servers.
    Nbd,
    /// NVMe/TCP targets.
    Nvme,
    /// Commands of operators, and the console.
    Admin,
}

use Role::{Admin, Coordinator, Gateway, Nbd, Nvme, Osd};

impl Role {
    /// All of them.
    pub const ALL: [Role; 6] = [Osd, Coordinator, Gateway, Nbd, Nvme, Admin];

    /// Its name in cluster state.
    pub fn name(self) -> &'static str {
        match self {
            Osd => "atoll-osd",
            Coordinator => "atoll-coordinator",
            Gateway => "atoll-gateway",
            Nbd => "atoll-nbd",
            Nvme => "atoll-nvme",
            Admin => "atoll-admin",
        }
    }
}

/// The roles of a host that is this.
pub fn roles_of(host: HostRole) -> &'static [Role] {
    match host {
        HostRole::Osd => &[Osd],
        HostRole::Gateway => &[Gateway],
        HostRole::Client => &[Gateway, Nbd, Nvme, Admin],
        HostRole::Host => &Role::ALL,
    }
}

/// Readers and writers of a kind of keys.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The key, or the prefix of keys, which ends with a slash.
    pub keys: &'static str,
    /// Roles that read them, beside [`Admin`].
    pub readers: &'static [Role],
    /// Roles that write them, beside [`Admin`].
    pub writers: &'static [Role],
    /// A host writes its own key: the prefix and its name.
    pub is_own: bool,
}

const EVERYBODY: &[Role] = &Role::ALL;
const OSDS_THEMSELVES: &[Role] = &[Osd];
const IMAGE_SERVERS: &[Role] = &[Nbd, Nvme];
const NOBODY: &[Role] = &[];

const fn kind(keys: &'static str, readers: &'static [Role], writers: &'static [Role]) -> Kind {
    Kind { keys, readers, writers, is_own: false }
}

const fn own(keys: &'static str) -> Kind {
    Kind { keys, readers: EVERYBODY, writers: NOBODY, is_own: true }
}

/// All kinds of keys. [`Admin`] reads and writes all of them.
pub const KINDS: [Kind; 48] = [
    kind(keys::LAST_USED, &[Gateway], &[Gateway]),
    own(keys::ADMIN_SERVERS),
    kind(keys::APPROVALS, NOBODY, NOBODY),
    // The embedded server lets a host say its own, once in each hour.
    kind(keys::AUDIT_HEADS, EVERYBODY, EVERYBODY),
    kind(keys::API_TOKENS, NOBODY, NOBODY),
    kind(keys::AUTHORITY, EVERYBODY, NOBODY),
    kind(keys::AUTHORIZED_KEYS, EVERYBODY, NOBODY),
    kind(keys::BUCKETS, &[Gateway], &[Gateway]),
    kind(keys::CLUSTER, EVERYBODY, NOBODY),
    kind(keys::AUTO_OUT, EVERYBODY, &[Coordinator]),
    kind(keys::CLOCK, EVERYBODY, &[Coordinator]),
    kind(keys::COORDINATOR, EVERYBODY, &[Coordinator]),
    kind(keys::COORDINATOR_NOTES, EVERYBODY, &[Coordinator]),
    kind(keys::EVENTS, &[Coordinator], &[Coordinator]),
    kind(keys::FLAGS, EVERYBODY, NOBODY),
    kind(keys::FRAMES, EVERYBODY, NOBODY),
    kind(keys::HOSTS, EVERYBODY, NOBODY),
    kind(keys::IDENTITIES, &[Gateway], &[Gateway]),
    kind(keys::IMAGE_LOCKS, IMAGE_SERVERS, IMAGE_SERVERS),
    kind(keys::IMAGE_WATCHERS, IMAGE_SERVERS, IMAGE_SERVERS),
    kind(keys::IMAGES, IMAGE_SERVERS, IMAGE_SERVERS),
    kind(keys::JOIN_TOKENS, NOBODY, NOBODY),
    own(keys::KEY_BACKUPS),
    kind(keys::LOGIN_OIDC, NOBODY, NOBODY),
    kind(keys::LOGIN_SETTINGS, EVERYBODY, NOBODY),
    kind(keys::MANIFEST, EVERYBODY, NOBODY),
    kind(keys::METRICS_TOKENS, EVERYBODY, NOBODY),
    kind(keys::NEXT_OSD, OSDS_THEMSELVES, NOBODY),
    kind(keys::NEXT_POOL, NOBODY, NOBODY),
    kind(keys::NVME_HOSTS, &[Nvme], NOBODY),
    kind(keys::NVME_TLS, &[Nvme], NOBODY),
    kind(keys::OPERATOR_SESSIONS, NOBODY, NOBODY),
    kind(keys::OPERATORS, EVERYBODY, NOBODY),
    kind(keys::OSD_ENDS, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::OSD_FAILURES, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::OSD_STORES, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::OSD_UP, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::OSD_USAGE, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::OSDS, EVERYBODY, &[Coordinator]),
    kind(keys::PG_SCRUBS, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::PG_TARGETS, EVERYBODY, &[Osd, Coordinator]),
    kind(keys::PGS, EVERYBODY, &[Osd, Coordinator]),
    kind(keys::POOLS, EVERYBODY, NOBODY),
    kind(keys::REMOVED_IMAGES, IMAGE_SERVERS, IMAGE_SERVERS),
    kind(keys::SCRUB_REQUESTS, EVERYBODY, OSDS_THEMSELVES),
    kind(keys::ACCESS_KEYS, &[Gateway], &[Gateway]),
    kind(keys::REMOVED_POOLS, EVERYBODY, NOBODY),
    kind(keys::SETTINGS, EVERYBODY, NOBODY),
];

/// Returns true if a user with roles of these names reads keys of a kind, by this table, which has no other roles.
pub fn may_read(roles: &[String], keys: &str) -> bool {
    let known: Vec<Role> =
        Role::ALL.into_iter().filter(|role| roles.iter().any(|name| name == role.name())).collect();
    // A part of a kind is read by its readers.
    let holds = |kind: &Kind| kind.keys == keys || kind.keys.ends_with('/') && keys.starts_with(kind.keys);
    let is_reader =
        |role: &Role| *role == Admin || KINDS.iter().any(|kind| holds(kind) && kind.readers.contains(role));
    known.is_empty() || roles.iter().any(|name| name == "root") || known.iter().any(is_reader)
}

/// Rights to a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first key.
    pub key: Vec<u8>,
    /// The end of the range, as in requests; empty for one key.
    pub range_end: Vec<u8>,
    /// They may be read.
    pub reads: bool,
    /// They may be written.
    pub writes: bool,
}

impl Grant {
    fn of(keys: &str, reads: bool, writes: bool) -> Grant {
        let range_end = if keys.ends_with('/') { keys::range_end(keys) } else { Vec::new() };
        Grant { key: keys.into(), range_end, reads, writes }
    }

    fn of_range(range: &str) -> Grant {
        Grant { key: range.into(), range_end: keys::range_end(range), reads: true, writes: false }
    }
}

/// Returns the rights of a role. No range is in it twice.
pub fn grants(role: Role) -> Vec<Grant> {
    if role == Admin {
        return vec![Grant::of(keys::ROOT, true, true)];
    }
    let has = |roles: &[Role]| roles.contains(&role);
    let kinds = KINDS.iter().filter(|kind| has(kind.readers) || has(kind.writers));
    let of_kinds = kinds.map(|kind| Grant::of(kind.keys, has(kind.readers), has(kind.writers)));
    let mut all: Vec<Grant> = of_kinds.collect();
    // The map is read in ranges, which other kinds may come to be in: these are no secrets.
    for range in keys::MAP_RANGES.map(Grant::of_range) {
        let is_there = |grant: &Grant| grant.key == range.key && grant.range_end == range.range_end;
        if !all.iter().any(is_there) {
            all.push(range);
        }
    }
    all
}

/// Returns the rights of a host beside its roles: to write the keys with its name.
pub fn own_grants(host: &str) -> Vec<Grant> {
    let own = KINDS.iter().filter(|kind| kind.is_own);
    own.map(|kind| Grant::of(&format!("{}{host}", kind.keys), true, true)).collect()
}
