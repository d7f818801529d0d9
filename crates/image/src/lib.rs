//! Block images on the object client: an image is cut into 4 MiB objects whose 4 KiB blocks are
//! sealed here (unless the image was made without), before they leave for the OSDs; one writer at a time holds it, by a lock in cluster
//! state and a fence at the OSDs. The NBD server gives images to virtual machines and databases.
//!
//! This room knows images and keys; it knows nothing of placement, replicas or stores.

mod admin;
mod attach;
mod bridge;
mod error;
mod held_lock;
mod io;
pub mod nbd;
mod range_locks;
mod sealing;

pub use admin::{ImageAdmin, image_key_context};
pub use attach::AttachedImage;
pub use bridge::Bridge;
pub use error::ImageError;
