//! Arguments of the commands that look at the cluster and change it.

use atoll_base::frames::FrameMode;
use atoll_base::records::{ClusterFlag, FailureDomain, PeerRole};
use atoll_base::size::parse_size_bytes;
use atoll_base::{ObjectName, OsdId, PgId};
use atoll_coordinator::admin::whole::Setting;
use clap::{Args, Subcommand, ValueEnum};

use super::{OutputArguments, parse_object_name};

/// `3` or `osd.3`.
pub fn parse_osd_id(text: &str) -> Result<OsdId, String> {
    let number = text.strip_prefix("osd.").unwrap_or(text);
    number.parse().map(OsdId).map_err(|_| format!("'{text}' is not an OSD: use its number, as 3 or osd.3"))
}

/// Empty for the default.
fn parse_place(text: &str) -> Result<String, String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("use letters, digits, '-', '_' and '.'".into()),
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll health                  what is wrong, since when, and what to do
  atoll health --json | jq -r '.problems[].code'
  atoll health --watch          again whenever something changes, until Ctrl-C

Exit codes: 0 ok, 1 something is wrong but all is served, 2 something is not served, or nobody answers.")]
pub struct HealthArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Show it again whenever it changes
    #[arg(long)]
    pub watch: bool,
}

#[derive(Args)]
pub struct OsdsArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSDs, as 3 or osd.3
    #[arg(required = true, value_name = "OSD", value_parser = parse_osd_id)]
    pub ids: Vec<OsdId>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd reweight 3 1.8      for a device of 1.8 TiB
  atoll osd reweight osd.3 0    it shall hold nothing, but stays in

Data moves by itself.")]
pub struct OsdReweightArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD, as 3 or osd.3
    #[arg(value_name = "OSD", value_parser = parse_osd_id)]
    pub id: OsdId,
    /// Share of data that it should hold, by convention its size in TiB
    #[arg(allow_negative_numbers = true)]
    pub weight: f64,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd out 3 && atoll osd rm 3        the second is refused until the data has moved
  atoll osd rm 3 --lost                    its device is gone for good

An OSD that the 'atoll up' of this data directory runs is stopped first. Its device is left as it is.")]
pub struct OsdRmArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD, as 3 or osd.3
    #[arg(value_name = "OSD", value_parser = parse_osd_id)]
    pub id: OsdId,
    /// Remove it although placement groups count on it: it never comes back, and what only it had is lost
    #[arg(long)]
    pub lost: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd create --device /dev/disk/by-id/ata-D       makes osd.3, a part of the cluster, and says so
  atoll osd add 3 --device-class hdd --weight 7.2       what the cluster could not know of it
  atoll osd add 12 --public-key 5f3a... --device-size 2T --host store7    for an OSD made elsewhere

An OSD of this data directory that is a part of the cluster keeps what is not said. For any other, where nothing is
said: this host with its rack and zone, class ssd, the size in TiB as weight. Numbers are never given twice.")]
pub struct OsdAddArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD, as 3 or osd.3
    #[arg(value_name = "OSD", value_parser = parse_osd_id)]
    pub id: OsdId,
    /// The host that it is on, a failure domain
    #[arg(long, value_parser = parse_place)]
    pub host: Option<String>,
    /// The rack of the host
    #[arg(long, value_parser = parse_place)]
    pub rack: Option<String>,
    /// The zone of the rack: a room, a data centre
    #[arg(long, value_parser = parse_place)]
    pub zone: Option<String>,
    /// Its kind of device, for pools that want only one kind
    #[arg(long, value_name = "CLASS", value_parser = parse_place)]
    pub device_class: Option<String>,
    /// Share of data that it should hold
    #[arg(long)]
    pub weight: Option<f64>,
    /// Its public key, as 'atoll osd create' on its host has said; without it the OSD is of this data directory
    #[arg(long, value_name = "HEX", requires_all = ["device_size", "host"])]
    pub public_key: Option<String>,
    /// The size of its device
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, requires = "public_key")]
    pub device_size: Option<u64>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd set-location 0 1 2 --rack r1 --zone east    their hosts are in rack r1 of zone east
  atoll osd set-location 3 --host store7                osd.3 sits in another host now
  atoll osd set-location 3 --rack ''                    back to the default rack

