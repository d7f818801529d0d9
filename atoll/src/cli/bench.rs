//! Arguments of commands that measure.

use std::path::PathBuf;

use atoll_base::OsdId;
use atoll_base::size::parse_size_bytes;
use atoll_bench::{AccessPattern, NbdAddress, OperationMix, Processes, SizeDistribution, Workload};
use clap::{Args, Subcommand, ValueEnum};

use super::{OutputArguments, parse_osd_id};

#[derive(Clone, Copy, ValueEnum)]
pub enum ObjectOperationArgument {
    /// Upload: new objects, then over them
    Put,
    /// Download
    Get,
    /// Pages of up to 1000 names
    List,
    /// Delete; the run ends early when no object is left
    Delete,
    /// Several of these: see --mix
    Mixed,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PrefillArgument {
    /// Parts that were never written
    Holes,
    /// Everything
    All,
    /// Nothing
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectPrefillArgument {
    /// All objects
    All,
    /// Those that are not there in the right size
    Missing,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DurabilityArgument {
    /// Each write by itself (RWF_DSYNC)
    Dsync,
    /// A flush behind each write (fdatasync)
    Fsync,
    /// When the device has it, perhaps in a volatile cache
    None,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Block I/O on an image, an NBD export, or a file or device
    #[command(after_help = BLOCK_HELP)]
    Block(BlockBenchArguments),
    /// Objects through an S3 endpoint
    #[command(after_help = OBJECT_HELP)]
    Object(ObjectBenchArguments),
    /// A matrix of runs on clusters that are set up differently, which it starts and stops; and its report
    #[command(after_help = RUN_HELP)]
    Run(RunBenchArguments),
    /// Whether operations still take the CPU time that a recorded budget says, on whatever day's machine
    #[command(after_help = super::guard::HELP)]
    Guard(super::GuardArguments),
    /// One client of another 'atoll bench', which tells it what to do
    #[command(hide = true)]
    Client,
    /// The object store alone, on a file or block device, and fio beside it
    #[command(after_help = STORE_HELP)]
    Store(StoreBenchArguments),
    /// Every OSD by itself, to find the slow one
    #[command(after_help = OSDS_HELP)]
    Osds(OsdsBenchArguments),
    /// What clients notice while an OSD's data moves to others and back, and how fast it moves
    #[command(after_help = RECOVERY_HELP)]
    Recovery(RecoveryBenchArguments),
    /// What a described cluster should be able to do, and what limits it; runs nothing
    #[command(after_help = MODEL_HELP)]
    Model(ModelArguments),
    /// A drive alone, by the eight tests that operators run before they deploy
    #[command(after_help = DISK_HELP)]
    Disk(DiskBenchArguments),
    /// A matrix's record as a page with plots, and as Markdown
    #[command(after_help = REPORT_HELP)]
    Report(ReportArguments),
    /// What has changed from one record to another
    #[command(after_help = COMPARE_HELP)]
    Compare(CompareArguments),
}

/// How long, how fast, by how many.
#[derive(Args)]
pub struct PlanArguments {
    /// How long to measure
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// How long to run before measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub warm_up: f64,
    /// Operations begun per second by all clients together, whether or not earlier ones have ended: latency
    /// counts from when an operation was due [default: each operation begins when one before has ended]
    #[arg(long, value_name = "OPERATIONS")]
    pub rate: Option<f64>,
    /// End early when each client has moved so much
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub bytes_max: Option<u64>,
    /// Seconds and all latencies (HdrHistogram) in the JSON as well
    #[arg(long, requires = "json")]
    pub full: bool,
}

const BLOCK_HELP: &str = "\
Examples:
  atoll bench block --image disk1 --rw randwrite --bs 4k --qd 32 --seconds 10 --json
  atoll bench block --image disk1,disk2,disk3,disk4 --rw randread --qd 128       four clients, one for each image
  atoll bench block --image disk1 --rw randrw --read-percent 70 --rate 2000      2000 operations a second (open loop)
  atoll bench block --image disk1 --rw randrw --verify                           compares all that is read
  atoll bench block --file /dev/nvme0n1 --rw randread --bs 4k --qd 1             a device, past the page cache
  atoll bench block --rbd bench/disk1 --rw randread --qd 32 --fio-command 'chroot /srv/ceph fio'
  atoll bench block --fio-file ./raw --rw randwrite --qd 32        the same by fio, on a file that is there
  atoll bench block --file ./raw --file-size 1G --rw randwrite --durability fsync
  atoll bench block --nbd nbd://host:10809/disk1 --rw randwrite --clients 4
  atoll bench block --nbd 'nbd+unix:///disk1?socket=/run/nbd.sock' --rw randrw --server-pids nbd=812

Writes destroy the target's data. Before anything else, parts of the working set that were never written are
filled. Each client is a process of its own.";

#[derive(Args)]
pub struct BlockBenchArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Images, each with a client of its own
    #[arg(
        long,
        value_name = "IMAGE,...",
        value_delimiter = ',',
        required_unless_present_any = ["file", "nbd", "rbd", "rados", "fio_file"],
        conflicts_with_all = ["file", "nbd", "rbd", "rados", "fio_file"]
    )]
    pub image: Vec<String>,
    /// A file or block device
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// An export of any NBD server: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH
    #[arg(long, value_name = "URI", conflicts_with = "file")]
    pub nbd: Option<NbdAddress>,
    /// Clients of the export, each a process of its own with a connection of its own
    #[arg(long, default_value_t = 1, requires = "nbd", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// An image of a Ceph cluster, through fio's rbd engine
    #[arg(long, value_name = "POOL/IMAGE", conflicts_with_all = ["file", "nbd", "verify", "rate"])]
    pub rbd: Option<String>,
    /// A pool of a Ceph cluster, whose objects of 4 MiB fio works on through librados
    #[arg(long, value_name = "POOL", conflicts_with_all = ["rbd", "file", "nbd", "verify", "rate"])]
    pub rados: Option<String>,
    /// A file or block device that fio works on (io_uring, past the page cache, each write durable): what the disk
    /// can do at all. fio's own CPU time counts as the servers'
    #[arg(long, value_name = "PATH", conflicts_with_all = ["rbd", "rados", "file", "nbd", "verify", "rate"])]
    pub fio_file: Option<PathBuf>,
    /// Ceph's configuration file, as fio sees it
    #[arg(long, value_name = "PATH", default_value = "/etc/ceph/ceph.conf")]
    pub ceph_conf: String,
    /// The Ceph client's name
    #[arg(long, value_name = "NAME", default_value = "admin")]
    pub ceph_client: String,
    /// How fio is started, such as 'chroot /srv/ceph fio'
    #[arg(long, value_name = "COMMAND", default_value = "fio")]
    pub fio_command: String,
    /// The servers' processes on this host by role, for their CPU time, if no data directory says them
    #[arg(long, value_name = "ROLE=PID,PID;...")]
    pub server_pids: Option<Processes>,
    /// Make the file, of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, requires = "file")]
    pub file_size: Option<u64>,
    /// When a write to a file or device counts as done
    #[arg(long, default_value = "dsync", requires = "file")]
    pub durability: DurabilityArgument,
    /// Access pattern: randwrite, randread, write, read, randrw or rw
    #[arg(long, value_name = "PATTERN")]
    pub rw: AccessPattern,
    /// Reads among 100 operations of randrw and rw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=100))]
    pub read_percent: u32,
    /// Bytes per operation
    #[arg(long, value_parser = parse_size_bytes, default_value = "4k")]
    pub bs: u64,
    /// Operations in flight at once, of each client
    #[arg(long, default_value_t = 32)]
    pub qd: u32,
    /// Use only this much of each target, from its beginning
    #[arg(long, value_parser = parse_size_bytes, default_value = "1G")]
    pub working_set: u64,
    /// What to write before
    #[arg(long, default_value = "holes")]
    pub prefill: PrefillArgument,
    /// Write into each 4 KiB who wrote it and when, and compare all that is read; everything is filled before
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub plan: PlanArguments,
}

