//! Secrets of NVMe hosts.

use std::path::{Path, PathBuf};

use anyhow::Context;
use atoll_admin::nvme_hosts;
use atoll_nvme::protocol::{DhchapSecret, HashFunction, HostSecrets};
use atoll_terminal::{print_line, print_note};
use atoll_types::nvme_hosts::NvmeHostRecord;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::OutputArguments;
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
    /// List the hosts that have secrets
    Ls(OutputArguments),
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
    /// By which hash function secrets that are made are transformed into keys, and so how long they are
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
        HostCommand::Ls(output) => connected(output, async |_, client| {
            let hosts = nvme_hosts::list(&client).await?;
            if output.json {
                return print_json(&hosts.iter().map(described).collect::<Vec<_>>());
            }
            let row = |record: &NvmeHostRecord| {
                let mutual = if record.controller_secret.is_some() { "yes" } else { "no" };
                vec![record.host.clone(), mutual.into(), format!("{} ago", ago(record.created_unix_ms))]
            };
            print_table(&["HOST", "MUTUAL", "SET"], &hosts.iter().map(row).collect::<Vec<_>>());
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
