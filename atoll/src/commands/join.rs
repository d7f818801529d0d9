//! Joining a cluster that runs on other hosts.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use atoll_node::{Choices, DataDir, EtcdChoices, JoinToken, join};
use atoll_terminal::print_line;
use clap::Args;

use super::arguments::DataArgument;
use super::join_token::{self, TokenFileArgument};
use super::open_cluster::tokio_runtime;

/// A real etcd.
#[derive(Args, Clone)]
pub struct EtcdArguments {
    /// Use this etcd for cluster state instead of the embedded server: http://HOST:PORT or
    /// https://HOST:PORT of each member
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// The certificate authority of an https etcd (PEM)
    #[arg(long, value_name = "PATH")]
    pub etcd_ca: Option<PathBuf>,
    /// This host's client certificate for an etcd that wants one (PEM)
    #[arg(long, value_name = "PATH", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// The private key of the client certificate (PEM)
    #[arg(long, value_name = "PATH", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// The etcd's user, if it has authentication enabled
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// The file with the user's password
    #[arg(long, value_name = "PATH", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

impl From<&EtcdArguments> for EtcdChoices {
    fn from(arguments: &EtcdArguments) -> Self {
        EtcdChoices {
            endpoints: arguments.etcd.clone(),
            ca: arguments.etcd_ca.clone(),
            certificate: arguments.etcd_cert.clone(),
            key: arguments.etcd_key.clone(),
            user: arguments.etcd_user.clone().zip(arguments.etcd_password_file.clone()),
        }
    }
}

/// This host's place in the cluster.
#[derive(Args, Clone)]
pub struct HostArguments {
    /// This host's name in the failure-domain tree [default: the system's host name; fixed at the first start]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// The rack it is in [fixed at the first start]
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,
    /// The zone it is in [fixed at the first start]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// The address of this host at which OSDs, and the embedded cluster-state server, listen for other
    /// hosts [default: 127.0.0.1, for this host only]
    #[arg(long, value_name = "IP")]
    pub listen: Option<IpAddr>,
    /// Address of this host for other hosts, if it differs from --listen
    #[arg(long, value_name = "IP")]
    pub advertise: Option<IpAddr>,
    /// The key file of the cluster to join (keys/kms.json of a host that has it); gateways, NBD servers and
    /// tools cannot work without it
    #[arg(long, value_name = "PATH")]
    pub key_service: Option<PathBuf>,
}

/// Returns the choices for this host and its etcd.
pub fn host_choices(etcd: &EtcdArguments, host: &HostArguments) -> Choices {
    Choices {
        etcd: etcd.into(),
        host: host.host.clone(),
        rack: host.rack.clone(),
        zone: host.zone.clone(),
        listen: host.listen,
        advertise: host.advertise,
        key_service: host.key_service.clone(),
        ..Choices::default()
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll join ./token --data /srv/atoll --listen 10.0.0.2 --key-service ./kms.json
  ssh h1 atoll cluster token create --data /srv/atoll | atoll join - --data /srv/atoll --listen 10.0.0.2
  atoll osd create --data /srv/atoll --device /dev/disk/by-id/nvme-A
  atoll up --data /srv/atoll

'atoll up --join FILE --osds N' does all of it at once, with device files.")]
pub struct JoinArguments {
    #[command(flatten)]
    pub data: DataArgument,
    #[command(flatten)]
    pub token: TokenFileArgument,
    #[command(flatten)]
    pub etcd: EtcdArguments,
    #[command(flatten)]
    pub host: HostArguments,
}

/// `atoll join`.
pub fn run(arguments: &JoinArguments) -> anyhow::Result<()> {
    let directory = DataDir::new(&arguments.data.data);
    let token = join_token::read(arguments.token.token_file.as_deref())?;
    let token =
        token.context("give a file with the token, - for standard input, or the token in ATOLL_JOIN_TOKEN")?;
    let token = JoinToken::from_text(&token)?;
    let choices = host_choices(&arguments.etcd, &arguments.host);
    let cluster = tokio_runtime()?.block_on(join(&directory, &token, &choices))?;
    let data = directory.root().display();
    print_line!("joined   cluster {} as {} '{}'", cluster.cluster_id, cluster.role, cluster.host_name());
    if cluster.role.has_clients() && !directory.key_service_file().exists() {
        print_line!(
            "missing  {}: copy keys/kms.json of a host that has it, over a safe way; without it neither gateway nor NBD \
             server can work here",
            directory.key_service_file().display()
        );
    }
    if cluster.role.has_osds() && !cluster.is_reachable() {
        print_line!("missing  an address for OSDs: give --listen IP to 'atoll up'");
    }
    if cluster.role.has_osds() {
        print_line!("next     atoll osd create --data {data} --device PATH");
    }
    print_line!("         atoll up --data {data}");
    Ok(())
}
