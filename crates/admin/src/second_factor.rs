//! The second factor of operators: codes by time, and recovery codes for operators who have lost their device. The
//! secret is wrapped by the key service; of recovery codes only digests are kept.

use atoll_cluster::ClusterClient;
use atoll_coordinator::unix_ms;
use atoll_keys::{KeyService, SecretKey, random_bytes, sha256};
use atoll_types::operators::{OperatorRecord, TotpRecord};

use crate::error::AdminError;
use crate::operators::{self, Reach};
use crate::totp;

const RECOVERY_CODES: usize = 10;
const RECOVERY_BYTES: usize = 10;
const RECOVERY_GROUP: usize = 4;
/// Wrong codes in a row that are answered without a pause.
const FREE_ATTEMPTS: u32 = 5;
const PAUSE_MIN_MS: u64 = 30_000;
const PAUSE_MAX_MS: u64 = 3_600_000;

/// Context in which a secret is wrapped.
pub fn context(id: &str) -> String {
    format!("one-time passwords {id}")
}

/// Outcome of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was right, and counts no more.
    Right,
    /// It was wrong, or was used before.
    Wrong,
    /// There were too many wrong ones: codes are refused for this many seconds.
    Pause(u64),
}

/// A secret that begins.
pub struct Enrolment {
    /// The secret in base 32.
    pub secret: String,
    /// Content of a QR code.
    pub url: String,
}

/// Begins to give an operator a second factor, which counts once it is confirmed.
pub async fn enrol(client: &ClusterClient, service: &dyn KeyService, name: &str) -> Result<Enrolment, AdminError> {
    let secret = SecretKey::random();
    let id = hex::encode(random_bytes::<16>());
    let wrapped_secret = service.wrap(&context(&id), &secret).await?;
    let begun = TotpRecord { id, wrapped_secret, enrolled_unix_ms: unix_ms(), ..TotpRecord::default() };
    let edit = |before: OperatorRecord| match &before.totp {
        Some(totp) if totp.is_confirmed => AdminError::refused(format!(
            "'{name}' has a second factor already; an operator with the role security takes it away by \
             'atoll operator totp reset {name}'"
        )),
        // A new secret gives no further attempts.
        Some(TotpRecord { wrong, wrong_unix_ms, .. }) => {
            let totp = TotpRecord { wrong: *wrong, wrong_unix_ms: *wrong_unix_ms, ..begun.clone() };
            Ok(OperatorRecord { totp: Some(totp), ..before })
        }
        None => Ok(OperatorRecord { totp: Some(begun.clone()), ..before }),
    };
    operators::change(client, name, edit).await?;
    Ok(Enrolment { secret: totp::base32(secret.expose()), url: totp::url(name, &secret) })
}

/// Confirms a second factor by a code: from then on a log-in needs one. Other sessions end. Returns recovery codes, or why
/// the code is not taken.
pub async fn confirm(
    client: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    code: &str,
) -> Result<Result<Vec<String>, Verdict>, AdminError> {
    let codes: Vec<String> = (0..RECOVERY_CODES).map(|_| recovery_code()).collect();
    let digests: Vec<String> = codes.iter().map(|code| recovery_digest(code)).collect();
    let confirm = |operator: OperatorRecord, totp: TotpRecord| OperatorRecord {
        generation: operator.generation + 1,
        totp: Some(TotpRecord { is_confirmed: true, recovery_sha256: digests.clone(), ..totp }),
        ..operator
    };
    let is_open = |operator: &OperatorRecord| match &operator.totp {
        Some(totp) if !totp.is_confirmed => Ok(()),
        Some(_) => AdminError::refused(format!("the second factor of '{name}' is confirmed already")),
        None => AdminError::refused(format!("'{name}' has no second factor to be confirmed")),
    };
    let verdict = try_code(client, service, name, code, &is_open, &confirm).await?;
    Ok(if verdict == Verdict::Right { Ok(codes) } else { Err(verdict) })
}

/// Looks at the code of a log-in: one by time, or a recovery code.
pub async fn check(
    client: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    code: &str,
) -> Result<Verdict, AdminError> {
    let is_open = |_: &OperatorRecord| Ok(());
    let keep = |operator: OperatorRecord, totp: TotpRecord| OperatorRecord { totp: Some(totp), ..operator };
    try_code(client, service, name, code, &is_open, &keep).await
}

