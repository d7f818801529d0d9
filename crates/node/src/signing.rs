//! A host's actions on the signatures of cluster state's records.

use std::sync::Arc;

use atoll_admin::AdminError;
use atoll_authority::{Finding, Published, RecordState, SigningError, found, published, survey};
use atoll_cluster::{ClusterClient, RecordGuard, kinds};
use atoll_coordinator::health::{Problem, Severity};
use atoll_coordinator::unix_ms;
use atoll_keys::KeyRing;

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;

/// Makes the keys of a new cluster, before its first record.
pub(crate) async fn found_signed(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    let service = KeyRing::open(&directory.key_service_file())?;
    service.make_default_key().await?;
    found(state, &service, unix_ms()).await?;
    remember_signed(directory, cluster, state).await
}

/// Remembers that the cluster is signed, if it is: from then on this host takes nothing else. Remembers the public key of
/// its records, too; on hosts without the key service the processes do that.
pub async fn remember_signed(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    let Some(authority) = directory.authority(cluster) else { return Ok(()) };
    authority.refresh(state).await?;
    let is_signed = cluster.is_signed || authority.is_signed() && !authority.accepts_unsigned();
    // A holder knows which key is the newest, also after a loss of all earlier ones.
    let signing_key = authority.public_key().or_else(|| cluster.signing_key.clone());
    if (is_signed, &signing_key) == (cluster.is_signed, &cluster.signing_key) {
        return Ok(());
    }
    (cluster.is_signed, cluster.signing_key) = (is_signed, signing_key.clone());
    directory.change_cluster(|file| {
        (file.is_signed, file.signing_key) = (is_signed, signing_key);
        Ok(())
    })?;
    Ok(())
}

/// The key of signed records that a host accepts, and the one that signs now.
#[derive(Clone, Debug)]
pub struct Pin {
    /// The remembered key; none on a host that has never seen the cluster sign for all.
    pub pinned: Option<String>,
    /// The one in cluster state.
    pub published: Published,
    /// The key service is here, so the host itself knows which key is right, and remembers it.
    pub is_verified: bool,
}

/// Looks at the keys. A host with the key service remembers the right one at once.
pub async fn look_at_pin(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<Pin, NodeError> {
    let pinned = cluster.signing_key.clone();
    let is_verified = directory.authority(cluster).is_some();
    remember_signed(directory, cluster, state).await?;
    let known = if is_verified { cluster.signing_key.as_deref() } else { pinned.as_deref() };
    let published = published(&state.without_guard(), known).await?;
    Ok(Pin { pinned, published, is_verified })
}

/// Remembers a key in place of the remembered one: from the next start of each process, records of this key count.
pub fn pin(directory: &DataDir, key: &str) -> Result<(), NodeError> {
    directory.pin_signing_key(key)
}

/// Returns the problems of record signatures, as far as this host can verify them.
pub async fn signature_problems(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Vec<Problem> {
    let Some(authority) = directory.authority(cluster) else {
        return problems_for_all(&state.with_guard(Arc::new(directory.verifier(cluster)))).await;
    };
    let findings = match survey(&state.without_guard(), &authority).await {
        Ok(findings) => findings,
        Err(error) => {
            let action = "see that the key service can be reached ('atoll key ls'); if /atoll/authority itself was altered, \
                          put it back from a snapshot of cluster state. Gateways that start serve nothing until then";
            return vec![problem("RECORDS_NOT_VERIFIED", Severity::Error, error.to_string(), Vec::new(), action)];
        }
    };
    let mut problems = Vec::new();
    if !authority.is_signed() && !cluster.is_signed || authority.accepts_unsigned() {
        problems.push(problem(
            "CLUSTER_NOT_SIGNED",
            Severity::Note,
            "who can write cluster state can change rights and settings: its records are not signed".into(),
            Vec::new(),
            "when all hosts run this release: 'atoll cluster sign' shows the records, and signs them",
        ));
    }
    let is_unnamed = |finding: &&Finding| finding.state == RecordState::Unnamed;
    let unnamed: Vec<String> = findings.iter().filter(is_unnamed).map(|one| one.stored.key.clone()).collect();
    if !unnamed.is_empty() {
        problems.push(problem(
            "RECORDS_NOT_NAMED",
            Severity::Warning,
            format!("the removal by hand of {} records of cluster state would not be noticed", unnamed.len()),
            unnamed,
            "the manifest does not name them, as an earlier release has written them: 'atoll cluster sign --yes' names them",
        ));
    }
    let is_for_holders = |finding: &Finding| finding.state == RecordState::SignedForHolders;
    if authority.is_signed() && (!authority.signs_for_all() || findings.iter().any(is_for_holders)) {
        problems.push(problem(
            "RECORDS_NOT_FOR_ALL",
            Severity::Warning,
            "OSDs, and hosts without the key service, cannot verify pools, settings and modes of frames".into(),
            Vec::new(),
            "when all hosts run this release: 'atoll cluster sign --yes' signs them so that all can",
        ));
    }
    let refused: Vec<String> = findings
        .into_iter()
        .filter_map(|finding| match finding.state {
            RecordState::Refused(cause) => Some(format!("{}: {cause}", finding.stored.key)),
            _ => None,
        })
        .collect();
    problems.extend(refused_problem(refused));
    problems
}

fn problem(
    code: &'static str,
    severity: Severity,
    summary: String,
    subjects: Vec<String>,
    action: &str,
) -> Problem {
    Problem { code, severity, summary, subjects, action: action.into(), since_unix_ms: None }
}

fn refused_problem(refused: Vec<String>) -> Option<Problem> {
    let summary =
        format!("{} records of cluster state were not written by a holder of the key service", refused.len());
    let action = "records were written by hand in cluster state, or by a host that has lost its right to: find the writer. 'atoll cluster \
                  sign' shows these records, and removes one, or signs it if it is right";
    let is_any = !refused.is_empty();
    is_any.then(|| problem("RECORDS_REFUSED", Severity::Error, summary, refused, action))
}

/// As far as a host without the key service can verify records.
async fn problems_for_all(state: &ClusterClient) -> Vec<Problem> {
    let mut refused = Vec::new();
    for prefix in kinds::prefixes_for_all() {
        // What cannot be read is said elsewhere.
        let Ok(listing) = state.list_verified(prefix).await else { continue };
        let causes =
            listing.entries.into_iter().filter_map(|(key, value, _)| Some(format!("{key}: {}", value.err()?)));
        refused.extend(causes);
    }
    refused.sort();
    refused.dedup();
    refused_problem(refused).into_iter().collect()
}

impl From<SigningError> for NodeError {
    fn from(error: SigningError) -> Self {
        AdminError::from(error).into()
    }
}