const OBJECT_HELP: &str = "\
Examples:
  atoll bench object --op put --size 64k --concurrency 32 --seconds 10 --json
  atoll bench object --op get --size 4m --clients 4 --concurrency 8
  atoll bench object --op put --tls
  atoll bench object --op mixed --mix get=70,put=20,list=5,delete=5 --size 4k:50,1m:40,64m:10 --objects 200
  atoll bench object --op mixed --verify                         compares all that is downloaded and listed
  AWS_SECRET_ACCESS_KEY=... atoll bench object --op get --endpoint https://s3.example.org --access-key AKIA... \\
    --ca ca.pem --server-pids 'gateway=812;osd=820,821,822'      any other S3 endpoint

Each client has objects of its own, which stay in the bucket and are overwritten by the next run. They are
uploaded before all but 'put'. A deleted object is the first to be uploaded again when PUTs are mixed in.";

#[derive(Args)]
pub struct ObjectBenchArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// What to do
    #[arg(long)]
    pub op: ObjectOperationArgument,
    /// Weights of mixed operations [default with '--op mixed': get=45,put=15,list=30,delete=10]
    #[arg(long, value_name = "OPERATION=WEIGHT,...")]
    pub mix: Option<OperationMix>,
    /// Bytes per object, or several sizes with their weights
    #[arg(long, value_name = "SIZE[:WEIGHT,...]", default_value = "64k")]
    pub size: SizeDistribution,
    /// Requests in flight at once, of each client
    #[arg(long, default_value_t = 32)]
    pub concurrency: u32,
    /// Clients, each a process of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Number of different keys, of each client
    #[arg(long, default_value_t = 1000)]
    pub objects: u64,
    /// Write into each object who wrote it and when, and compare all that is downloaded and listed
    #[arg(long)]
    pub verify: bool,
    /// The bucket; it is made if it does not exist
    #[arg(long, default_value = "atoll-bench")]
    pub bucket: String,
    /// The pool for its data if it is made
    #[arg(long)]
    pub pool: Option<String>,
    /// What to upload before operations that are not PUTs
    #[arg(long, default_value = "all")]
    pub prefill: ObjectPrefillArgument,
    /// Go over TLS
    #[arg(long)]
    pub tls: bool,
    /// Another address to go to: a load balancer's, or with --access-key that of any S3 service [default: the
    /// gateway's]
    #[arg(long, value_name = "URL", conflicts_with = "tls")]
    pub endpoint: Option<String>,
    #[command(flatten)]
    pub foreign: ForeignEndpointArguments,
    #[command(flatten)]
    pub plan: PlanArguments,
}

