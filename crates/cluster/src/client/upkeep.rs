//! Size of cluster state, and compacting its history.

use etcd_client::{AlarmAction, AlarmType};

use super::{ClusterClient, ClusterError, Repeat};

/// How large cluster state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSize {
    /// Its newest revision.
    pub revision: i64,
    /// Bytes that count for the quota: of an etcd the size of its file, with unused parts.
    pub bytes: u64,
    /// Most bytes that it takes; none if it does not report that, as an etcd before 3.6.
    pub quota_bytes: Option<u64>,
    /// It has had as much, and takes no writes until an operator lets it.
    pub is_out_of_quota: bool,
}

impl ClusterClient {
    /// Asks how large cluster state is, at the member of an etcd that answers.
    pub async fn state_size(&self) -> Result<StateSize, ClusterError> {
        let operation = "ask how large cluster state is";
        let status = |etcd: &etcd_client::Client| {
            let mut maintenance = etcd.maintenance_client();
            async move { maintenance.status().await }
        };
        let status = self.asked(operation, Repeat::Freely, status).await?;
        let alarms = |etcd: &etcd_client::Client| {
            let mut maintenance = etcd.maintenance_client();
            async move { maintenance.alarm(AlarmAction::Get, AlarmType::None, None).await }
        };
        let alarms = self.asked(operation, Repeat::Freely, alarms).await?;
        Ok(StateSize {
            revision: status.header().map_or(0, |header| header.revision()),
            bytes: u64::try_from(status.db_size()).unwrap_or(0),
            quota_bytes: u64::try_from(status.db_size_quota()).ok().filter(|bytes| *bytes > 0),
            is_out_of_quota: alarms.alarms().iter().any(|alarm| alarm.alarm() == AlarmType::Nospace),
        })
    }

    /// Compacts the history before this revision; a watch from before it starts over. An earlier compaction by
    /// another process is no error.
    pub async fn compact(&self, revision: i64) -> Result<(), ClusterError> {
        let compacted =
            self.call("compact cluster state", Repeat::Freely, |mut kv| async move {
                kv.compact(revision, None).await
            })
            .await;
        match compacted {
            Err(ClusterError::Refused { cause, .. }) if cause.contains("has been compacted") => Ok(()),
            compacted => compacted.map(drop),
        }
    }
}
