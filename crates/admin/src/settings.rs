//! Settings of the whole cluster: flags, settings and the protection of frames.

use std::collections::BTreeSet;

use atoll_cluster::{ClusterClient, Transaction, keys};
use atoll_outgoing::{Chooser, Networks, Rules, Url};
use atoll_types::coordination::{
    BUSY_POLL_US_MAX, DEVICE_SILENCE_SECONDS_MAX, DEVICE_SILENCE_SECONDS_MIN, FULL_PERCENT_MAX, SettingsRecord,
};
use atoll_types::frames::{FrameMode, FrameScope, FramesRecord};
use atoll_types::operators::{
    API_TOKEN_DAYS_MAX, LoginSettingsRecord, OperatorRole, OperatorRoles, SESSION_SECONDS_MAX, SESSION_SECONDS_MIN,
};
use atoll_types::records::{ClusterFlag, FlagsRecord, OsdUpRecord, PeerRole, RECORD_FORMAT};
use atoll_types::transports::Transport;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{AdminError, retried};
use crate::{login_oidc, sessions};

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
    /// [`SettingsRecord::device_silence_seconds`].
    DeviceSilenceSeconds,
    /// [`SettingsRecord::trace_one_in`].
    TraceOneIn,
    /// [`SettingsRecord::secret_age_days_max`].
    SecretAgeDaysMax,
    /// [`SettingsRecord::etcd_quota_bytes`].
    EtcdQuotaBytes,
}

/// A setting of how operators log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginSetting {
    /// [`LoginSettingsRecord::session_idle_seconds`].
    SessionIdleSeconds,
    /// [`LoginSettingsRecord::session_seconds`].
    SessionSeconds,
    /// [`LoginSettingsRecord::api_token_days_max`].
    ApiTokenDaysMax,
}

/// All settings.
#[derive(Clone, Debug, Serialize)]
pub struct AllSettings {
    /// Those of one record.
    #[serde(flatten)]
    pub settings: SettingsRecord,
    /// Protection of frames among OSDs.
    pub frame_mode_cluster: FrameMode,
    /// That between OSDs and NBD servers, benches and the command line.
    pub frame_mode_client: FrameMode,
    /// That between OSDs and gateways.
    pub frame_mode_gateway: FrameMode,
    /// That of all over Unix sockets; as over networks if absent.
    pub frame_mode_unix: Option<FrameMode>,
    /// A connection that is so old gets its next key.
    pub frame_rekey_seconds: u64,
    /// Preferred transport of connections among OSDs.
    pub transport_cluster: Transport,
    /// Preferred transport of connections between OSDs and NBD servers, benches and the command line.
    pub transport_client: Transport,
    /// Preferred transport of connections between OSDs and gateways.
    pub transport_gateway: Transport,
    /// Idle seconds after which an operator's session ends.
    pub session_idle_seconds: u64,
    /// Seconds after which an operator's session ends.
    pub session_seconds: u64,
    /// Longest lifetime of a token for the admin API, in days.
    pub api_token_days_max: u64,
    /// Roles of operators who need a second factor, with commas between them.
    pub totp_required_roles: String,
    /// Operators log in to the console with passwords.
    pub local_login: bool,
}

/// Reads all settings.
pub async fn read(client: &ClusterClient) -> Result<AllSettings, AdminError> {
    let settings =
        client.get::<SettingsRecord>(keys::SETTINGS).await?.map(|(record, _)| record).unwrap_or_default();
    let frames = client.get::<FramesRecord>(keys::FRAMES).await?.map(|(record, _)| record).unwrap_or_default();
    let login = sessions::settings(client).await?;
    Ok(AllSettings {
        settings,
        frame_mode_cluster: frames.modes.cluster,
        frame_mode_client: frames.modes.client,
        frame_mode_gateway: frames.modes.gateway,
        frame_mode_unix: frames.modes.unix,
        frame_rekey_seconds: frames.rekey_seconds,
        transport_cluster: frames.transports.cluster,
        transport_client: frames.transports.client,
        transport_gateway: frames.transports.gateway,
        session_idle_seconds: login.session_idle_seconds,
        session_seconds: login.session_seconds,
        api_token_days_max: login.api_token_days_max,
        totp_required_roles: OperatorRoles::new(login.totp_required_roles)
            .map_or_else(String::new, |r| r.to_string()),
        local_login: login.local_login,
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
            "an OSD can be full with 50 to {FULL_PERCENT_MAX} % of its space in use, and not with {value}: \
             deletes and recovery need the rest"
        ));
    }
    if setting == Setting::BusyPollUs && value > u64::from(BUSY_POLL_US_MAX) {
        return AdminError::refused(format!(
            "OSDs look for work for 0 to {BUSY_POLL_US_MAX} us before they sleep"
        ));
    }
    let silence_seconds = DEVICE_SILENCE_SECONDS_MIN..=DEVICE_SILENCE_SECONDS_MAX;
    if setting == Setting::DeviceSilenceSeconds && !silence_seconds.contains(&value) {
        return AdminError::refused(format!(
            "an OSD may wait {DEVICE_SILENCE_SECONDS_MIN} to {DEVICE_SILENCE_SECONDS_MAX} s for its device, and not {value}"
        ));
    }
    if setting == Setting::BalanceSeconds && value == 0 {
        return AdminError::refused(
            "the balancer needs a pause of at least 1 s; 'atoll flag set norebalance' stops it",
        );
    }
    if setting == Setting::TraceOneIn && value > u64::from(u32::MAX) {
        return AdminError::refused(format!("one operation of {value} is as good as none: 0 traces none"));
    }
    if setting == Setting::EtcdQuotaBytes && value == 0 {
        return AdminError::refused(
            "give the quota in bytes as etcd has it in --quota-backend-bytes; its default is 2147483648",
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
            Setting::DeviceSilenceSeconds => record.device_silence_seconds = value,
            Setting::TraceOneIn => record.trace_one_in = value as u32,
            Setting::SecretAgeDaysMax => record.secret_age_days_max = u32::try_from(value).unwrap_or(u32::MAX),
            Setting::EtcdQuotaBytes => record.etcd_quota_bytes = value,
        }
    };
    change(client, keys::SETTINGS, edit).await
}