/// Checks a code, and writes the result in the same step: parallel attempts count, and no code counts twice.
async fn try_code(
    client: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    code: &str,
    is_open: &(dyn Fn(&OperatorRecord) -> Result<(), AdminError> + Sync),
    then: &(dyn Fn(OperatorRecord, TotpRecord) -> OperatorRecord + Sync),
) -> Result<Verdict, AdminError> {
    crate::error::retried(async || {
        let Some((operator, revision)) = operators::find(client, name).await? else { return Ok(Verdict::Wrong) };
        is_open(&operator)?;
        let Some(totp) = operator.totp.clone() else { return Ok(Verdict::Wrong) };
        let now = unix_ms();
        if let Some(seconds) = pause_seconds(&totp, now) {
            return Ok(Verdict::Pause(seconds));
        }
        let secret = service.unwrap(&context(&totp.id), &totp.wrapped_secret).await?;
        let (verdict, after) = match used(&totp, &secret, code, now) {
            Some(totp) => (Verdict::Right, then(operator, totp)),
            None => (Verdict::Wrong, OperatorRecord { totp: Some(wrong(totp, now)), ..operator }),
        };
        client.compare_and_swap(&atoll_cluster::keys::operator(name), revision, &after).await?;
        Ok(verdict)
    })
    .await
}

/// The record after a code was used, if it is one.
fn used(totp: &TotpRecord, secret: &SecretKey, code: &str, now_unix_ms: u64) -> Option<TotpRecord> {
    let code: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    let right = TotpRecord { wrong: 0, ..totp.clone() };
    if let Some(last_step) = totp::step_of(secret, &code, totp.last_step, now_unix_ms) {
        return Some(TotpRecord { last_step, ..right });
    }
    let digest = recovery_digest(&code);
    let at = totp.recovery_sha256.iter().position(|known| *known == digest)?;
    let mut recovery_sha256 = right.recovery_sha256;
    recovery_sha256.remove(at);
    Some(TotpRecord { recovery_sha256, wrong: 0, ..totp.clone() })
}

fn wrong(totp: TotpRecord, now_unix_ms: u64) -> TotpRecord {
    TotpRecord { wrong: totp.wrong.saturating_add(1), wrong_unix_ms: now_unix_ms, ..totp }
}

/// Seconds until a code is looked at again, on all hosts: the record has it.
fn pause_seconds(totp: &TotpRecord, now_unix_ms: u64) -> Option<u64> {
    let doublings = totp.wrong.checked_sub(FREE_ATTEMPTS)?.min(16);
    let until = totp.wrong_unix_ms.saturating_add((PAUSE_MIN_MS << doublings).min(PAUSE_MAX_MS));
    until.checked_sub(now_unix_ms).filter(|left| *left > 0).map(|left| left.div_ceil(1_000))
}

/// Returns a random code, in groups that are easy to type.
fn recovery_code() -> String {
    let text = totp::base32(&random_bytes::<RECOVERY_BYTES>()).to_lowercase();
    let groups: Vec<&[u8]> = text.as_bytes().chunks(RECOVERY_GROUP).collect();
    let groups = groups.into_iter().map(|group| std::str::from_utf8(group).expect("base 32 is ASCII"));
    groups.collect::<Vec<_>>().join("-")
}

/// Digest of a recovery code. A code has 80 random bits, so it needs no salt.
fn recovery_digest(code: &str) -> String {
    let plain: String = code.chars().filter(char::is_ascii_alphanumeric).collect();
    hex::encode(sha256(plain.to_lowercase().as_bytes()))
}

/// Takes the second factor of an operator away, confirmed or not, and ends the sessions. It has to be set up again where
/// one is required.
pub async fn reset(client: &ClusterClient, name: &str, reach: Reach) -> Result<(), AdminError> {
    let edit = |before: OperatorRecord| {
        reach.check(name, &before.role)?;
        if before.totp.is_none() {
            return AdminError::refused(format!("'{name}' has no second factor"));
        }
        Ok(OperatorRecord { totp: None, generation: before.generation + 1, ..before })
    };
    operators::change(client, name, edit).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_either_kind_counts_once() {
        let (secret, now) = (SecretKey::from_bytes([7; 32]), 1_700_000_000_000);
        let recovery = recovery_code();
        assert_eq!(recovery.len(), 19);
        let totp = TotpRecord {
            recovery_sha256: vec![recovery_digest(&recovery), recovery_digest("other")],
            wrong: 3,
            ..TotpRecord::default()
        };
        let code = totp::code(secret.expose(), totp::step_at(now));
        let after = used(&totp, &secret, &format!("{} {}", &code[..3], &code[3..]), now).unwrap();
        assert_eq!((after.last_step, after.wrong), (totp::step_at(now), 0));
        assert_eq!(used(&after, &secret, &code, now), None, "again");
        let after = used(&totp, &secret, &recovery.to_uppercase(), now).unwrap();
        assert_eq!(after.recovery_sha256.len(), 1);
        assert_eq!(used(&after, &secret, &recovery, now), None, "again");
        assert_eq!(used(&totp, &secret, "", now), None);
    }

    #[test]
    fn wrong_codes_make_a_pause_that_doubles() {
        let mut totp = TotpRecord::default();
        let mut pauses = Vec::new();
        for _ in 0..14 {
            pauses.push(pause_seconds(&totp, 1_000_000).unwrap_or(0));
            totp = wrong(totp, 1_000_000);
        }
        assert_eq!(pauses, [0, 0, 0, 0, 0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(pause_seconds(&totp, 1_000_000 + PAUSE_MAX_MS), None, "it is over");
    }
}
