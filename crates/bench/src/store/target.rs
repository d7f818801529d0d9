//! Where the store and fio work: two files side by side, or two ranges of one block device.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_osd::{BlockingDevice, DeviceKey};
use atoll_reactor::DirectFile;
use atoll_store::{FormatOptions, Store};

use crate::error::BenchError;
use crate::load::Random;

const LAYOUT_PIECE_BYTES: u64 = 4 << 20;

/// A range of a file or block device.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub path: PathBuf,
    pub offset: u64,
    pub size_bytes: u64,
    /// True if the file exists only for this run.
    is_scratch: bool,
}

impl Region {
    /// The beginning of a file or block device.
    pub fn new(path: impl Into<PathBuf>, size_bytes: u64) -> Self {
        Region { path: path.into(), offset: 0, size_bytes, is_scratch: false }
    }
}

/// Where both sides work.
pub(crate) struct Target {
    pub store: Region,
    pub fio: Option<Region>,
    /// Where the log is, if it is apart.
    pub log: Option<Region>,
    pub log_bytes: u64,
    /// The key of the volume that the store is in, if it is in one.
    pub key: Option<DeviceKey>,
}

fn device_error(path: &Path) -> impl Fn(io::Error) -> BenchError + '_ {
    |error| BenchError::Device { path: path.into(), detail: error.to_string() }
}

fn refuse(path: &Path, detail: impl Into<String>) -> BenchError {
    BenchError::Device { path: path.into(), detail: detail.into() }
}

impl Target {
    /// Takes the places, after checking that nothing of value is there. `fio_bytes` is how much fio
    /// needs, if it is to run.
    pub fn claim(path: &Path, size_bytes: u64, fio_bytes: Option<u64>, wipe: bool) -> Result<Self, BenchError> {
        let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
        let store = Region::new(path, size_bytes);
        if is_device {
            if !wipe {
                return Err(refuse(path, "its whole content would be lost; say --wipe if that is meant"));
            }
            let has_bytes = DirectFile::open(path).map_err(device_error(path))?.size_bytes();
            let needed_bytes = size_bytes + fio_bytes.unwrap_or(0);
            if has_bytes < needed_bytes {
                let detail = format!(
                    "it has {has_bytes} bytes; the store and the range for fio behind it need {needed_bytes}: give \
                     a smaller --size or --working-set"
                );
                return Err(refuse(path, detail));
            }
            let behind = |size_bytes| Region { offset: store.size_bytes, size_bytes, ..store.clone() };
            return Ok(Target { fio: fio_bytes.map(behind), store, log: None, log_bytes: 0, key: None });
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".fio");
        let beside = PathBuf::from(beside);
        let of_fio = |size_bytes| Region { path: beside.clone(), offset: 0, size_bytes, is_scratch: true };
        let fio = fio_bytes.map(of_fio);
        let regions = [Some(&store), fio.as_ref()].into_iter().flatten();
        // A refusal must come before anything is changed.
        regions.clone().try_for_each(|region| check_file(region, wipe))?;
        regions.into_iter().try_for_each(make_file)?;
        Ok(Target { store, fio, log: None, log_bytes: 0, key: None })
    }

    /// Takes one place for fio alone. A file that was not there before goes with the target.
    pub fn claim_scratch(path: &Path, size_bytes: u64, wipe: bool) -> Result<Self, BenchError> {
        let is_scratch = !path.exists();
        let mut target = Target::claim(path, size_bytes, None, wipe)?;
        let has_bytes = DirectFile::open(path).map_err(device_error(path))?.size_bytes();
        if has_bytes < size_bytes {
            let detail =
                format!("it has {has_bytes} bytes, and {size_bytes} are to be used: give a smaller --size");
            return Err(refuse(path, detail));
        }
        target.store.is_scratch = is_scratch;
        Ok(target)
    }

