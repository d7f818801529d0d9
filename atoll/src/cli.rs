//! The command line.

mod administration;
mod bench;
mod bucket;
mod gateway;
mod guard;
mod hosts;
mod keys;
mod preflight;

use std::path::PathBuf;

use atoll_base::size::parse_size_bytes;
use atoll_base::{ObjectName, PgId};
use atoll_osd::MEMORY_TARGET_BYTES_MIN;
use atoll_reactor::ListenAddress;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub use administration::*;
pub use bench::{
    BenchCommand, BlockBenchArguments, CompareArguments, DiskBenchArguments, DurabilityArgument,
    ForeignEndpointArguments, ModelArguments, ObjectBenchArguments, ObjectOperationArgument,
    ObjectPrefillArgument, OsdsBenchArguments, PlanArguments, PrefillArgument, RecoveryBenchArguments,
    ReportArguments, RunBenchArguments, StoreBenchArguments,
};
pub use bucket::{BucketCommand, BucketKeyArgument, SealingArgument};
pub use gateway::{ClientAuthArgument, GatewayArguments, S3ListenArguments, TlsVersionArgument};
pub use guard::GuardArguments;
pub use hosts::{ClusterCommand, EtcdArguments, HostArguments, JoinArguments, PeerKeyCommand, TokenCommand};
pub use keys::{DestroyArguments, KeyCommand, TransitArguments};
pub use preflight::PreflightArguments;

/// Unified storage (block images and S3 objects) that is encrypted by default.
#[derive(Parser)]
#[command(name = "atoll", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  atoll up --data ./atoll-data                     start a whole cluster here, in the foreground
  atoll up --data ./atoll-data --detach            the same in the background
  atoll image create --data ./atoll-data disk1 --size 4G
  nbdinfo \"nbd+unix:///disk1?socket=$PWD/atoll-data/nbd.sock\"
  atoll bench block --data ./atoll-data --image disk1 --rw randwrite --bs 4k --qd 32 --seconds 10
  atoll health --data ./atoll-data
  atoll down --data ./atoll-data

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage; of 'atoll health' see its --help.";

#[derive(Args, Clone)]
pub struct DataArgument {
    /// The cluster's data directory
    #[arg(long, value_name = "DIR", env = "ATOLL_DATA", default_value = "./atoll-data")]
    pub data: PathBuf,
}

