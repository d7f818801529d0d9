//! The part of the command line that is about several hosts and a real etcd.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use atoll_base::join::HostRole;
use clap::{Args, Subcommand, ValueEnum};

use super::{DataArgument, OutputArguments};

/// A real etcd.
#[derive(Args, Clone)]
pub struct EtcdArguments {
    /// Use this etcd for cluster state instead of the embedded server: http://HOST:PORT or
    /// https://HOST:PORT of each member
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// The certificate authority of an https etcd (PEM)
    #[arg(long, value_name = "PATH")]
    pub etcd_ca: Option<PathBuf>,
    /// This host's client certificate for an etcd that wants one (PEM)
    #[arg(long, value_name = "PATH", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// The private key of the client certificate (PEM)
    #[arg(long, value_name = "PATH", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// The etcd's user, if it has authentication enabled
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// The file with the user's password
    #[arg(long, value_name = "PATH", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

/// This host's place in the cluster.
#[derive(Args, Clone)]
pub struct HostArguments {
    /// This host's name in the failure-domain tree [default: the system's host name; fixed at the first start]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// The rack it is in [fixed at the first start]
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,
    /// The zone it is in [fixed at the first start]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// The address of this host at which OSDs, and the embedded cluster-state server, listen for other
    /// hosts [default: 127.0.0.1, for this host only]
    #[arg(long, value_name = "IP")]
    pub listen: Option<IpAddr>,
    /// The address by which other hosts reach this one, if it is not the one of --listen
    #[arg(long, value_name = "IP")]
    pub advertise: Option<IpAddr>,
    /// The key file of the cluster to join (keys/kms.json of a host that has it); gateways, NBD servers and
    /// tools cannot work without it
    #[arg(long, value_name = "PATH")]
    pub key_service: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll join atoll-join-1.eyJ... --data /srv/atoll --listen 10.0.0.2 --key-service ./kms.json
  atoll osd create --data /srv/atoll --device /dev/disk/by-id/nvme-A
  atoll up --data /srv/atoll

'atoll up --join TOKEN --osds N' does all of it at once, with device files.")]
pub struct JoinArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// A token that 'atoll cluster token create' has made on a host of the cluster
    #[arg(env = "ATOLL_JOIN_TOKEN", hide_env_values = true)]
    pub token: String,
    #[command(flatten)]
    pub etcd: EtcdArguments,
    #[command(flatten)]
    pub host: HostArguments,
}

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Make, list and revoke the tokens with which hosts join
    #[command(subcommand)]
    Token(TokenCommand),
    /// List and revoke the keys with which OSDs, gateways and other clients connect to OSDs
    #[command(subcommand)]
    Key(PeerKeyCommand),
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RoleArgument {
    /// Runs OSDs, and cannot read what clients have sealed
    Osd,
    /// Runs gateways, NBD servers and tools
    Client,
    /// Both
    Host,
}

impl From<RoleArgument> for HostRole {
    fn from(role: RoleArgument) -> Self {
        match role {
            RoleArgument::Osd => HostRole::Osd,
            RoleArgument::Client => HostRole::Client,
            RoleArgument::Host => HostRole::Host,
        }
    }
}

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Make a token with which one host can join. It is as secret as a password
    #[command(after_help = "\
Examples:
  atoll cluster token create --data ./atoll-data
  atoll cluster token create --data ./atoll-data --role osd --ttl 10m")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// What the host may be
        #[arg(long, default_value = "host")]
        role: RoleArgument,
        /// How long the token may be used, such as 30s, 10m, 1h, 7d
        #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1h")]
        ttl: Duration,
    },
    /// List tokens
    Ls(OutputArguments),
    /// Revoke a token; a host that has used it stays in the cluster
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// Its id, as 'ls' shows it
        id: String,
    },
}

#[derive(Subcommand)]
pub enum PeerKeyCommand {
    /// List the keys that may connect, and whose they are
    #[command(after_help = "\
Examples:
  atoll cluster key ls --data ./atoll-data
  atoll cluster key ls --json | jq -r '.[] | select(.role == \"gateway\").name'")]
    Ls(OutputArguments),
    /// Take a key away: within seconds its holder's connections end, and it gets no new ones
    #[command(after_help = "\
Examples:
  atoll cluster key revoke gateway@h2            the S3 gateway of host h2
  atoll cluster key revoke client@h2             its NBD server, benches and command line
  atoll cluster key revoke osd.7                 an OSD; others take over what it served
  atoll cluster key revoke 5f3ac09be2            by the first digits of the key

It stays so until 'atoll cluster key add'. A host that is not trusted any more can still reach cluster state by the
password or certificate that it has: take that away, too.")]
    Revoke {
        #[command(flatten)]
        output: OutputArguments,
        /// Its holder as 'ls' shows it, or the first 8 or more digits of the key
        name: String,
    },
    /// Let a key connect, again or for the first time
    #[command(after_help = "\
Examples:
  atoll cluster key add gateway@h2 --public-key 5f3a...     as 'revoke' has printed it
  atoll cluster key add osd.7")]
    Add {
        #[command(flatten)]
        output: OutputArguments,
        /// client@HOST, gateway@HOST or osd.N
        name: String,
        /// The key, 64 hexadecimal digits; that of an OSD is in its record
        #[arg(long, value_name = "HEX")]
        public_key: Option<String>,
    },
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time; give a number and s, m, h or d, such as 90s or 1h");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let total = number.checked_mul(seconds).filter(|total| (1..=365 * 86_400).contains(total));
    total.map(Duration::from_secs).ok_or_else(|| format!("'{text}': choose 1 second to 365 days"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "s", "1", "-1h", "0s", "1w", "99999999999999999999h", "366d", "1\u{20ac}"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
