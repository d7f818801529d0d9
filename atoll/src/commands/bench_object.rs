//! `atoll bench object`.

use anyhow::{Context, bail};
use atoll_base::records::BucketRecord;
use atoll_bench::{
    Measurement, ObjectOperation, ObjectTarget, ObjectWorkload, OperationMix, Processes, Setting, run_processes,
};
use atoll_cluster::keys;

use super::bench::{client_command, plan, print_measurement, protections, servers};
use super::bench_client::{Job, ObjectJob};
use super::image::progress_bar;
use super::{OpenCluster, tokio_runtime};
use crate::cli::{ForeignEndpointArguments, ObjectBenchArguments, ObjectOperationArgument, ObjectPrefillArgument};

const DEFAULT_MIX: &str = "get=45,put=15,list=30,delete=10";

/// Runs `atoll bench object`.
pub fn run(arguments: ObjectBenchArguments) -> anyhow::Result<()> {
    let mix = mix(&arguments)?;
    // Of a service of others nothing is known but what the caller says.
    let open = match arguments.foreign.access_key {
        Some(_) => None,
        None => Some(OpenCluster::open(&arguments.output.data)?),
    };
    let (target, servers) = match &open {
        Some(open) => (own_target(open, &arguments)?, own_servers(open, &arguments)?),
        None => foreign_target(&arguments)?,
    };
    let plan = plan(&arguments.plan, arguments.concurrency, arguments.clients as usize)?;
    let job = |client| {
        let workload = ObjectWorkload {
            mix: mix.clone(),
            sizes: arguments.size.clone(),
            object_count: arguments.objects,
            client,
            keeps_objects: arguments.prefill == ObjectPrefillArgument::Missing,
            is_verified: arguments.verify,
        };
        Job::Object(ObjectJob { target: target.clone(), workload, plan: plan.clone() })
    };
    let jobs: Vec<Job> = (0..arguments.clients).map(job).collect();
    let outcome = run_processes(client_command()?, &jobs, &servers, &progress_bar("filling"))?;
    let setting = Setting {
        operation: mix.name().into(),
        size_bytes: arguments.size.mean_bytes(),
        depth: arguments.concurrency,
        rate_per_second: arguments.plan.rate,
        protections: match &open {
            // Only now it is certain that there is a bucket, and in which pool its data is.
            Some(open) => tokio_runtime()?.block_on(object_protections(open, &target))?,
            None => format!("as the endpoint's owner set it up, {}", http(&target)),
        },
    };
    print_measurement(&arguments.output, &arguments.plan, Measurement::of(setting, &outcome))
}

fn mix(arguments: &ObjectBenchArguments) -> anyhow::Result<OperationMix> {
    let operation = match arguments.op {
        ObjectOperationArgument::Put => ObjectOperation::Put,
        ObjectOperationArgument::Get => ObjectOperation::Get,
        ObjectOperationArgument::List => ObjectOperation::List,
        ObjectOperationArgument::Delete => ObjectOperation::Delete,
        ObjectOperationArgument::Mixed => {
            let default = || DEFAULT_MIX.parse::<OperationMix>().map_err(anyhow::Error::msg);
            return arguments.mix.clone().map_or_else(default, Ok);
        }
    };
    if arguments.mix.is_some() {
        bail!("--mix says what '--op mixed' does; with another operation leave it out");
    }
    Ok(OperationMix::only(operation))
}

fn own_target(open: &OpenCluster, arguments: &ObjectBenchArguments) -> anyhow::Result<ObjectTarget> {
    let credentials = open.directory.credentials()?;
    let encrypted = credentials.tls_endpoint.filter(|_| arguments.tls);
    if arguments.tls && encrypted.is_none() {
        bail!("the gateway does not listen with TLS; see 'atoll up --s3-tls-listen'");
    }
    Ok(ObjectTarget {
        endpoint: arguments.endpoint.clone().or(encrypted).unwrap_or(credentials.endpoint),
        ca_file: credentials.ca_file,
        access_key: credentials.access_key,
        secret_key: credentials.secret_key,
        bucket: arguments.bucket.clone(),
        pool: arguments.pool.clone(),
        region: arguments.foreign.region.clone(),
    })
}

/// The cluster's processes, and those that the caller knows of, such as a load balancer's.
fn own_servers(open: &OpenCluster, arguments: &ObjectBenchArguments) -> anyhow::Result<Processes> {
    let mut all = servers(&open.directory)?;
    let others = arguments.foreign.server_pids.iter().flat_map(|others| &others.0);
    others.for_each(|(role, pids)| pids.iter().for_each(|&pid| all.add(role, pid)));
    Ok(all)
}

fn foreign_target(arguments: &ObjectBenchArguments) -> anyhow::Result<(ObjectTarget, Processes)> {
    let ForeignEndpointArguments { access_key, secret_key, ca, region, server_pids } = &arguments.foreign;
    let from_environment = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let access_key = match access_key.as_deref() {
        Some("env") | None => from_environment("AWS_ACCESS_KEY_ID")?,
        Some(access_key) => access_key.to_owned(),
    };
    let secret_key = match secret_key {
        Some(secret_key) => secret_key.clone(),
        None => from_environment("AWS_SECRET_ACCESS_KEY").context("give --secret-key, or set it")?,
    };
    let target = ObjectTarget {
        endpoint: arguments.endpoint.clone().context("give --endpoint with --access-key")?,
        ca_file: ca.clone(),
        access_key,
        secret_key,
        bucket: arguments.bucket.clone(),
        pool: arguments.pool.clone(),
        region: region.clone(),
    };
    Ok((target, server_pids.clone().unwrap_or_default()))
}

fn http(target: &ObjectTarget) -> &'static str {
    if target.endpoint.starts_with("https:") { "HTTP over TLS" } else { "plain HTTP" }
}

async fn object_protections(open: &OpenCluster, target: &ObjectTarget) -> anyhow::Result<String> {
    let state = open.connect().await?;
    let bucket = state.get::<BucketRecord>(&keys::bucket(&target.bucket)).await?.context("the bucket is gone")?.0;
    let sealed = if bucket.seals_by_default() { "sealed per 64 KiB segment" } else { "not sealed" };
    protections(open, &state, bucket.data_pool(), &format!("objects {sealed}, {}", http(target))).await
}
