//! The state on disk, twice: each commit is in both files when it is answered. Data that one file has lost, to a
//! flipped bit or a device that forgets, is in the other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::disk_error::{DiskError, Identity};
use super::snapshot::newest_snapshot;
use super::state::State;
use super::state_file::{Content, StateFile};

const FIRST: &str = "state.redb";
const SECOND: &str = "state.copy.redb";
/// Pause before the second file, which could not be written, is made again.
const SECOND_PAUSE: Duration = Duration::from_secs(60);

/// Both files, open.
pub struct Disk {
    first: StateFile,
    /// Absent while it cannot be written. It is then not there at all: it must never be taken for the newest state.
    second: Option<StateFile>,
    second_failed: Option<Instant>,
    identity: Identity,
    commits: i64,
    directory: PathBuf,
}

type Opened = Result<(StateFile, Content), DiskError>;

impl Disk {
    /// Opens or makes the files and reads them whole.
    pub fn open(directory: &Path) -> Result<(Disk, State, Identity), DiskError> {
        atoll_files::create_directories(directory)
            .map_err(|source| DiskError::Io { path: directory.to_path_buf(), source })?;
        let (first_path, second_path) = (directory.join(FIRST), directory.join(SECOND));
        if !first_path.exists() && !second_path.exists() {
            let content = Content { state: State::new(), identity: Identity::random()?, commits: 0 };
            StateFile::make(&first_path, &content)?;
        }
        let (first, second) = (StateFile::open(&first_path), StateFile::open(&second_path));
        let (first, content) = Self::first_of(directory, first, &second)?;
        // What is wrong with the second one is mended by making it anew; another process may have it.
        let second = match second {
            Ok((file, copied)) if copied.age() == content.age() => Some(file),
            Err(error @ DiskError::InUse { .. }) => return Err(error),
            other => {
                drop(other);
                None
            }
        };
        let Content { state, identity, commits } = content;
        let directory = directory.to_path_buf();
        let mut disk = Disk { first, second, second_failed: None, identity, commits, directory };
        disk.make_second(&state)?;
        Ok((disk, state, identity))
    }

    /// Opens the first file, or makes it again from the second if that has more.
    fn first_of(directory: &Path, first: Opened, second: &Opened) -> Opened {
        let (error, copied) = match (first, second) {
            (Ok((file, content)), Ok((_, copied))) if copied.age() > content.age() => {
                drop(file);
                let detail = format!("it ends at revision {}", content.state.revision);
                (DiskError::Damaged { path: directory.join(FIRST), detail }, copied)
            }
            (Ok(opened), _) => return Ok(opened),
            (Err(error), Ok((_, copied))) if error.is_damage() || error.is_absence() => (error, copied),
            (Err(first), Err(second)) if first.is_damage() && second.is_damage() => {
                return Err(Self::both_damaged(directory, first, second));
            }
            (Err(error), _) => return Err(error),
        };
        let (path, aside) = (directory.join(FIRST), directory.join("state.redb.damaged"));
        tracing::error!(
            "{error}; it is restored from {SECOND}, which is complete, and the old file is {}",
            aside.display()
        );
        if path.exists() {
            let io_error = |source| DiskError::Io { path: aside.clone(), source };
            if aside.exists() {
                std::fs::remove_file(&aside).map_err(io_error)?;
            }
            // The file keeps its name until the new one has it.
            std::fs::hard_link(&path, &aside).map_err(io_error)?;
        }
        StateFile::make(&path, copied)?;
        StateFile::open(&path)
    }

    fn both_damaged(directory: &Path, first: DiskError, second: &DiskError) -> DiskError {
        let remedy = match newest_snapshot(directory) {
            Some(path) => format!(
                "Go back to the newest snapshot with 'atoll state restore --replace {}': later changes are lost",
                path.display()
            ),
            None => "Put back a snapshot with 'atoll state restore --replace FILE'".into(),
        };
        let second = Box::new(DiskError::Damaged { path: directory.join(SECOND), detail: second.to_string() });
        DiskError::BothDamaged { first: Box::new(first), second, remedy }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the batch durable, together with the numbers of the state it leads to, in both files. Without the
    /// second one it continues: that is no worse than a single file.
    pub fn commit(&mut self, batch: &Batch, state: &State) -> Result<(), DiskError> {
        self.commits += 1;
        self.first.commit(batch, state, self.commits)?;
        let Some(second) = &self.second else {
            if self.second_failed.is_none_or(|failed| failed.elapsed() > SECOND_PAUSE) {
                self.make_second(state)?;
            }
            return Ok(());
        };
        match second.commit(batch, state, self.commits) {
            Ok(()) => Ok(()),
            Err(error) => self.give_up_second(&error),
        }
    }

    /// Makes the second file, unless it is there.
    fn make_second(&mut self, state: &State) -> Result<(), DiskError> {
        if self.second.is_some() {
            return Ok(());
        }
        let path = self.directory.join(SECOND);
        let content = Content { state: state.clone(), identity: self.identity, commits: self.commits };
        match StateFile::make(&path, &content).and_then(|()| StateFile::open(&path)) {
            Ok((file, _)) => self.second = Some(file),
            Err(error) => self.give_up_second(&error)?,
        }
        Ok(())
    }

    fn give_up_second(&mut self, error: &DiskError) -> Result<(), DiskError> {
        tracing::warn!("cluster state has no copy for now: {error}");
        (self.second, self.second_failed) = (None, Some(Instant::now()));
        let path = self.directory.join(SECOND);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(DiskError::Io { path, source }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