/// An S3 service that no Atoll data directory here belongs to.
#[derive(Args)]
pub struct ForeignEndpointArguments {
    /// Its access key; 'env' takes it from AWS_ACCESS_KEY_ID. No data directory is looked at then
    #[arg(long, value_name = "KEY", requires = "endpoint")]
    pub access_key: Option<String>,
    /// Its secret key [default: AWS_SECRET_ACCESS_KEY of the environment, where other users do not see it]
    #[arg(long, value_name = "KEY", requires = "access_key")]
    pub secret_key: Option<String>,
    /// PEM file of the authority of its certificate [default: those that this host trusts]
    #[arg(long, value_name = "FILE", requires = "access_key")]
    pub ca: Option<PathBuf>,
    /// Its region
    #[arg(long, default_value = "us-east-1", requires = "access_key")]
    pub region: String,
    /// Its processes on this host by role, for their CPU time
    #[arg(long, value_name = "ROLE=PID,PID;...", requires = "endpoint")]
    pub server_pids: Option<Processes>,
}

const RUN_HELP: &str = "\
Examples:
  atoll bench run --list                             the matrices that come with Atoll
  atoll bench run encryption-block --profile short   some 15 minutes: an idea of the answer
  atoll bench run redundancy --out ./results         hours: the answer
  atoll bench run encryption-object --transit '--kms-address http://127.0.0.1:8200 --kms-token-file ./token'
  atoll bench run ./my-matrix.toml --without luks,both

Each load is run on each subject, in turns, as often as the profile says; each run adds a line to OUT/NAME-PROFILE.jsonl,
from which the same command goes on when it was cut short. Clusters are made below --dir, on whose disk they work, and
are removed at the end.";

#[derive(Args)]
pub struct RunBenchArguments {
    /// Name of a matrix that comes with Atoll, or a TOML file
    #[arg(required_unless_present = "list")]
    pub matrix: Option<String>,
    /// Show the matrices that come with Atoll
    #[arg(long)]
    pub list: bool,
    /// How much of everything: full, short, or another that the matrix has
    #[arg(long, default_value = "full")]
    pub profile: String,
    /// Where the record and the reports go
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Where clusters are made: on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value = "./atoll-bench-clusters")]
    pub dir: PathBuf,
    /// Subjects to leave out
    #[arg(long, value_name = "SUBJECT,...", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Options of 'atoll up' that name a Transit engine, for subjects whose keys are in one
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    pub transit: String,
    /// Print the record's path and the reports' as JSON
    #[arg(long)]
    pub json: bool,
}

