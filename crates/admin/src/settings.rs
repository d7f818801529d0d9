//! What holds for the whole cluster: flags, settings and the protection of frames.

use atoll_cluster::{ClusterClient, keys};
use atoll_types::coordination::{BUSY_POLL_US_MAX, FULL_PERCENT_MAX, SettingsRecord};
use atoll_types::frames::{FrameMode, FramesRecord};
use atoll_types::records::{ClusterFlag, FlagsRecord, PeerRole, RECORD_FORMAT};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{AdminError, retried};

/// A setting that operators may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`SettingsRecord::osd_down_out_seconds`].
    OsdDownOutSeconds,
    /// [`SettingsRecord::osds_in_percent_min`].
    OsdsInPercentMin,
    /// [`SettingsRecord::balance_seconds`].
    BalanceSeconds,
    /// [`SettingsRecord::near_full_percent`].
    NearFullPercent,
    /// [`SettingsRecord::full_percent`].
    FullPercent,
    /// [`SettingsRecord::busy_poll_us`].
    BusyPollUs,
}

/// All settings.
#[derive(Clone, Debug, Serialize)]
pub struct AllSettings {
    /// Numbers.
    #[serde(flatten)]
    pub settings: SettingsRecord,
    /// Protection of frames among OSDs.
    pub frame_mode_cluster: FrameMode,
    /// That between OSDs and NBD servers, benches and the command line.
    pub frame_mode_client: FrameMode,
    /// That between OSDs and gateways.
    pub frame_mode_gateway: FrameMode,
    /// A connection that is so old gets its next key.
    pub frame_rekey_seconds: u64,
}

/// Reads all settings.
pub async fn read(client: &ClusterClient) -> Result<AllSettings, AdminError> {
    let settings =
        client.get::<SettingsRecord>(keys::SETTINGS).await?.map(|(record, _)| record).unwrap_or_default();
    let frames = client.get::<FramesRecord>(keys::FRAMES).await?.map(|(record, _)| record).unwrap_or_default();
    Ok(AllSettings {
        settings,
        frame_mode_cluster: frames.modes.cluster,
        frame_mode_client: frames.modes.client,
        frame_mode_gateway: frames.modes.gateway,
        frame_rekey_seconds: frames.rekey_seconds,
    })
}

/// Reads the flags that are set.
pub async fn flags(client: &ClusterClient) -> Result<FlagsRecord, AdminError> {
    Ok(client.get::<FlagsRecord>(keys::FLAGS).await?.map(|(record, _)| record).unwrap_or_default())
}

async fn change<T: Serialize + DeserializeOwned + Default>(
    client: &ClusterClient,
    key: &str,
    edit: impl Fn(&mut T),
) -> Result<T, AdminError> {
    let attempt = async || {
        let (mut record, revision) = client.get::<T>(key).await?.unwrap_or_default();
        edit(&mut record);
        client.compare_and_swap(key, revision, &record).await?;
        Ok(record)
    };
    retried(attempt).await
}

/// Sets or unsets flags. One that is set already keeps its time.
pub async fn set_flags(
    client: &ClusterClient,
    flags: &[ClusterFlag],
    is_set: bool,
    now_unix_ms: u64,
) -> Result<FlagsRecord, AdminError> {
    let edit = |record: &mut FlagsRecord| {
        record.format = RECORD_FORMAT;
        for flag in flags {
            if is_set {
                record.flags.entry(*flag).or_insert(now_unix_ms);
            } else {
                record.flags.remove(flag);
            }
        }
    };
    change(client, keys::FLAGS, edit).await
}

/// Changes a setting.
pub async fn set(client: &ClusterClient, setting: Setting, value: u64) -> Result<SettingsRecord, AdminError> {
    let is_percent = matches!(setting, Setting::OsdsInPercentMin | Setting::NearFullPercent);
    if is_percent && value > 100 {
        return AdminError::refused(format!("{value} is not a percentage: choose 0 to 100"));
    }
    if setting == Setting::FullPercent && !(50..=u64::from(FULL_PERCENT_MAX)).contains(&value) {
        return AdminError::refused(format!(
            "an OSD can be full with 50 to {FULL_PERCENT_MAX} % of its space in use, and not with {value}: the rest is what \
             deletes and recovery need"
        ));
    }
    if setting == Setting::BusyPollUs && value > u64::from(BUSY_POLL_US_MAX) {
        return AdminError::refused(format!(
            "OSDs look for work for 0 to {BUSY_POLL_US_MAX} us before they sleep"
        ));
    }
    if setting == Setting::BalanceSeconds && value == 0 {
        return AdminError::refused(
            "the balancer needs a pause of at least 1 s; 'atoll flag set norebalance' stops it",
        );
    }
    let percent = value.min(100) as u32;
    let edit = |record: &mut SettingsRecord| {
        record.format = RECORD_FORMAT;
        match setting {
            Setting::OsdDownOutSeconds => record.osd_down_out_seconds = value,
            Setting::OsdsInPercentMin => record.osds_in_percent_min = percent,
            Setting::BalanceSeconds => record.balance_seconds = value,
            Setting::NearFullPercent => record.near_full_percent = percent,
            Setting::FullPercent => record.full_percent = percent,
            Setting::BusyPollUs => record.busy_poll_us = value.min(u64::from(BUSY_POLL_US_MAX)) as u32,
        }
    };
    change(client, keys::SETTINGS, edit).await
}

/// Changes how frames are protected on new connections of keys of this role.
pub async fn set_frame_mode(
    client: &ClusterClient,
    role: PeerRole,
    mode: FrameMode,
) -> Result<FramesRecord, AdminError> {
    change(client, keys::FRAMES, |record: &mut FramesRecord| record.modes = record.modes.with(role, mode)).await
}

/// Changes how old the key of a connection gets.
pub async fn set_rekey_seconds(client: &ClusterClient, seconds: u64) -> Result<FramesRecord, AdminError> {
    if seconds == 0 {
        return AdminError::refused("a connection's key is used for at least 1 s; the default is 3600");
    }
    change(client, keys::FRAMES, |record: &mut FramesRecord| record.rekey_seconds = seconds).await
}
