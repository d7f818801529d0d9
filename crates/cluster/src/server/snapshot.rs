//! A copy of the state while it is served, as `etcdctl snapshot save` takes it: the file in pieces, and its SHA-256
//! behind it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use tokio::sync::mpsc;
use tonic::Status;

use super::disk::{Disk, DiskError, Identity};
use super::proto::SnapshotResponse;
use super::state::State;

const PIECE_BYTES: usize = 64 << 10;

/// A file that goes when nobody reads it any more.
struct TemporaryFile {
    path: PathBuf,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // What is left here nobody takes for the state; the next copy has its name.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends a copy of this state, made beside the file with the state. It blocks.
pub fn send(
    file: &Path,
    state: &State,
    identity: Identity,
    pieces: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) {
    if let Err(error) = try_send(file, state, identity, pieces) {
        tracing::warn!("a snapshot of cluster state failed: {error}");
        // Nobody may wait for it any more.
        let _ = pieces.blocking_send(Err(Status::internal(error.to_string())));
    }
}

fn try_send(
    file: &Path,
    state: &State,
    identity: Identity,
    pieces: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) -> Result<(), DiskError> {
    let copy = TemporaryFile { path: file.with_extension("snapshot") };
    let io_error = |source| DiskError::Io { path: copy.path.clone(), source };
    match std::fs::remove_file(&copy.path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(error)),
        _ => {}
    }
    Disk::copy_to(&copy.path, state, identity)?;
    let mut opened = File::open(&copy.path).map_err(io_error)?;
    let mut left = opened.metadata().map_err(io_error)?.len();
    let mut digest = Context::new(&SHA256);
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        let length = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        opened.read_exact(&mut piece[..length]).map_err(io_error)?;
        digest.update(&piece[..length]);
        left -= length as u64;
        let response = SnapshotResponse { header: None, remaining_bytes: left, blob: piece[..length].to_vec() };
        if pieces.blocking_send(Ok(response)).is_err() {
            return Ok(());
        }
    }
    let blob = digest.finish().as_ref().to_vec();
    // As above: who has gone needs nothing.
    let _ = pieces.blocking_send(Ok(SnapshotResponse { header: None, remaining_bytes: 0, blob }));
    Ok(())
}
