//! Records that many hosts write under one prefix. A permission is for a range of keys, and cannot say whose they are: here
//! a host with OSDs only writes those of its own OSDs, and of the PGs that these are in.

use atoll_types::record_json::read_record;
use atoll_types::records::{OsdRecord, PgRecord};
use atoll_types::{OsdId, PgId};
use serde::de::DeserializeOwned;
use tonic::Status;

use super::auth::{Auth, Caller, ROOT};
use super::state::State;
use super::status;
use crate::keys;
use crate::pg_changes::split_from;
use crate::roles::Role;

/// Prefixes of processes' records of one OSD each.
const OF_OSDS: [&str; 5] = [keys::OSD_UP, keys::OSD_USAGE, keys::OSD_STORES, keys::OSD_FAILURES, keys::OSD_ENDS];
/// Prefixes of records of one PG each.
const OF_PGS: [&str; 4] = [keys::PGS, keys::PG_TARGETS, keys::PG_SCRUBS, keys::SCRUB_REQUESTS];

/// The host of a user that may write as OSDs do and no more; the server has named the user itself when the host joined.
fn osd_host<'a>(auth: &Auth, caller: &'a Caller) -> Option<&'a str> {
    let Caller::User(name) = caller else { return None };
    let roles = &auth.users.get(&**name)?.roles;
    let has = |role: &str| roles.contains(role);
    let decides = [Role::Coordinator.name(), Role::Admin.name(), ROOT].into_iter().any(has);
    let (host, _) = name.strip_prefix("host-")?.rsplit_once('-')?;
    (has(Role::Osd.name()) && !decides).then_some(host)
}

impl State {
    /// Refuses another host's records to a host with OSDs only. `value` is the value to be written, if there is
    /// one.
    pub fn check_own(
        &self,
        caller: &Caller,
        key: &[u8],
        range_end: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), Status> {
        let Some(host) = osd_host(&self.auth, caller) else { return Ok(()) };
        let key = std::str::from_utf8(key).map_err(|_| status::permission_denied())?;
        let name = |prefixes: &[&str]| prefixes.iter().find_map(|prefix| key.strip_prefix(prefix));
        let is_own = match (name(&OF_OSDS), name(&OF_PGS)) {
            // Nothing of a host's own takes more than one key.
            _ if !range_end.is_empty() => false,
            (Some(osd), _) => osd.parse().is_ok_and(|osd| self.is_osd_of(host, OsdId(osd))),
            (_, Some(pg)) => pg.parse().is_ok_and(|pg| self.is_pg_of(host, pg, key, value)),
            (None, None) => true,
        };
        if is_own { Ok(()) } else { Err(status::permission_denied()) }
    }

    fn record<T: DeserializeOwned>(&self, key: &str) -> Option<Option<T>> {
        self.keys.get(key.as_bytes()).map(|entry| read_record(&entry.value).ok())
    }

    /// A number that no OSD has belongs to no host.
    fn is_osd_of(&self, host: &str, osd: OsdId) -> bool {
        match self.record::<OsdRecord>(&keys::osd(osd)) {
            Some(record) => record.is_some_and(|record| record.host == host),
            None => true,
        }
    }

    fn is_pg_of(&self, host: &str, pg: PgId, key: &str, value: Option<&[u8]>) -> bool {
        match self.record::<PgRecord>(&keys::pg(pg)) {
            Some(Some(record)) => {
                // Only who gives PGs up removes their records, and none goes back to an earlier epoch.
                let is_later =
                    |value| read_record::<PgRecord>(value).is_ok_and(|written| written.epoch >= record.epoch);
                let is_record = key.starts_with(keys::PGS);
                self.is_member_of(host, &record) && (!is_record || value.is_some_and(is_later))
            }
            Some(None) => false,
            // Whoever has a PG splits others off.
            None => split_from(pg).is_some_and(|parent| {
                self.record(&keys::pg(parent)).flatten().is_some_and(|parent| self.is_member_of(host, &parent))
            }),
        }
    }

