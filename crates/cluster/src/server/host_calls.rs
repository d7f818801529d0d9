//! A host's requests to the embedded server for itself, with its password: another password, and its OSDs. It may
//! do neither by requests about users and keys, for with these it could do as much to others.

use atoll_types::hosts::{HOST_USER_PREFIX, HostChange, HostRecord, HostRequest};
use atoll_types::limits::{HOST_OSDS_MAX, OSD_ID_MAX, OSD_WEIGHT_MAX};
use atoll_types::record_json::read_record;
use atoll_types::records::{AuthorizedKeyRecord, OsdRecord, PeerRole, RECORD_FORMAT};
use tonic::Status;

use super::change::Change;
use super::host_records::{Signer, put_key, put_record, records, unix_ms};
use super::passwords::{PasswordDigest, is_random};
use super::status;
use crate::keys;

/// The user that asks, if it is such a call.
pub fn user_of(name: &str) -> Option<&str> {
    name.strip_prefix(HOST_USER_PREFIX)
}

/// Carries a request out, for a user whose password was compared with this digest.
pub fn perform(
    change: &mut Change,
    user: &str,
    known: &PasswordDigest,
    request: &HostRequest,
    signer: &Signer,
) -> Result<(), Status> {
    // Since then it may have been changed, or taken away.
    if change.state().auth.users.get(user).and_then(|user| user.password.as_ref()) != Some(known) {
        return Err(status::auth_failed());
    }
    let mut hosts = records::<HostRecord>(change, keys::HOSTS);
    let (_, host) = hosts.find(|(_, host)| host.user == user).ok_or_else(status::permission_denied)?;
    match &request.change {
        HostChange::Password(password) => {
            if !is_random(password) {
                return Err(Status::failed_precondition(
                    "a host draws a password of at least 32 hexadecimal digits",
                ));
            }
            let digest = PasswordDigest::of(password)?;
            change.auth().change_password(user, Some(digest))?;
            let record = HostRecord { rotated_unix_ms: Some(unix_ms()), ..host };
            put_record(change, &keys::host(&record.host), &record)
        }
        HostChange::Osds { osds, next_osd_revision } => {
            if !host.role.has_osds() {
                return Err(status::permission_denied());
            }
            if let Some(revision) = next_osd_revision {
                check_revision(change, keys::NEXT_OSD, *revision)?;
            }
            osds.iter().try_for_each(|(osd, revision)| put_osd(change, &host, osd, *revision, signer))
        }
    }
}

fn check_revision(change: &Change, key: &str, expected: i64) -> Result<(), Status> {
    let found = change.state().keys.get(key.as_bytes()).map_or(0, |entry| entry.mod_revision);
    if found == expected { Ok(()) } else { Err(Status::aborted(format!("{key} {expected} {found}"))) }
}

/// A host has its own OSDs only: those that bear its name and the key that they began with. Whether one is out is not for
/// the host to say.
fn put_osd(
    change: &mut Change,
    host: &HostRecord,
    osd: &OsdRecord,
    revision: i64,
    signer: &Signer,
) -> Result<(), Status> {
    let key = keys::osd(osd.id);
    check_revision(change, &key, revision)?;
    let is_weight = (0.0..=OSD_WEIGHT_MAX).contains(&osd.weight) && osd.id.0 <= OSD_ID_MAX;
    let before = change.state().keys.get(key.as_bytes()).map(|entry| read_record::<OsdRecord>(&entry.value));
    let authorized = keys::authorized_key(&osd.public_key);
    let is_own = match before {
        Some(Ok(before)) => {
            before.host == host.host && before.public_key == osd.public_key && before.is_out == osd.is_out
        }
        Some(Err(_)) => false,
        // No key that somebody has, in another role perhaps.
        None => {
            let has_room =
                records::<OsdRecord>(change, keys::OSDS).filter(|(_, osd)| osd.host == host.host).count()
                    < HOST_OSDS_MAX;
            has_room && !osd.is_out && !change.state().keys.contains_key(authorized.as_bytes())
        }
    };
    if osd.host != host.host || !is_weight || !is_own {
        return Err(status::permission_denied());
    }
    if revision == 0 {
        let (id, name) = (Some(osd.id), osd.id.to_string());
        let record = AuthorizedKeyRecord { format: RECORD_FORMAT, role: PeerRole::Osd, osd: id, name };
        put_key(change, signer, &authorized, &record)?;
    }
    put_record(change, &key, osd)
}