#[derive(Args, Clone)]
pub struct OutputArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a whole cluster on this machine
    Up(Box<UpArguments>),
    /// Stop the cluster of a data directory
    Down(DataArgument),
    /// Come into a cluster that runs on other hosts
    Join(JoinArguments),
    /// Let other hosts join, and take the keys of processes away
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Show what the cluster is and does
    Status(OutputArguments),
    /// Show what is wrong, since when, and what to do
    Health(HealthArguments),
    /// Show space by OSD
    Df(OutputArguments),
    /// Show the credentials for S3 clients
    Credentials(OutputArguments),
    /// Look at OSDs, create, add, drain, remove or run one
    #[command(subcommand)]
    Osd(OsdCommand),
    /// Check or dump the store on a device that no OSD uses
    #[command(subcommand)]
    Store(StoreCommand),
    /// List, make, change and remove pools
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Look at placement groups
    #[command(subcommand)]
    Pg(PgCommand),
    /// Tell the cluster to leave something alone for now
    #[command(subcommand)]
    Flag(FlagCommand),
    /// Show and change settings of the whole cluster
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// List, make, rotate and destroy the keys that protect everything else
    #[command(subcommand)]
    Key(KeyCommand),
    /// Make, list, resize and remove block images
    #[command(subcommand)]
    Image(ImageCommand),
    /// List buckets, and say whether new objects in them are sealed
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Measure the cluster
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Check a host before deployment: drives, processor, memory, clock, io_uring, network
    Preflight(PreflightArguments),
    /// Look for failures of the placement-group protocol in simulated clusters
    Sim(SimArguments),
    /// Run the embedded cluster-state server (started by 'atoll up')
    #[command(subcommand)]
    State(DaemonCommand),
    /// Run the S3 gateway (started by 'atoll up')
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Run the NBD server (started by 'atoll up')
    #[command(subcommand)]
    Nbd(NbdCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  atoll completion bash > /etc/bash_completion.d/atoll")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll up --data ./atoll-data
  atoll up --data ./atoll-data --ec 2+1           S3 data in 2 data and 1 parity shards
  atoll up --data ./atoll-data --frame-mode client=secure-128 --frame-mode gateway=secure-128
  atoll up --data ./atoll-data --s3-listen 127.0.0.1:9000 --nbd-listen 127.0.0.1:10809 --detach
  atoll up --data ./atoll-data --s3-listen off --s3-tls-listen 0.0.0.0:9443 --tls-name s3.example.org
  atoll up --data /srv/atoll --etcd https://10.0.0.1:2379 --etcd-ca ca.pem --listen 10.0.0.1 --failure-domain host
  atoll up --data /srv/atoll --join TOKEN --osds 2 --listen 10.0.0.2 --key-service ./kms.json")]
pub struct UpArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// Number of OSD processes [default: 3, fixed at the first start]
    #[arg(long, value_name = "N")]
    pub osds: Option<u32>,
    /// Size of each OSD's device file, which is sparse [default: 32G, fixed at the first start]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub osd_size: Option<u64>,
    #[command(flatten)]
    pub s3: S3ListenArguments,
    /// Where the NBD server listens; may be given several times [default: unix:DIR/nbd.sock].
    /// Whoever reaches a TCP address may read and write every image, unless client certificates are
    /// required: see 'atoll nbd run --help'
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub nbd_listen: Vec<ListenAddress>,
    #[command(flatten)]
    pub etcd: EtcdArguments,
    #[command(flatten)]
    pub host: HostArguments,
    /// What no two copies or shards share [default: osd; fixed at the first start]. With host, rack or zone the first
    /// pools are made as soon as OSDs of enough of them have joined
    #[arg(long, value_name = "KIND")]
    pub failure_domain: Option<FailureDomainArgument>,
    /// Copies of each object [default: 3, or as many as there are OSDs; fixed at the first start]
    #[arg(long, value_name = "N")]
    pub copies: Option<u32>,
    /// Keep the data of S3 objects erasure-coded, in K data and M parity shards on different OSDs (or hosts: see
    /// --failure-domain), of which M may be lost, in a pool 'data' of its own [fixed at the first start]. Without
    /// --osds there are as many OSDs as it takes
    #[arg(long, value_name = "K+M", value_parser = parse_erasure_code, conflicts_with = "join")]
    pub ec: Option<ErasureCode>,
    /// Come into a cluster that runs on other hosts, with a token of 'atoll cluster token create'. At later
    /// starts the same token is ignored
    #[arg(long, value_name = "TOKEN", env = "ATOLL_JOIN_TOKEN", hide_env_values = true)]
    pub join: Option<String>,
    /// Protection of frames between Atoll's processes: secure (AES-256-GCM), secure-128 or crc (checksums only; the
    /// handshake still authenticates), for all or for one of the roles cluster (OSDs among themselves), client (NBD
    /// server, benches, command line) and gateway; may be given several times [default: secure; for the first start:
    /// 'atoll settings set frame_mode_ROLE' changes it later]
    #[arg(long, value_name = "[ROLE=]MODE", value_parser = parse_frame_mode)]
    pub frame_mode: Vec<FrameModeChoice>,
    #[command(flatten)]
    pub transit: TransitArguments,
    /// Make the OSDs' device files LUKS2 volumes that the key service unlocks [fixed at the first start]
    #[arg(long)]
    pub encrypt_at_rest: bool,
    /// Go to the background; return when everything serves
    #[arg(long)]
    pub detach: bool,
}

#[derive(Subcommand)]
pub enum OsdCommand {
    /// List OSDs with their state, space and placement groups
    Ls(OutputArguments),
    /// Show zones, racks, hosts and OSDs
    Tree(OutputArguments),
    /// Format a file or block device as an OSD of this data directory
    Create(OsdCreateArguments),
    /// Say what an OSD of this data directory is, or make one that was made elsewhere a part of the cluster
    Add(OsdAddArguments),
    /// Mark OSDs out: what they hold moves to others
    #[command(after_help = "Example:\n  atoll osd out 3\n\n'atoll osd ls' counts what is left on it.")]
    Out(OsdsArguments),
    /// Mark OSDs in again
    #[command(after_help = "Example:\n  atoll osd in 3")]
    In(OsdsArguments),
    /// Change the share of data that an OSD should hold
    Reweight(OsdReweightArguments),
    /// Say where OSDs are
    SetLocation(OsdLocationArguments),
    /// Remove an OSD from the cluster
    Rm(OsdRmArguments),
    /// Run an OSD (started by 'atoll up')
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        /// The OSD's number
        #[arg(long)]
        id: u32,
        /// Memory that the OSD should take, at least 256M
        #[arg(long, value_name = "SIZE", env = "ATOLL_OSD_MEMORY_TARGET", value_parser = parse_memory_target, default_value = "1G")]
        memory_target: u64,
        /// What may be read per second to fill other OSDs while clients are at work
        #[arg(long, value_name = "SIZE", env = "ATOLL_OSD_RECOVERY_RATE", value_parser = parse_size_bytes, default_value = "64M")]
        recovery_rate: u64,
        #[command(flatten)]
        unlock: UnlockArguments,
    },
}

