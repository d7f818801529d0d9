//! Keys of NVMe hosts for TLS.

use std::path::PathBuf;

use anyhow::Context;
use atoll_admin::nvme_hosts;
use atoll_credentials::nvme::{HashFunction, TlsKey};
use atoll_terminal::{print_line, print_note};
use atoll_types::nvme_hosts::NvmeTlsRecord;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::arguments::OutputArguments;
use super::open_cluster::connected;
use super::output::print_json;
use super::secret_file::read_secret_text;

#[derive(Args)]
pub struct TlsArguments {
    /// A file with the key (NVMeTLSkey-1:...), or - for standard input [default: one is made and shown]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The hash function of a key that is made, and so with which cipher suite it is used
    #[arg(long, value_enum, default_value = "sha256", conflicts_with = "key_file")]
    hash: TlsHash,
    /// The host may connect without TLS, too: until all its connections have the key
    #[arg(long)]
    allow_plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TlsHash {
    /// SHA-256: 32 bytes, AES-128-GCM
    Sha256,
    /// SHA-384: 48 bytes, AES-256-GCM
    Sha384,
}

/// More than any key has.
const KEY_TEXT_BYTES_MAX: u64 = 1024;

impl TlsArguments {
    fn key(&self) -> anyhow::Result<TlsKey> {
        let Some(file) = &self.key_file else {
            return Ok(TlsKey::random(match self.hash {
                TlsHash::Sha256 => HashFunction::Sha256,
                TlsHash::Sha384 => HashFunction::Sha384,
            }));
        };
        let text = read_secret_text(file, "a key", KEY_TEXT_BYTES_MAX)?;
        let wrong = || format!("{} holds no key for TLS; 'nvme gen-tls-key' makes one", file.display());
        TlsKey::from_text(&text).with_context(wrong)
    }
}

/// All but the key.
pub fn described(record: &NvmeTlsRecord) -> serde_json::Value {
    json!({
        "host": record.host,
        "is_plain_allowed": record.is_plain_allowed,
        "created_unix_ms": record.created_unix_ms,
    })
}

/// `atoll nvme host set-tls`.
pub fn set(output: &OutputArguments, host: &str, arguments: &TlsArguments) -> anyhow::Result<()> {
    let key = arguments.key()?;
    let record = connected(output, async |open, client| {
        Ok(nvme_hosts::set_tls(&client, &*open.keys()?, host, &key, arguments.allow_plain).await?)
    })?;
    // What was given is known to who gave it.
    let made = arguments.key_file.is_none().then(|| key.to_text());
    if output.json {
        let mut set = described(&record);
        set["key"] = json!(made.as_ref().map(|text| text.as_str()));
        return print_json(&set);
    }
    match record.is_plain_allowed {
        true => print_note!("{host} can connect with TLS from now on, and without"),
        false => print_note!("{host} connects with TLS from now on, and not without"),
    }
    if let Some(key) = made {
        print_line!("{}", &*key);
    }
    Ok(())
}

/// `atoll nvme host rm-tls`.
pub fn remove(output: &OutputArguments, host: &str) -> anyhow::Result<()> {
    connected(output, async |_, client| {
        nvme_hosts::remove_tls(&client, host).await?;
        if output.json {
            return print_json(&json!({ "removed": host }));
        }
        print_line!("removed the key of {host}: it connects without TLS");
        Ok(())
    })
}
