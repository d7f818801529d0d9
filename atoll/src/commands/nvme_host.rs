//! Secrets of NVMe hosts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use atoll_admin::nvme_hosts;
use atoll_credentials::nvme::{DhchapSecret, HashFunction, HostSecrets};
use atoll_terminal::{print_line, print_note};
use atoll_types::nvme_hosts::{NvmeHostRecord, NvmeTlsRecord};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::OutputArguments;
use super::nvme_tls::{self, TlsArguments};
use super::open_cluster::connected;
use super::output::{ago, print_json, print_table};
use super::secret_file::read_secret_text;

#[derive(Subcommand)]
pub enum HostCommand {
    /// Set the secrets of a host: from then on it connects with them, or not at all. Those that are made are shown this once
    #[command(after_help = "\
Examples:
  atoll nvme host set nqn.2014-08.org.nvmexpress:uuid:3f1c...                          makes and shows a secret
  atoll nvme host set nqn.2014-08.org.nvmexpress:uuid:3f1c... --mutual                 gateways prove themselves, too
  atoll nvme host set nqn.2014-08.org.nvmexpress:uuid:3f1c... --secret-file ./secret   of 'nvme gen-dhchap-key'

On the host:
  nvme connect -t tcp -a 10.0.0.1 -s 4420 -n SUBNQN --dhchap-secret=SECRET [--dhchap-ctrl-secret=SECRET]

A host that is connected stays; its next connection needs the secret. '--allow' of 'atoll image access' still says which
images it may use.")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The host's name, as in its /etc/nvme/hostnqn
        host: String,
        #[command(flatten)]
        secrets: SecretArguments,
    },
    /// List the hosts that have secrets or keys for TLS
    Ls(OutputArguments),
    /// Set the key of a host for TLS: from then on it connects with that, or not at all. One that is made is shown this once
    #[command(after_help = "\
Examples:
  atoll nvme host set-tls nqn.2014-08.org.nvmexpress:uuid:3f1c...                      makes and shows a key
  atoll nvme host set-tls nqn.2014-08.org.nvmexpress:uuid:3f1c... --allow-plain        it may connect without, too
  atoll nvme host set-tls nqn.2014-08.org.nvmexpress:uuid:3f1c... --key-file ./key     of 'nvme gen-tls-key'

On the host, with tlshd running:
  nvme check-tls-key --subsysnqn=SUBNQN --keydata=KEY --insert                         once for each SUBNQN
  nvme connect -t tcp -a 10.0.0.1 -s 4420 -n SUBNQN --tls

A host that is connected stays; its next connection needs the key. '--allow' of 'atoll image access' still says which
images it may use.")]
    SetTls {
        #[command(flatten)]
        output: OutputArguments,
        /// The host's name, as in its /etc/nvme/hostnqn
        host: String,
        #[command(flatten)]
        key: TlsArguments,
    },
    /// Remove the key of a host for TLS, which then connects without
    #[command(after_help = "Example:\n  atoll nvme host rm-tls nqn.2014-08.org.nvmexpress:uuid:3f1c...")]
    RmTls {
        #[command(flatten)]
        output: OutputArguments,
        /// The host's name
        host: String,
    },
    /// Remove the secrets of a host, which then connects without
    #[command(after_help = "Example:\n  atoll nvme host rm nqn.2014-08.org.nvmexpress:uuid:3f1c...")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The host's name
        host: String,
    },
}

