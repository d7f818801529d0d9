//! Block images on the object client: an image is cut into 4 MiB objects whose 4 KiB blocks are
//! sealed here, unless the image was made without sealing, before they leave for the OSDs. One writer
//! at a time holds an image, by a lock in cluster state and a fence at the OSDs.
//!
//! This crate knows images, their records and their keys. It may not know placement, replicas or
//! stores, nor the servers that offer images to virtual machines and databases (atoll-nbd).

//!
//! Where things are:
//!
//! - `admin`, `resize`, `removal`, `snapshots`, `clones`: operations on images as a whole.
//! - `lock`, `held_lock`, `attach`, `follow`, `read_only`, `watcher`: writers and readers. `record_changes` follows
//!   the records of all images.
//! - `volume`, `state`: the blocks of an image as its writer has it, and as it was at a snapshot. `keeping`
//!   keeps the states of objects that snapshots need; `ancestry` and `flatten` are about clones,
//!   `moves`, `going_over`, `going_back`, `moved_states` and `ahead` about moves.
//! - `names`, `pieces`, `objects`, `extents`, `index_set`, `range_locks`, `sealing`: parts of these.

mod admin;
mod ahead;
mod ancestry;
mod attach;
mod attached_image;
mod audit;
mod background_flatten;
mod bridge;
mod change_stream;
mod changes;
mod clones;
mod destination;
mod difference;
mod error;
mod extents;
mod fill;
mod flatten;
mod flattening;
mod follow;
mod going_back;
mod going_over;
mod group_snapshots;
mod held_lock;
mod index_set;
mod keeping;
mod lock;
mod moved_states;
mod moves;
mod names;
mod objects;
mod open_image;
mod pieces;
mod range_locks;
mod read_only;
mod record_changes;
mod removal;
mod resize;
mod sealing;
mod snapshots;
mod state;
mod usage;
mod volume;
mod watcher;

#[cfg(test)]
mod memory_client;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod simulated_client;

pub use admin::{ImageAdmin, image_key_context};
pub use attached_image::AttachedImage;
pub use bridge::Bridge;
pub use change_stream::{StreamError, StreamHeader, StreamPart, StreamReader, StreamWriter};
pub use changes::Change;
pub use destination::Destination;
pub use error::ImageError;
pub use lock::Purpose;
pub use open_image::OpenImage;
pub use pieces::runs;
pub use read_only::ReadOnlyImage;
pub use record_changes::ImageRecords;
pub use usage::{ImageUsage, SnapshotUsage};
