//! Records of block images: their snapshots, parents and users.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::PoolId;
use crate::image_key::ImageKey;
use crate::records::{
    ProcessRecord, RECORD_FORMAT, RECORD_FORMAT_OF_FLATTENING, RECORD_FORMAT_OF_GOING_BACK,
    RECORD_FORMAT_OF_MOVED_SNAPSHOTS, RECORD_FORMAT_OF_STATES,
};

/// A block image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The lowest format that says all that is in it: see [`ImageRecord::with_format`].
    pub format: u32,
    /// 64 random bits in hexadecimal; names the image's objects.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of the objects it is cut into, in bytes.
    pub object_bytes: u64,
    /// The pool of its objects.
    pub pool: PoolId,
    /// Its wrapped secret, which decides for good if it is sealed.
    #[serde(flatten)]
    pub key: ImageKey,
    /// Random 128-bit ids of all writing attachments, in hexadecimal; a seal names one by index. Images
    /// that are not sealed have none.
    pub attach_ids: Vec<String>,
    /// Raised by every writer that takes the image; OSDs refuse writes of lower generations. It stays when the image is
    /// moved.
    pub writer_generation: u64,
    /// The last possible changer, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changer: Option<ImageChanger>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// Its snapshots and its parent, if it has or had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<ImageStates>,
    /// Unfinished work on its objects. Until it is done, no client may read or write the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<ImageWork>,
    /// It is a clone whose writer copies the blocks that it reads from its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flattening: Option<ImageFlattening>,
    /// Its writer must not write for a moment, because images are snapshotted together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<ImageHold>,
    /// Access of clients through NBD, if it was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<ImageExport>,
    /// Notes of users and programs about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl ImageRecord {
    /// The record with the lowest format that says all that is in it.
    pub fn with_format(mut self) -> Self {
        let is_plain = self.states.is_none() && self.work.is_none() && self.export.is_none();
        let is_plain = is_plain && self.hold.is_none() && self.metadata.is_empty();
        self.format = match (&self.flattening, is_plain) {
            (Some(_), _) if self.is_going_back() || self.is_left() => RECORD_FORMAT_OF_GOING_BACK,
            (Some(_), _) if self.is_moving_with_snapshots() => RECORD_FORMAT_OF_MOVED_SNAPSHOTS,
            (Some(_), _) => RECORD_FORMAT_OF_FLATTENING,
            (None, true) => RECORD_FORMAT,
            (None, false) => RECORD_FORMAT_OF_STATES,
        };
        self
    }

    /// Returns the move to this image's pool, until everything is copied.
    pub fn moving(&self) -> Option<&ImageMove> {
        self.flattening.as_ref().and_then(|flattening| flattening.moving.as_ref())
    }

    /// Returns true if there may still be a writer of the image in its previous place.
    pub fn is_unsettled(&self) -> bool {
        self.moving().is_some_and(|moving| moving.settled_by.is_none())
    }

    /// Returns true if it returns to its place before a move: writes made in the other place since are still to be
    /// copied here.
    pub fn is_going_back(&self) -> bool {
        self.moving().is_some_and(|moving| moving.goes_back)
    }

    /// Raises the generation for a writer that changes none of the image's content.
    pub fn raise_generation(&mut self) {
        let generation = self.writer_generation;
        self.changer.get_or_insert(ImageChanger { generation, nvme_host: None, since: generation });
        self.writer_generation += 1;
    }

    /// A writer takes it that may change it, for an NVMe host or not.
    pub fn raise_generation_for(&mut self, nvme_host: Option<&str>) {
        self.writer_generation += 1;
        let generation = self.writer_generation;
        let goes_on = |changer: &&ImageChanger| nvme_host.is_some() && changer.nvme_host.as_deref() == nvme_host;
        let since = self.changer.as_ref().filter(goes_on).map_or(generation, |changer| changer.since);
        self.changer = Some(ImageChanger { generation, nvme_host: nvme_host.map(ToOwned::to_owned), since });
    }

    /// The generation of the newest writer that may have changed it.
    pub fn changed_at(&self) -> u64 {
        self.changer.as_ref().map_or(self.writer_generation, |changer| changer.generation)
    }

    /// Returns true if no client has changed it since this generation, except this NVMe host.
    pub fn is_unchanged_but_for(&self, nvme_host: Option<&str>, generation: u64) -> bool {
        let is_for_host = |changer: &ImageChanger| {
            nvme_host.is_some() && changer.nvme_host.as_deref() == nvme_host && changer.since <= generation + 1
        };
        self.changed_at() <= generation || self.changer.as_ref().is_some_and(is_for_host)
    }

    /// A writer that does not only copy is about to use it.
    pub fn note_writer(&mut self) {
        let moving = self.flattening.as_mut().and_then(|flattening| flattening.moving.as_mut());
        // While it goes back, the writer writes where everything is.
        moving.into_iter().filter(|moving| !moving.goes_back).for_each(|moving| moving.has_only_copies = false);
    }

    /// Returns true if its snapshots are read from its parent, the image before its move.
    pub fn shows_moved_snapshots(&self) -> bool {
        self.moving().is_some_and(|moving| !moving.goes_back)
    }

    /// Returns true for the place that an image leaves when it returns.
    fn is_left(&self) -> bool {
        matches!(self.work, Some(ImageWork::GoBack { .. }))
    }

    fn is_moving_with_snapshots(&self) -> bool {
        self.shows_moved_snapshots() && !self.snapshots().is_empty()
    }

    /// Its snapshots, oldest first.
    pub fn snapshots(&self) -> &[SnapshotRecord] {
        self.states.as_ref().map_or(&[], |states| &states.snapshots)
    }

    /// The snapshot of this name.
    pub fn snapshot(&self, name: &str) -> Option<&SnapshotRecord> {
        self.snapshots().iter().find(|snapshot| snapshot.name == name)
    }

    /// Returns the parent of a clone.
    pub fn parent(&self) -> Option<&ParentRecord> {
        self.states.as_ref().and_then(|states| states.parent.as_ref())
    }

    /// Returns the parent of the image's unwritten blocks.
    pub fn shown_parent(&self) -> Option<ParentRecord> {
        self.parent().filter(|parent| parent.overlap_bytes > 0).cloned()
    }

    /// Returns the parent of unwritten blocks of one of its snapshots.
    pub fn shown_parent_at(&self, snapshot: &SnapshotRecord) -> Option<ParentRecord> {
        self.parent_at(snapshot).filter(|parent| parent.overlap_bytes > 0)
    }

    /// Returns the parent of one of its snapshots, even if the snapshot reads nothing from it: the image's parent,
    /// and if the image is being moved, that snapshot before the move.
    pub fn parent_at(&self, snapshot: &SnapshotRecord) -> Option<ParentRecord> {
        let parent = self.parent()?.clone();
        let number = if self.shows_moved_snapshots() { snapshot.number } else { parent.number };
        Some(ParentRecord { number, overlap_bytes: snapshot.overlap_bytes, ..parent })
    }

    /// Returns the number of bytes of the image that are read from its parent where they were not written.
    pub fn overlap_bytes(&self) -> u64 {
        self.parent().map_or(0, |parent| parent.overlap_bytes)
    }

    /// Takes the parent away if neither the image nor one of its snapshots shows anything of it.
    pub fn take_hidden_parent(&mut self) -> Option<ParentRecord> {
        let states = self.states.as_mut()?;
        let is_shown = states.parent.as_ref().is_some_and(|parent| parent.overlap_bytes > 0)
            || states.snapshots.iter().any(|snapshot| snapshot.overlap_bytes > 0);
        if is_shown { None } else { states.parent.take() }
    }

    /// Under which number the state of an object must be kept before it changes: that of the newest snapshot
    /// ever taken. `None` if there are no snapshots. An image that goes back has one in any case: that of the moment
    /// when it did.
    pub fn kept_number(&self) -> Option<u64> {
        let is_needed = |states: &&ImageStates| !states.snapshots.is_empty() || self.is_going_back();
        self.states.as_ref().filter(is_needed).map(|states| states.newest)
    }
}