A rack and a zone are given to all OSDs of the hosts. Data moves if a pool's copies are no longer apart.")]
pub struct OsdLocationArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSDs, as 3 or osd.3
    #[arg(required = true, value_name = "OSD", value_parser = parse_osd_id)]
    pub ids: Vec<OsdId>,
    /// The host that they are on
    #[arg(long, value_parser = parse_place)]
    pub host: Option<String>,
    /// The rack of their hosts
    #[arg(long, value_parser = parse_place)]
    pub rack: Option<String>,
    /// The zone of their racks
    #[arg(long, value_parser = parse_place)]
    pub zone: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FailureDomainArgument {
    Osd,
    Host,
    Rack,
    Zone,
}

impl From<FailureDomainArgument> for FailureDomain {
    fn from(argument: FailureDomainArgument) -> Self {
        match argument {
            FailureDomainArgument::Osd => FailureDomain::Osd,
            FailureDomainArgument::Host => FailureDomain::Host,
            FailureDomainArgument::Rack => FailureDomain::Rack,
            FailureDomainArgument::Zone => FailureDomain::Zone,
        }
    }
}

/// `4+2`: data and parity shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasureCode {
    pub data: u32,
    pub parity: u32,
}

/// Whether there may be so many is for the cluster to say.
pub fn parse_erasure_code(text: &str) -> Result<ErasureCode, String> {
    let numbers = text.split_once('+').and_then(|(data, parity)| Some((data.parse().ok()?, parity.parse().ok()?)));
    let (data, parity) = numbers.ok_or_else(|| {
        "a code is K+M, such as 4+2: K data shards (2 to 16) and M parity shards (1 to 4), of which M may be lost"
            .to_owned()
    })?;
    Ok(ErasureCode { data, parity })
}

fn parse_chunk_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_size_bytes(text)?;
    bytes.try_into().map_err(|_| "a chunk is a power of two from 4K to 1M, such as 64K".into())
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pool create archive --size 3 --failure-domain rack --device-class hdd
  atoll pool create scratch --pg-num 128 --size 2 --min-size 1 --failure-domain osd
  atoll pool create cold --ec 4+2                     6 shards on 6 hosts; 2 may be lost; takes 1.5 times the space
  atoll pool create disks --ec 2+1 --chunk 16K --failure-domain osd

An erasure-coded pool holds data: of images ('atoll image create --pool'), and of S3 objects if the gateway uses
it for new buckets ('atoll gateway run --help'). Bucket indexes stay in a replicated pool.")]
pub struct PoolCreateArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Letters, digits, '-', '_' and '.'
    pub name: String,
    /// Number of placement groups, a power of two: about 100 copies or shards for each OSD in all pools
    /// together
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub pg_num: u32,
    /// Copies [default: 3]
    #[arg(long, value_name = "N")]
    pub size: Option<u32>,
    /// Erasure code instead of copies: K data shards (2 to 16) and M parity shards (1 to 4), fixed for good. It
    /// takes K+M failure domains
    #[arg(long, value_name = "K+M", value_parser = parse_erasure_code, conflicts_with = "size")]
    pub ec: Option<ErasureCode>,
    /// How much of an object is on one shard before the next has its turn: a power of two from 4K to 1M, fixed
    /// for good; S3 data needs 64K or more [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_bytes, requires = "ec")]
    pub chunk: Option<u32>,
    /// Copies or shards without which I/O stops [default: half of the copies, rounded up; K+1 shards]
    #[arg(long, value_name = "N")]
    pub min_size: Option<u32>,
    /// What the copies or shards are spread over
    #[arg(long, value_name = "LEVEL", default_value = "host")]
    pub failure_domain: FailureDomainArgument,
    /// Only OSDs of this class [default: all]
    #[arg(long, value_name = "CLASS")]
    pub device_class: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum PoolKeyArgument {
    /// Its name
    Name,
    /// Copies, if the pool is not erasure-coded
    Size,
    /// Copies or shards without which I/O stops
    MinSize,
    /// osd, host, rack or zone
    FailureDomain,
    /// ssd, hdd, ... or 'any'
    DeviceClass,
    /// Number of placement groups, a power of two; it can only grow
    PgNum,
}

#[derive(Subcommand)]
pub enum PoolCommand {
    /// List pools
    Ls(OutputArguments),
    /// Make a pool
    Create(PoolCreateArguments),
    /// Change a pool; data moves by itself where it must
    #[command(after_help = "\
Examples:
  atoll pool set archive size 2
  atoll pool set archive failure_domain rack
  atoll pool set archive pg_num 128
  atoll pool set archive device_class any")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The pool
        name: String,
        /// What to change
        key: PoolKeyArgument,
        /// The new value
        value: String,
    },
    /// Remove a pool that holds no images and no buckets, with everything else that is in it
    #[command(after_help = "Example:\n  atoll pool rm archive --yes-destroy archive")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The pool
        name: String,
        /// The pool's name once more: what is in it is destroyed
        #[arg(long, value_name = "NAME")]
        yes_destroy: Option<String>,
    },
}

