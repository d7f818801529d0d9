//! Hosts that join. A token is used in the transaction that makes the host's user: the host draws its password
//! itself, so no password is sent to a host, and a token that was used, has expired or was revoked opens nothing.

use atoll_types::events::Severity;
use atoll_types::hosts::HostRecord;
use atoll_types::join::{
    HostRole, JOIN_USER_PREFIX, JoinAnswer, JoinRequest, JoinTokenRecord, JoinedHost, RefusedUses,
};
use atoll_types::record_json::read_record;
use atoll_types::records::{AuthorizedKeyRecord, OsdRecord, OsdUpRecord, PeerRole, RECORD_FORMAT};
use aws_lc_rs::digest::{SHA256, digest};
use tonic::Status;

use super::change::Change;
use super::host_records::{
    Signer, host_event, note_event, put_key, put_record, records, role_names, set_roles, unix_ms,
};
use super::passwords::same;
use super::passwords::{PasswordDigest, is_random};
use super::status;
use crate::keys;
use crate::roles::{own_grants, roles_of};

/// Shortest interval of events about refused uses of one token.
const REFUSALS_PAUSE_MS: u64 = 60_000;

/// The id of the token that a user's name stands for.
pub fn token_of(user: &str) -> Option<&str> {
    user.strip_prefix(JOIN_USER_PREFIX)
}

/// Result of a request to join.
pub enum Outcome {
    Joined(JoinAnswer),
    /// The refusal was noted.
    Refused(Status),
}

/// A request with the digest of its password.
pub struct Asked {
    pub token: String,
    pub request: JoinRequest,
    pub digest: PasswordDigest,
    pub peer: String,
}

/// Takes the token and makes the host's user, both or neither. A host that asks again, because it did not hear the
/// answer, gets it again if it has the same key and password: that discloses nothing.
pub fn join(change: &mut Change, asked: &Asked, signer: &Signer) -> Result<Outcome, Status> {
    let key = keys::join_token(&asked.token);
    let found = change.state().keys.get(key.as_bytes()).and_then(|entry| read_record(&entry.value).ok());
    let mut token: JoinTokenRecord = found.ok_or_else(status::auth_failed)?;
    let given = hex::encode(digest(&SHA256, asked.request.secret.as_bytes()));
    if !same(given.as_bytes(), token.secret_sha256.as_bytes()) {
        return Err(status::auth_failed());
    }
    if let Some(answer) = joined_before(change, asked, &token) {
        return Ok(Outcome::Joined(answer));
    }
    if token.expires_unix_ms <= unix_ms() {
        return Err(status::auth_failed());
    }
    if !token.has_uses_left() {
        note_refusal(change, &key, token, asked)?;
        return Ok(Outcome::Refused(status::auth_failed()));
    }
    check_name(change, asked)?;
    let user = format!("host-{}-{}", asked.request.host, &asked.request.public_key[..8]);
    make_user(change, asked, token.role, &user)?;
    token.use_by(JoinedHost {
        host: asked.request.host.clone(),
        public_key: asked.request.public_key.clone(),
        joined_unix_ms: unix_ms(),
        address: Some(asked.peer.clone()),
    });
    put_record(change, &key, &token)?;
    put_records(change, asked, token.role, &user, signer)?;
    Ok(Outcome::Joined(JoinAnswer { user, role: token.role }))
}

fn joined_before(change: &Change, asked: &Asked, token: &JoinTokenRecord) -> Option<JoinAnswer> {
    let JoinRequest { host, public_key, password, .. } = &asked.request;
    token.users().find(|joined| joined.host == *host && joined.public_key == *public_key)?;
    let entry = change.state().keys.get(keys::host(host).as_bytes())?;
    let record = read_record::<HostRecord>(&entry.value).ok()?;
    let user = change.state().auth.users.get(&record.user)?;
    let is_same = record.public_key == *public_key && user.password.as_ref()?.is_of(password);
    is_same.then_some(JoinAnswer { user: record.user, role: record.role })
}

