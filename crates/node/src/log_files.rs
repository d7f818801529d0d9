//! Logs of the processes, and how they stay small.

use atoll_files::Access;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::data_dir::DataDir;
use crate::error::NodeError;

/// A log that is larger is set aside, in bytes.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Kept end of a log without room for all of it.
const TAIL_BYTES: u64 = 1 << 20;
/// Longest quotation from a log in a message.
const QUOTED_BYTES: u64 = 2 << 10;
const QUOTED_LINES: usize = 8;

/// The log of a process, for its output and for its errors.
pub(crate) fn open_log(directory: &DataDir, process: &str) -> Result<(File, File), NodeError> {
    let path = directory.log_file(process);
    let log = atoll_files::append(&path, Access::Owner).map_err(NodeError::file(&path))?;
    let errors = log.try_clone().map_err(NodeError::file(path))?;
    Ok((log, errors))
}

/// The last lines of a process's log, for a message.
pub(crate) fn last_lines(directory: &DataDir, process: &str) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(directory.log_file(process))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(QUOTED_BYTES)))?;
        let mut text = Vec::new();
        file.take(QUOTED_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
}

/// Cuts logs that have become large, and keeps their end beside them. Processes append to their files, so they
/// continue in the emptied one; lines written in between are lost.
pub(crate) fn set_large_logs_aside(directory: &DataDir) -> io::Result<()> {
    for entry in fs::read_dir(directory.logs())? {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if is_log && fs::metadata(&path)?.len() > LOG_BYTES_MAX {
            set_aside(&path, copy_from)?;
        }
    }
    Ok(())
}

/// A log is cut whether it could be copied or not: one that grows for ever on a full file system is worse than one
/// whose beginning is gone.
fn set_aside(path: &Path, copy: impl Fn(&Path, &Path, u64) -> io::Result<()>) -> io::Result<()> {
    let old = path.with_extension("log.old");
    // Its room is that of the next.
    match fs::remove_file(&old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let copied = copy(path, &old, 0).or_else(|_| {
        fs::remove_file(&old)?;
        copy(path, &old, fs::metadata(path)?.len().saturating_sub(TAIL_BYTES))
    });
    File::options().write(true).open(path)?.set_len(0)?;
    copied.map_err(|error| {
        io::Error::new(error.kind(), format!("{} was cut, and not kept: {error}", path.display()))
    })
}

fn copy_from(path: &Path, to: &Path, from: u64) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    io::copy(&mut file, &mut atoll_files::make_anew(to, Access::Owner)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, DataDir) {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(&temporary.path().join("data"));
        directory.create().unwrap();
        (temporary, directory)
    }

    #[test]
    fn large_logs_are_set_aside_and_what_is_appended_goes_on() {
        let (_temporary, directory) = directory();
        let (log, _) = open_log(&directory, "nbd").unwrap();
        log.set_len(LOG_BYTES_MAX).unwrap();
        io::Write::write_all(&mut &log, b"last\n").unwrap();
        assert_eq!(last_lines(&directory, "nbd").trim_start_matches('\0'), "last");
        set_large_logs_aside(&directory).unwrap();
        let path = directory.log_file("nbd");
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::metadata(path.with_extension("log.old")).unwrap().len(), LOG_BYTES_MAX + 5);
        io::Write::write_all(&mut &log, b"next\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"next\n");
    }

    #[test]
    fn a_log_that_cannot_be_copied_is_cut_all_the_same() {
        let (_temporary, directory) = directory();
        let path = directory.log_file("nbd");
        let fill = || File::create(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        // A file system with room for so much.
        let room = |room: u64| {
            move |from: &Path, to: &Path, start: u64| {
                copy_from(from, to, start)?;
                match fs::metadata(to)?.len() > room {
                    true => Err(io::ErrorKind::StorageFull.into()),
                    false => Ok(()),
                }
            }
        };
        fill();
        set_aside(&path, room(TAIL_BYTES)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::metadata(path.with_extension("log.old")).unwrap().len(), TAIL_BYTES, "its end is kept");
        fill();
        let error = set_aside(&path, room(0)).unwrap_err().to_string();
        assert!(error.contains("nbd.log was cut"), "{error}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
}
