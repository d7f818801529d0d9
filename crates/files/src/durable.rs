//! Writes that are durable when they return, whole or not at all.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Taken names after which the directory needs a look by an operator.
const NAMES_MAX: u32 = 100;

/// Users that may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner only.
    Owner,
    /// All users.
    Everybody,
}

impl Access {
    pub(crate) fn mode(self) -> u32 {
        match self {
            Access::Owner => 0o600,
            Access::Everybody => 0o644,
        }
    }
}

/// A file beside another, which goes unless it gets that one's name.
pub(crate) struct Unfinished(PathBuf);

impl Unfinished {
    /// Writes a file under a name of its own: two processes never write to one.
    pub(crate) fn write(path: &Path, bytes: &[u8], access: Access) -> io::Result<Self> {
        let (unfinished, mut file) = Self::open(path, access)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(unfinished)
    }

    /// Another name for a file.
    pub(crate) fn link(path: &Path) -> io::Result<Self> {
        let place = |name: &Path| fs::hard_link(path, name);
        Ok(Self::take_name(path, place)?.0)
    }

    fn open(path: &Path, access: Access) -> io::Result<(Self, File)> {
        Self::take_name(path, |name| crate::make(name, access))
    }

    fn take_name<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Self, T)> {
        for _ in 0..NAMES_MAX {
            let name = unfinished_path(path)?;
            match make(&name) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|made| (Unfinished(name), made)),
            }
        }
        Err(io::Error::other("the names of all files that could be made are taken"))
    }

    pub(crate) fn rename_to(&self, path: &Path) -> io::Result<()> {
        fs::rename(&self.0, path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a rename it is not there. One that is left is nobody's, and the next change removes it.
        let _ = fs::remove_file(&self.0);
    }
}

/// Begins as the names of all unfinished files for this one do.
pub(crate) fn unfinished_prefix(path: &Path) -> io::Result<OsString> {
    let name = path.file_name().ok_or_else(|| io::Error::other("this names no file"))?;
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    Ok(prefix)
}

fn unfinished_path(path: &Path) -> io::Result<PathBuf> {
    let mut name = unfinished_prefix(path)?;
    // Keys of hash maps are random, and each is another.
    name.push(format!("{:016x}.new", RandomState::new().build_hasher().finish()));
    Ok(path.with_file_name(name))
}

/// Writes a new file. One that is there is an error, and stays.
pub fn create(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let unfinished = Unfinished::write(path, bytes, access)?;
    fs::hard_link(&unfinished.0, path)?;
    drop(unfinished);
    sync_directory_of(path)
}

/// Replaces a file, or makes it.
pub fn replace(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    Unfinished::write(path, bytes, access)?.rename_to(path)?;
    sync_directory_of(path)
}

/// Gives a file or directory, whose content is durable, another name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    if from.parent() != to.parent() {
        sync_directory_of(from)?;
    }
    sync_directory_of(to)
}

/// Makes the names in the directory durable in which a file or directory is.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes a directory and those above it that are missing, which only their owner may enter.
pub fn create_directories(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|directory| !is_there(directory)).collect();
    for directory in missing.into_iter().rev() {
        match DirBuilder::new().mode(0o700).create(directory) {
            // Another process was faster; whether its name is durable is not known.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => {}
            made => made?,
        }
        sync_directory_of(directory)?;
    }
    // As of any file that is in the way.
    if path.is_dir() { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
}

/// The empty path is the working directory.
fn is_there(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_and_replaced_and_nothing_is_left_beside_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        create(&path, b"one", Access::Owner).unwrap();
        assert_eq!(create(&path, b"two", Access::Owner).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        replace(&path, b"three", Access::Everybody).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert!(replace(&directory.path().join("none/a.json"), b"", Access::Owner).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn directories_are_made_with_those_above_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/c");
        create_directories(&path).unwrap();
        create_directories(&path).unwrap();
        assert!(path.is_dir());
        fs::write(path.join("file"), "").unwrap();
        assert!(create_directories(&path.join("file")).is_err());
        assert!(create_directories(&path.join("file/below")).is_err());
    }
}