const STORE_HELP: &str = "\
Examples:
  atoll bench store --device /mnt/nvme/bench.store --fio
  atoll bench store --device /dev/nvme0n1 --wipe --size 64G --working-set 32G --fio --json
  atoll bench store --device ./bench.store --wipe --workloads 4k-randwrite-qd32,4k-randread-qd32 --rounds 1
  atoll bench store --device ./bench.store --wipe --size 32G --working-set 24G --workloads 4k-randwrite-qd32

A workload is SIZE-PATTERN-qdDEPTH; patterns are randwrite, randread, write and read. The device is
written once as a whole before. fio works on DEVICE.fio beside a file, which is removed at the end, or on
the range behind the store's on a block device.";

#[derive(Args)]
pub struct StoreBenchArguments {
    /// A file, which is made, or a block device
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Size of the store; of a block device only the beginning is used
    #[arg(long, value_parser = parse_size_bytes, default_value = "8G")]
    pub size: u64,
    /// Bytes of 4 MiB objects that are written before and that operations go to
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "4G")]
    pub working_set: u64,
    /// Overwrite what the file or block device holds
    #[arg(long)]
    pub wipe: bool,
    /// How long to measure each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub runtime: u64,
    /// How often to run each workload; the figures are medians
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// What to run
    #[arg(
        long,
        value_name = "WORKLOAD,...",
        value_delimiter = ',',
        default_value = "4k-randwrite-qd1,4k-randwrite-qd32,4k-randwrite-qd128,4k-randread-qd1,4k-randread-qd32,\
                         4m-write-qd16,4m-read-qd16"
    )]
    pub workloads: Vec<Workload>,
    /// Run fio on the same device in turns with the store
    #[arg(long)]
    pub fio: bool,
    /// Memory for the store's metadata, and as much for small writes in the log [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub memory: Option<u64>,
    /// Encrypt the device at rest (LUKS2, with a key that is thrown away)
    #[arg(long)]
    pub luks: bool,
    /// Put the log on this file or block device instead
    #[arg(long, value_name = "PATH")]
    pub log_device: Option<PathBuf>,
    /// Size of the log
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "256M")]
    pub log_size: u64,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

const OSDS_HELP: &str = "\
Examples:
  atoll bench osds
  atoll bench osds --seconds 5 --rounds 5 --json
  atoll pool create one --size 1 --pg-num 128 && atoll bench osds --pool one      writes of each OSD alone

4 KiB are written and read, one at a time, in objects whose primary the OSD is. RATIO is the median latency by
that of the class's median OSD; from 1.5 on an OSD is called slow.";

#[derive(Args)]
pub struct OsdsBenchArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The pool in which objects are made, and removed at the end
    #[arg(long, default_value = "images")]
    pub pool: String,
    /// How long each OSD is written to, and read from, in each round
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How often all OSDs have their turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
}

const RECOVERY_HELP: &str = "\
Examples:
  atoll bench recovery --osd 3                                   clients write as fast as they can at depth 8
  atoll bench recovery --osd 3 --rate 2000 --reads 70 --json     2000 operations a second, 70% of them reads
  atoll bench recovery --osd 3 --idle                            no clients: how fast it goes by itself

An image is filled, clients are measured for some seconds, the OSD is marked out until all of its data is
elsewhere and in until it is back, and clients are measured again. No copy is given up before the one in
its place is whole, and the OSD goes on serving all the while: nothing is less safe than before. It takes
one OSD (or host, or rack: what copies are spread over) more than there are copies. If the command is cut
short the OSD may stay out; 'atoll osd in N' marks it in.

While clients are at work each OSD reads no more than its recovery rate to fill others: 'atoll osd run
--recovery-rate', or ATOLL_OSD_RECOVERY_RATE in the environment of 'atoll up'.";

