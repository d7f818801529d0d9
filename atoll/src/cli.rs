//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use atoll_base::size::parse_size_bytes;
use atoll_reactor::ListenAddress;
use clap::{Args, Parser, Subcommand, ValueEnum};

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
  atoll status --data ./atoll-data
  atoll down --data ./atoll-data

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage.";

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
    Up(UpArguments),
    /// Stop the cluster of a data directory
    Down(DataArgument),
    /// Show the cluster's health
    Status(OutputArguments),
    /// Show space by OSD
    Df(OutputArguments),
    /// Show the credentials for S3 clients
    Credentials(OutputArguments),
    /// Look at OSDs, create or run one
    #[command(subcommand)]
    Osd(OsdCommand),
    /// Look at pools
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Make, list, resize and remove block images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Measure the cluster
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Run the embedded cluster-state server (started by 'atoll up')
    #[command(subcommand)]
    State(DaemonCommand),
    /// Run the S3 gateway (started by 'atoll up')
    #[command(subcommand)]
    Gateway(DaemonCommand),
    /// Run the NBD server (started by 'atoll up')
    #[command(subcommand)]
    Nbd(DaemonCommand),
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
  atoll up --data ./atoll-data --s3-listen 127.0.0.1:9000 --nbd-listen 127.0.0.1:10809 --detach")]
pub struct UpArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// Number of OSD processes [default: 3, fixed at the first start]
    #[arg(long, value_name = "N")]
    pub osds: Option<u32>,
    /// Size of each OSD's device file, which is sparse [default: 32G, fixed at the first start]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub osd_size: Option<u64>,
    /// Where the S3 gateway listens [default: 127.0.0.1:9000]
    #[arg(long, value_name = "IP:PORT")]
    pub s3_listen: Option<SocketAddr>,
    /// Where the NBD server listens; may be given several times [default: unix:DIR/nbd.sock].
    /// NBD has no authentication yet: use TCP on trusted networks only
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub nbd_listen: Vec<ListenAddress>,
    /// Use this etcd for cluster state instead of the embedded server [fixed at the first start]
    #[arg(long, value_name = "URL")]
    pub etcd: Vec<String>,
    /// Protection of frames between Atoll's processes [default: secure, fixed at the first start]
    #[arg(long, value_name = "MODE")]
    pub frame_mode: Option<FrameModeArgument>,
    /// Make the OSDs' device files LUKS2 volumes that the key service unlocks [fixed at the first start]
    #[arg(long)]
    pub encrypt_at_rest: bool,
    /// Go to the background; return when everything serves
    #[arg(long)]
    pub detach: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FrameModeArgument {
    /// Encrypted and authenticated
    Secure,
    /// Checksums only; the handshake still authenticates
    Crc,
}

#[derive(Subcommand)]
pub enum OsdCommand {
    /// Show hosts and OSDs
    Tree(OutputArguments),
    /// Format a file or block device as an OSD of this data directory
    Create(OsdCreateArguments),
    /// Run an OSD (started by 'atoll up')
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        /// The OSD's number
        #[arg(long)]
        id: u32,
        #[command(flatten)]
        unlock: UnlockArguments,
    },
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
pub enum PoolCommand {
    /// List pools
    Ls(OutputArguments),
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Make an image; it takes no space until it is written
    #[command(after_help = "Example:\n  atoll image create --data ./atoll-data disk1 --size 4G")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Letters, digits, '-', '_' and '.'
        name: String,
        /// Such as 512M, 4G, 1T
        #[arg(long, value_parser = parse_size_bytes)]
        size: u64,
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

#[derive(Clone, Copy, ValueEnum)]
pub enum PatternArgument {
    Randwrite,
    Randread,
    Write,
    Read,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ObjectOperationArgument {
    Put,
    Get,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Block I/O on an image through the native client
    #[command(after_help = "\
Example:
  atoll bench block --image disk1 --rw randwrite --bs 4k --qd 32 --seconds 10 --json

Writes destroy the image's data. Before reads, parts that were never written are filled.")]
    Block {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        #[arg(long)]
        image: String,
        /// Access pattern
        #[arg(long)]
        rw: PatternArgument,
        /// Bytes per operation
        #[arg(long, value_parser = parse_size_bytes, default_value = "4k")]
        bs: u64,
        /// Operations in flight at once
        #[arg(long, default_value_t = 32)]
        qd: u32,
        /// How long to measure
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Use only this much of the image, from its beginning
        #[arg(long, value_parser = parse_size_bytes, default_value = "1G")]
        working_set: u64,
    },
    /// Objects through the S3 gateway
    #[command(after_help = "\
Example:
  atoll bench object --op put --size 64k --concurrency 32 --seconds 10 --json")]
    Object {
        #[command(flatten)]
        output: OutputArguments,
        /// What to do
        #[arg(long)]
        op: ObjectOperationArgument,
        /// Bytes per object
        #[arg(long, value_parser = parse_size_bytes, default_value = "64k")]
        size: u64,
        /// Requests in flight at once
        #[arg(long, default_value_t = 32)]
        concurrency: u32,
        /// How long to measure
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Number of different keys
        #[arg(long, default_value_t = 1000)]
        objects: u64,
        /// The bucket; it is made if it does not exist
        #[arg(long, default_value = "atoll-bench")]
        bucket: String,
    },
}
