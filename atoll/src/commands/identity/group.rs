//! Commands about groups.

use atoll_iam::operations::Parameters;
use atoll_terminal::print_line;
use clap::Subcommand;

use super::{AccountArguments, ask_all, perform, print_policies, rows};
use crate::commands::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum GroupCommand {
    /// List groups
    Ls(AccountArguments),
    /// Make a group
    #[command(after_help = "\
Example:
  atoll group create readers
  atoll policy attach AmazonS3ReadOnlyAccess --group readers
  atoll group add readers backup")]
    Create(GroupArguments),
    /// Show the users and policies of a group
    Show(GroupArguments),
    /// Add a user to a group
    Add(MemberArguments),
    /// Remove a user from a group
    Remove(MemberArguments),
    /// Remove a group without users and policies
    Rm(GroupArguments),
}

#[derive(clap::Args, Clone)]
pub struct GroupArguments {
    #[command(flatten)]
    arguments: AccountArguments,
    /// The group
    name: String,
}

#[derive(clap::Args, Clone)]
pub struct MemberArguments {
    #[command(flatten)]
    group: GroupArguments,
    /// The user
    user: String,
}

impl GroupArguments {
    fn parameters(&self) -> Parameters {
        Parameters::default().with("GroupName", &self.name)
    }
}

/// Runs a command about groups.
pub fn run(command: &GroupCommand) -> anyhow::Result<()> {
    match command {
        GroupCommand::Ls(arguments) => perform(arguments, "ListGroups", Parameters::default(), |answer| {
            print_table(&["NAME", "ID", "ARN"], &rows(answer, "Groups", &["GroupName", "GroupId", "Arn"]));
        }),
        GroupCommand::Create(group) => perform(&group.arguments, "CreateGroup", group.parameters(), |_| {
            print_line!("made group '{}'; it gives no rights yet", group.name);
        }),
        GroupCommand::Show(group) => show(group),
        GroupCommand::Add(member) => change(member, "AddUserToGroup", "is in"),
        GroupCommand::Remove(member) => change(member, "RemoveUserFromGroup", "is no longer in"),
        GroupCommand::Rm(group) => perform(&group.arguments, "DeleteGroup", group.parameters(), |_| {
            print_line!("removed group '{}'", group.name);
        }),
    }
}

fn show(group: &GroupArguments) -> anyhow::Result<()> {
    let operations = ["GetGroup", "ListAttachedGroupPolicies", "ListGroupPolicies"];
    let all = ask_all(&group.arguments, &operations, &group.parameters())?;
    if group.arguments.output.json {
        return print_json(&all);
    }
    print_table(&["USER", "ARN"], &rows(&all, "Users", &["UserName", "Arn"]));
    print_policies(&all);
    Ok(())
}

fn change(member: &MemberArguments, operation: &str, done: &str) -> anyhow::Result<()> {
    let MemberArguments { group, user } = member;
    let parameters = group.parameters().with("UserName", user);
    perform(&group.arguments, operation, parameters, |_| {
        print_line!("user '{user}' {done} group '{}'", group.name);
    })
}
