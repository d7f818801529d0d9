//! A file with lines, which is set aside when it is large.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::Sink;

/// A file that is larger is set aside.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Files that were set aside and are kept: `audit.jsonl.1` is the latest.
const SET_ASIDE_MAX: u32 = 8;

pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    size_bytes_max: u64,
}

impl LogFile {
    pub fn open(path: &Path) -> std::io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let file = append(path)?;
        let size_bytes = file.metadata()?.len();
        Ok(LogFile { path: path.to_owned(), file, size_bytes, size_bytes_max: FILE_BYTES_MAX })
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
        if self.size_bytes > 0 && self.size_bytes + lines.len() as u64 > self.size_bytes_max {
            self.set_aside()?;
        }
        self.file.write_all(lines.as_bytes())?;
        self.size_bytes += lines.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

impl Sink for LogFile {
    fn write(&mut self, lines: &str) -> Result<(), String> {
        self.try_write(lines).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_set_aside_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut log = LogFile::open(&path).unwrap();
        log.size_bytes_max = 100;
        for number in 0..20 {
            log.write(&format!("{number:059}\n")).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("audit.jsonl").trim_start_matches('0'), "19\n");
        assert_eq!(read("audit.jsonl.1").trim_start_matches('0'), "18\n");
        assert_eq!(read("audit.jsonl.8").trim_start_matches('0'), "11\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 9);
        drop(log);
        let mut again = LogFile::open(&path).unwrap();
        again.write("more\n").unwrap();
        assert!(read("audit.jsonl").ends_with("19\nmore\n"), "what was there stays");
    }
}