/// An address is no longer than this.
const ENDPOINT_BYTES_MAX: usize = 1_000;

/// Changes where traces are exported to; empty: nowhere.
pub async fn set_trace_endpoint(client: &ClusterClient, endpoint: &str) -> Result<SettingsRecord, AdminError> {
    check_endpoint(endpoint)?;
    check_reachable(endpoint, &read(client).await?.settings.outgoing_networks)?;
    let edit = |record: &mut SettingsRecord| {
        record.format = RECORD_FORMAT;
        endpoint.clone_into(&mut record.trace_endpoint);
    };
    change(client, keys::SETTINGS, edit).await
}

/// All see settings, so a password is none any more that is in one.
fn check_endpoint(endpoint: &str) -> Result<(), AdminError> {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let is_address = rest.is_some_and(|rest| {
        let has_host = rest.starts_with(|first: char| first.is_alphanumeric() || first == '[');
        has_host && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"@?#".contains(&byte))
    });
    if endpoint.is_empty() || (is_address && endpoint.len() <= ENDPOINT_BYTES_MAX) {
        return Ok(());
    }
    AdminError::refused(format!(
        "'{endpoint}' is no address of a collector: give one such as http://collector.example:4318, without a user, a \
         password and a query, or '' for none"
    ))
}

/// Where a call would be refused at once, the operator learns it now.
fn check_reachable(endpoint: &str, networks: &str) -> Result<(), AdminError> {
    let Ok(url) = Url::parse(endpoint) else { return Ok(()) };
    let rules = Rules { chooser: Chooser::Operator, named: parse_networks(networks)? };
    rules.check_url(&url).or_else(|refusal| AdminError::refused(refusal.to_string()))
}

fn parse_networks(text: &str) -> Result<Networks, AdminError> {
    text.parse().or_else(AdminError::refused)
}

/// Changes the networks into which calls go whose addresses these have chosen: accounts, or operators.
pub async fn set_outgoing_networks(
    client: &ClusterClient,
    chooser: Chooser,
    networks: &str,
) -> Result<SettingsRecord, AdminError> {
    let networks = parse_networks(networks)?.to_string();
    let edit = |record: &mut SettingsRecord| {
        record.format = RECORD_FORMAT;
        match chooser {
            Chooser::Account => networks.clone_into(&mut record.outgoing_networks_of_accounts),
            Chooser::Operator | Chooser::Host => networks.clone_into(&mut record.outgoing_networks),
        }
    };
    change(client, keys::SETTINGS, edit).await
}

/// Changes whether all slow operations are exported as traces.
pub async fn set_trace_slow(client: &ClusterClient, is_on: bool) -> Result<SettingsRecord, AdminError> {
    let edit = |record: &mut SettingsRecord| {
        record.format = RECORD_FORMAT;
        record.trace_slow = is_on;
    };
    change(client, keys::SETTINGS, edit).await
}

/// Changes whether changes of PGs need a signature. They do only when all OSDs sign theirs.
pub async fn set_pg_signatures_required(
    client: &ClusterClient,
    is_on: bool,
) -> Result<SettingsRecord, AdminError> {
    let up = client.list::<OsdUpRecord>(keys::OSD_UP).await?.entries;
    let old: Vec<String> =
        up.iter().filter(|(_, up, _)| !up.signs_changes).map(|(_, up, _)| up.id.to_string()).collect();
    if is_on && !old.is_empty() {
        return AdminError::refused(format!(
            "{} of an earlier release, which does not sign its changes of PGs: restart each with this release first",
            list_are(&old)
        ));
    }
    let edit = |record: &mut SettingsRecord| {
        record.format = RECORD_FORMAT;
        record.pg_signatures_required = is_on;
    };
    change(client, keys::SETTINGS, edit).await
}

