//! Access keys of users and of accounts.

use std::path::PathBuf;

use atoll_iam::operations::{Answer, Parameters};
use atoll_terminal::print_line;
use clap::Subcommand;

use super::{AccountArguments, perform, read_document, rows};
use crate::commands::output::print_table;

#[derive(Subcommand)]
pub enum KeyOfCommand {
    /// Make an access key; its secret is shown once
    #[command(after_help = "\
Examples:
  atoll user key create backup
  atoll user key create backup --policy only-one-bucket.json     a service account: allowed: the intersection of both
  atoll account key create --account sales                       of an account's root: has all rights of the account")]
    Create {
        #[command(flatten)]
        arguments: AccountArguments,
        #[command(flatten)]
        owner: Owner,
        /// A policy that narrows the rights of the key: a file, or - for standard input
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// For people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// List access keys
    Ls {
        #[command(flatten)]
        arguments: AccountArguments,
        #[command(flatten)]
        owner: Owner,
    },
    /// Refuse requests that are signed with a key, within a second
    Disable(KeyArguments),
    /// Let a key that was disabled sign again
    Enable(KeyArguments),
    /// Remove a key
    Rm(KeyArguments),
}

/// The owner of keys.
#[derive(clap::Args, Clone)]
pub struct Owner {
    /// The user; without one, the account's root
    #[arg(value_name = "USER")]
    pub user: Option<String>,
}

#[derive(clap::Args, Clone)]
pub struct KeyArguments {
    #[command(flatten)]
    arguments: AccountArguments,
    /// The access key
    #[arg(value_name = "ACCESS_KEY")]
    access_key: String,
}

fn of(owner: &Owner) -> Parameters {
    match &owner.user {
        Some(user) => Parameters::default().with("UserName", user),
        None => Parameters::default(),
    }
}

/// Prints a key that was made.
pub fn print_new_key(answer: &Answer) {
    let found = |name: &str| answer.text_at(&["AccessKey", name]).unwrap_or("-").to_owned();
    print_line!("access key: {}", found("AccessKeyId"));
    print_line!("secret key: {}", found("SecretAccessKey"));
    print_line!("The secret is not shown again.");
}

/// Runs a command about access keys.
pub fn run(command: &KeyOfCommand) -> anyhow::Result<()> {
    match command {
        KeyOfCommand::Create { arguments, owner, policy, description } => {
            let mut parameters = of(owner);
            if let Some(path) = policy {
                parameters = parameters.with("PolicyDocument", read_document(path)?);
            }
            if let Some(text) = description {
                parameters = parameters.with("Description", text);
            }
            perform(arguments, "CreateAccessKey", parameters, print_new_key)
        }
        KeyOfCommand::Ls { arguments, owner } => perform(arguments, "ListAccessKeys", of(owner), |answer| {
            print_table(&["ACCESS KEY", "STATUS"], &rows(answer, "AccessKeyMetadata", &["AccessKeyId", "Status"]));
        }),
        KeyOfCommand::Disable(key) => set_status(key, "Inactive", "disabled"),
        KeyOfCommand::Enable(key) => set_status(key, "Active", "enabled"),
        KeyOfCommand::Rm(key) => {
            let parameters = Parameters::default().with("AccessKeyId", &key.access_key);
            perform(&key.arguments, "DeleteAccessKey", parameters, |_| print_line!("removed {}", key.access_key))
        }
    }
}

fn set_status(key: &KeyArguments, status: &str, done: &str) -> anyhow::Result<()> {
    let parameters = Parameters::default().with("AccessKeyId", &key.access_key).with("Status", status);
    perform(&key.arguments, "UpdateAccessKey", parameters, |_| print_line!("{done} {}", key.access_key))
}