/// The last possible changer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChanger {
    /// The generation of the newest writer that was there to change it.
    pub generation: u64,
    /// If that is an NVMe gateway: the host that it serves, or `*` for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_host: Option<String>,
    /// Since this generation all of them were for the same host.
    pub since: u64,
}

/// Snapshots of an image, and its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageStates {
    /// The number of the newest snapshot that was ever taken; 0 if there was none. No number is given twice.
    pub newest: u64,
    /// The snapshots, oldest first.
    pub snapshots: Vec<SnapshotRecord>,
    /// A snapshot was removed, and its exclusive data still exists.
    #[serde(default)]
    pub needs_trimming: bool,
    /// The parent of the image, until it is flattened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentRecord>,
    /// True for an unsealed image that is or was a clone: a byte beside each written block marks the block as
    /// written.
    #[serde(default)]
    pub is_marked: bool,
}

/// A snapshot of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Its number: higher than that of every snapshot that was taken before.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Size of the image when it was taken, in bytes.
    pub size_bytes: u64,
    /// Bytes that the snapshot reads from its parent where they were not written, if the image was a clone then,
    /// or is being moved.
    #[serde(default)]
    pub overlap_bytes: u64,
    /// Unix time when it was taken, in milliseconds.
    pub created_unix_ms: u64,
    /// The writer has not said yet that everything it wrote before is in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_pending: bool,
    /// Ids of the images that are clones of it. It cannot be removed while there are any.
    #[serde(default)]
    pub clones: Vec<String>,
}