#[derive(Args)]
pub struct SecretArguments {
    /// A file with the host's secret (DHHC-1:...), or - for standard input [default: one is made and shown]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Hash function that transforms new secrets into keys; it sets their length
    #[arg(long, value_enum, default_value = "none")]
    hash: HashArgument,
    /// Gateways prove themselves to the host if it asks for that, with a second secret, which is made and shown
    #[arg(long, conflicts_with = "controller_secret_file")]
    mutual: bool,
    /// The same with the secret of this file
    #[arg(long, value_name = "FILE")]
    controller_secret_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HashArgument {
    /// The secret, of 32 bytes, is the key
    None,
    /// SHA-256, 32 bytes
    Sha256,
    /// SHA-384, 48 bytes
    Sha384,
    /// SHA-512, 64 bytes
    Sha512,
}

impl HashArgument {
    fn function(self) -> Option<HashFunction> {
        match self {
            HashArgument::None => None,
            HashArgument::Sha256 => Some(HashFunction::Sha256),
            HashArgument::Sha384 => Some(HashFunction::Sha384),
            HashArgument::Sha512 => Some(HashFunction::Sha512),
        }
    }
}

/// More than any secret has.
const SECRET_TEXT_BYTES_MAX: u64 = 1024;

fn read_secret(file: &Path) -> anyhow::Result<DhchapSecret> {
    let text = read_secret_text(file, "a secret", SECRET_TEXT_BYTES_MAX)?;
    let wrong = || format!("{} holds no secret of DH-HMAC-CHAP; 'nvme gen-dhchap-key' makes one", file.display());
    DhchapSecret::from_text(&text).with_context(wrong)
}

impl SecretArguments {
    fn secrets(&self) -> anyhow::Result<HostSecrets> {
        let make = || DhchapSecret::random(self.hash.function());
        let host = self.secret_file.as_deref().map_or_else(|| Ok(make()), read_secret)?;
        let controller = match &self.controller_secret_file {
            Some(file) => Some(read_secret(file)?),
            None => self.mutual.then(make),
        };
        Ok(HostSecrets { host, controller })
    }
}

/// `atoll nvme host`.
pub fn run(command: &HostCommand) -> anyhow::Result<()> {
    match command {
        HostCommand::Set { output, host, secrets } => set(output, host, secrets),
        HostCommand::SetTls { output, host, key } => nvme_tls::set(output, host, key),
        HostCommand::RmTls { output, host } => nvme_tls::remove(output, host),
        HostCommand::Ls(output) => connected(output, async |_, client| {
            let hosts = by_host(nvme_hosts::list(&client).await?, nvme_hosts::list_tls(&client).await?);
            if output.json {
                return print_json(&hosts.iter().map(|(host, found)| found.described(host)).collect::<Vec<_>>());
            }
            let rows: Vec<_> = hosts.iter().map(|(host, found)| found.row(host)).collect();
            print_table(&["HOST", "SECRET", "SECRET SET", "TLS", "TLS KEY SET"], &rows);
            Ok(())
        }),
        HostCommand::Rm { output, host } => connected(output, async |_, client| {
            nvme_hosts::remove(&client, host).await?;
            if output.json {
                return print_json(&json!({ "removed": host }));
            }
            print_line!("removed the secrets of {host}: it connects without");
            Ok(())
        }),
    }
}

/// Credentials of one host.
#[derive(Default)]
struct Found {
    secret: Option<NvmeHostRecord>,
    tls: Option<NvmeTlsRecord>,
}

/// All hosts that have something, by name.
fn by_host(secrets: Vec<NvmeHostRecord>, keys: Vec<NvmeTlsRecord>) -> BTreeMap<String, Found> {
    let mut hosts = BTreeMap::<String, Found>::new();
    for record in secrets {
        let host = record.host.clone();
        hosts.entry(host).or_default().secret = Some(record);
    }
    for record in keys {
        let host = record.host.clone();
        hosts.entry(host).or_default().tls = Some(record);
    }
    hosts
}

impl Found {
    fn described(&self, host: &str) -> serde_json::Value {
        json!({
            "host": host,
            "secret": self.secret.as_ref().map(|record| json!({
                "is_mutual": record.controller_secret.is_some(),
                "created_unix_ms": record.created_unix_ms,
            })),
            "tls": self.tls.as_ref().map(|record| json!({
                "is_plain_allowed": record.is_plain_allowed,
                "created_unix_ms": record.created_unix_ms,
            })),
        })
    }

    fn row(&self, host: &str) -> Vec<String> {
        let (secret, secret_set) = match &self.secret {
            None => ("none", String::new()),
            Some(record) if record.controller_secret.is_some() => ("mutual", set_ago(record.created_unix_ms)),
            Some(record) => ("host", set_ago(record.created_unix_ms)),
        };
        let (tls, tls_set) = match &self.tls {
            None => ("none", String::new()),
            Some(record) if record.is_plain_allowed => ("allowed", set_ago(record.created_unix_ms)),
            Some(record) => ("required", set_ago(record.created_unix_ms)),
        };
        vec![host.into(), secret.into(), secret_set, tls.into(), tls_set]
    }
}

fn set_ago(unix_ms: u64) -> String {
    format!("{} ago", ago(unix_ms))
}

/// All but the secrets.
fn described(record: &NvmeHostRecord) -> serde_json::Value {
    json!({
        "host": record.host,
        "is_mutual": record.controller_secret.is_some(),
        "created_unix_ms": record.created_unix_ms,
    })
}

fn set(output: &OutputArguments, host: &str, arguments: &SecretArguments) -> anyhow::Result<()> {
    let secrets = arguments.secrets()?;
    let record = connected(output, async |open, client| {
        Ok(nvme_hosts::set(&client, &*open.keys()?, host, &secrets).await?)
    })?;
    // What was given is known to who gave it.
    let made = arguments.secret_file.is_none().then(|| secrets.host.to_text());
    let made_controller = secrets.controller.as_ref().filter(|_| arguments.mutual).map(DhchapSecret::to_text);
    if output.json {
        let mut set = described(&record);
        set["secret"] = json!(made.as_ref().map(|text| text.as_str()));
        set["controller_secret"] = json!(made_controller.as_ref().map(|text| text.as_str()));
        return print_json(&set);
    }
    print_note!("{host} connects with its secret from now on, and not without");
    if let Some(secret) = made {
        print_line!("--dhchap-secret={}", &*secret);
    }
    if let Some(secret) = made_controller {
        print_line!("--dhchap-ctrl-secret={}", &*secret);
    }
    Ok(())
}
