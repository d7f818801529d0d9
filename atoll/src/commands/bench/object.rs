//! `atoll bench object`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use atoll_bench::servers;
use atoll_bench::{
    Measurement, ObjectOperation, ObjectTarget, ObjectWorkload, OperationMix, Processes, Setting,
    SizeDistribution, WorkingSet, run_processes,
};
use atoll_cluster::keys;
use atoll_types::records::BucketRecord;
use clap::{Args, ValueEnum};

use super::client::{Job, ObjectJob};
use super::measurement::{PlanArguments, client_command, plan, print_measurement, protections};
use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::{OpenCluster, tokio_runtime};
use crate::commands::output::progress_bar;

pub const HELP: &str = "\
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
    /// Operation to measure
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
    /// Number of different keys, of each client [default: all clients together have 100000, or 8 GiB]
    #[arg(long)]
    pub objects: Option<u64>,
    /// Stamp each object with its writer and time, and check all that is downloaded and listed
    #[arg(long)]
    pub verify: bool,
    /// The bucket; it is made if it does not exist
    #[arg(long, default_value = "atoll-bench")]
    pub bucket: String,
    /// The pool for its data if it is made
    #[arg(long)]
    pub pool: Option<String>,
    /// Objects to upload before operations that are not PUTs
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
    /// A file with its secret key [default: the key is in AWS_SECRET_ACCESS_KEY]
    #[arg(long, value_name = "FILE", requires = "access_key")]
    pub secret_key_file: Option<PathBuf>,
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectPrefillArgument {
    /// All objects
    All,
    /// Those that are not there in the right size
    Missing,
}

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
    let size_bytes = arguments.size.mean_bytes();
    let clients = u64::from(arguments.clients);
    let objects = arguments.objects.unwrap_or_else(|| WorkingSet::cold_objects(size_bytes).div_ceil(clients));
    let job = |client| {
        let workload = ObjectWorkload {
            mix: mix.clone(),
            sizes: arguments.size.clone(),
            object_count: objects,
            client,
            keeps_objects: arguments.prefill == ObjectPrefillArgument::Missing,
            is_verified: arguments.verify,
        };
        Job::Object(ObjectJob { target: target.clone(), workload, plan: plan.clone() })
    };
    let jobs: Vec<Job> = (0..arguments.clients).map(job).collect();
    let outcome = run_processes(client_command()?, &jobs, &servers, &progress_bar("prefilling"))?;
    let setting = Setting {
        operation: mix.name().into(),
        size_bytes,
        depth: arguments.concurrency,
        rate_per_second: arguments.plan.rate,
        working_set: WorkingSet::Objects { count: objects * clients, size_bytes }.to_string(),
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
        bail!("--mix gives the shares of '--op mixed'; leave it out with other operations");
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
    let ForeignEndpointArguments { access_key, secret_key_file, ca, region, server_pids } = &arguments.foreign;
    let from_environment = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let access_key = match access_key.as_deref() {
        Some("env") | None => from_environment("AWS_ACCESS_KEY_ID")?,
        Some(access_key) => access_key.to_owned(),
    };
    let secret_key = match secret_key_file {
        Some(file) => std::fs::read_to_string(file).context(file.display().to_string())?.trim_end().to_owned(),
        None => from_environment("AWS_SECRET_ACCESS_KEY").context("give --secret-key-file, or set it")?,
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
