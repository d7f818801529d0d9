//! Why OSDs ended by themselves. An OSD that ends so is started again, which would hide the reason: it writes the
//! reason beside its device, and cluster state gets it at once, or at the next start.

use atoll_coordinator::unix_ms;
use atoll_files::Access;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use atoll_cluster::{ClusterClient, keys};
use atoll_types::OsdId;
use atoll_types::records::{OsdEndsRecord, RECORD_FORMAT};

use crate::data_dir::DataDir;
use crate::error::NodeError;

/// Longest reported reason, in bytes.
const REASON_BYTES_MAX: usize = 500;

impl DataDir {
    fn ends_file(&self, osd: OsdId) -> PathBuf {
        self.osd(osd).join("ends")
    }
}

/// Writes down that an OSD ends now, and why. It may be called by a process that panics.
pub fn note_end(directory: &DataDir, id: OsdId, reason: &str) -> Result<(), NodeError> {
    let path = directory.ends_file(id);
    let words: Vec<&str> = reason.split_whitespace().collect();
    let line = format!("{} {}\n", unix_ms(), words.join(" "));
    let append = || atoll_files::append(&path, Access::Owner)?.write_all(line.as_bytes());
    append().map_err(NodeError::file(path.clone()))
}

/// Reports the reasons written since the last time to cluster state, and removes them here. Ends with another
/// store count for nothing: it is gone with its device.
pub async fn tell_ends(
    directory: &DataDir,
    state: &ClusterClient,
    id: OsdId,
    store_id: [u8; 16],
) -> Result<(), NodeError> {
    let path = directory.ends_file(id);
    let key = keys::osd_ends(id);
    let before = state.get::<OsdEndsRecord>(&key).await?.map(|(record, _)| record);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(NodeError::file(path.clone()))?,
    };
    match after(before.clone(), &text, &hex::encode(store_id)) {
        Some(record) if Some(&record) != before.as_ref() => drop(state.put(&key, &record).await?),
        None if before.is_some() => drop(state.delete(&key).await?),
        _ => {}
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(NodeError::file(path)),
    }
}

/// Returns the record extended by the content of a file.
fn after(before: Option<OsdEndsRecord>, text: &str, store_id: &str) -> Option<OsdEndsRecord> {
    let mut record = before.filter(|record| record.store_id == store_id);
    for line in text.lines() {
        let Some((unix_ms, reason)) = line.split_once(' ') else { continue };
        let Ok(last_unix_ms) = unix_ms.parse() else { continue };
        let is_long_ago = |record: &OsdEndsRecord| !record.is_recent(last_unix_ms);
        let count = record.filter(|record| !is_long_ago(record)).map_or(0, |record| record.count);
        let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end));
        record = Some(OsdEndsRecord {
            format: RECORD_FORMAT,
            store_id: store_id.into(),
            count: count.saturating_add(1),
            reason: reason[..end.unwrap_or(0)].into(),
            last_unix_ms,
        });
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    fn told(before: Option<OsdEndsRecord>, text: &str) -> (u32, String) {
        let record = after(before, text, "a").expect("something was told");
        (record.count, record.reason)
    }

    #[test]
    fn ends_are_counted_until_a_day_passes_without_one() {
        let once = after(None, "5 the device is silent\n", "a").unwrap();
        assert_eq!((once.count, once.last_unix_ms), (1, 5));
        let text = "6 page 7 is damaged\n7 page 8 is damaged\n";
        assert_eq!(told(Some(once.clone()), text), (3, "page 8 is damaged".into()));
        assert_eq!(told(Some(once.clone()), &format!("{} again\n", 6 + DAY_MS)), (1, "again".into()));
        assert_eq!(after(Some(once.clone()), "", "a"), Some(once.clone()));
        assert_eq!(after(Some(once), "", "b"), None, "with its device they are gone");
    }

    #[test]
    fn a_file_that_was_cut_tells_what_it_can() {
        assert_eq!(told(None, "5 first\nxx\n\n6"), (1, "first".into()));
    }
}
