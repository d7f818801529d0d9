//! Commands that measure.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use atoll_base::PoolId;
use atoll_base::frames::FramesRecord;
use atoll_base::records::{BucketRecord, PoolRecord};
use atoll_base::size::format_size;
use atoll_bench::{AccessPattern, BenchReport, BlockBench, ObjectBench, ObjectOperation, run_block, run_object};
use atoll_cluster::{ClusterClient, keys};
use atoll_image::AttachedImage;
use atoll_supervisor::{DataDir, ProcessesFile};

use super::image::{ImageAccess, progress_bar};
use super::{OpenCluster, print_json, tokio_runtime};
use crate::cli::{BenchCommand, ObjectOperationArgument, OutputArguments, PatternArgument};

const TIMEOUT_MS: u64 = 60_000;

/// Runs a bench command.
pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Block { output, image, rw, bs, qd, seconds, working_set } => {
            let pattern = match rw {
                PatternArgument::Randwrite => AccessPattern::RandomWrite,
                PatternArgument::Randread => AccessPattern::RandomRead,
                PatternArgument::Write => AccessPattern::Write,
                PatternArgument::Read => AccessPattern::Read,
            };
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let protections = access.block_on_tokio(async {
                let pool = access.admin.get(&image).await?.0.pool;
                protections(&access.open.connect().await?, pool, "images sealed per 4 KiB block").await
            })?;
            let bench = BlockBench {
                pattern,
                block_bytes: bs,
                depth: qd,
                duration: Duration::from_secs(seconds),
                working_set_bytes: working_set,
                servers: servers(&access.open.directory)?,
                protections,
            };
            print_report(&output, &block(&access, &image, bench)?)
        }
        BenchCommand::Object { output, op, size, concurrency, seconds, objects, bucket, tls, endpoint } => {
            let open = OpenCluster::open(&output.data)?;
            let credentials = open.directory.credentials()?;
            let encrypted = credentials.tls_endpoint.filter(|_| tls);
            if tls && encrypted.is_none() {
                anyhow::bail!("the gateway does not listen with TLS; see 'atoll up --s3-tls-listen'");
            }
            let endpoint = endpoint.or(encrypted).unwrap_or(credentials.endpoint);
            let has_tls = endpoint.starts_with("https:");
            let runtime = tokio_runtime()?;
            let bench = ObjectBench {
                endpoint,
                ca_file: credentials.ca_file,
                access_key: credentials.access_key,
                secret_key: credentials.secret_key,
                bucket: bucket.clone(),
                operation: match op {
                    ObjectOperationArgument::Put => ObjectOperation::Put,
                    ObjectOperationArgument::Get => ObjectOperation::Get,
                },
                size_bytes: size,
                concurrency,
                duration: Duration::from_secs(seconds),
                object_count: objects,
                servers: servers(&open.directory)?,
                protections: String::new(),
            };
            let report = runtime.block_on(async {
                let report = run_object(bench).await?;
                // Only now it is certain that there is a bucket, and in which pool its data is.
                let state = open.connect().await?;
                let bucket =
                    state.get::<BucketRecord>(&keys::bucket(&bucket)).await?.context("the bucket is gone")?.0;
                let http = if has_tls { "HTTP over TLS" } else { "plain HTTP" };
                let sealed = format!("objects sealed per 64 KiB segment, {http}");
                anyhow::Ok(BenchReport {
                    protections: protections(&state, bucket.data_pool(), &sealed).await?,
                    ..report
                })
            })?;
            print_report(&output, &report)
        }
        BenchCommand::Store(arguments) => super::bench_store::run(arguments),
        BenchCommand::Recovery(arguments) => super::bench_recovery::run(&arguments),
        BenchCommand::Disk(arguments) => super::bench_disk::run(arguments),
    }
}

fn block(access: &ImageAccess, name: &str, bench: BlockBench) -> anyhow::Result<BenchReport> {
    let progress = progress_bar("filling");
    let run = async {
        let attached =
            AttachedImage::attach(&access.client, &access.bridge, &access.admin, name, "atoll bench block")
                .await?;
        let image = Rc::new(attached);
        let report = run_block(Rc::clone(&image), bench, &progress).await;
        image.detach().await?;
        anyhow::Ok(report?)
    };
    access.runtime.block_on(run)?
}

/// All server processes of the cluster on this machine.
pub(super) fn servers(directory: &DataDir) -> anyhow::Result<Vec<u32>> {
    let file = ProcessesFile::running(directory);
    let file =
        file.ok_or_else(|| anyhow::anyhow!("the cluster in {} is not running", directory.root().display()))?;
    Ok(file.children.iter().filter_map(|child| child.pid).chain([file.supervisor]).collect())
}

/// What protects the data of a pool.
pub(super) async fn protections(state: &ClusterClient, pool: PoolId, sealed: &str) -> anyhow::Result<String> {
    let found = state.get::<PoolRecord>(&keys::pool(pool)).await?;
    let redundancy = found.with_context(|| format!("there is no pool {pool}"))?.0.redundancy;
    let frames = state.get::<FramesRecord>(keys::FRAMES).await?.map(|(record, _)| record).unwrap_or_default();
    Ok(format!(
        "{redundancy}, every ack durable (RWF_DSYNC) on all, CRC-32C per 4 KiB, frames {}, {sealed}",
        frames.modes
    ))
}

fn print_report(output: &OutputArguments, report: &BenchReport) -> anyhow::Result<()> {
    if output.json {
        return print_json(report);
    }
    let latency = &report.latency_us;
    println!("{} {} at depth {}", report.operation, format_size(report.size_bytes), report.depth);
    println!("  {:.0} op/s, {:.1} MB/s, {} errors", report.iops, report.mb_per_s, report.errors);
    if let Some(error) = &report.first_error {
        println!("  first error: {error}");
    }
    println!(
        "  latency us: mean {:.0}, p50 {}, p99 {}, p99.9 {}, max {}",
        latency.mean, latency.p50, latency.p99, latency.p999, latency.max
    );
    println!(
        "  CPU us/op: {:.1} servers, {:.1} load generator",
        report.cpu_us_per_op, report.client_cpu_us_per_op
    );
    println!("  {}", report.protections);
    Ok(())
}