#[derive(Args)]
pub struct RecoveryBenchArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD whose data moves
    #[arg(long, value_name = "OSD", value_parser = parse_osd_id)]
    pub osd: OsdId,
    /// An image whose data is destroyed [default: one is made, and removed at the end]
    #[arg(long)]
    pub image: Option<String>,
    /// Bytes of the image that are written before and that clients use
    #[arg(long, value_parser = parse_size_bytes, default_value = "10G")]
    pub size: u64,
    /// No clients
    #[arg(long, conflicts_with_all = ["qd", "rate", "reads", "bs"])]
    pub idle: bool,
    /// Clients' operations in flight at once
    #[arg(long, default_value_t = 8)]
    pub qd: u32,
    /// Clients' operations begun per second [default: as many as the depth allows]
    #[arg(long, value_name = "OPERATIONS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Reads among 100 operations; the others are writes
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    pub reads: u32,
    /// Bytes per operation
    #[arg(long, value_parser = parse_size_bytes, default_value = "4k")]
    pub bs: u64,
    /// How long to measure before and after
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
}

const MODEL_HELP: &str = "\
Examples:
  atoll bench model four-hosts --show > cluster.toml      begin with this, and describe your own
  atoll bench model cluster.toml
  atoll bench model cluster.toml --resources              all that operations need, not only what limits them
  atoll bench model rgw-12-hosts --calibration ceph       a cluster of the field, and what was measured there
  atoll bench model cluster.toml --calibration mine.toml --json

It divides what the cluster has (cores, network, drives) by what one operation was measured to take, and
names what allows the fewest operations: the most to hope for, not a promise. tools/hosts/calibrate.py
measures a calibration. What is in the files, and how good the model is: docs/benchmark-model.md.";

#[derive(Args)]
pub struct ModelArguments {
    /// A file that describes it, or one that is built in: four-hosts, rgw-12-hosts, capped-hosts
    #[arg(value_name = "CLUSTER")]
    pub cluster: String,
    /// What operations cost: a file, or one that is built in: atoll, ceph
    #[arg(long, value_name = "CALIBRATION", default_value = "atoll")]
    pub calibration: String,
    /// List all that each operation needs
    #[arg(long, conflicts_with = "show")]
    pub resources: bool,
    /// Print the cluster's description and do nothing else
    #[arg(long, conflicts_with = "json")]
    pub show: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

const REPORT_HELP: &str = "\
Examples:
  atoll bench report encryption-block.jsonl                       encryption-block.html and encryption-block.md
  atoll bench report encryption-block.jsonl --html /srv/www/encryption.html --markdown docs/encryption.md

The page is one file that needs no network; it prints on A4. A record that is still being written, or was
cut short, has a report of the runs that it has.";

#[derive(Args)]
pub struct ReportArguments {
    /// The record (JSON lines)
    #[arg(value_name = "RECORD.jsonl")]
    pub record: PathBuf,
    /// Where the page goes [default: beside the record]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Where the Markdown goes [default: beside the record]
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

const DISK_HELP: &str = "\
Examples:
  atoll bench disk --device /mnt/nvme/bench.disk                 a file that is made, filled and removed
  atoll bench disk --device /dev/nvme0n1 --wipe --size 64G --seconds 60
  atoll bench disk --device ./bench.disk --size 1G --seconds 3 --json | jq '.tests[] | {test, iops, class}'

Linear reads and writes (4 MiB, depth 32), parallel ones (4 KiB at random, depth 128), single reads (4 KiB at
random, depth 1), and single writes that are durable (as a log writes them, by O_DSYNC and by fsync, and at
random). fio does it: apt install fio. Run it on drives that nothing else uses, on a range larger than
their caches.";

#[derive(Args)]
pub struct DiskBenchArguments {
    /// A file, which is made, or a block device
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Overwrite what the file or block device holds
    #[arg(long)]
    pub wipe: bool,
    /// How much is filled and used, from the beginning
    #[arg(long, value_parser = parse_size_bytes, default_value = "4G")]
    pub size: u64,
    /// How long each of the eight tests takes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

const COMPARE_HELP: &str = "\
Examples:
  atoll bench compare before.jsonl after.jsonl
  atoll bench compare before.jsonl after.jsonl --json

Loads and subjects are joined by name; each figure is the second's relative to the first's. The two were not
measured in turns: what has changed on the machine between them counts as a change, too. Exit code 0 says that
they were compared, whether or not they differ.";

#[derive(Args)]
pub struct CompareArguments {
    /// The first record
    #[arg(value_name = "A.jsonl")]
    pub before: PathBuf,
    /// The second
    #[arg(value_name = "B.jsonl")]
    pub after: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}
