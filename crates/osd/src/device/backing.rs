//! The file system under device files: files are sparse, and it may have less room than they may grow by. An OSD is
//! full before it is, because a write that fails ends the OSD.

use std::path::{Path, PathBuf};

use atoll_store::BackingRoom;

/// Bytes left for checkpoints of this OSD and of its neighbours.
const LOW_BYTES: u64 = 128 << 20;
/// From here on nothing is taken from other OSDs either.
const NONE_BYTES: u64 = 64 << 20;
/// With less than this it is looked at before each turn's writes: they could fill it within a second.
const NEAR_BYTES: u64 = 2 << 30;

/// Device files, whose file system is looked at.
pub(crate) struct Backing {
    files: Vec<PathBuf>,
    is_near: bool,
}

impl Backing {
    /// Returns the backing of these devices; block devices have all their room.
    pub fn of<'a>(devices: impl Iterator<Item = &'a Path>) -> Self {
        let is_file = |path: &&Path| std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
        Backing { files: devices.filter(is_file).map(Path::to_owned).collect(), is_near: false }
    }

    /// Returns the room, when `pending_bytes` are still to be written to their places.
    pub fn room(&mut self, pending_bytes: u64) -> BackingRoom {
        // What cannot be looked at is found out by the next write.
        let free_bytes = self.files.iter().filter_map(|path| free_bytes(path)).min().unwrap_or(u64::MAX);
        self.is_near = free_bytes < NEAR_BYTES;
        room(free_bytes, pending_bytes)
    }

    /// Returns true if so little is left that a second may be too long until the next look.
    pub fn is_near(&self) -> bool {
        self.is_near
    }
}

/// Returns the free space of a file's file system for this user, in bytes; none if it is unknown.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(path).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

fn room(free_bytes: u64, pending_bytes: u64) -> BackingRoom {
    match free_bytes.saturating_sub(pending_bytes) {
        0..NONE_BYTES => BackingRoom::None,
        NONE_BYTES..LOW_BYTES => BackingRoom::Low,
        _ => BackingRoom::Enough,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_takes_room() {
        assert_eq!(room(1 << 30, 0), BackingRoom::Enough);
        assert_eq!(room(1 << 30, 1 << 30), BackingRoom::None);
        assert_eq!(room(LOW_BYTES - 1, 0), BackingRoom::Low);
        assert_eq!(room(LOW_BYTES + (10 << 20), 20 << 20), BackingRoom::Low);
        assert_eq!(Backing::of(std::iter::empty()).room(1 << 40), BackingRoom::Enough);
    }
}