fn parse_memory_target(text: &str) -> Result<u64, String> {
    let bytes = parse_size_bytes(text)?;
    if bytes < MEMORY_TARGET_BYTES_MIN {
        return Err("an OSD needs at least 256M".into());
    }
    Ok(bytes)
}

/// What unlocks the devices of an OSD.
#[derive(Args, Clone)]
#[group(id = "unlock", multiple = false)]
pub struct UnlockArguments {
    /// The passphrase of the devices is the first line of this file, without its line feed
    #[arg(long, value_name = "PATH")]
    pub passphrase_file: Option<PathBuf>,
    /// The passphrase of the devices is the whole content of this file, as with 'cryptsetup --key-file'
    #[arg(long, value_name = "PATH")]
    pub key_file: Option<PathBuf>,
    /// The passphrases of the devices are random and wrapped by the cluster's key service
    #[arg(long)]
    pub kms: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd create --data ./atoll-data --device /dev/disk/by-id/nvme-A
  atoll osd create --data ./atoll-data --device /dev/disk/by-id/ata-B --wal-device /dev/disk/by-id/nvme-C-part1
  atoll osd create --data ./atoll-data --device /mnt/disk3/osd --size 100G
  atoll osd create --data ./atoll-data --device /dev/disk/by-id/nvme-D --encrypt --kms
  atoll up --data ./atoll-data                     a cluster of these

A device that holds anything is refused unless --wipe is given; one that is in use or has partitions always is.")]
pub struct OsdCreateArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The block device, or the file
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Make the file with this size, sparse; only for a file that is not there yet
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub size: Option<u64>,
    /// A block device or file, on a faster disk, for the write-ahead log alone
    #[arg(long, value_name = "PATH")]
    pub wal_device: Option<PathBuf>,
    /// Use only this much of the WAL device, and make the file if it is not there yet [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, requires = "wal_device")]
    pub wal_size: Option<u64>,
    /// Destroy what the devices hold
    #[arg(long)]
    pub wipe: bool,
    /// Make the devices LUKS2 volumes, unlocked by one of the following; 'cryptsetup' can read and change
    /// their headers
    #[arg(long, requires = "unlock")]
    pub encrypt: bool,
    #[command(flatten)]
    pub unlock: UnlockArguments,
    /// The OSD's number [default: the lowest that has no device]
    #[arg(long, value_name = "N")]
    pub id: Option<u32>,
}

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Check a store without changing it: its metadata, its log, and with --data every block
    #[command(after_help = "\
Examples:
  atoll store check --device ./atoll-data/osd-0/device
  atoll store check --device /dev/disk/by-id/nvme-A --wal-device /dev/disk/by-id/nvme-C-part1 --data
  atoll store check --device ./atoll-data/osd-0/device --json | jq .problems

Stop the OSD first. Exit codes: 0 no problems, 1 problems were found or it failed, 2 wrong usage.")]
    Check {
        #[command(flatten)]
        devices: StoreDevices,
        /// Also read all data and compare it with its checksums
        #[arg(long)]
        data: bool,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Print what a store holds
    #[command(after_help = "\
Examples:
  atoll store dump --device ./atoll-data/osd-0/device
  atoll store dump --device ./atoll-data/osd-0/device --pg 1.2f
  atoll store dump --device ./atoll-data/osd-0/device --pg 1.2f --object @pg --json

Stop the OSD first. With --json each line is one record.")]
    Dump {
        #[command(flatten)]
        devices: StoreDevices,
        /// Only this placement group
        #[arg(long, value_name = "PG")]
        pg: Option<PgId>,
        /// Only objects of this name, with their extents, checksums and omap keys
        #[arg(long, value_name = "NAME", value_parser = parse_object_name)]
        object: Option<ObjectName>,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
}

fn parse_object_name(text: &str) -> Result<ObjectName, String> {
    ObjectName::new(text).ok_or_else(|| "an object's name has 1 to 255 bytes".into())
}

#[derive(Args)]
pub struct StoreDevices {
    /// The OSD's block device or file
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// The device with its log, if it has its own
    #[arg(long, value_name = "PATH")]
    pub wal_device: Option<PathBuf>,
}

#[derive(Args)]
pub struct DaemonArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

#[derive(Subcommand)]
pub enum DaemonCommand {
    /// Run in the foreground
    Run(DaemonArguments),
}

#[derive(Subcommand)]
pub enum GatewayCommand {
    /// Run in the foreground
    #[command(after_help = "\
Examples:
  atoll gateway run --data ./atoll-data
  atoll gateway run --data ./atoll-data --data-pool cold
  ATOLL_S3_DATA_POOL=cold atoll up --data ./atoll-data
  ATOLL_TRUSTED_PROXIES=10.0.0.4,10.0.0.5 atoll up --data ./atoll-data
  atoll gateway run --data ./atoll-data --s3-listen off --s3-tls-listen 10.0.0.1:9444 --tls-min 1.3

A client may choose another pool for a bucket: aws s3api create-bucket --bucket B
--create-bucket-configuration LocationConstraint=pool:cold")]
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        /// The pool for the data of new buckets; their indexes are in the pool 'objects' [default: the pool 'data'
        /// if there is one, or else 'objects']
        #[arg(long, value_name = "NAME", env = "ATOLL_S3_DATA_POOL")]
        data_pool: Option<String>,
        #[command(flatten)]
        serving: GatewayArguments,
    },
}