fn list_are(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

/// Changes how long sessions of operators, or tokens, last.
pub async fn set_login(
    client: &ClusterClient,
    setting: LoginSetting,
    value: u64,
) -> Result<LoginSettingsRecord, AdminError> {
    if setting == LoginSetting::ApiTokenDaysMax {
        if !(1..=API_TOKEN_DAYS_MAX).contains(&value) {
            return AdminError::refused(format!("a token lasts 1 to {API_TOKEN_DAYS_MAX} days, and not {value}"));
        }
    } else if !(SESSION_SECONDS_MIN..=SESSION_SECONDS_MAX).contains(&value) {
        return AdminError::refused(format!(
            "a session lasts {SESSION_SECONDS_MIN} to {SESSION_SECONDS_MAX} s, and not {value}"
        ));
    }
    let edit = |record: &mut LoginSettingsRecord| match setting {
        LoginSetting::SessionIdleSeconds => record.session_idle_seconds = value,
        LoginSetting::SessionSeconds => record.session_seconds = value,
        LoginSetting::ApiTokenDaysMax => record.api_token_days_max = value,
    };
    change(client, keys::LOGIN_SETTINGS, edit).await
}

/// Changes which roles need a second factor: names with commas between them, or none.
pub async fn set_totp_required_roles(
    client: &ClusterClient,
    names: &str,
) -> Result<LoginSettingsRecord, AdminError> {
    let mut roles = BTreeSet::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match OperatorRole::find(name) {
            Some(role) => drop(roles.insert(role)),
            None => {
                return AdminError::refused(format!(
                    "'{name}' is no role of operators; give roles such as admin,security"
                ));
            }
        }
    }
    let edit = |record: &mut LoginSettingsRecord| record.totp_required_roles.clone_from(&roles);
    change(client, keys::LOGIN_SETTINGS, edit).await
}

/// Changes whether operators log in with passwords. Off only while people can log in by OpenID Connect.
pub async fn set_local_login(client: &ClusterClient, is_on: bool) -> Result<LoginSettingsRecord, AdminError> {
    let attempt = async || {
        let (before, revision) = sessions::settings_and_revision(client).await?;
        let after = LoginSettingsRecord { local_login: is_on, ..before };
        let mut transaction =
            Transaction::new().check(keys::LOGIN_SETTINGS, revision).put(keys::LOGIN_SETTINGS, &after)?;
        if !is_on {
            let Some((_, provider_revision)) = login_oidc::find(client).await? else {
                return AdminError::refused(
                    "no log-in to the console would be left: first name a provider of OpenID Connect with \
                     'atoll operator oidc set'",
                );
            };
            transaction = transaction.check(keys::LOGIN_OIDC, provider_revision);
        }
        client.transact(&transaction).await?;
        Ok(after)
    };
    retried(attempt).await
}

/// Changes how frames are protected on new connections.
pub async fn set_frame_mode(
    client: &ClusterClient,
    scope: FrameScope,
    mode: FrameMode,
) -> Result<FramesRecord, AdminError> {
    change(client, keys::FRAMES, |record: &mut FramesRecord| record.modes = record.modes.with(scope, mode)).await
}

/// Changes the preferred transport of new connections with keys of this role.
pub async fn set_transport(
    client: &ClusterClient,
    role: PeerRole,
    transport: Transport,
) -> Result<FramesRecord, AdminError> {
    let edit = |record: &mut FramesRecord| record.transports = record.transports.with(role, transport);
    change(client, keys::FRAMES, edit).await
}

/// Changes how old the key of a connection gets.
pub async fn set_rekey_seconds(client: &ClusterClient, seconds: u64) -> Result<FramesRecord, AdminError> {
    if seconds == 0 {
        return AdminError::refused("a connection's key is used for at least 1 s; the default is 3600");
    }
    change(client, keys::FRAMES, |record: &mut FramesRecord| record.rekey_seconds = seconds).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_is_never_called_is_refused_when_it_is_set() {
        for (endpoint, networks, is_fit) in [
            ("", "", true),
            ("https://collector.example:4318", "", true),
            ("http://collector.example:4318", "", false),
            ("http://collector.example:4318", "10.0.0.0/8", true),
            ("https://10.0.0.1:4318", "", false),
            ("http://10.0.0.1:4318", "10.0.0.0/8", true),
            ("http://169.254.169.254", "10.0.0.0/8", false),
        ] {
            assert_eq!(check_reachable(endpoint, networks).is_ok(), is_fit, "{endpoint} {networks}");
        }
    }

    #[test]
    fn endpoints_are_addresses_without_secrets() {
        for right in ["", "http://127.0.0.1:4318", "https://collector.example/otlp", "http://[::1]:4318"] {
            assert!(check_endpoint(right).is_ok(), "{right}");
        }
        let long = format!("http://{}", "a".repeat(ENDPOINT_BYTES_MAX));
        for wrong in [
            "collector:4318",
            "http://",
            "http://u:p@host",
            "http://host/?key=1",
            "ftp://host",
            "http://a b",
            &long,
        ] {
            assert!(check_endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