/// Refuses invalid names or keys, and the name of an existing host.
fn check_name(change: &Change, asked: &Asked) -> Result<(), Status> {
    let JoinRequest { host, public_key, gateway_key, password, .. } = &asked.request;
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    let is_name = (1..=255).contains(&host.len()) && host.bytes().all(is_plain);
    let is_key =
        |key: &str| key.len() == 64 && key.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if !is_name || !is_key(public_key) || !is_key(gateway_key) || !is_random(password) {
        return Err(Status::failed_precondition(format!(
            "'{host}' is no name of a host, or its keys and password are none"
        )));
    }
    let known = change.state().keys.get(keys::host(host).as_bytes());
    let is_up = |osd: &OsdRecord| records::<OsdUpRecord>(change, keys::OSD_UP).any(|(_, up)| up.id == osd.id);
    let mut osds = records::<OsdRecord>(change, keys::OSDS).map(|(_, osd)| osd);
    if let Some(osd) = osds.find(|osd| osd.host == *host && is_up(osd)) {
        return Err(Status::failed_precondition(format!(
            "another host is called '{host}' ({} runs there), and copies would not be kept apart; give --host NAME",
            osd.id
        )));
    }
    match known {
        None => Ok(()),
        Some(_) => Err(Status::failed_precondition(format!(
            "another host is called '{host}': give --host NAME, or, if it is gone, 'atoll host rm {host}' on the host that \
             made the cluster"
        ))),
    }
}

fn make_user(change: &mut Change, asked: &Asked, role: HostRole, user: &str) -> Result<(), Status> {
    let auth = change.auth();
    set_roles(auth);
    // What is left of a host of the same name has nothing to do with this one.
    auth.users.remove(user);
    auth.add_user(user, Some(asked.digest.clone()))?;
    auth.set_role(user, &own_grants(&asked.request.host));
    auth.grant_role(user, user)?;
    for role in role_names(roles_of(role)) {
        auth.grant_role(user, role)?;
    }
    Ok(())
}

fn put_records(
    change: &mut Change,
    asked: &Asked,
    role: HostRole,
    user: &str,
    signer: &Signer,
) -> Result<(), Status> {
    let JoinRequest { host, public_key, gateway_key, .. } = &asked.request;
    if role.has_clients() {
        for (key, kind) in [(public_key, PeerRole::Client), (gateway_key, PeerRole::Gateway)] {
            let name = format!("{kind}@{host}");
            let record = AuthorizedKeyRecord { format: RECORD_FORMAT, role: kind, osd: None, name };
            put_key(change, signer, &keys::authorized_key(key), &record)?;
        }
    }
    let record = HostRecord {
        format: RECORD_FORMAT,
        host: host.clone(),
        role,
        user: user.to_owned(),
        public_key: public_key.clone(),
        joined_unix_ms: unix_ms(),
        rotated_unix_ms: None,
        address: Some(asked.peer.clone()),
    };
    put_record(change, &keys::host(host), &record)?;
    let summary = format!("host '{host}' joined as {role} from {} with the token {}", asked.peer, asked.token);
    note_event(change, &host_event("HOST_JOINED", Severity::Note, summary))
}

/// Records the use of a token that was used before: its caller is the right host too late, or a thief too late.
fn note_refusal(change: &mut Change, key: &str, mut token: JoinTokenRecord, asked: &Asked) -> Result<(), Status> {
    let now = unix_ms();
    let before = token.refused.take();
    let is_told = before.as_ref().is_some_and(|before| before.last_unix_ms + REFUSALS_PAUSE_MS > now);
    // The time stands still while no event comes, so that a steady stream of attempts has one in a while.
    let last_unix_ms = before.as_ref().filter(|_| is_told).map_or(now, |before| before.last_unix_ms);
    let count = before.map_or(0, |before| before.count) + 1;
    token.refused = Some(RefusedUses { count, address: asked.peer.clone(), last_unix_ms });
    put_record(change, key, &token)?;
    if is_told {
        return Ok(());
    }
    let users: Vec<String> = token
        .users()
        .map(|joined| match &joined.address {
            Some(address) => format!("'{}' from {address}", joined.host),
            None => format!("'{}'", joined.host),
        })
        .collect();
    let summary = format!(
        "the join token {} was used by {} and now again from {}, as host '{}': one of them is not who was meant",
        asked.token,
        users.join(", "),
        asked.peer,
        asked.request.host.chars().take(64).collect::<String>()
    );
    note_event(change, &host_event("JOIN_TOKEN_REUSED", Severity::Error, summary))
}
