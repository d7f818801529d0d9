//! Copies of the state while it is served: as `etcdctl snapshot save` takes it, the file in pieces, and its
//! SHA-256 behind it; and each hour a file of the same form. The newest are kept.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{Context, SHA256};
use tokio::sync::mpsc;
use tonic::Status;

use super::disk_error::{DiskError, Identity};
use super::limits;
use super::proto::SnapshotResponse;
use super::state::State;
use super::state_file::{Content, StateFile};

const PIECE_BYTES: usize = 64 << 10;

/// A file that is removed after its last reader.
struct TemporaryFile {
    path: PathBuf,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // What is left here nobody takes for the state; the next copy has its name.
        let _ = fs::remove_file(&self.path);
    }
}

impl TemporaryFile {
    /// In the place of one that an earlier process has left.
    fn of(path: PathBuf, state: &State, identity: Identity) -> Result<Self, DiskError> {
        let copy = TemporaryFile { path };
        match fs::remove_file(&copy.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(DiskError::Io { path: copy.path.clone(), source });
            }
            _ => {}
        }
        let content = Content { state: state.clone(), identity, commits: 0 };
        StateFile::write_new(&copy.path, &content)?;
        Ok(copy)
    }
}

/// Sends a copy of this state, made beside the files with the state. It blocks.
pub fn send(
    directory: &Path,
    state: &State,
    identity: Identity,
    pieces: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) {
    if let Err(error) = try_send(directory, state, identity, pieces) {
        tracing::warn!("a snapshot of cluster state failed: {error}");
        // Nobody may wait for it any more.
        let _ = pieces.blocking_send(Err(Status::internal(error.to_string())));
    }
}

fn try_send(
    directory: &Path,
    state: &State,
    identity: Identity,
    pieces: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) -> Result<(), DiskError> {
    let copy = TemporaryFile::of(directory.join("state.snapshot"), state, identity)?;
    let io_error = |source| DiskError::Io { path: copy.path.clone(), source };
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

// ---- by itself, each hour ----------------------------------------------------------------------

fn snapshots_directory(directory: &Path) -> PathBuf {
    directory.join("snapshots")
}

/// The snapshots that are kept, with the Unix times when they were taken in seconds, oldest first.
fn kept(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(snapshots_directory(directory)).into_iter().flatten().flatten();
    let taken = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("state-")?.strip_suffix(".snapshot")?.parse().ok()
    };
    let mut found: Vec<(u64, PathBuf)> =
        entries.filter_map(|entry| Some((taken(&entry.path())?, entry.path()))).collect();
    found.sort();
    found
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// The newest snapshot that was taken by itself.
pub fn newest_snapshot(directory: &Path) -> Option<PathBuf> {
    kept(directory).pop().map(|(_, path)| path)
}

/// How old that is; nothing if there is none, or it is of a time that has not come.
pub fn newest_age(directory: &Path) -> Option<Duration> {
    let (taken, _) = kept(directory).pop()?;
    unix_s().checked_sub(taken).map(Duration::from_secs)
}

/// Takes a snapshot, and removes the oldest ones. It blocks.
pub fn keep(directory: &Path, state: &State, identity: Identity) -> Result<(), DiskError> {
    let all = snapshots_directory(directory);
    let io_error = |source| DiskError::Io { path: all.clone(), source };
    atoll_files::create_directories(&all).map_err(io_error)?;
    let copy = TemporaryFile::of(all.join("unfinished"), state, identity)?;
    append_digest(&copy.path)
        .and_then(|()| atoll_files::rename(&copy.path, &all.join(format!("state-{}.snapshot", unix_s()))))
        .map_err(io_error)?;
    let found = kept(directory);
    for (_, path) in &found[..found.len().saturating_sub(limits::SNAPSHOTS)] {
        fs::remove_file(path).map_err(io_error)?;
    }
    Ok(())
}

fn append_digest(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().read(true).append(true).open(path)?;
    let mut digest = Context::new(&SHA256);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            length => digest.update(&piece[..length]),
        }
    }
    file.write_all(digest.finish().as_ref())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::disk::Disk;

    #[test]
    fn so_many_snapshots_are_kept_and_each_can_be_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, mut state, identity) = Disk::open(directory.path()).unwrap();
        drop(disk);
        state.revision = 7;
        let all = snapshots_directory(directory.path());
        assert_eq!(newest_age(directory.path()), None);
        fs::create_dir(&all).unwrap();
        for taken in 1..=30 {
            fs::write(all.join(format!("state-{taken}.snapshot")), "").unwrap();
        }
        fs::write(all.join("unfinished"), "of an earlier process").unwrap();
        keep(directory.path(), &state, identity).unwrap();
        let found = kept(directory.path());
        assert_eq!((found.len(), found[0].0), (limits::SNAPSHOTS, 8));
        assert!(newest_age(directory.path()).unwrap() < Duration::from_secs(60));
        let newest = newest_snapshot(directory.path()).unwrap();
        let state_bytes = crate::verify_snapshot(&newest).unwrap().expect("it is whole");
        let restored = directory.path().join("restored");
        fs::create_dir(&restored).unwrap();
        let path = restored.join("state.redb");
        fs::copy(&newest, &path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(state_bytes).unwrap();
        assert_eq!(Disk::open(&restored).unwrap().1.revision, 7);
        assert_eq!(fs::read_dir(&all).unwrap().count(), limits::SNAPSHOTS, "nothing unfinished is left");
    }
}
