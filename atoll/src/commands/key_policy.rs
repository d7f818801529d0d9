//! Policies of keys of the key service.

use std::path::PathBuf;

use atoll_admin::key_policies;
use atoll_iam::operations::Answer;
use atoll_terminal::print_line;
use clap::{Args, Subcommand};

use super::arguments::OutputArguments;
use super::identity::{AccountArguments, read_document};
use super::open_cluster::OpenCluster;
use super::output::print_json;

#[derive(Subcommand)]
pub enum KeyPolicyCommand {
    /// Print the policy of a key
    #[command(after_help = "Example:\n  atoll key policy get project-x")]
    Get(KeyArguments),
    /// Give a key a policy, which gateways obey within moments
    #[command(after_help = "\
Examples:
  atoll key policy set project-x policy.json
  atoll key policy set project-x --default                 all users with a right to kms: in their own policy
  atoll key policy set project-x --default --account team  the key belongs to this account from now on

policy.json, in the language of AWS:
  {\"Version\": \"2012-10-17\", \"Statement\": [{\"Effect\": \"Allow\", \"Action\": [\"kms:Decrypt\", \"kms:GenerateDataKey\"],
   \"Principal\": {\"AWS\": \"arn:aws:iam::100000000000:user/ann\"}, \"Resource\": \"*\"}]}

With a policy only the principals that it allows may use the key. Users that it names only by their account, and users
of other accounts, also need the right in their own policy.")]
    Set {
        #[command(flatten)]
        arguments: AccountArguments,
        /// The key
        name: String,
        /// The policy: a file, or - for standard input
        #[arg(required_unless_present = "default")]
        file: Option<PathBuf>,
        /// AWS's default policy: the account of the key decides, by policies of its users and roles
        #[arg(long, conflicts_with = "file")]
        default: bool,
    },
    /// Take the policy of a key away: users of its account may use it then, unless a policy of theirs denies it
    #[command(after_help = "Example:\n  atoll key policy rm project-x")]
    Rm(KeyArguments),
}

#[derive(Args)]
pub struct KeyArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// The key
    name: String,
}

/// Runs a command about policies of keys.
pub async fn run(command: &KeyPolicyCommand) -> anyhow::Result<()> {
    match command {
        KeyPolicyCommand::Get(KeyArguments { output, name }) => {
            let open = OpenCluster::open(&output.data)?;
            let answer = key_policies::get(&open.connect().await?, &*open.keys()?, name).await?;
            print_line!("{}", answer.text_at(&["Policy"]).unwrap_or("{}"));
            Ok(())
        }
        KeyPolicyCommand::Set { arguments: AccountArguments { output, account }, name, file, .. } => {
            let document = file.as_deref().map(read_document).transpose()?;
            let open = OpenCluster::open(&output.data)?;
            let state = open.connect().await?;
            let answer = key_policies::set(&state, &*open.keys()?, account.as_deref(), name, document).await?;
            said(output, &answer, &format!("the key '{name}' has this policy now"))
        }
        KeyPolicyCommand::Rm(KeyArguments { output, name }) => {
            let open = OpenCluster::open(&output.data)?;
            let answer = key_policies::remove(&open.connect().await?, &*open.keys()?, name).await?;
            said(output, &answer, &format!("the key '{name}' has no policy any more"))
        }
    }
}

fn said(output: &OutputArguments, answer: &Answer, text: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(answer);
    }
    let account = answer.text_at(&["KeyMetadata", "Account"]).unwrap_or("-");
    print_line!("{text}; it belongs to account {account}");
    Ok(())
}
