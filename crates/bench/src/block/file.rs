//! A file or block device, past the page cache, through io_uring.

use std::path::Path;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_reactor::{DirectFile, FileOperation, LocalFile, LocalRuntime};
use bytes::Bytes;
use rustix::fs::{SeekFrom, seek};
use serde::{Deserialize, Serialize};

use super::BlockTarget;
use crate::error::BenchError;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// When it is durable, each by itself (RWF_DSYNC).
    EachWrite,
    /// After a flush of all (fdatasync) behind each.
    Flush,
    /// When the device has it, perhaps in a volatile cache.
    None,
}

/// A file or block device.
pub struct FileTarget {
    file: LocalFile,
    /// For questions about holes; of a block device nothing is known.
    probe: Option<std::fs::File>,
    size_bytes: u64,
    durability: Durability,
}

impl FileTarget {
    /// Opens an existing file or a block device that no other process uses.
    pub fn open(runtime: &LocalRuntime, path: &Path, durability: Durability) -> Result<Self, BenchError> {
        let device = |error: std::io::Error| BenchError::Device { path: path.into(), detail: error.to_string() };
        let file = DirectFile::open(path).map_err(device)?;
        let size_bytes = file.size_bytes();
        let probe = std::fs::File::open(path).map_err(device)?;
        let is_file = probe.metadata().map_err(device)?.is_file();
        Ok(FileTarget { file: runtime.add_file(file), probe: is_file.then_some(probe), size_bytes, durability })
    }
}

fn whole_blocks(offset: u64, length: u64) -> Result<usize, BenchError> {
    let block = BLOCK_BYTES as u64;
    if offset.is_multiple_of(block) && length.is_multiple_of(block) {
        return Ok((length / block) as usize);
    }
    Err(BenchError::Invalid("operations on files and devices are of whole 4 KiB; choose such a block size".into()))
}

impl BlockTarget for FileTarget {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Bytes, BenchError> {
        let block_count = whole_blocks(offset, length.into())?;
        let buffer = self.file.perform(FileOperation::Read { offset, block_count }).await?;
        buffer.map(Bytes::from_owner).ok_or_else(|| BenchError::Invalid("a read gave no data".into()))
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), BenchError> {
        let block_count = whole_blocks(offset, data.len() as u64)?;
        let operation = match self.durability {
            Durability::EachWrite => FileOperation::WriteBytes { offset, bytes: data },
            Durability::Flush | Durability::None => {
                let buffer = Arc::new(BlockBuffer::from_bytes(&data));
                FileOperation::Write { offset, pieces: vec![(buffer, 0, block_count)], durable: false }
            }
        };
        self.file.perform(operation).await?;
        if self.durability == Durability::Flush {
            self.file.perform(FileOperation::Sync).await?;
        }
        Ok(())
    }

    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, BenchError> {
        let Some(probe) = &self.probe else { return Ok(vec![(length, true)]) };
        let end = offset + length;
        let mut extents = Vec::new();
        let mut position = offset;
        while position < end {
            // Behind the last data there is no further data, which is an error to lseek(2).
            let data = seek(probe, SeekFrom::Data(position)).unwrap_or(end).clamp(position, end);
            extents.push((data - position, true));
            let hole =
                if data < end { seek(probe, SeekFrom::Hole(data)).unwrap_or(end).clamp(data, end) } else { end };
            extents.push((hole - data, false));
            position = hole;
        }
        extents.retain(|(length, _)| *length > 0);
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_written_data_and_knows_its_holes() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("device");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let runtime = LocalRuntime::new().unwrap();
        let target = FileTarget::open(&runtime, &path, Durability::EachWrite).unwrap();
        let work = async {
            assert_eq!(target.extents(0, 1 << 20).await.unwrap(), [(1 << 20, true)]);
            target.write(65536, Bytes::from(vec![3; 8192])).await.unwrap();
            assert_eq!(target.read(65536, 8192).await.unwrap(), vec![3; 8192]);
            let extents = target.extents(0, 1 << 20).await.unwrap();
            assert_eq!(extents.iter().map(|(length, _)| length).sum::<u64>(), 1 << 20);
            assert!(!extents[1].1 && extents[0] == (65536, true), "{extents:?}");
            assert!(target.write(100, Bytes::from(vec![3; 4096])).await.is_err());
        };
        runtime.block_on(work).unwrap();
    }
}
