//! Block images on the object client: an image is cut into 4 MiB objects whose 4 KiB blocks are
//! sealed here, unless the image was made without sealing, before they leave for the OSDs. One writer
//! at a time holds an image, by a lock in cluster state and a fence at the OSDs.
//!
//! This crate knows images, their records and their keys. It may not know placement, replicas or
//! stores, nor the servers that offer images to virtual machines and databases (atoll-nbd).

mod admin;
mod attach;
mod bridge;
mod error;
mod held_lock;
mod io;
mod range_locks;
mod sealing;

pub use admin::{ImageAdmin, image_key_context};
pub use attach::AttachedImage;
pub use bridge::Bridge;
pub use error::ImageError;
