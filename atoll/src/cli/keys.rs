//! `atoll key`, and where a key service is.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputArguments;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List the keys of the key service, their versions, and what each has wrapped
    #[command(after_help = "Examples:\n  atoll key ls\n  atoll key ls --json | jq '.[].versions'")]
    Ls(OutputArguments),
    /// Make a key, for SSE-KMS
    #[command(after_help = "\
Example:
  atoll key create project-x
  aws s3 cp file s3://bucket/ --sse aws:kms --sse-kms-key-id project-x")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Letters, digits, '-', '_' and '.'
        name: String,
    },
    /// Give a key a new version, and wrap with it what older ones have wrapped; data is not touched
    #[command(after_help = "\
Examples:
  atoll key rotate                    the key that wraps whatever names no other
  atoll key rotate project-x
  atoll key rotate --no-rewrap        only for what is new; 'atoll key rewrap' does the rest later

Local keys are in keys/kms.json: with several hosts, copy the file to all of them between
'rotate --no-rewrap' and 'rewrap'.")]
    Rotate {
        #[command(flatten)]
        output: OutputArguments,
        /// The key
        #[arg(default_value = atoll_crypto::DEFAULT_KEY)]
        name: String,
        /// Leave what is there as it is wrapped
        #[arg(long)]
        no_rewrap: bool,
    },
    /// Wrap the keys of images and buckets, and users' secrets, with the newest versions of their keys
    #[command(
        after_help = "Example:\n  atoll key rewrap        after a rotation elsewhere, or a change of the key service"
    )]
    Rewrap(OutputArguments),
    /// Make gateways ask the key service for all keys of buckets again, within seconds
    #[command(after_help = "\
Example:
  atoll key forget --bucket photos      after its key was disabled in the key service")]
    Forget {
        #[command(flatten)]
        output: OutputArguments,
        /// Only this bucket's
        #[arg(long, value_name = "NAME")]
        bucket: Option<String>,
    },
    /// Destroy a key, or the key of one bucket or image: what it protects can never be read again
    #[command(after_help = "\
Examples:
  atoll key destroy --key project-x --force      everything that was written for this key, in all buckets
  atoll key destroy --bucket photos --force      everything in the bucket
  atoll key destroy --image disk1 --force        everything in the image

The data stays where it is, as noise; remove it as usual. Old backups of cluster state and of the key
file still have the keys.")]
    Destroy {
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        what: DestroyArguments,
        /// Do it: there is no way back
        #[arg(long)]
        force: bool,
    },
    /// Use a Vault or OpenBao Transit engine from now on
    #[command(after_help = "\
Example:
  atoll key use-transit --kms-address https://vault:8200 --kms-token-file /run/vault-agent/token
  atoll key rewrap                         what the local key has wrapped goes over to it
  atoll down; atoll up                     gateways and NBD servers take it up when they start

The local keys stay in keys/kms.json until 'atoll key destroy' removes them.")]
    UseTransit {
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        transit: TransitArguments,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct DestroyArguments {
    /// The key of the key service
    #[arg(long, value_name = "NAME")]
    pub key: Option<String>,
    /// The keys of this bucket
    #[arg(long, value_name = "NAME")]
    pub bucket: Option<String>,
    /// The key of this image, which nobody may have attached
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,
}

/// Where a Transit engine is, and how to log in.
#[derive(Args, Clone, Default)]
pub struct TransitArguments {
    /// Keep keys in a Vault or OpenBao Transit engine at this address
    #[arg(long, value_name = "URL", env = "ATOLL_KMS_ADDRESS")]
    pub kms_address: Option<String>,
    /// Name of the key there [default: atoll]; it is made if it is not there and the policy allows it
    #[arg(long, value_name = "NAME", requires = "kms_address")]
    pub kms_key: Option<String>,
    /// Path of the engine [default: transit]
    #[arg(long, value_name = "PATH", requires = "kms_address")]
    pub kms_mount: Option<String>,
    /// Namespace
    #[arg(long, value_name = "NAME", requires = "kms_address")]
    pub kms_namespace: Option<String>,
    /// Certificates of the authorities to trust, in place of the system's
    #[arg(long, value_name = "FILE", requires = "kms_address")]
    pub kms_ca: Option<PathBuf>,
    /// File with a token; an agent may keep it fresh
    #[arg(long, value_name = "FILE", requires = "kms_address", conflicts_with = "kms_role_id")]
    pub kms_token_file: Option<PathBuf>,
    /// Log in by AppRole
    #[arg(long, value_name = "ID", requires = "kms_secret_id_file")]
    pub kms_role_id: Option<String>,
    /// File with the secret id of the role
    #[arg(long, value_name = "FILE", requires = "kms_role_id")]
    pub kms_secret_id_file: Option<PathBuf>,
    /// How long one question may take, in milliseconds [default: 5000]
    #[arg(long, value_name = "MS", requires = "kms_address")]
    pub kms_timeout_ms: Option<u64>,
}
