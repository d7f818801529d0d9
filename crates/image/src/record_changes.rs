//! The records of all images, as they change.

use std::time::Duration;

use atoll_cluster::{PrefixWatch, WatchEvent, keys};
use atoll_types::record_json::read_record;
use atoll_types::records::ImageRecord;

use crate::admin::ImageAdmin;

/// Time after which cluster state is asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Follows the records of images. Those that cannot be read or verified are left out.
pub struct ImageRecords {
    admin: ImageAdmin,
    /// Absent until all records have been read once.
    watch: Option<PrefixWatch>,
}

impl ImageAdmin {
    /// Follows the records of all images.
    pub fn follow_records(&self) -> ImageRecords {
        ImageRecords { admin: self.clone(), watch: None }
    }
}

impl ImageRecords {
    /// Returns records that were written since the last call; the first call returns all that there are. `None` when
    /// the runtime shuts down. Must be called within a tokio runtime.
    pub async fn next(&mut self) -> Option<Vec<ImageRecord>> {
        let Some(watch) = &mut self.watch else { return Some(self.begin().await) };
        loop {
            let values = match watch.next().await? {
                WatchEvent::Put { value, .. } => vec![value],
                WatchEvent::Resync { entries, .. } => entries.into_iter().map(|(_, value, _)| value).collect(),
                WatchEvent::Delete { .. } => continue,
            };
            return Some(values.iter().filter_map(|value| read_record(value).ok()).collect());
        }
    }

    async fn begin(&mut self) -> Vec<ImageRecord> {
        loop {
            match self.admin.cluster.list_usable::<ImageRecord>(keys::IMAGES).await {
                Ok(listing) => {
                    self.watch = Some(self.admin.cluster.watch_prefix(keys::IMAGES, listing.revision + 1));
                    return listing.entries.into_iter().map(|(_, record, _)| record).collect();
                }
                Err(error) => tracing::debug!("cannot follow the records of images: {error}"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}
