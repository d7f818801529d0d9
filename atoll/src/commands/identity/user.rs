//! Commands about users.

use atoll_iam::operations::Parameters;
use atoll_terminal::print_line;
use clap::Subcommand;

use super::keys::{self, KeyOfCommand};
use super::{AccountArguments, ask_all, perform, print_policies, rows};
use crate::commands::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum UserCommand {
    /// List users
    Ls(AccountArguments),
    /// Make a user without rights
    #[command(after_help = "\
Example:
  atoll user create backup
  atoll policy attach AmazonS3ReadOnlyAccess --user backup
  atoll user key create backup")]
    Create {
        #[command(flatten)]
        arguments: AccountArguments,
        /// Its name
        name: String,
        /// Its path in ARNs
        #[arg(long, default_value = "/")]
        path: String,
    },
    /// Show a user, its groups, policies and keys
    Show {
        #[command(flatten)]
        arguments: AccountArguments,
        /// The user
        name: String,
    },
    /// Remove a user without keys, groups and policies
    Rm {
        #[command(flatten)]
        arguments: AccountArguments,
        /// The user
        name: String,
    },
    /// Access keys of users
    #[command(subcommand)]
    Key(KeyOfCommand),
}

/// Runs a command about users.
pub fn run(command: &UserCommand) -> anyhow::Result<()> {
    let named = |name: &str| Parameters::default().with("UserName", name);
    match command {
        UserCommand::Ls(arguments) => perform(arguments, "ListUsers", Parameters::default(), |answer| {
            print_table(&["NAME", "ID", "ARN"], &rows(answer, "Users", &["UserName", "UserId", "Arn"]));
        }),
        UserCommand::Create { arguments, name, path } => {
            perform(arguments, "CreateUser", named(name).with("Path", path), |answer| {
                let arn = answer.text_at(&["User", "Arn"]).unwrap_or("-");
                print_line!("made user '{name}', {arn}; it has no rights and no key yet");
            })
        }
        UserCommand::Show { arguments, name } => show(arguments, name),
        UserCommand::Rm { arguments, name } => {
            perform(arguments, "DeleteUser", named(name), |_| print_line!("removed user '{name}'"))
        }
        UserCommand::Key(command) => keys::run(command),
    }
}

fn show(arguments: &AccountArguments, name: &str) -> anyhow::Result<()> {
    let operations =
        ["GetUser", "ListGroupsForUser", "ListAttachedUserPolicies", "ListUserPolicies", "ListAccessKeys"];
    let all = ask_all(arguments, &operations, &Parameters::default().with("UserName", name))?;
    if arguments.output.json {
        return print_json(&all);
    }
    print_line!("{}", all.text_at(&["User", "Arn"]).unwrap_or("-"));
    for row in rows(&all, "Groups", &["GroupName"]) {
        print_line!("group   {}", row.join(" "));
    }
    print_policies(&all);
    for row in rows(&all, "AccessKeyMetadata", &["AccessKeyId", "Status"]) {
        print_line!("key     {}", row.join("  "));
    }
    Ok(())
}