#[derive(Subcommand)]
pub enum NbdCommand {
    /// Run in the foreground
    #[command(after_help = "\
Examples:
  atoll nbd run --data ./atoll-data
  atoll nbd run --data ./atoll-data --tls required --tls-client-ca /etc/atoll/nbd-clients.pem
  ATOLL_NBD_TLS_CLIENT_CA=/etc/atoll/nbd-clients.pem atoll up --data ./atoll-data --nbd-listen 10.0.0.1:10809

Clients: nbdinfo 'nbds://HOST/IMAGE?tls-certificates=DIR', where DIR has ca-cert.pem (a copy of the data
directory's tls/ca.crt) and, where clients need certificates, client-cert.pem and client-key.pem.")]
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        #[command(flatten)]
        tls: NbdTlsArguments,
    },
}

#[derive(Args)]
pub struct NbdTlsArguments {
    /// Whether clients may or must use TLS
    #[arg(long, value_name = "MODE", env = "ATOLL_NBD_TLS", default_value = "on")]
    pub tls: NbdTlsMode,
    /// The server's certificate and what is between it and its authority, as PEM [default: DIR/tls/server.crt]
    #[arg(long, value_name = "FILE", env = "ATOLL_NBD_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, as PEM [default: DIR/tls/server.key]
    #[arg(long, value_name = "FILE", env = "ATOLL_NBD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities, as PEM: clients need a certificate that one of them has signed. TCP is then served with TLS
    /// only
    #[arg(long, value_name = "FILE", env = "ATOLL_NBD_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NbdTlsMode {
    /// None
    Off,
    /// For clients that ask for it, if there is a certificate
    On,
    /// For all, also on Unix sockets
    Required,
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Make an image; it takes no space until it is written
    #[command(after_help = "\
Examples:
  atoll image create --data ./atoll-data disk1 --size 4G
  atoll image create --data ./atoll-data archive1 --size 1T --pool archive
  atoll image create --data ./atoll-data scratch --size 100G --sealing off

Without sealing, who has a device or the root password of an OSD's host can read the image, and change it unnoticed
(docs/threat-model.md). This cannot be changed later.")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Letters, digits, '-', '_' and '.'
        name: String,
        /// Such as 512M, 4G, 1T
        #[arg(long, value_parser = parse_size_bytes)]
        size: u64,
        /// The pool that holds its data; 'atoll pool ls' names them
        #[arg(long, default_value = atoll_supervisor::POOL_IMAGES)]
        pool: String,
        /// Whether its blocks are sealed (AES-256-GCM) before they leave this host
        #[arg(long, value_enum, default_value = "on")]
        sealing: SealingArgument,
    },
    /// List images
    Ls(OutputArguments),
    /// Show an image
    Info {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
    /// Change an image's size; clients see it when they connect anew
    Resize {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// The new size
        #[arg(long, value_parser = parse_size_bytes)]
        size: u64,
        /// Allow a smaller size, which destroys the data beyond it
        #[arg(long)]
        allow_shrink: bool,
    },
    /// Remove an image and its data
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll sim --seeds 10000 --jobs 4           ten thousand clusters, four at once
  atoll sim --seeds 10000 --first 10001      the next ten thousand
  atoll sim --seed 4711 --trace              one of them, with everything that happens
  atoll sim --seeds 1000 --json

Each seed is a cluster of three to five OSDs with one placement group, a few clients and the faults
that chance sends; the same seed always goes the same way. What clients saw must fit one history,
and all copies must end up equal. Exit code 1 if a seed fails.")]
pub struct SimArguments {
    /// How many seeds to run
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub first: u64,
    /// How many to run at once [default: the number of processors]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Simulate an erasure-coded pool in place of a replicated one
    #[arg(long)]
    pub ec: bool,
    /// Run this seed only
    #[arg(long, conflicts_with_all = ["seeds", "first", "jobs"])]
    pub seed: Option<u64>,
    /// Print what happens
    #[arg(long, requires = "seed", conflicts_with = "json")]
    pub trace: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}
