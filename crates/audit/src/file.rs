//! A file with lines, which is set aside when it is large.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use atoll_files::Access;

use crate::Sink;

/// Files that were set aside and are kept: `audit.jsonl.1` is the latest.
const SET_ASIDE_MAX: u32 = 8;

pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    /// A file that is larger is set aside.
    file_bytes_max: u64,
}

impl LogFile {
    /// Opens a file that has this room together with those that were set aside.
    pub fn open(path: &Path, bytes_max: u64) -> std::io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let file = append(path)?;
        let size_bytes = file.metadata()?.len();
        let file_bytes_max = bytes_max / u64::from(SET_ASIDE_MAX + 1);
        Ok(LogFile { path: path.to_owned(), file, size_bytes, file_bytes_max })
    }

    fn set_aside(&mut self) -> std::io::Result<()> {
        let aside = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..SET_ASIDE_MAX).rev() {
            if aside(number).exists() {
                std::fs::rename(aside(number), aside(number + 1))?;
            }
        }
        std::fs::rename(&self.path, aside(1))?;
        self.file = append(&self.path)?;
        self.size_bytes = 0;
        Ok(())
    }

    fn try_write(&mut self, lines: &str) -> std::io::Result<()> {
        if self.size_bytes > 0 && self.size_bytes + lines.len() as u64 > self.file_bytes_max {
            self.set_aside()?;
        }
        append_whole(&mut self.file, &mut self.size_bytes, lines)
    }
}

/// Appends lines, all or none: a part of a line would spoil the next.
pub(crate) fn append_whole(file: &mut File, size_bytes: &mut u64, lines: &str) -> std::io::Result<()> {
    if let Err(error) = file.write_all(lines.as_bytes()) {
        file.set_len(*size_bytes)?;
        return Err(error);
    }
    *size_bytes += lines.len() as u64;
    Ok(())
}

/// A name with something before its extension.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn append(path: &Path) -> std::io::Result<File> {
    let file = atoll_files::append(path, Access::Owner)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => std::io::Error::new(
            std::io::ErrorKind::ResourceBusy,
            format!("another process writes its audit log to {}", path.display()),
        ),
        TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

impl Sink for LogFile {
    fn write(&mut self, lines: &str) -> Result<(), String> {
        self.try_write(lines).map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn name(&self) -> Option<String> {
        Some(self.path.file_name()?.to_string_lossy().into_owned())
    }

    fn sync(&mut self) -> Result<(), String> {
        self.file.sync_data().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_set_aside_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut log = LogFile::open(&path, 900).unwrap();
        for number in 0..20 {
            log.write(&format!("{number:059}\n")).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("audit.jsonl").trim_start_matches('0'), "19\n");
        assert_eq!(read("audit.jsonl.1").trim_start_matches('0'), "18\n");
        assert_eq!(read("audit.jsonl.8").trim_start_matches('0'), "11\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 9);
        drop(log);
        let mut again = LogFile::open(&path, 1 << 20).unwrap();
        again.write("more\n").unwrap();
        assert!(read("audit.jsonl").ends_with("19\nmore\n"), "what was there stays");
    }
}
