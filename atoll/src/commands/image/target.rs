//! An image that a command fills, or adds changes to.

use std::time::{Duration, Instant};

use atoll_admin::images;
use atoll_image::{AttachedImage, Destination, runs};
use bytes::Bytes;

use super::ImageAccess;
use super::import::{CopyArguments, ImportArguments};

pub const BLOCK_BYTES: usize = 4096;
/// How often it is noted how far long work is.
pub const NOTED_EVERY: Duration = Duration::from_secs(2);

/// Describes the image that is filled.
pub struct NewImage<'a> {
    name: &'a str,
    pool: &'a str,
    is_sealed: bool,
    resumes: bool,
    purpose: &'static str,
}

impl<'a> From<&'a ImportArguments> for NewImage<'a> {
    fn from(arguments: &'a ImportArguments) -> Self {
        let (pool, is_sealed) = (arguments.pool(), arguments.is_sealed());
        NewImage { name: &arguments.name, pool, is_sealed, resumes: arguments.resume, purpose: "importing" }
    }
}

impl<'a> From<&'a CopyArguments> for NewImage<'a> {
    fn from(arguments: &'a CopyArguments) -> Self {
        let CopyArguments { name, pool, sealing, resume, .. } = arguments;
        NewImage { name, pool, is_sealed: sealing.is_on(), resumes: *resume, purpose: "copying" }
    }
}

/// An image that is being written.
pub struct Target<'a> {
    access: &'a ImageAccess,
    image: AttachedImage,
    /// How far its filling is, if it is being filled.
    filling: Option<Filling>,
}

struct Filling {
    done_bytes: u64,
    noted: Instant,
}

impl<'a> Target<'a> {
    /// An image that is there, to change it.
    pub fn attach(access: &'a ImageAccess, name: &str, purpose: &str) -> anyhow::Result<Self> {
        let (client, bridge) = (access.client.clone(), access.bridge.clone());
        let image = access.admin_call(|admin, _| async move {
            AttachedImage::attach(&client, &bridge, &admin, name, purpose).await
        })?;
        Ok(Target { access, image, filling: None })
    }

    /// A new image to fill from `source`, or one whose filling from there was interrupted.
    pub fn begin<'b>(
        access: &'a ImageAccess,
        new: impl Into<NewImage<'b>>,
        size_bytes: u64,
        source: &str,
    ) -> anyhow::Result<Self> {
        let NewImage { name, pool, is_sealed, resumes, purpose } = new.into();
        let done_bytes = match resumes {
            true => access.block_on_tokio(access.admin.filled_bytes(name, source))?,
            false => None,
        };
        if done_bytes.is_none() {
            let pool = access.block_on_tokio(images::writable_pool(access.admin.state(), pool))?;
            let created = access.admin.create_to_fill(name, size_bytes, Destination { pool, is_sealed }, source);
            access.block_on_tokio(created)?;
        }
        let (client, bridge) = (access.client.clone(), access.bridge.clone());
        let image = access.admin_call(|admin, _| async move {
            AttachedImage::attach_to_fill(&client, &bridge, &admin, name, purpose).await
        })?;
        let filling = Filling { done_bytes: done_bytes.unwrap_or(0), noted: Instant::now() };
        Ok(Target { access, image, filling: Some(filling) })
    }

    /// Returns the bytes from the beginning that an earlier command wrote.
    pub fn done_bytes(&self) -> u64 {
        self.filling.as_ref().map_or(0, |filling| filling.done_bytes)
    }

    pub fn write(&self, offset: u64, data: &Bytes) -> anyhow::Result<()> {
        self.access.admin_call(|_, _| self.image.write(offset, data))
    }

    /// Writes the blocks that are not zeros; returns how many bytes they have.
    pub fn write_data(&self, offset: u64, data: &[u8]) -> anyhow::Result<u64> {
        let blocks: Vec<bool> =
            data.chunks(BLOCK_BYTES).map(|block| block.iter().any(|byte| *byte != 0)).collect();
        let mut written = 0;
        for (first, count) in runs(&blocks, true) {
            let range = first * BLOCK_BYTES..((first + count) * BLOCK_BYTES).min(data.len());
            let part = Bytes::copy_from_slice(&data[range.clone()]);
            self.write(offset + range.start as u64, &part)?;
            written += part.len() as u64;
        }
        Ok(written)
    }

    pub fn write_zeros(&self, offset: u64, length: u64) -> anyhow::Result<()> {
        self.access.admin_call(|_, _| self.image.write_zeroes(offset, length))
    }

    /// Everything before this offset is written. Now and then cluster state hears of it.
    pub fn note(&mut self, offset: u64) -> anyhow::Result<()> {
        let Some(filling) = self.filling.as_mut().filter(|filling| filling.noted.elapsed() > NOTED_EVERY) else {
            return Ok(());
        };
        filling.noted = Instant::now();
        Ok(self.access.block_on_tokio(self.access.admin.filled(&self.image.record(), offset))?)
    }

    /// The image is whole.
    pub fn finish(self) -> anyhow::Result<()> {
        if self.filling.is_some() {
            self.access.block_on_tokio(self.access.admin.end_filling(&self.image.record()))?;
        }
        self.access.admin_call(|_, _| self.image.detach())
    }
}
