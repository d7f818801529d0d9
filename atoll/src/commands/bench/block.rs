//! `atoll bench block`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use atoll_bench::servers;
use atoll_bench::{
    AccessPattern, BlockWorkload, Durability, FioBench, FioTarget, Measurement, NbdAddress, Outcome, Prefill,
    Processes, Setting, WorkingSet, run_processes,
};
use atoll_types::size::parse_size_bytes;
use clap::{Args, ValueEnum};

use super::client::{BlockJob, BlockTargetName, Job};
use super::measurement::{PlanArguments, TIMEOUT_MS, client_command, plan, print_measurement, protections};
use crate::commands::arguments::OutputArguments;
use crate::commands::image::{ImageAccess, sealing_text};
use crate::commands::output::progress_bar;

pub const HELP: &str = "\
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
    /// A file or block device that fio works on (io_uring, past the page cache, each write durable), as the limit
    /// of the disk. fio's own CPU time counts as the servers'
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
    /// The servers' processes on this host by role, for their CPU time, if no data directory names
    /// them
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
    /// Use only this much of each target, from its beginning. Caches may hold less than 8 GiB
    #[arg(long, value_parser = parse_size_bytes, default_value = "8G")]
    pub working_set: u64,
    /// Data to write before the run
    #[arg(long, default_value = "holes")]
    pub prefill: PrefillArgument,
    /// Stamp each 4 KiB block with its writer and time, and check all that is read; everything is written before
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub plan: PlanArguments,
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

#[derive(Clone, Copy, ValueEnum)]
pub enum DurabilityArgument {
    /// Each write by itself (RWF_DSYNC)
    Dsync,
    /// A flush behind each write (fdatasync)
    Fsync,
    /// When the device has it, perhaps in a volatile cache
    None,
}

/// Runs `atoll bench block`.
pub fn run(arguments: &BlockBenchArguments) -> anyhow::Result<()> {
    if let Some(image) = &arguments.rbd {
        let (pool, image) = image.split_once('/').context("name the image as POOL/IMAGE")?;
        return fio(arguments, ceph(arguments, pool, Some(image)));
    }
    if let Some(pool) = &arguments.rados {
        return fio(arguments, ceph(arguments, pool, None));
    }
    if let Some(path) = &arguments.fio_file {
        return fio(arguments, FioTarget::File(path.clone()));
    }
    let (targets, servers, protections) = targets(arguments)?;
    let plan = plan(&arguments.plan, arguments.qd, targets.len())?;
    let job = |(number, target)| {
        Job::Block(BlockJob {
            target,
            workload: BlockWorkload {
                pattern: arguments.rw,
                read_percent: arguments.read_percent,
                block_bytes: arguments.bs,
                working_set_bytes: arguments.working_set,
                is_verified: arguments.verify,
                seed: number as u64 + 1,
            },
            prefill: match arguments.prefill {
                // All clients of an export share its blocks; the first fills them for all.
                _ if number > 0 && arguments.nbd.is_some() => Prefill::Nothing,
                _ if arguments.verify => Prefill::All,
                PrefillArgument::Holes => Prefill::Holes,
                PrefillArgument::All => Prefill::All,
                PrefillArgument::Nothing => Prefill::Nothing,
            },
            plan: plan.clone(),
        })
    };
    let jobs: Vec<Job> = targets.into_iter().enumerate().map(job).collect();
    let command = client_command()?;
    let outcome = run_processes(command, &jobs, &servers, &progress_bar("prefilling"))?;
    let setting = Setting {
        operation: arguments.rw.name().into(),
        size_bytes: arguments.bs,
        depth: arguments.qd,
        rate_per_second: arguments.plan.rate,
        working_set: working_set(arguments, &outcome).to_string(),
        protections,
    };
    print_measurement(&arguments.output, &arguments.plan, Measurement::of(setting, &outcome))
}

/// Clients of an export share its blocks, others have a target each.
fn working_set(arguments: &BlockBenchArguments, outcome: &Outcome) -> WorkingSet {
    let each = outcome.clients.iter().map(|one| one.working_set_bytes);
    WorkingSet::Blocks { bytes: if arguments.nbd.is_some() { each.max().unwrap_or(0) } else { each.sum() } }
}

