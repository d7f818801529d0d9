//! Records that are written once: an existing one stays.

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{KeyRing, random_bytes};
use atoll_types::identities::AccessKeyRecord;
use serde::Serialize;

use crate::data_dir::{ClusterFile, Credentials, DataDir};
use crate::error::NodeError;
use crate::tls_identity::authority_file;

/// Writes a record unless it exists; an existing one stays.
pub(crate) async fn ensure<T: Serialize>(state: &ClusterClient, key: &str, record: &T) -> Result<(), NodeError> {
    if is_there(state, key).await? {
        return Ok(());
    }
    match state.create(key, record).await {
        Ok(_) | Err(ClusterError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if there is a record, with any content: the key service is not asked.
pub(crate) async fn is_there(state: &ClusterClient, key: &str) -> Result<bool, NodeError> {
    let (found, _) = state.read_stored(&[key]).await?;
    Ok(found.iter().flatten().any(|stored| !stored.is_reserved()))
}

/// Makes the first access key, and writes its secret into the data directory.
pub(crate) async fn write_user(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    let service = KeyRing::open(&directory.key_service_file())?;
    service.make_default_key().await?;
    let access_key = format!("ATOLL{}", hex::encode_upper(random_bytes::<8>()));
    let (record, secret_key): (AccessKeyRecord, String) =
        atoll_credentials::new_user(&service, &access_key, "admin", unix_ms()).await?;
    ensure(state, &keys::access_key(&access_key), &record).await?;
    directory.write_credentials(&Credentials {
        access_key,
        secret_key,
        endpoint: cluster.s3_endpoint(),
        tls_endpoint: cluster.s3_tls_endpoint(),
        ca_file: authority_file(directory),
    })
}
