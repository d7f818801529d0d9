//! `atoll bench block`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use atoll_bench::{
    BlockWorkload, Durability, FioBench, FioTarget, Measurement, NbdAddress, Prefill, Processes, Setting,
    run_processes,
};

use super::bench::{TIMEOUT_MS, client_command, plan, print_measurement, protections, servers};
use super::bench_client::{BlockJob, BlockTargetName, Job};
use super::image::{ImageAccess, progress_bar, sealing_text};
use crate::cli::{BlockBenchArguments, DurabilityArgument, PrefillArgument};

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
    let outcome = run_processes(command, &jobs, &servers, &progress_bar("filling"))?;
    let setting = Setting {
        operation: arguments.rw.name().into(),
        size_bytes: arguments.bs,
        depth: arguments.qd,
        rate_per_second: arguments.plan.rate,
        protections,
    };
    print_measurement(&arguments.output, &arguments.plan, Measurement::of(setting, &outcome))
}

fn ceph(arguments: &BlockBenchArguments, pool: &str, image: Option<&str>) -> FioTarget {
    FioTarget::Ceph {
        pool: pool.to_owned(),
        image: image.map(str::to_owned),
        conf: arguments.ceph_conf.clone(),
        client: arguments.ceph_client.clone(),
    }
}

/// What fio makes the load on.
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

/// What clients work on, the processes that serve it, and how it is protected.
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
