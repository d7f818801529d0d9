//! A host's actions on the signatures of cluster state's records.

use atoll_admin::AdminError;
use atoll_authority::{RecordState, SigningError, found, survey};
use atoll_cluster::{ClusterClient, RecordGuard};
use atoll_coordinator::health::{Problem, Severity};
use atoll_keys::KeyRing;

use crate::bootstrap::unix_ms;
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

/// Remembers that the cluster is signed, if it is: from then on this host takes nothing else.
pub async fn remember_signed(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    let Some(authority) = directory.authority(cluster).filter(|_| !cluster.is_signed) else { return Ok(()) };
    authority.refresh(state).await?;
    if authority.is_signed() && !authority.accepts_unsigned() {
        cluster.is_signed = true;
        directory.change_cluster(|file| {
            file.is_signed = true;
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns the problems of record signatures, as far as this host can verify them.
pub async fn signature_problems(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Vec<Problem> {
    let Some(authority) = directory.authority(cluster) else { return Vec::new() };
    let problem = |code, severity, summary: String, subjects: Vec<String>, action: &str| Problem {
        code,
        severity,
        summary,
        subjects,
        action: action.into(),
        since_unix_ms: None,
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
    let refused: Vec<String> = findings
        .into_iter()
        .filter_map(|finding| match finding.state {
            RecordState::Refused(cause) => Some(format!("{}: {cause}", finding.stored.key)),
            RecordState::Signed | RecordState::Unsigned => None,
        })
        .collect();
    if !refused.is_empty() {
        problems.push(problem(
            "RECORDS_REFUSED",
            Severity::Error,
            format!("{} records of cluster state were not written by a holder of the key service", refused.len()),
            refused,
            "records were written by hand in cluster state, or by a host that has lost its right to: find the \
             writer. 'atoll cluster sign' shows these records, and removes one, or signs it if it is right",
        ));
    }
    problems
}

impl From<SigningError> for NodeError {
    fn from(error: SigningError) -> Self {
        AdminError::from(error).into()
    }
}