#[derive(Subcommand)]
pub enum PgCommand {
    /// List placement groups
    #[command(after_help = "\
Examples:
  atoll pg ls --pool images
  atoll pg ls --not-clean                     those that are not active, or lack a copy, or are to move
  atoll pg ls --json | jq '.[] | select(.primary == 2).pg'")]
    Ls {
        #[command(flatten)]
        output: OutputArguments,
        /// Only this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Only groups of which this OSD is a member, as 3 or osd.3
        #[arg(long, value_name = "OSD", value_parser = parse_osd_id)]
        osd: Option<OsdId>,
        /// Only groups with something to be done
        #[arg(long)]
        not_clean: bool,
    },
    /// Show one placement group
    #[command(after_help = "Example:\n  atoll pg query 1.1f")]
    Query {
        #[command(flatten)]
        output: OutputArguments,
        /// Such as 1.1f
        pg: PgId,
    },
    /// Show where an object is, or would be
    #[command(after_help = "Example:\n  atoll pg map img.0123456789abcdef.00000000 --pool images")]
    Map {
        #[command(flatten)]
        output: OutputArguments,
        /// The object
        #[arg(value_parser = parse_object_name)]
        object: ObjectName,
        /// Its pool
        #[arg(long, value_name = "NAME")]
        pool: String,
    },
    /// Compare all copies or shards of the objects of placement groups, and repair bad ones
    Scrub(PgScrubArguments),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pg scrub --data ./atoll-data 1.2f
  atoll pg scrub --data ./atoll-data all --deep --wait

Exit codes: 0 asked (with --wait: no bad copies are left), 1 failed or bad copies are left, 2 wrong usage.")]
pub struct PgScrubArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The placement group, such as 1.2f, or 'all'
    #[arg(value_name = "PG|all")]
    pub pg: String,
    /// Also read all data and compare it with its checksums
    #[arg(long)]
    pub deep: bool,
    /// Return when it is done, and say what was found
    #[arg(long)]
    pub wait: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FlagArgument {
    /// OSDs that are down for long are not marked out
    #[value(name = "noout")]
    Out,
    /// Nothing is copied to OSDs that are not members yet
    #[value(name = "nobackfill")]
    Backfill,
    /// The balancer moves nothing
    #[value(name = "norebalance")]
    Rebalance,
    /// No scheduled scrubs
    #[value(name = "noscrub")]
    Scrub,
    /// No scheduled deep scrubs
    #[value(name = "nodeepscrub")]
    DeepScrub,
}

impl From<FlagArgument> for ClusterFlag {
    fn from(argument: FlagArgument) -> Self {
        match argument {
            FlagArgument::Out => ClusterFlag::NoOut,
            FlagArgument::Backfill => ClusterFlag::NoBackfill,
            FlagArgument::Rebalance => ClusterFlag::NoRebalance,
            FlagArgument::Scrub => ClusterFlag::NoScrub,
            FlagArgument::DeepScrub => ClusterFlag::NoDeepScrub,
        }
    }
}

#[derive(Args)]
pub struct FlagArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The flags
    #[arg(required = true, value_name = "FLAG")]
    pub flags: Vec<FlagArgument>,
}

