//! Space for cluster state on a file system that device files may fill: a file that is removed when little is left.

use atoll_files::Access;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, fallocate};

use crate::data_dir::DataDir;
use crate::device_space::free_bytes;
use crate::error::NodeError;

/// The reserve takes a quarter of the free space, and not more than this.
const RESERVE_BYTES_MAX: u64 = 32 << 20;
const RESERVE_BYTES_MIN: u64 = 4 << 20;
/// With less free space than this the reserve is given up, in bytes.
const FREE_BYTES_MIN: u64 = 2 << 20;

/// How it is with space for cluster state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpace {
    /// There is enough.
    Enough,
    /// It lives on its reserve.
    Reserve,
    /// There is none left.
    None,
}

impl DataDir {
    fn state_reserve_file(&self) -> PathBuf {
        self.state().join("reserve")
    }

    /// Makes the reserve where there is room for it, and gives it up where there is almost none. False if there is
    /// none now.
    pub fn keep_state_reserve(&self) -> Result<bool, NodeError> {
        let path = self.state_reserve_file();
        atoll_files::create_directories(&self.state()).map_err(NodeError::file(self.state()))?;
        let free = free_bytes(&self.state()).unwrap_or(u64::MAX);
        if path.exists() {
            if free >= FREE_BYTES_MIN {
                return Ok(true);
            }
            std::fs::remove_file(&path).map_err(NodeError::file(&path))?;
            return Ok(false);
        }
        let reserve_bytes = (free / 4).min(RESERVE_BYTES_MAX);
        if reserve_bytes < RESERVE_BYTES_MIN {
            return Ok(false);
        }
        let made = atoll_files::make(&path, Access::Owner)
            .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, reserve_bytes)?));
        made.map(|()| true).map_err(NodeError::file(path))
    }

    /// How it is with space for the embedded cluster state of this host.
    pub fn state_space(&self) -> StateSpace {
        let free = free_bytes(&self.state()).unwrap_or(u64::MAX);
        match self.state_reserve_file().exists() {
            true => StateSpace::Enough,
            false if free < FREE_BYTES_MIN => StateSpace::None,
            false if free / 4 < RESERVE_BYTES_MIN => StateSpace::Reserve,
            // It is about to be made.
            false => StateSpace::Enough,
        }
    }
}
