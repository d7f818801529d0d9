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

    /// Notes that this many bytes from the beginning are done and durable. `own` is the image as its writer has it.
    pub async fn filled(&self, own: &ImageRecord, bytes: u64) -> Result<(), ImageError> {
        let noted = self.change(&own.name, |record| {
            refuse_lost(own, record)?;
            match &mut record.work {
                Some(ImageWork::Fill { done_bytes, .. }) => {
                    *done_bytes = bytes;
                    Ok(())
                }
                _ => refuse_to_fill(record),
            }
        });
        noted.await.map(drop)
    }

    /// The image is whole. `own` is the image as its writer has it.
    pub async fn end_filling(&self, own: &ImageRecord) -> Result<(), ImageError> {
        let ended = self.change(&own.name, |record| {
            refuse_lost(own, record)?;
            refuse_to_fill(record)?;
            record.work = None;
            Ok(())
        });
        ended.await.map(drop)
    }
}

/// Refuses a writer's report about its filling if the image is another one by now, or another's.
fn refuse_lost(own: &ImageRecord, record: &ImageRecord) -> Result<(), ImageError> {
    let is_own = (&record.id, record.writer_generation) == (&own.id, own.writer_generation);
    if is_own { Ok(()) } else { Err(ImageError::Lost(own.name.clone())) }
}

/// Refuses to write to an image that is not being filled.
pub(crate) fn refuse_to_fill(record: &ImageRecord) -> Result<(), ImageError> {
    match record.work {
        Some(ImageWork::Fill { .. }) => Ok(()),
        Some(_) => refuse_unfinished(record),
        None => Err(ImageError::Invalid(format!("image '{}' is not being filled", record.name))),
    }
}

#[cfg(test)]
mod tests {
    use atoll_types::PoolId;

    use super::*;
    use crate::attach::take;
    use crate::attach::tests::world;

    /// A command that stood still would mark an image as whole that another one has begun to fill.
    #[tokio::test(flavor = "multi_thread")]
    async fn only_the_writer_of_an_image_says_how_far_it_is_filled() {
        let world = world().await;
        let to = Destination { pool: PoolId(1), is_sealed: true };
        let create = async || {
            world.admin.create_to_fill("disk", 1 << 20, to, "a file").await.unwrap();
            take(&world.admin, "disk", &"importing".into(), refuse_to_fill).await.unwrap()
        };
        let first = create().await;
        world.admin.filled(&first.record, 4_096).await.unwrap();
        first.lock.cut_off().await;
        let again = take(&world.admin, "disk", &"importing".into(), refuse_to_fill).await.unwrap();
        let is_lost = |done: Result<(), ImageError>| matches!(done, Err(ImageError::Lost(_)));
        assert!(is_lost(world.admin.filled(&first.record, 8_192).await));
        assert!(is_lost(world.admin.end_filling(&first.record).await));
        assert_eq!(world.admin.filled_bytes("disk", "a file").await.unwrap(), Some(4_096));
        again.lock.release().await.unwrap();

        world.admin.trash("disk", 0).await.unwrap();
        let other = create().await;
        assert!(is_lost(world.admin.filled(&first.record, 8_192).await));
        assert!(is_lost(world.admin.end_filling(&first.record).await));
        assert_eq!(world.admin.filled_bytes("disk", "a file").await.unwrap(), Some(0));
        world.admin.end_filling(&other.record).await.unwrap();
    }
}