#[derive(Subcommand)]
pub enum FlagCommand {
    /// List the flags that are set
    Ls(OutputArguments),
    /// Set flags
    #[command(after_help = "Example:\n  atoll flag set noout norebalance     before work on a host")]
    Set(FlagArguments),
    /// Take flags back
    #[command(after_help = "Example:\n  atoll flag unset noout norebalance")]
    Unset(FlagArguments),
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum SettingArgument {
    /// An OSD that is down for so long is marked out; 0: never
    OsdDownOutSeconds,
    /// No OSD is marked out by itself if less than this share of them would be left in
    OsdsInPercentMin,
    /// Pause between two rounds of the balancer
    BalanceSeconds,
    /// An OSD with more of its space in use is near full
    NearFullPercent,
    /// Protection of frames among OSDs: secure, secure-128 or crc
    FrameModeCluster,
    /// The same between OSDs and NBD servers, benches and the command line
    FrameModeClient,
    /// The same between OSDs and gateways
    FrameModeGateway,
    /// A connection that is so old gets its next key
    FrameRekeySeconds,
}

/// What a setting belongs to.
pub enum SettingKind {
    Number(Setting),
    FrameMode(PeerRole),
    RekeySeconds,
}

impl SettingArgument {
    pub fn kind(self) -> SettingKind {
        match self {
            SettingArgument::OsdDownOutSeconds => SettingKind::Number(Setting::OsdDownOutSeconds),
            SettingArgument::OsdsInPercentMin => SettingKind::Number(Setting::OsdsInPercentMin),
            SettingArgument::BalanceSeconds => SettingKind::Number(Setting::BalanceSeconds),
            SettingArgument::NearFullPercent => SettingKind::Number(Setting::NearFullPercent),
            SettingArgument::FrameModeCluster => SettingKind::FrameMode(PeerRole::Osd),
            SettingArgument::FrameModeClient => SettingKind::FrameMode(PeerRole::Client),
            SettingArgument::FrameModeGateway => SettingKind::FrameMode(PeerRole::Gateway),
            SettingArgument::FrameRekeySeconds => SettingKind::RekeySeconds,
        }
    }
}

/// `[ROLE=]MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameModeChoice {
    /// All roles if absent.
    pub role: Option<PeerRole>,
    pub mode: FrameMode,
}

pub fn parse_frame_mode(text: &str) -> Result<FrameModeChoice, String> {
    let (role, mode) = match text.split_once('=') {
        None => (None, text),
        Some(("cluster", mode)) => (Some(PeerRole::Osd), mode),
        Some(("client", mode)) => (Some(PeerRole::Client), mode),
        Some(("gateway", mode)) => (Some(PeerRole::Gateway), mode),
        Some((other, _)) => return Err(format!("'{other}' is no role: choose cluster, client or gateway")),
    };
    Ok(FrameModeChoice { role, mode: mode.parse()? })
}

#[derive(Subcommand)]
pub enum SettingsCommand {
    /// List settings of the whole cluster
    Ls(OutputArguments),
    /// Change a setting
    #[command(after_help = "\
Examples:
  atoll settings set osd_down_out_seconds 1800
  atoll settings set frame_mode_client secure-128

Frame modes and the age of keys are for new connections and new keys: 'atoll status' says how many connections are
still in another mode. Restart gateways, NBD servers and, one after the other, OSDs to have all of them changed.")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// What to change
        setting: SettingArgument,
        /// The new value: a number, or a frame mode
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn codes() {
        assert_eq!(parse_erasure_code("4+2"), Ok(ErasureCode { data: 4, parity: 2 }));
        for wrong in ["", "4", "4+", "+2", "4+2+1", "4-2", "-4+2", "4 + 2", "a+b", "99999999999+1"] {
            assert!(parse_erasure_code(wrong).unwrap_err().contains("such as 4+2"), "{wrong}");
        }
        assert_eq!(parse_chunk_bytes("16K"), Ok(16 << 10));
        assert!(parse_chunk_bytes("4G").unwrap_err().contains("64K"));
    }

    #[test]
    fn frame_modes() {
        let choice = |role, mode| Ok(FrameModeChoice { role, mode });
        assert_eq!(parse_frame_mode("crc"), choice(None, FrameMode::Crc));
        assert_eq!(parse_frame_mode("cluster=secure-128"), choice(Some(PeerRole::Osd), FrameMode::Secure128));
        for (wrong, words) in
            [("", "secure-128"), ("aes", "secure-128"), ("osd=crc", "cluster"), ("client=", "crc")]
        {
            assert!(parse_frame_mode(wrong).unwrap_err().contains(words), "{wrong}");
        }
    }

    #[test]
    fn a_pool_has_copies_or_a_code() {
        let parse = |text: &str| {
            let words = format!("atoll pool create p {text}");
            crate::cli::Arguments::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())
        };
        for right in ["", "--size 2", "--ec 4+2", "--ec 4+2 --chunk 4K --min-size 4"] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for (wrong, word) in [
            ("--ec 4+2 --size 3", "cannot be used with"),
            ("--chunk 4K", "--ec"),
            ("--ec 4", "K data shards"),
            ("--ec 4+2 --chunk lots", "not a size"),
        ] {
            assert!(parse(wrong).err().is_some_and(|text| text.contains(word)), "{wrong}");
        }
    }
}
