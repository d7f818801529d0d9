//! Changes of all objects of an image without a writer: removing those beyond an end, and rolling them back.

use std::collections::BTreeMap;

use atoll_client::{PoolClient, visit_objects};
use atoll_types::{Condition, Mutation, ObjectName, PoolId};
use futures::{StreamExt, TryStreamExt, stream};

use crate::ImageError;
use crate::names::{Part, image_prefix, parse};

/// Changes of objects that run at once.
pub(crate) const CHANGES_IN_FLIGHT: usize = 32;

/// An image's objects by their numbers: whether there is the object itself, and the numbers for which states are
/// kept, lowest first.
pub(crate) type ObjectsByIndex = BTreeMap<u64, (bool, Vec<u64>)>;

/// Lists the objects of an image that `wanted` accepts.
pub(crate) async fn list_parts(
    client: &impl PoolClient,
    pool: PoolId,
    image_id: &str,
    wanted: impl Fn(&Part) -> bool,
) -> Result<ObjectsByIndex, ImageError> {
    let mut all = ObjectsByIndex::new();
    visit_objects::<ImageError>(client, pool, &image_prefix(image_id), false, async |objects| {
        for part in objects.iter().filter_map(|object| parse(image_id, &object.name)).filter(&wanted) {
            let (has_object, kept) = all.entry(part.index).or_default();
            match part.kept_for {
                Some(number) => kept.push(number),
                None => *has_object = true,
            }
        }
        Ok(())
    })
    .await?;
    all.values_mut().for_each(|(_, kept)| kept.sort_unstable());
    Ok(all)
}

/// Removes objects, some at a time. Those that are not there are no error. `done` is called after each.
pub(crate) async fn remove_objects(
    client: &impl PoolClient,
    pool: PoolId,
    objects: impl IntoIterator<Item = ObjectName>,
    fence: Option<&Condition>,
    mut done: impl FnMut(),
) -> Result<(), ImageError> {
    let removals = stream::iter(objects).map(|object| async move {
        let conditions = fence.cloned().into_iter().chain([Condition::ObjectExists]).collect();
        ignore_absent(client.change(pool, object, conditions, vec![Mutation::Remove]).await)
    });
    let mut removals = removals.buffer_unordered(CHANGES_IN_FLIGHT);
    while removals.try_next().await?.is_some() {
        done();
    }
    Ok(())
}

/// A change under the condition that the object exists: if it does not, there is nothing to do.
pub(crate) fn ignore_absent(result: Result<(), atoll_client::ClientError>) -> Result<(), ImageError> {
    match result {
        Err(error) if error.failed_condition().is_some() => Ok(()),
        other => other.map_err(ImageError::from),
    }
}
