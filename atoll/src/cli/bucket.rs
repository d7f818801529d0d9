//! Arguments of commands about buckets, and about sealing.

use clap::{Subcommand, ValueEnum};

use super::OutputArguments;

/// Whether data is encrypted and authenticated before it leaves the gateway or NBD server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SealingArgument {
    On,
    Off,
}

impl SealingArgument {
    pub fn is_on(self) -> bool {
        self == SealingArgument::On
    }
}

/// What of a bucket can be changed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BucketKeyArgument {
    /// Whether new objects are sealed
    Sealing,
}

#[derive(Subcommand)]
pub enum BucketCommand {
    /// List buckets
    Ls(OutputArguments),
    /// Change a bucket
    #[command(after_help = "\
Examples:
  atoll bucket set scratch sealing off     new objects are stored as they are, unless a request asks for encryption
  atoll bucket set scratch sealing on

Gateways follow within 2 s; objects that are there stay as they are. Without sealing, who has a device or the root
password of an OSD's host can read the objects, and change them unnoticed (docs/threat-model.md). Buckets are made by
S3 clients.")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The bucket
        name: String,
        /// What to change
        key: BucketKeyArgument,
        /// The new value
        value: SealingArgument,
    },
}
