//! The public key of signed records as a host knows it: its fingerprint, for people to compare, and its successor in
//! cluster state.

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_types::authority::AuthorityRecord;
use atoll_types::record_json::read_record;
use aws_lc_rs::digest::{SHA256, digest};

use crate::envelope::{PublicKey, without_signature};
use crate::verifier::successors;

/// Bytes of a fingerprint: enough that no other key can be made with the same one.
const FINGERPRINT_BYTES: usize = 16;

/// Returns the fingerprint of a key as hosts remember it: eight groups of four hexadecimal digits. `None` if it is
/// malformed.
pub fn fingerprint(key: &str) -> Option<String> {
    let text = PublicKey::parse(key)?.to_text();
    let hash = digest(&SHA256, text.as_bytes());
    let groups = hash.as_ref()[..FINGERPRINT_BYTES].chunks(2).map(hex::encode);
    Some(groups.collect::<Vec<_>>().join("-"))
}

/// The newest key that signs in a cluster, as cluster state says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// There is none: the cluster does not sign for all, or the record was removed.
    None,
    /// It is the known key or a successor of it, or there is no known one.
    Follows(String),
    /// The known key has not signed that it follows.
    Another(String),
}

/// Reads the newest key, for a host that knows a key.
pub async fn published(client: &ClusterClient, known: Option<&str>) -> Result<Published, ClusterError> {
    let (mut found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
    let stored = found.pop().flatten().filter(|stored| !stored.is_reserved());
    let record: Option<AuthorityRecord> =
        stored.and_then(|stored| read_record(&without_signature(&stored.value)).ok());
    let Some(record) = record.filter(|record| record.signs_for_all) else { return Ok(Published::None) };
    let Some(newest) = record.public_keys.last().and_then(PublicKey::of) else { return Ok(Published::None) };
    let Some(known) = known else { return Ok(Published::Follows(newest.to_text())) };
    let trusted = PublicKey::parse(known).unwrap_or_else(PublicKey::nobodys);
    Ok(match successors(&[trusted], &record).is_some_and(|found| found.last() == Some(&newest)) {
        true => Published::Follows(newest.to_text()),
        false => Published::Another(newest.to_text()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_of_the_key_and_its_id() {
        let key = |id: u8, byte: u8| format!("{id:016x}:{}", hex::encode([byte; 32]));
        let first = fingerprint(&key(1, 7)).unwrap();
        assert_eq!((first.len(), first.split('-').count()), (39, 8), "{first}");
        assert!(fingerprint(&key(2, 7)).unwrap() != first && fingerprint(&key(1, 8)).unwrap() != first);
        assert_eq!((fingerprint(""), fingerprint("0011:22")), (None, None));
    }
}
