//! Changing the size of an image.

use atoll_client::PoolClient;
use atoll_types::Mutation;
use atoll_types::records::{ImageRecord, ImageWork};
use atoll_types::size::format_size;
use futures::{StreamExt, TryStreamExt, stream};

use crate::ImageError;
use crate::admin::{ImageAdmin, check_size};
use crate::flattening::refuse_moving;
use crate::keeping::keep_state;
use crate::lock::{Fenced, not_fenced};
use crate::names::object_name;
use crate::objects::{CHANGES_IN_FLIGHT, ignore_absent, list_parts, remove_objects};

impl ImageAdmin {
    /// Changes the size. Growing is always possible, and a writer sees it. Shrinking needs `allow_shrink`,
    /// removes the data beyond the new end, and is refused while a writer holds the image. If it is interrupted
    /// it must be done again.
    pub async fn resize(
        &self,
        client: &impl PoolClient,
        name: &str,
        size_bytes: u64,
        allow_shrink: bool,
    ) -> Result<ImageRecord, ImageError> {
        check_size(size_bytes)?;
        let (old, _) = self.get(name).await?;
        let shrinks_on = matches!(old.work, Some(ImageWork::Shrink { .. }));
        if size_bytes < old.size_bytes && !allow_shrink {
            return Err(ImageError::Invalid(format!(
                "image '{name}' has {}; making it smaller destroys data and needs --allow-shrink",
                format_size(old.size_bytes)
            )));
        }
        if size_bytes < old.size_bytes || shrinks_on {
            return self.shrink(client, name, size_bytes).await;
        }
        let grown = self.change(name, |record| {
            refuse_unfinished(record)?;
            record.size_bytes = record.size_bytes.max(size_bytes);
            Ok(())
        });
        Ok(grown.await?.0)
    }

    async fn shrink(
        &self,
        client: &impl PoolClient,
        name: &str,
        size_bytes: u64,
    ) -> Result<ImageRecord, ImageError> {
        let held = Fenced::take(self, client, name, "shrinking").await?;
        let shrunk = shrink_held(client, &held, size_bytes).await;
        held.release().await?;
        shrunk
    }
}

async fn shrink_held(client: &impl PoolClient, held: &Fenced, size_bytes: u64) -> Result<ImageRecord, ImageError> {
    let begun = held.change(|record| {
        refuse_moving(record)?;
        if !matches!(record.work, None | Some(ImageWork::Shrink { .. })) {
            return refuse_unfinished(record);
        }
        // What an interrupted one has removed is gone, and must not be shown as if it were zeros.
        let lowest = match record.work {
            Some(ImageWork::Shrink { size_bytes: before }) => before.min(size_bytes),
            _ => size_bytes,
        };
        record.work = Some(ImageWork::Shrink { size_bytes: lowest });
        Ok(())
    });
    let record = begun.await?;
    let Some(ImageWork::Shrink { size_bytes: end }) = record.work else { unreachable!("it was set") };
    discard_beyond(client, &record, end).await?;
    let ended = held.change(|record| {
        record.work = None;
        record.size_bytes = size_bytes;
        if let Some(parent) = record.states.as_mut().and_then(|states| states.parent.as_mut()) {
            parent.overlap_bytes = parent.overlap_bytes.min(end);
        }
        Ok(())
    });
    ended.await
}

/// Refuses operations that are not possible before interrupted work is done.
pub(crate) fn refuse_unfinished(record: &ImageRecord) -> Result<(), ImageError> {
    let (work, remedy) = match &record.work {
        None if record.is_unsettled() => {
            ("moving", "whoever writes to it has not gone over to the new place yet; try again".into())
        }
        None => return Ok(()),
        Some(ImageWork::Fill { source, done_bytes }) => (
            "filling",
            format!(
                "{} are done, from {source}. If the command is gone, give it again with --resume, or remove the \
                 image: 'atoll image rm {}'",
                format_size(*done_bytes),
                record.name
            ),
        ),
        Some(ImageWork::Shrink { size_bytes }) => (
            "shrinking",
            format!("finish it: 'atoll image resize {} --size {size_bytes} --allow-shrink'", record.name),
        ),
        Some(ImageWork::RollBack { number }) => {
            let snapshot = record.snapshots().iter().find(|snapshot| snapshot.number == *number);
            let snapshot = snapshot.map_or("SNAPSHOT", |snapshot| &snapshot.name);
            ("rolling back", format!("finish it: 'atoll image snap rollback {}@{snapshot}'", record.name))
        }
        Some(ImageWork::GoBack { name }) => (
            "going back from",
            format!(
                "it goes by itself when all its data is in image '{name}'; 'atoll image migrate {name} --cancel' waits for that"
            ),
        ),
    };
    Err(ImageError::Unfinished { name: record.name.clone(), work, remedy })
}

/// Removes the data from `end` on. States that snapshots need are kept.
pub(crate) async fn discard_beyond(
    client: &impl PoolClient,
    record: &ImageRecord,
    end: u64,
) -> Result<(), ImageError> {
    let first_whole = end.div_ceil(record.object_bytes);
    let first_touched = end / record.object_bytes;
    let fence = not_fenced(record);
    let parts = list_parts(client, record.pool, &record.id, |part| part.index >= first_touched).await?;
    if let Some(number) = record.kept_number() {
        let keep = |index: u64| keep_state(client, record.pool, &record.id, index, number, Some(&fence));
        let touched = parts.iter().filter(|(_, (has_object, _))| *has_object).map(|(index, _)| *index);
        stream::iter(touched).map(keep).buffer_unordered(CHANGES_IN_FLIGHT).try_collect::<()>().await?;
    }
    let boundary = end % record.object_bytes;
    if boundary != 0 {
        let zero = Mutation::Zero { offset: boundary, length: record.object_bytes - boundary };
        let object = object_name(&record.id, first_touched);
        let conditions = vec![fence.clone(), atoll_types::Condition::ObjectExists];
        ignore_absent(client.change(record.pool, object, conditions, vec![zero]).await)?;
    }
    let whole =
        parts.into_keys().filter(|index| *index >= first_whole).map(|index| object_name(&record.id, index));
    remove_objects(client, record.pool, whole, Some(&fence), || {}).await
}
