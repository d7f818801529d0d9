//! Inputs of decisions.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::{ClusterClient, ClusterError, ClusterMap, MapWatch, StateSize, keys};
use atoll_types::OsdId;
use atoll_types::coordination::{AutoOutRecord, CoordinatorNotesRecord, CoordinatorRecord, SettingsRecord};
use atoll_types::records::{KeyBackupRecord, OsdEndsRecord, OsdFailureRecord, OsdUsageRecord};
use serde::de::DeserializeOwned;

/// The records as they were at some moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// OSDs, pools, PGs, flags.
    pub map: ClusterMap,
    /// OSDs' last reports about their devices.
    pub usage: BTreeMap<OsdId, OsdUsageRecord>,
    /// Settings of operators.
    pub settings: SettingsRecord,
    /// The current coordinator.
    pub coordinator: Option<CoordinatorRecord>,
    /// Notes of the coordinator.
    pub notes: CoordinatorNotesRecord,
    /// Revision of the notes, for compare-and-swap.
    pub notes_revision: i64,
    /// OSDs that the coordinator has marked out.
    pub auto_out: BTreeMap<OsdId, AutoOutRecord>,
    /// Why OSDs could not start.
    pub osd_failures: BTreeMap<OsdId, OsdFailureRecord>,
    /// How often OSDs ended by themselves, and why.
    pub osd_ends: BTreeMap<OsdId, OsdEndsRecord>,
    /// Hosts with a backup of their keys.
    pub key_backups: BTreeSet<String>,
    /// How large cluster state is, if it says so.
    pub state_size: Option<StateSize>,
}

impl View {
    /// Reads everything.
    pub async fn read(client: &ClusterClient) -> Result<View, ClusterError> {
        // What is wrong is said whether or not the key service answers.
        let client = &client.without_guard();
        let map = MapWatch::start(client).await?.map().clone();
        View::read_around(client, map).await
    }

    /// Reads the records outside of the map.
    pub(crate) async fn read_around(client: &ClusterClient, map: ClusterMap) -> Result<View, ClusterError> {
        let (notes, notes_revision) = client.get(keys::COORDINATOR_NOTES).await?.unwrap_or_default();
        Ok(View {
            // Settings that are refused do not stop a coordinator: it keeps to those before them.
            settings: map.settings.clone(),
            map,
            usage: by_osd(client, keys::OSD_USAGE).await?,
            coordinator: client.get(keys::COORDINATOR).await?.map(|(record, _)| record),
            notes,
            notes_revision,
            auto_out: by_osd(client, keys::AUTO_OUT).await?,
            osd_failures: by_osd(client, keys::OSD_FAILURES).await?,
            osd_ends: by_osd(client, keys::OSD_ENDS).await?,
            key_backups: key_backups(client).await?,
            state_size: state_size(client).await,
        })
    }
}

/// Some hosts may not be allowed to ask, and everything else is known without.
async fn state_size(client: &ClusterClient) -> Option<StateSize> {
    client.state_size().await.inspect_err(|error| tracing::debug!("{error}")).ok()
}

async fn key_backups(client: &ClusterClient) -> Result<BTreeSet<String>, ClusterError> {
    let found = client.list::<KeyBackupRecord>(keys::KEY_BACKUPS).await?.entries.into_iter();
    Ok(found.filter_map(|(key, ..)| key.strip_prefix(keys::KEY_BACKUPS).map(str::to_owned)).collect())
}

async fn by_osd<T: DeserializeOwned>(
    client: &ClusterClient,
    prefix: &str,
) -> Result<BTreeMap<OsdId, T>, ClusterError> {
    let entries = client.list(prefix).await?.entries.into_iter();
    Ok(entries.filter_map(|(key, record, _)| Some((keys::parse_osd(&key)?, record))).collect())
}
