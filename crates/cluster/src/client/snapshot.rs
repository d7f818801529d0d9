//! Snapshots of cluster state, in the form that etcd gives them: the state's file, and its SHA-256 behind it.

use std::io::{self, Read, Write};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use super::{ClusterClient, ClusterError, Repeat};

/// Alignment of the parts of a state's file.
const ALIGNMENT_BYTES: u64 = 512;

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Cluster state did not give it.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It could not be written.
    #[error("cannot write the snapshot: {0}")]
    Io(#[from] io::Error),
}

impl ClusterClient {
    /// Writes a snapshot of all keys, and reports after each piece the written and the total number of bytes.
    /// [`verify_snapshot`] verifies it.
    pub async fn snapshot(
        &self,
        to: &mut impl Write,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), SnapshotError> {
        let operation = "take a snapshot";
        let begin = |etcd: &etcd_client::Client| {
            let mut maintenance = etcd.maintenance_client();
            async move { maintenance.snapshot().await }
        };
        let mut pieces = self.asked(operation, Repeat::Freely, begin).await?;
        let mut written = 0;
        loop {
            let piece = tokio::time::timeout(self.options.request_timeout, pieces.message()).await;
            let broken = |cause: String| ClusterError::Unreachable {
                endpoints: self.endpoints(),
                operation: operation.into(),
                cause,
            };
            let piece = piece
                .map_err(|_| broken("it stopped sending".into()))?
                .map_err(|error| broken(error.to_string()))?;
            let Some(piece) = piece else { return Ok(()) };
            to.write_all(piece.blob())?;
            written += piece.blob().len() as u64;
            progress(written, written + piece.remaining_bytes());
        }
    }
}

/// Checks that a file is a whole snapshot: its last 32 bytes are the SHA-256 of all others. Gives the length of
/// these.
pub fn verify_snapshot(path: &Path) -> io::Result<Option<u64>> {
    let mut file = std::fs::File::open(path)?;
    let digest_bytes = SHA256_OUTPUT_LEN as u64;
    let Some(state_bytes) = file.metadata()?.len().checked_sub(digest_bytes) else { return Ok(None) };
    if !state_bytes.is_multiple_of(ALIGNMENT_BYTES) {
        return Ok(None);
    }
    let mut digest = Context::new(&SHA256);
    let mut rest = (&mut file).take(state_bytes);
    let mut piece = vec![0; 64 << 10];
    loop {
        match rest.read(&mut piece)? {
            0 => break,
            length => digest.update(&piece[..length]),
        }
    }
    let mut expected = [0; SHA256_OUTPUT_LEN];
    file.read_exact(&mut expected)?;
    Ok((digest.finish().as_ref() == expected).then_some(state_bytes))
}