    /// Takes another place for the log.
    pub fn claim_log(&mut self, path: &Path, wipe: bool) -> Result<(), BenchError> {
        // A log of its own has a mark before it.
        let size_bytes = self.log_bytes + BLOCK_BYTES as u64;
        let region = Region::new(path, size_bytes);
        if path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            if !wipe {
                return Err(refuse(path, "its whole content would be lost; say --wipe if that is meant"));
            }
        } else {
            check_file(&region, wipe)?;
            make_file(&region)?;
        }
        self.log = Some(region);
        Ok(())
    }

    fn regions(&self) -> impl Iterator<Item = &Region> {
        [Some(&self.store), self.fio.as_ref(), self.log.as_ref()].into_iter().flatten()
    }

    /// Bytes that [`Target::lay_out`] writes.
    pub fn layout_bytes(&self) -> u64 {
        self.regions().map(|region| region.size_bytes).sum()
    }

    /// Writes everything once with random bytes. A file system that must allocate or convert blocks
    /// inside a durable write, or a disk that knows zeros, would measure something else.
    pub fn lay_out(&self, progress: &mut dyn FnMut(u64)) -> Result<(), BenchError> {
        let buffer = BlockBuffer::from_bytes(&Random::new(3).fill(LAYOUT_PIECE_BYTES as usize));
        for region in self.regions() {
            let error = device_error(&region.path);
            let file = DirectFile::open(&region.path).map_err(&error)?;
            let mut position = 0;
            while position < region.size_bytes {
                let length = LAYOUT_PIECE_BYTES.min(region.size_bytes - position);
                let piece = &buffer.as_slice()[..length as usize];
                file.write_at(region.offset + position, piece).map_err(&error)?;
                position += length;
                progress(length);
            }
            file.sync().map_err(&error)?;
        }
        Ok(())
    }

    /// Makes an empty store.
    pub fn format(&self) -> Result<(), BenchError> {
        let (wal_bytes, wal_is_apart) = (self.log_bytes, self.log.is_some());
        let options = FormatOptions { store_id: *b"atoll bench stor", wal_bytes, wal_is_apart };
        let device = self.device()?;
        let device = match &self.key {
            Some(key) => device.encrypt(key),
            None => Ok(device),
        };
        let mut device = device.map_err(|error| refuse(&self.store.path, error.to_string()))?;
        Store::format(&mut device, options).map_err(|error| refuse(&self.store.path, error.to_string()))
    }

    /// Opens the store: it replays the log and makes a checkpoint, so that every run begins with an
    /// empty log and with no block in memory.
    pub fn open(
        &self,
        incarnation: u64,
        memory_bytes: Option<u64>,
    ) -> Result<(BlockingDevice, Store), BenchError> {
        let device = self.device()?.unlock(self.key.as_ref());
        let mut device = device.map_err(|error| refuse(&self.store.path, error.to_string()))?;
        let mut store =
            Store::open(&mut device, incarnation).map_err(|error| refuse(&self.store.path, error.to_string()))?;
        if let Some(bytes) = memory_bytes {
            store.set_memory_budget(bytes, bytes);
        }
        Ok((device, store))
    }

    fn device(&self) -> Result<BlockingDevice, BenchError> {
        let log = self.log.as_ref().map(|region| &*region.path);
        let device = BlockingDevice::open(&self.store.path, log);
        let device = device.map_err(|error| refuse(&error.path, error.reason.to_string()))?;
        Ok(device.first_bytes(self.store.size_bytes))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for region in self.regions().filter(|region| region.is_scratch) {
            // The file has no further use; if it is left over, it can be removed by hand.
            let _ = std::fs::remove_file(&region.path);
        }
    }
}

/// Refuses anything but a file, and a file with content unless `wipe`.
fn check_file(region: &Region, wipe: bool) -> Result<(), BenchError> {
    let Ok(metadata) = region.path.metadata() else { return Ok(()) };
    if !metadata.is_file() {
        return Err(refuse(&region.path, "it is neither a file nor a block device"));
    }
    if metadata.len() > 0 && !wipe {
        return Err(refuse(&region.path, "the file exists and is not empty; say --wipe to overwrite it"));
    }
    // A file that another process has locked, such as a running OSD, stays as it is.
    DirectFile::open(&region.path).map(drop).map_err(device_error(&region.path))
}

/// Makes an empty file of the region's size.
fn make_file(region: &Region) -> Result<(), BenchError> {
    let error = device_error(&region.path);
    let file = File::options().write(true).create(true).truncate(true).open(&region.path).map_err(&error)?;
    file.set_len(region.size_bytes).map_err(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_content_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let beside = directory.path().join("device.fio");
        for precious in [&path, &beside] {
            std::fs::write(precious, "precious").unwrap();
            let refused = Target::claim(&path, 1 << 20, Some(1 << 20), false);
            assert!(refused.is_err_and(|error| error.to_string().contains("--wipe")));
            assert_eq!(std::fs::read(precious).unwrap(), b"precious");
            std::fs::remove_file(precious).unwrap();
            assert!(!path.exists() && !beside.exists());
        }
        assert!(Target::claim(directory.path(), 1 << 20, None, true).is_err());
    }

    #[test]
    fn the_file_for_fio_goes_when_the_run_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let target = Target::claim(&path, 1 << 20, Some(1 << 20), false).unwrap();
        assert_eq!(target.layout_bytes(), 2 << 20);
        let scratch = directory.path().join("device.fio");
        assert!(scratch.exists());
        drop(target);
        assert!(path.exists() && !scratch.exists());
    }

    #[test]
    fn a_scratch_file_goes_and_one_that_was_there_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        drop(Target::claim_scratch(&path, 1 << 20, false).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        drop(Target::claim_scratch(&path, 1 << 20, false).unwrap());
        assert!(path.exists());
    }
}
