//! A file that one process alone changes for a while.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::durable::{Access, Unfinished, sync_directory_of, unfinished_prefix};
use crate::open_or_make;

/// How long to wait for another process, which needs milliseconds unless it was stopped.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// A lock file, locked until this goes. The file itself stays: removing it would take it from under another
/// process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock, and not for ever.
    pub fn take(path: &Path) -> io::Result<Self> {
        let file = open_or_make(path, Access::Owner)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                    let seconds = PATIENCE.as_secs();
                    return Err(io::Error::new(
                        ErrorKind::ResourceBusy,
                        format!(
                            "another process has held {} for {seconds} s; try again when it is done",
                            path.display()
                        ),
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_PAUSE),
            }
        }
    }
}

/// Handling of the previous content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// It stays beside the file, see [`previous_path`].
    Kept,
    /// Neither it nor one from before it stays: something in it was to be destroyed.
    Destroyed,
}

/// A file that is read, changed and replaced, with the lock that all take who do that.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    bytes: Option<Vec<u8>>,
    _lock: Lock,
}

impl Held {
    /// Takes the lock beside the file and then reads it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let lock = Lock::take(&beside(path, "lock"))?;
        remove_unfinished(path)?;
        Ok(Held { path: path.into(), bytes: read(path)?, _lock: lock })
    }

    /// Returns the content of the file; none without a file.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// Replaces the file, or makes it. If another program has changed it without the lock, that is an error and
    /// nothing is written.
    pub fn replace(self, bytes: &[u8], access: Access, previous: Previous) -> io::Result<()> {
        let new = Unfinished::write(&self.path, bytes, access)?;
        if read(&self.path)? != self.bytes {
            let detail = "it was changed meanwhile by another program; nothing was written, try again";
            return Err(io::Error::new(ErrorKind::ResourceBusy, detail));
        }
        let before = previous_path(&self.path);
        match previous {
            Previous::Kept if self.bytes.is_some() => Unfinished::link(&self.path)?.rename_to(&before)?,
            Previous::Kept => {}
            Previous::Destroyed => remove(&before)?,
        }
        new.rename_to(&self.path)?;
        sync_directory_of(&self.path)
    }
}

/// Where the content is that a file had before its last change.
pub fn previous_path(path: &Path) -> PathBuf {
    beside(path, "before")
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    path.with_added_extension(extension)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes remains of interrupted changes: a secret in them may be destroyed later, and must be gone then.
fn remove_unfinished(path: &Path) -> io::Result<()> {
    let prefix = unfinished_prefix(path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let is_left = name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            && name.as_encoded_bytes().ends_with(b".new");
        if is_left {
            remove(&directory.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &Path, previous: Previous, change: impl FnOnce(&str) -> String) {
        let held = Held::open(path).unwrap();
        let text = change(std::str::from_utf8(held.bytes().unwrap_or_default()).unwrap());
        held.replace(text.as_bytes(), Access::Owner, previous).unwrap();
    }

    #[test]
    fn of_many_changes_at_once_none_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let path = &path;
                scope.spawn(move || {
                    for count in 0..20 {
                        change(path, Previous::Kept, |text| format!("{text}{thread}.{count} "));
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.split_whitespace().count(), 120);
        let before = fs::read_to_string(previous_path(&path)).unwrap();
        assert_eq!(before.split_whitespace().count(), 119);
    }

    #[test]
    fn a_change_without_the_lock_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "first").unwrap();
        let held = Held::open(&path).unwrap();
        fs::write(&path, "other").unwrap();
        let error = held.replace(b"mine", Access::Owner, Previous::Kept).unwrap_err();
        assert!(error.to_string().contains("meanwhile"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"other");
        let mut names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", "file.lock"]);
    }

    #[test]
    fn destroyed_data_is_in_no_file_of_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "secret").unwrap();
        fs::write(directory.path().join(".file.0123.new"), "secret, cut short").unwrap();
        change(&path, Previous::Kept, |text| format!("{text} and more"));
        change(&path, Previous::Destroyed, |_| "nothing".into());
        for entry in fs::read_dir(directory.path()).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
