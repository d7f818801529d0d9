//! `atoll bench object`.

use anyhow::Context;
use atoll_base::records::BucketRecord;
use atoll_bench::{Measurement, ObjectOperation, ObjectTarget, ObjectWorkload, Setting, run_processes};
use atoll_cluster::keys;

use super::bench::{client_command, plan, print_measurement, protections, servers};
use super::bench_client::{Job, ObjectJob};
use super::image::progress_bar;
use super::{OpenCluster, tokio_runtime};
use crate::cli::{ObjectBenchArguments, ObjectOperationArgument};

/// Runs `atoll bench object`.
pub fn run(arguments: ObjectBenchArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    let target = target(&open, &arguments)?;
    let operation = match arguments.op {
        ObjectOperationArgument::Put => ObjectOperation::Put,
        ObjectOperationArgument::Get => ObjectOperation::Get,
    };
    let plan = plan(&arguments.plan, arguments.concurrency, arguments.clients as usize)?;
    let job = |client| {
        let (size_bytes, object_count) = (arguments.size, arguments.objects);
        let workload = ObjectWorkload { operation, size_bytes, object_count, client };
        Job::Object(ObjectJob { target: target.clone(), workload, plan: plan.clone() })
    };
    let jobs: Vec<Job> = (0..arguments.clients).map(job).collect();
    let outcome = run_processes(client_command()?, &jobs, &servers(&open.directory)?, &progress_bar("filling"))?;
    let setting = Setting {
        operation: operation.name().into(),
        size_bytes: arguments.size,
        depth: arguments.concurrency,
        rate_per_second: arguments.plan.rate,
        // Only now it is certain that there is a bucket, and in which pool its data is.
        protections: tokio_runtime()?.block_on(object_protections(&open, &target))?,
    };
    print_measurement(&arguments.output, &arguments.plan, Measurement::of(setting, &outcome))
}

fn target(open: &OpenCluster, arguments: &ObjectBenchArguments) -> anyhow::Result<ObjectTarget> {
    let credentials = open.directory.credentials()?;
    let encrypted = credentials.tls_endpoint.filter(|_| arguments.tls);
    if arguments.tls && encrypted.is_none() {
        anyhow::bail!("the gateway does not listen with TLS; see 'atoll up --s3-tls-listen'");
    }
    Ok(ObjectTarget {
        endpoint: arguments.endpoint.clone().or(encrypted).unwrap_or(credentials.endpoint),
        ca_file: credentials.ca_file,
        access_key: credentials.access_key,
        secret_key: credentials.secret_key,
        bucket: arguments.bucket.clone(),
    })
}

async fn object_protections(open: &OpenCluster, target: &ObjectTarget) -> anyhow::Result<String> {
    let state = open.connect().await?;
    let bucket = state.get::<BucketRecord>(&keys::bucket(&target.bucket)).await?.context("the bucket is gone")?.0;
    let http = if target.endpoint.starts_with("https:") { "HTTP over TLS" } else { "plain HTTP" };
    let sealed = if bucket.seals_by_default() { "sealed per 64 KiB segment" } else { "not sealed" };
    protections(&state, bucket.data_pool(), &format!("objects {sealed}, {http}")).await
}