fn ceph(arguments: &BlockBenchArguments, pool: &str, image: Option<&str>) -> FioTarget {
    FioTarget::Ceph {
        pool: pool.to_owned(),
        image: image.map(str::to_owned),
        conf: arguments.ceph_conf.clone(),
        client: arguments.ceph_client.clone(),
    }
}

/// Runs fio on a target.
fn fio(arguments: &BlockBenchArguments, target: FioTarget) -> anyhow::Result<()> {
    let bench = FioBench {
        target,
        command: arguments.fio_command.split_whitespace().map(str::to_owned).collect(),
        pattern: arguments.rw,
        read_percent: arguments.read_percent,
        block_bytes: arguments.bs,
        working_set_bytes: arguments.working_set,
        // What was never written cannot be told through fio.
        is_filled_before: !matches!(arguments.prefill, PrefillArgument::Nothing),
        plan: plan(&arguments.plan, arguments.qd, 1)?,
        servers: arguments.server_pids.clone().unwrap_or_default(),
    };
    print_measurement(&arguments.output, &arguments.plan, bench.run()?)
}

/// Returns the targets of clients, the processes that serve them, and their protection.
fn targets(arguments: &BlockBenchArguments) -> anyhow::Result<(Vec<BlockTargetName>, Processes, String)> {
    if let Some(path) = &arguments.file {
        return file_target(arguments, path.clone());
    }
    if let Some(address) = &arguments.nbd {
        return nbd_targets(arguments, address);
    }
    let data = &arguments.output.data;
    let access = ImageAccess::new(data, TIMEOUT_MS)?;
    let first = arguments.image.first().context("name an image")?;
    let protections = access.block_on_tokio(async {
        let (record, _) = access.admin.get(first).await?;
        let state = access.open.connect().await?;
        protections(&access.open, &state, record.pool, sealing_text(record.key.is_sealed())).await
    })?;
    let name = |image: &String| BlockTargetName::Image { data: data.data.clone(), name: image.clone() };
    let servers = arguments.server_pids.clone().map_or_else(|| servers(&access.open.directory), Ok)?;
    Ok((arguments.image.iter().map(name).collect(), servers, protections))
}

fn nbd_targets(
    arguments: &BlockBenchArguments,
    address: &NbdAddress,
) -> anyhow::Result<(Vec<BlockTargetName>, Processes, String)> {
    let is_shared = arguments.clients > 1;
    if is_shared && arguments.verify {
        bail!("clients of one export write over each other's blocks; verify with --clients 1");
    }
    let target = || BlockTargetName::Nbd { address: address.clone(), is_shared };
    let targets = (0..arguments.clients).map(|_| target()).collect();
    let servers = arguments.server_pids.clone().unwrap_or_default();
    let transport = address.transport();
    let protections = format!(
        "as the NBD server's owner set it up, every write durable if the server keeps its word (FUA, else a FLUSH \
         behind each), {transport}"
    );
    Ok((targets, servers, protections))
}

fn file_target(
    arguments: &BlockBenchArguments,
    path: PathBuf,
) -> anyhow::Result<(Vec<BlockTargetName>, Processes, String)> {
    if let Some(size_bytes) = arguments.file_size {
        let made = std::fs::File::create_new(&path).and_then(|file| file.set_len(size_bytes));
        made.with_context(|| format!("cannot make {}", path.display()))?;
    }
    let (durability, words) = match arguments.durability {
        DurabilityArgument::Dsync => (Durability::EachWrite, "every write durable (RWF_DSYNC)"),
        DurabilityArgument::Fsync => (Durability::Flush, "every write durable (fdatasync behind each)"),
        DurabilityArgument::None => (Durability::None, "writes not durable"),
    };
    let target = BlockTargetName::File { path, durability };
    Ok((vec![target], Processes::default(), format!("one copy, no checksums, not encrypted, {words}")))
}
