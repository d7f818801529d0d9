//! An attached image, as a virtual machine would use it, through the native client.

use std::rc::Rc;

use atoll_image::AttachedImage;
use bytes::Bytes;

use super::BlockTarget;
use crate::error::BenchError;

impl BlockTarget for Rc<AttachedImage> {
    fn size_bytes(&self) -> u64 {
        AttachedImage::size_bytes(self)
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Bytes, BenchError> {
        Ok(AttachedImage::read(self, offset, length).await?)
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), BenchError> {
        Ok(AttachedImage::write(self, offset, &data).await?)
    }

    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, BenchError> {
        Ok(AttachedImage::extents(self, offset, length).await?)
    }
}