    /// Those who propose are members, or were when the PG was last active.
    fn is_member_of(&self, host: &str, record: &PgRecord) -> bool {
        let mut all = record.members.iter().chain(&record.last_active_members);
        all.any(|osd| self.record::<OsdRecord>(&keys::osd(*osd)).flatten().is_some_and(|osd| osd.host == host))
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::Arc;
    use std::time::Instant;

    use atoll_types::PoolId;
    use serde_json::{Value, json};

    use super::super::host_records::set_roles;
    use super::super::state::{Entry, LeaseState};
    use super::*;

    const MINE: &str = "/atoll/pgs/1.0";

    fn pg(members: &[u32]) -> Value {
        json!({
            "format": 1, "epoch": 3, "members": members, "primary": members[0],
            "activated_epoch": 3, "last_active_members": members,
        })
    }

    fn osd(id: u32, host: &str) -> Value {
        json!({
            "format": 1, "id": id, "host": host, "public_key": "00", "weight": 1.0, "device_class": "ssd",
            "device_bytes": 1, "is_out": false,
        })
    }

    /// Two hosts with an OSD each, and a PG on both. The presence of the other's is under a lease.
    fn state() -> State {
        let mut state = State::new();
        let entry = |value: Value| Entry {
            create_revision: 2,
            mod_revision: 2,
            version: 1,
            lease: 0,
            value: value.to_string().into(),
        };
        for (key, value) in [
            ("/atoll/osds/0", osd(0, "one")),
            ("/atoll/osds/1", osd(1, "two")),
            (MINE, pg(&[1, 0])),
            ("/atoll/osd_up/1", json!({})),
        ] {
            state.keys.insert(key.as_bytes().into(), Arc::new(entry(value)));
        }
        let mut lease = LeaseState { granted_seconds: 10, ..LeaseState::default() };
        lease.keys.insert("/atoll/osd_up/1".as_bytes().into());
        state.leases.insert(7, lease);
        let mut auth = Auth { is_enabled: true, ..Auth::default() };
        set_roles(&mut auth);
        auth.add_user("host-one-01234567", None).unwrap();
        auth.grant_role("host-one-01234567", Role::Osd.name()).unwrap();
        state.auth = Arc::new(auth);
        state
    }

    #[test]
    fn a_host_ends_no_presence_of_anothers_osd() {
        let (mut state, one) = (state(), Caller::User("host-one-01234567".into()));
        assert!(state.check_lease_allowed(&one, 7).is_err());
        state.keys.insert("/atoll/osds/1".as_bytes().into(), state.keys[&b"/atoll/osds/0"[..]].clone());
        state.check_lease_allowed(&one, 7).unwrap();
        assert!(state.check_own(&one, b"/atoll/osd_usage/", b"/atoll/osd_usage0", None).is_err(), "a range");
    }

    /// Prints its cost; run it with --nocapture.
    #[test]
    fn a_check_costs_microseconds() {
        const CHECKS: u32 = 20_000;
        let (state, one) = (state(), Caller::User("host-one-01234567".into()));
        let (value, begun) = (pg(&[1, 0]).to_string(), Instant::now());
        for _ in 0..CHECKS {
            black_box(&state).check_own(&one, MINE.as_bytes(), &[], Some(value.as_bytes())).unwrap();
        }
        let each = begun.elapsed() / CHECKS;
        println!("{each:?} for a change of a PG");
        assert!(each.as_millis() < 1, "{each:?}");
    }

    #[test]
    fn a_pg_is_split_off_from_the_one_without_its_highest_bit() {
        for pg_num in [1_u32, 2, 8, 64] {
            for index in 0..pg_num {
                let parent = PgId { pool: PoolId(3), index };
                assert_eq!(split_from(parent.split_off(pg_num)), Some(parent));
            }
        }
        assert_eq!(split_from(PgId { pool: PoolId(3), index: 0 }), None);
    }
}
