//! The record of a flattening: the writer of the image copies, and records its progress here.

use atoll_types::records::{ImageFlattening, ImageRecord};

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::resize::refuse_unfinished;

impl ImageAdmin {
    /// Makes the writers of a clone copy the blocks that it reads from its parent, at most so many bytes per
    /// second. A copying that runs already gets this rate.
    pub async fn begin_flatten(
        &self,
        name: &str,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        let begun = self.change(name, |record| {
            refuse_unfinished(record)?;
            if record.parent().is_none() {
                return Err(ImageError::Invalid(format!(
                    "image '{name}' is no clone: there is nothing to flatten"
                )));
            }
            let begun = ImageFlattening { bytes_per_second, done_bytes: 0, all_bytes: 0, moving: None };
            record.flattening.get_or_insert(begun).bytes_per_second = bytes_per_second;
            Ok(())
        });
        Ok(begun.await?.0)
    }

    /// Stops the copying by the writer of a clone. Copied blocks stay.
    pub async fn stop_flatten(&self, name: &str) -> Result<ImageRecord, ImageError> {
        let stopped = self.change(name, |record| {
            refuse_moving(record)?;
            match record.flattening.take() {
                Some(_) => Ok(()),
                None => Err(ImageError::Invalid(format!("image '{name}' is not being flattened"))),
            }
        });
        Ok(stopped.await?.0)
    }

    /// Notes progress: `done_bytes` of `all_bytes`.
    pub(crate) async fn note_flattened(
        &self,
        name: &str,
        image_id: &str,
        done_bytes: u64,
        all_bytes: u64,
    ) -> Result<(), ImageError> {
        let noted = self.change(name, |record| {
            if let Some(flattening) = record.flattening.as_mut().filter(|_| record.id == image_id) {
                (flattening.done_bytes, flattening.all_bytes) = (done_bytes, all_bytes);
            }
            Ok(())
        });
        noted.await.map(drop)
    }

    /// Ends the flattening of a clone that has copies of all its parent's blocks: it reads nothing from it any
    /// more. It needs the parent no more when none of its snapshots shows it. The clone must not have readers of
    /// the parent any more. False if it is not so: the image is another one by now, or is not to be flattened any
    /// more.
    pub(crate) async fn end_flatten(&self, name: &str, image_id: &str) -> Result<bool, ImageError> {
        let ended = self.change_clone(name, |record| {
            if record.id != image_id || record.flattening.is_none() {
                return Ok(());
            }
            let is_moving = record.moving().is_some();
            if let Some(states) = record.states.as_mut()
                && let Some(parent) = states.parent.as_mut()
            {
                parent.overlap_bytes = 0;
                if is_moving {
                    states.snapshots.iter_mut().for_each(|snapshot| snapshot.overlap_bytes = 0);
                    // What clients have kept before the states of snapshots were there is the state of none.
                    states.needs_trimming |= !states.snapshots.is_empty();
                }
            }
            // Of an image that was moved, what it was before is still to go.
            record.flattening.take_if(|flattening| flattening.moving.is_none());
            Ok(())
        });
        let record = ended.await?;
        let is_hidden = record.id == image_id && record.overlap_bytes() == 0;
        if is_hidden && record.moving().is_some() {
            self.retried(name, || self.remove_old_place(name, image_id)).await?;
        }
        Ok(is_hidden)
    }
}

/// Refuses operations that are not possible while an image is being moved.
pub(crate) fn refuse_moving(record: &ImageRecord) -> Result<(), ImageError> {
    match &record.flattening {
        Some(ImageFlattening { done_bytes, all_bytes, moving: Some(_), .. }) => Err(ImageError::Moving {
            name: record.name.clone(),
            percent: (done_bytes * 100).checked_div(*all_bytes).unwrap_or(0),
        }),
        _ => Ok(()),
    }
}
