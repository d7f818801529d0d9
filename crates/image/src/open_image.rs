//! An image that is open, to be written or only to be read.

use std::rc::Rc;

use atoll_types::records::ImageRecord;
use bytes::Bytes;

use crate::{AttachedImage, ImageError, ReadOnlyImage};

/// An image, or a snapshot of one.
pub enum OpenImage {
    /// To be written.
    Written(Box<AttachedImage>),
    /// Only to be read.
    Read(Box<ReadOnlyImage>),
}

impl OpenImage {
    /// Returns true if it can only be read.
    pub fn is_read_only(&self) -> bool {
        matches!(self, OpenImage::Read(_))
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        match self {
            OpenImage::Written(image) => image.size_bytes(),
            OpenImage::Read(image) => image.size_bytes(),
        }
    }

    /// Returns true if it cannot be used any more, because another writer has taken the image: the newest has this
    /// generation. Or its data was removed or changed.
    pub fn is_lost(&self, newest_generation: u64) -> bool {
        match self {
            OpenImage::Written(image) => image.is_lost() || image.record().writer_generation < newest_generation,
            OpenImage::Read(image) => image.is_gone(),
        }
    }

    /// The image's record when it was attached, or when it was moved since, if it can be written.
    pub fn written_record(&self) -> Option<Rc<ImageRecord>> {
        match self {
            OpenImage::Written(image) => Some(image.record()),
            OpenImage::Read(_) => None,
        }
    }

    /// Reads a range, aligned or not.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        match self {
            OpenImage::Written(image) => image.read(offset, length).await,
            OpenImage::Read(image) => image.read(offset, length).await,
        }
    }

    /// Which parts of a range hold no data: length in bytes and whether it is a hole, from `offset` on. It may end
    /// early.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        match self {
            OpenImage::Written(image) => image.extents(offset, length).await,
            OpenImage::Read(image) => image.extents(offset, length).await,
        }
    }

    /// The image, if it may be changed.
    pub fn writable(&self) -> Result<&AttachedImage, ImageError> {
        match self {
            OpenImage::Written(image) => Ok(image),
            OpenImage::Read(image) => Err(ImageError::ReadOnly(image.name().to_owned())),
        }
    }

    /// Gives it back.
    pub async fn close(&self) -> Result<(), ImageError> {
        match self {
            OpenImage::Written(image) => image.detach().await,
            OpenImage::Read(image) => image.close().await,
        }
    }
}
