//! What an export serves: an image to be written, or one that is only read.

use atoll_image::{AttachedImage, ImageError, ReadOnlyImage};
use bytes::Bytes;

/// An image, or a snapshot of one.
pub(crate) enum Device {
    Written(Box<AttachedImage>),
    Read(Box<ReadOnlyImage>),
}

impl Device {
    pub fn is_read_only(&self) -> bool {
        matches!(self, Device::Read(_))
    }

    pub fn size_bytes(&self) -> u64 {
        match self {
            Device::Written(image) => image.size_bytes(),
            Device::Read(image) => image.size_bytes(),
        }
    }

    /// Whether it cannot be used any more, because another writer has taken the image: the newest has this
    /// generation.
    pub fn is_lost(&self, newest_generation: u64) -> bool {
        match self {
            Device::Written(image) => image.is_lost() || image.record().writer_generation != newest_generation,
            Device::Read(_) => false,
        }
    }

    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        match self {
            Device::Written(image) => image.read(offset, length).await,
            Device::Read(image) => image.read(offset, length).await,
        }
    }

    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        match self {
            Device::Written(image) => image.extents(offset, length).await,
            Device::Read(image) => image.extents(offset, length).await,
        }
    }

    /// The image, if it may be changed.
    pub fn writable(&self) -> Result<&AttachedImage, ImageError> {
        match self {
            Device::Written(image) => Ok(image),
            Device::Read(image) => Err(ImageError::ReadOnly(image.name().to_owned())),
        }
    }

    /// Gives it back.
    pub async fn close(&self) -> Result<(), ImageError> {
        match self {
            Device::Written(image) => image.detach().await,
            Device::Read(image) => image.close().await,
        }
    }
}
