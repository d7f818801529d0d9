//! Buckets that a request has seen, and its changes of them. A name can be another bucket's while the body of a
//! request is still on its way: the rights that were asked for the first bucket count for no other.

use atoll_types::records::BucketRecord;

use crate::audit::AuditedSetting;

/// Buckets of one request.
#[derive(Default)]
pub(crate) struct Seen {
    /// Names and ids.
    buckets: Vec<(String, String)>,
    pub changes: Vec<AuditedSetting>,
}

impl Seen {
    /// Notes that a request sees a bucket; returns false if it has seen another one of the same name.
    pub fn is_same(&mut self, record: &BucketRecord) -> bool {
        match self.buckets.iter().find(|(name, _)| *name == record.name) {
            Some((_, id)) => *id == record.id,
            None => {
                self.buckets.push((record.name.clone(), record.id.clone()));
                true
            }
        }
    }
}
