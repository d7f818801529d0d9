//! Rooms of a log. Lines that must not push out one another have files, a spool and a chain of their own.

use std::io;
use std::path::{Path, PathBuf};

use crate::file::with_suffix;

/// Room of a line, by its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// An allowed change.
    Changes,
    /// Any other request of an authenticated caller.
    Requests,
    /// A request without authentication.
    Strangers,
}

/// Rooms that a log has beside the one of requests, which takes the lines of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnRooms {
    /// Whoever is known can make it grow, so changes have a room.
    pub changes: bool,
    /// Strangers can make it grow.
    pub strangers: bool,
}

/// Largest sizes of the files of each room, with those that were set aside, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomSizes {
    /// Changes, in bytes.
    pub changes_bytes: u64,
    /// Other requests, in bytes.
    pub requests_bytes: u64,
    /// Requests of strangers, in bytes.
    pub strangers_bytes: u64,
}

impl Default for RoomSizes {
    fn default() -> Self {
        RoomSizes { changes_bytes: 576 << 20, requests_bytes: 576 << 20, strangers_bytes: 80 << 20 }
    }
}

impl Room {
    #[cfg(test)]
    const ALL: [Room; 3] = [Room::Requests, Room::Changes, Room::Strangers];

    /// The name for a room: `s3-audit-changes.jsonl` beside `s3-audit.jsonl`.
    pub fn path(self, path: &Path) -> PathBuf {
        match self {
            Room::Requests => path.to_owned(),
            Room::Changes => with_suffix(path, "-changes"),
            Room::Strangers => with_suffix(path, "-strangers"),
        }
    }

    fn is_of(self, own: OwnRooms) -> bool {
        match self {
            Room::Requests => true,
            Room::Changes => own.changes,
            Room::Strangers => own.strangers,
        }
    }

    pub fn bytes_max(self, sizes: &RoomSizes) -> u64 {
        match self {
            Room::Requests => sizes.requests_bytes,
            Room::Changes => sizes.changes_bytes,
            Room::Strangers => sizes.strangers_bytes,
        }
    }

    /// Bytes of a spool for this room: changes have a quarter of all, strangers a sixteenth.
    pub fn spool_bytes(self, own: OwnRooms, all_bytes: u64) -> u64 {
        let share = |room: Room, parts: u64| if room.is_of(own) { all_bytes / parts } else { 0 };
        let (changes, strangers) = (share(Room::Changes, 4), share(Room::Strangers, 16));
        match self {
            Room::Changes => changes,
            Room::Strangers => strangers,
            Room::Requests => all_bytes - changes - strangers,
        }
    }
}

/// Files in which a log has further rooms.
pub fn files_of_rooms(path: &Path) -> [PathBuf; 2] {
    [Room::Changes.path(path), Room::Strangers.path(path)]
}

/// One of something for each room of a log.
pub(crate) struct Rooms<T> {
    requests: T,
    changes: Option<T>,
    strangers: Option<T>,
}

impl<T> Rooms<T> {
    /// Opens the room of requests first: its owner owns the others.
    pub fn open(own: OwnRooms, mut open: impl FnMut(Room) -> io::Result<T>) -> io::Result<Self> {
        let requests = open(Room::Requests)?;
        let mut if_own = |room: Room| room.is_of(own).then(|| open(room)).transpose();
        Ok(Rooms { requests, changes: if_own(Room::Changes)?, strangers: if_own(Room::Strangers)? })
    }

    pub fn try_map<U>(self, mut map: impl FnMut(T) -> io::Result<U>) -> io::Result<Rooms<U>> {
        Ok(Rooms {
            requests: map(self.requests)?,
            changes: self.changes.map(&mut map).transpose()?,
            strangers: self.strangers.map(map).transpose()?,
        })
    }

    /// Returns that of a room, or of the room that takes its lines.
    pub fn of(&mut self, room: Room) -> &mut T {
        let own = match room {
            Room::Requests => None,
            Room::Changes => self.changes.as_mut(),
            Room::Strangers => self.strangers.as_mut(),
        };
        own.unwrap_or(&mut self.requests)
    }

    /// Those of people who are known. Changes come first: they must not wait for others.
    pub fn known(&mut self) -> impl Iterator<Item = &mut T> {
        self.changes.iter_mut().chain(std::iter::once(&mut self.requests))
    }

    pub fn strangers(&mut self) -> Option<&mut T> {
        self.strangers.as_mut()
    }

    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.changes.iter().chain(std::iter::once(&self.requests)).chain(&self.strangers)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.changes.iter_mut().chain(std::iter::once(&mut self.requests)).chain(&mut self.strangers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_of_a_spool_are_together_as_large_as_it() {
        for own in [(false, false), (false, true), (true, false), (true, true)] {
            let own = OwnRooms { changes: own.0, strangers: own.1 };
            let bytes = Room::ALL.map(|room| room.spool_bytes(own, 1 << 20));
            assert_eq!(bytes.iter().sum::<u64>(), 1 << 20, "{own:?}");
            assert!(Room::ALL.iter().zip(bytes).all(|(room, bytes)| (bytes > 0) == room.is_of(own)), "{own:?}");
        }
    }
}
