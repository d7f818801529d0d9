//! Images that are filled from elsewhere. Such an image cannot be used before it is whole, and an interrupted
//! filling can be resumed.

use atoll_types::records::{ImageRecord, ImageWork};

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::destination::Destination;
use crate::resize::refuse_unfinished;

impl ImageAdmin {
    /// Makes an image that is to be filled from `source`, whose text says which one it is.
    pub async fn create_to_fill(
        &self,
        name: &str,
        size_bytes: u64,
        to: Destination,
        source: &str,
    ) -> Result<ImageRecord, ImageError> {
        let work = ImageWork::Fill { source: source.into(), done_bytes: 0 };
        self.create_with(name, size_bytes, to, Some(work)).await
    }

    /// How many bytes from the beginning an interrupted filling from this source has done; `None` if there is no
    /// such image.
    pub async fn filled_bytes(&self, name: &str, source: &str) -> Result<Option<u64>, ImageError> {
        let work = match self.get(name).await {
            Ok((record, _)) => record.work,
            Err(ImageError::NoSuchImage(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        match work {
            Some(ImageWork::Fill { source: begun, done_bytes }) if begun == source => Ok(Some(done_bytes)),
            Some(ImageWork::Fill { source: begun, .. }) => Err(ImageError::Invalid(format!(
                "image '{name}' is being filled from something else: {begun}, and not {source}; give another name, \
                 or remove it ('atoll image rm {name}')"
            ))),
            _ => Err(ImageError::Invalid(format!(
                "image '{name}' is whole: there is nothing to resume; give another name, and leave --resume out"
            ))),
        }
    }

    /// Notes that this many bytes from the beginning are done and durable.
    pub async fn filled(&self, name: &str, bytes: u64) -> Result<(), ImageError> {
        let noted = self.change(name, |record| match &mut record.work {
            Some(ImageWork::Fill { done_bytes, .. }) => {
                *done_bytes = bytes;
                Ok(())
            }
            _ => refuse_to_fill(record),
        });
        noted.await.map(drop)
    }

    /// The image is whole.
    pub async fn end_filling(&self, name: &str) -> Result<(), ImageError> {
        let ended = self.change(name, |record| {
            refuse_to_fill(record)?;
            record.work = None;
            Ok(())
        });
        ended.await.map(drop)
    }
}

/// Refuses to write to an image that is not being filled.
pub(crate) fn refuse_to_fill(record: &ImageRecord) -> Result<(), ImageError> {
    match record.work {
        Some(ImageWork::Fill { .. }) => Ok(()),
        Some(_) => refuse_unfinished(record),
        None => Err(ImageError::Invalid(format!("image '{}' is not being filled", record.name))),
    }
}