/// The snapshot that an image is a clone of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentRecord {
    /// The id of its image.
    pub image_id: String,
    /// The name of its image when the clone was made, for people.
    pub image_name: String,
    /// Its number.
    pub number: u64,
    /// Bytes that the clone reads from its parent where they were not written.
    pub overlap_bytes: u64,
}

/// Something that changes all objects of an image, and must come to its end once it was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ImageWork {
    /// Data beyond the new size is removed.
    Shrink {
        /// The new size, in bytes.
        size_bytes: u64,
    },
    /// The image is rolled back to a snapshot.
    RollBack {
        /// The snapshot's number.
        number: u64,
    },
    /// The image is filled from elsewhere.
    Fill {
        /// Description of the source, which differs between sources.
        source: String,
        /// Bytes from the beginning that are done.
        done_bytes: u64,
    },
    /// It is the new place of an image that goes back, and is read until that one has everything.
    GoBack {
        /// The name of that image.
        name: String,
    },
}

/// Flattening: the writer of a clone copies the blocks that it reads from its parent; afterwards the clone does
/// not need the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFlattening {
    /// Largest rate of the copying, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Bytes that the writer has processed, by its last report.
    pub done_bytes: u64,
    /// Bytes to process; 0 until they are counted.
    pub all_bytes: u64,
    /// The move, if the parent is the image before it: the parent is removed at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<ImageMove>,
}

/// A move of an image to another pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMove {
    /// The id of the image before the move.
    pub old_id: String,
    /// Its name.
    pub old_name: String,
    /// True if the image was here before, and the other place has data that is still missing here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_back: bool,
    /// Set when there is no writer in the image's previous place any more: a token drawn by the process that has
    /// made sure of it. Until then no client may use the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<String>,
    /// Where the image is moved to, nothing but copies was ever written: all that was acknowledged is also where it was
    /// before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_only_copies: bool,
}

/// A wish that a writer hold its writes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageHold {
    /// A new random token for each; the writer repeats it in its lock when all its operations have ended.
    pub token: String,
    /// Milliseconds after which the writer resumes by itself, from when it learned of this.
    pub at_most_ms: u64,
}

/// Number of clients that may use an image at once, and kind of their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportAccess {
    /// One client reads and writes, over any number of connections.
    #[default]
    Exclusive,
    /// Several clients read and write, and agree among themselves who writes where.
    MultiAttach,
    /// Any number of clients read.
    ReadOnly,
}

