//! Commands about accounts.

use atoll_admin::identities;
use atoll_iam::operations::Parameters;
use atoll_terminal::print_line;
use clap::Subcommand;
use serde_json::json;

use super::keys::{self, KeyOfCommand};
use super::{AccountArguments, perform, rows};
use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum AccountCommand {
    /// List accounts
    Ls(OutputArguments),
    /// Make an account, with an access key for its root
    #[command(after_help = "\
Example:
  atoll account create sales --email sales@example.com

An account owns buckets. Its root may do everything with them, and make users that may do less, here or with any client of
AWS's IAM (aws --endpoint-url URL iam create-user ...). Other accounts get in where a bucket policy or an ACL lets them.")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Its name
        name: String,
        /// Its address, which ACLs can name
        #[arg(long)]
        email: Option<String>,
    },
    /// Change the name or the address of an account
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The account, by name or number
        account: String,
        /// Its new name
        #[arg(long, required_unless_present = "email")]
        name: Option<String>,
        /// Its new address
        #[arg(long)]
        email: Option<String>,
    },
    /// Remove an account without users, keys and buckets
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The account, by name or number
        account: String,
    },
    /// Access keys of an account's root
    #[command(subcommand)]
    Key(KeyOfCommand),
}

fn of(output: &OutputArguments, account: Option<&String>) -> AccountArguments {
    AccountArguments { output: output.clone(), account: account.cloned() }
}

/// Runs a command about accounts.
pub fn run(command: &AccountCommand) -> anyhow::Result<()> {
    match command {
        AccountCommand::Ls(output) => {
            perform(&of(output, None), "ListAccounts", Parameters::default(), |answer| {
                let rows = rows(answer, "Accounts", &["Name", "Id", "Email", "CanonicalId"]);
                print_table(&["NAME", "NUMBER", "EMAIL", "CANONICAL ID"], &rows);
            })
        }
        AccountCommand::Create { output, name, email } => create(output, name, email.as_deref()),
        AccountCommand::Set { output, account, name, email } => {
            let mut parameters = Parameters::default();
            for (parameter, value) in [("AccountName", name), ("Email", email)] {
                if let Some(value) = value {
                    parameters = parameters.with(parameter, value);
                }
            }
            perform(&of(output, Some(account)), "UpdateAccount", parameters, |_| print_line!("changed"))
        }
        AccountCommand::Rm { output, account } => {
            perform(&of(output, Some(account)), "DeleteAccount", Parameters::default(), |_| {
                print_line!("removed account '{account}'");
            })
        }
        AccountCommand::Key(command) => keys::run(command),
    }
}

fn create(output: &OutputArguments, name: &str, email: Option<&str>) -> anyhow::Result<()> {
    let (account, key) = connected(output, async |open, state| {
        let service = open.keys()?;
        let mut parameters = Parameters::default().with("AccountName", name);
        if let Some(email) = email {
            parameters = parameters.with("Email", email);
        }
        let account = identities::perform(&state, &*service, None, "CreateAccount", parameters).await?;
        let id = account.text_at(&["Account", "Id"]);
        let key = identities::perform(&state, &*service, id, "CreateAccessKey", Parameters::default()).await?;
        Ok((account, key))
    })?;
    if output.json {
        return print_json(&json!({ "Account": account.get("Account"), "AccessKey": key.get("AccessKey") }));
    }
    let found = |field: &str| account.text_at(&["Account", field]).unwrap_or("-").to_owned();
    print_line!("made account '{name}': number {}, canonical id {}", found("Id"), found("CanonicalId"));
    keys::print_new_key(&key);
    Ok(())
}
