//! Settings of the whole cluster.

use anyhow::Context;
use atoll_admin::settings::{self, AllSettings, LoginSetting, Setting};
use atoll_cluster::ClusterClient;
use atoll_outgoing::Chooser;
use atoll_terminal::print_note;
use atoll_types::coordination::FULL_PERCENT_DEFAULT;
use atoll_types::frames::FrameScope;
use atoll_types::records::PeerRole;
use clap::{Subcommand, ValueEnum};

use super::arguments::OutputArguments;
use super::open_cluster::connected;
use super::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum SettingsCommand {
    /// List settings of the whole cluster
    Ls(OutputArguments),
    /// Change a setting
    #[command(after_help = "\
Examples:
  atoll settings set osd_down_out_seconds 1800
  atoll settings set frame_mode_client secure-128
  atoll settings set trace_endpoint https://collector.example:4318
  atoll settings set trace_endpoint ''                               no traces
  atoll settings set outgoing_networks 10.1.0.0/16,127.0.0.1         collectors and login servers may be there

Frame modes, transports and the age of keys are for new connections and new keys: 'atoll status' says how many
connections are still in another mode, and how many there are over each transport. Restart gateways, NBD servers, NVMe
targets and, one after the other, OSDs to have all of them changed.")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// Setting to change
        setting: SettingArgument,
        /// The new value: a number, a frame mode, a transport, an address, networks, or true or false
        value: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum SettingArgument {
    /// Mark an OSD out after it was down for this many seconds; 0: never
    OsdDownOutSeconds,
    /// Mark no OSD out automatically if less than this share of them would be left in
    OsdsInPercentMin,
    /// Pause between two rounds of the balancer, in seconds
    BalanceSeconds,
    /// An OSD with more of its space in use is near full
    NearFullPercent,
    /// Percentage of used space, 50 to 97, above which an OSD takes no new data: raise it for a while to reach
    /// data for deletion
    FullPercent,
    /// Microseconds, 0 to 1000, that an OSD polls before it sleeps: lowers latencies at depth 1 on hosts with
    /// spare cores
    BusyPollUs,
    /// End an OSD whose device completed nothing for 2 to 600 seconds, so that its PGs fail over
    DeviceSilenceSeconds,
    /// Export traces to this collector of OpenTelemetry, which takes OTLP over HTTP: http://HOST:PORT or https://...;
    /// '': to none
    TraceEndpoint,
    /// Trace one of N operations; 0: none
    TraceOneIn,
    /// Also trace all operations that take 100 ms or more: true or false
    TraceSlow,
    /// Quota of an etcd before 3.6, which does not report its own, in bytes: as its --quota-backend-bytes
    EtcdQuotaBytes,
    /// Networks that are not public and that calls to addresses set by operators may reach, also without TLS;
    /// separated by commas: 10.1.0.0/16,127.0.0.1; '': none
    OutgoingNetworks,
    /// The same for addresses that accounts have set, such as issuers of tokens; over TLS, but for loopback
    OutgoingNetworksOfAccounts,
    /// Age in days after which 'atoll health' reports secrets; 0: none
    SecretAgeDaysMax,
    /// Let changes of PGs count only with the signature of a member, or of a host that decides: true or false
    PgSignaturesRequired,
    /// Protection of frames among OSDs: secure, secure-128 or crc
    FrameModeCluster,
    /// The same between OSDs and NBD servers, benches and the command line
    FrameModeClient,
    /// The same between OSDs and gateways
    FrameModeGateway,
    /// The same within a host, over Unix sockets and shared memory, for either side of the connection
    FrameModeUnix,
    /// Age at which a connection gets its next key, in seconds
    FrameRekeySeconds,
    /// Preferred transport among OSDs: shm (shared memory within a host, TCP to others), unix (Unix sockets within
    /// a host), tcp, or rdma (RDMA to OSDs that have an --rdma-provider, TCP to others)
    TransportCluster,
    /// The same for NBD servers, benches and the command line
    TransportClient,
    /// The same for gateways
    TransportGateway,
    /// End sessions of operators that are idle for this many seconds, 60 to 604800
    SessionIdleSeconds,
    /// End sessions of operators after this many seconds, 60 to 604800
    SessionSeconds,
    /// Longest time that a token for the admin API lasts, in days, 1 to 366
    ApiTokenDaysMax,
    /// Roles of operators who need a second factor, with commas between them; '': none
    TotpRequiredRoles,
    /// Let operators log in to the console with passwords: true or false, which needs 'atoll operator oidc set'
    LocalLogin,
}

/// The kind of a setting.
enum SettingKind {
    Number(Setting),
    TraceEndpoint,
    TraceSlow,
    OutgoingNetworks(Chooser),
    PgSignaturesRequired,
    FrameMode(FrameScope),
    RekeySeconds,
    Transport(PeerRole),
    Login(LoginSetting),
    TotpRequiredRoles,
    LocalLogin,
}

impl SettingArgument {
    fn kind(self) -> SettingKind {
        match self {
            SettingArgument::OsdDownOutSeconds => SettingKind::Number(Setting::OsdDownOutSeconds),
            SettingArgument::OsdsInPercentMin => SettingKind::Number(Setting::OsdsInPercentMin),
            SettingArgument::BalanceSeconds => SettingKind::Number(Setting::BalanceSeconds),
            SettingArgument::NearFullPercent => SettingKind::Number(Setting::NearFullPercent),
            SettingArgument::FullPercent => SettingKind::Number(Setting::FullPercent),
            SettingArgument::BusyPollUs => SettingKind::Number(Setting::BusyPollUs),
            SettingArgument::DeviceSilenceSeconds => SettingKind::Number(Setting::DeviceSilenceSeconds),
            SettingArgument::TraceEndpoint => SettingKind::TraceEndpoint,
            SettingArgument::TraceOneIn => SettingKind::Number(Setting::TraceOneIn),
            SettingArgument::TraceSlow => SettingKind::TraceSlow,
            SettingArgument::EtcdQuotaBytes => SettingKind::Number(Setting::EtcdQuotaBytes),
            SettingArgument::OutgoingNetworks => SettingKind::OutgoingNetworks(Chooser::Operator),
            SettingArgument::OutgoingNetworksOfAccounts => SettingKind::OutgoingNetworks(Chooser::Account),
            SettingArgument::SecretAgeDaysMax => SettingKind::Number(Setting::SecretAgeDaysMax),
            SettingArgument::PgSignaturesRequired => SettingKind::PgSignaturesRequired,
            SettingArgument::FrameModeCluster => SettingKind::FrameMode(FrameScope::Role(PeerRole::Osd)),
            SettingArgument::FrameModeClient => SettingKind::FrameMode(FrameScope::Role(PeerRole::Client)),
            SettingArgument::FrameModeGateway => SettingKind::FrameMode(FrameScope::Role(PeerRole::Gateway)),
            SettingArgument::FrameModeUnix => SettingKind::FrameMode(FrameScope::Unix),
            SettingArgument::FrameRekeySeconds => SettingKind::RekeySeconds,
            SettingArgument::TransportCluster => SettingKind::Transport(PeerRole::Osd),
            SettingArgument::TransportClient => SettingKind::Transport(PeerRole::Client),
            SettingArgument::TransportGateway => SettingKind::Transport(PeerRole::Gateway),
            SettingArgument::SessionIdleSeconds => SettingKind::Login(LoginSetting::SessionIdleSeconds),
            SettingArgument::SessionSeconds => SettingKind::Login(LoginSetting::SessionSeconds),
            SettingArgument::TotpRequiredRoles => SettingKind::TotpRequiredRoles,
            SettingArgument::LocalLogin => SettingKind::LocalLogin,
            SettingArgument::ApiTokenDaysMax => SettingKind::Login(LoginSetting::ApiTokenDaysMax),
        }
    }
}

/// Runs a command about settings.
pub fn run(command: &SettingsCommand) -> anyhow::Result<()> {
    match command {
        SettingsCommand::Ls(output) => {
            print_settings(output, &connected(output, async |_, state| Ok(settings::read(&state).await?))?)
        }
        SettingsCommand::Set { output, setting, value } => {
            let all = connected(output, async |_, state| {
                change_setting(&state, setting.kind(), value).await?;
                Ok(settings::read(&state).await?)
            })?;
            if matches!(setting.kind(), SettingKind::FrameMode(_) | SettingKind::Transport(_)) {
                print_note!(
                    "new connections use it; those that are there stay as they are until they end ('atoll status' counts \
                     them, 'atoll settings set --help' says how to end them)"
                );
            }
            if all.settings.full_percent > FULL_PERCENT_DEFAULT {
                print_note!(
                    "atoll: WARNING: full_percent is above {FULL_PERCENT_DEFAULT}: the remaining space may not \
                     suffice to recover from the loss of an OSD. Delete data or add OSDs, and set it back"
                );
            }
            print_settings(output, &all)
        }
    }
}

async fn change_setting(state: &ClusterClient, kind: SettingKind, value: &str) -> anyhow::Result<()> {
    let number = || value.parse::<u64>().with_context(|| format!("'{value}' is not a number from 0 on"));
    let is_true = || value.parse::<bool>().with_context(|| format!("'{value}' is neither true nor false"));
    match kind {
        SettingKind::Number(setting) => {
            settings::set(state, setting, number()?).await?;
        }
        SettingKind::TraceEndpoint => {
            settings::set_trace_endpoint(state, value).await?;
        }
        SettingKind::TraceSlow => {
            settings::set_trace_slow(state, is_true()?).await?;
        }
        SettingKind::OutgoingNetworks(chooser) => {
            settings::set_outgoing_networks(state, chooser, value).await?;
        }
        SettingKind::PgSignaturesRequired => {
            settings::set_pg_signatures_required(state, is_true()?).await?;
        }
        SettingKind::RekeySeconds => {
            settings::set_rekey_seconds(state, number()?).await?;
        }
        SettingKind::TotpRequiredRoles => {
            settings::set_totp_required_roles(state, value).await?;
        }
        SettingKind::LocalLogin => {
            settings::set_local_login(state, is_true()?).await?;
        }
        SettingKind::Login(setting) => {
            settings::set_login(state, setting, number()?).await?;
        }
        SettingKind::FrameMode(scope) => {
            settings::set_frame_mode(state, scope, value.parse().map_err(anyhow::Error::msg)?).await?;
        }
        SettingKind::Transport(role) => {
            settings::set_transport(state, role, value.parse().map_err(anyhow::Error::msg)?).await?;
        }
    }
    Ok(())
}

fn print_settings(output: &OutputArguments, all: &AllSettings) -> anyhow::Result<()> {
    if output.json {
        return print_json(all);
    }
    let settings = &all.settings;
    let unix_mode = all.frame_mode_unix.map(|mode| mode.to_string()).unwrap_or_default();
    let row = |name: &str, value: &dyn std::fmt::Display, meaning: &str| {
        vec![name.to_owned(), value.to_string(), meaning.to_owned()]
    };
    let rows = [
        row(
            "osd_down_out_seconds",
            &settings.osd_down_out_seconds,
            "seconds after which a down OSD is marked out; 0: never",
        ),
        row("osds_in_percent_min", &settings.osds_in_percent_min, "no OSD is marked out if fewer would be in"),
        row("balance_seconds", &settings.balance_seconds, "pause between two rounds of the balancer"),
        row("near_full_percent", &settings.near_full_percent, "an OSD with more in use is near full"),
        row("full_percent", &settings.full_percent, "an OSD with more in use takes no new data"),
        row("busy_poll_us", &settings.busy_poll_us, "microseconds an OSD polls before it sleeps; 0: none"),
        row(
            "device_silence_seconds",
            &settings.device_silence_seconds,
            "seconds without a completion after which an OSD ends",
        ),
        row("trace_endpoint", &settings.trace_endpoint, "the collector that traces go to; empty: none"),
        row("trace_one_in", &settings.trace_one_in, "one of this many operations is traced; 0: none"),
        row("trace_slow", &settings.trace_slow, "also trace operations that take 100 ms or more"),
        row("etcd_quota_bytes", &settings.etcd_quota_bytes, "quota of an etcd that does not report its own"),
        row("outgoing_networks", &settings.outgoing_networks, "not public, and called all the same for operators"),
        row("outgoing_networks_of_accounts", &settings.outgoing_networks_of_accounts, "the same for accounts"),
        row(
            "secret_age_days_max",
            &settings.secret_age_days_max,
            "health reports older secrets, in days; 0: none",
        ),
        row(
            "pg_signatures_required",
            &settings.pg_signatures_required,
            "changes of PGs count with a member's signature only",
        ),
        row("frame_mode_cluster", &all.frame_mode_cluster, "new connections among OSDs"),
        row("frame_mode_client", &all.frame_mode_client, "those of NBD servers, benches and the command line"),
        row("frame_mode_gateway", &all.frame_mode_gateway, "those of gateways"),
        row("frame_mode_unix", &unix_mode, "all of them within a host; empty: as over networks"),
        row("frame_rekey_seconds", &all.frame_rekey_seconds, "a connection so old gets its next key"),
        row("transport_cluster", &all.transport_cluster, "preferred transport of new connections among OSDs"),
        row("transport_client", &all.transport_client, "the same of NBD servers, benches and the command line"),
        row("transport_gateway", &all.transport_gateway, "the same of gateways"),
        row(
            "session_idle_seconds",
            &all.session_idle_seconds,
            "idle seconds after which an operator's session \
            ends",
        ),
        row("session_seconds", &all.session_seconds, "seconds after which an operator's session ends"),
        row(
            "api_token_days_max",
            &all.api_token_days_max,
            "longest lifetime of a token for the admin API, in \
            days",
        ),
        row("totp_required_roles", &all.totp_required_roles, "operators with these roles need a second factor"),
        row("local_login", &all.local_login, "operators log in with passwords"),
    ];
    print_table(&["SETTING", "VALUE", "MEANING"], &rows);
    Ok(())
}