/// Access of clients to an image through NBD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageExport {
    /// Allowed operations of clients.
    pub access: ExportAccess,
    /// Allowed clients over TCP: names in TLS certificates, names of NVMe hosts, addresses and networks, or `*`
    /// for all clients, with or without a certificate. If it is empty, every client with a certificate of the
    /// authority for clients may.
    #[serde(default)]
    pub clients: Vec<String>,
}

/// The current writer of an image; the key is tied to the writer's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageLockRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The writer's generation.
    pub generation: u64,
    /// The writer's host.
    pub host: String,
    /// The writer's process on its host.
    pub process_id: u32,
    /// Its process, to find out if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRecord>,
    /// The writer's lease, which identifies its own lock.
    #[serde(default)]
    pub lease_id: i64,
    /// Description of the writer, for operators.
    pub purpose: String,
    /// Unix time when it was taken, in milliseconds.
    pub taken_unix_ms: u64,
    /// The writer keeps the states of all objects for snapshots up to this number: whatever it wrote before
    /// it knew the number is durable.
    #[serde(default)]
    pub kept_number: u64,
    /// The [`ImageHold`] for which the writer holds its writes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_token: Option<String>,
    /// True if the writer only copies, and yields the image to any other user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gives_way: bool,
    /// The writer is an NVMe gateway: the name of the host that it serves, or `*` if that may be several. Other
    /// gateways show those the image as one that can be reached by another path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_host: Option<String>,
}

/// A current reader of an image or one of its snapshots; the key is tied to the reader's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageWatcherRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The reader's host.
    pub host: String,
    /// The reader's process on its host.
    pub process_id: u32,
    /// Its process, to find out if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRecord>,
    /// Description of the reader, for operators.
    pub purpose: String,
    /// The number of the snapshot that it reads; `None` for the image itself.
    pub number: Option<u64>,
    /// Unix time since when, in milliseconds.
    pub since_unix_ms: u64,
}

/// An image that was removed: its data is removed in the background, at once or when its time in the trash is
/// over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedImageRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The image as it was.
    pub image: ImageRecord,
    /// Unix time when it was removed, in milliseconds.
    pub removed_unix_ms: u64,
    /// Unix time from which on its data may be removed, in milliseconds; 0 if that is at once.
    pub purge_unix_ms: u64,
    /// Some of its data may be gone: there is no way back.
    pub is_purging: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Option<&str> = Some("host");

    fn record() -> ImageRecord {
        let json = r#"{"format":1,"id":"1","name":"disk","size_bytes":4096,"object_bytes":4096,"pool":1,"wrapped_key":"",
            "attach_ids":[],"writer_generation":4,"created_unix_ms":0}"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_image_is_unchanged_for_a_host_while_only_its_writers_have_it() {
        let mut record = record();
        assert!(record.is_unchanged_but_for(HOST, 4) && !record.is_unchanged_but_for(HOST, 3));
        record.raise_generation_for(HOST);
        record.raise_generation_for(HOST);
        assert!(record.is_unchanged_but_for(HOST, 4) && record.is_unchanged_but_for(HOST, 5));
        assert!(!record.is_unchanged_but_for(HOST, 3), "who wrote before is not known");
        assert!(!record.is_unchanged_but_for(None, 5) && !record.is_unchanged_but_for(Some("other"), 5));
        record.raise_generation();
        assert!(record.is_unchanged_but_for(HOST, 5) && record.changed_at() == 6, "nothing was changed");
        record.raise_generation_for(None);
        record.raise_generation_for(HOST);
        assert!(!record.is_unchanged_but_for(HOST, 7) && record.is_unchanged_but_for(HOST, 8));
    }

    #[test]
    fn of_an_image_of_an_earlier_release_a_change_is_assumed() {
        let mut record = record();
        record.writer_generation += 1;
        assert!(!record.is_unchanged_but_for(HOST, 4));
        record.raise_generation();
        assert!(!record.is_unchanged_but_for(HOST, 4) && record.is_unchanged_but_for(HOST, 5));
    }
}
