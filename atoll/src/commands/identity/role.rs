//! Commands about roles.

use std::path::PathBuf;

use atoll_iam::operations::Parameters;
use atoll_terminal::print_line;
use clap::{Args, Subcommand};

use super::{AccountArguments, ask_all, perform, print_policies, read_document, rows};
use crate::commands::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum RoleCommand {
    /// List roles
    Ls(AccountArguments),
    /// Make a role, which may do nothing yet
    #[command(after_help = "\
Example:
  atoll role create reader trust.json
  atoll policy attach AmazonS3ReadOnlyAccess --role reader

trust.json names the principals that may assume it, in the language of AWS:
  {\"Version\": \"2012-10-17\", \"Statement\": [{\"Effect\": \"Allow\", \"Action\": \"sts:AssumeRole\",
   \"Principal\": {\"AWS\": \"arn:aws:iam::100000000000:user/ann\"}}]}")]
    Create {
        #[command(flatten)]
        role: RoleArguments,
        /// Trust policy: a file, or - for standard input
        file: PathBuf,
        /// Description of the role
        #[arg(long)]
        description: Option<String>,
    },
    /// Change the trust policy of a role; its sessions stay valid
    #[command(after_help = "\
Example:
  atoll role show reader --json | jq '.Role.AssumeRolePolicyDocument | fromjson' > trust.json
  editor trust.json
  atoll role trust reader trust.json")]
    Trust {
        #[command(flatten)]
        role: RoleArguments,
        /// New trust policy: a file, or - for standard input
        file: PathBuf,
    },
    /// Show a role, its trust policy, and its policies
    Show(RoleArguments),
    /// Remove a role without policies; sessions of it end
    Rm(RoleArguments),
}

#[derive(Args, Clone)]
pub struct RoleArguments {
    #[command(flatten)]
    arguments: AccountArguments,
    /// The role
    name: String,
}

impl RoleArguments {
    fn parameters(&self) -> Parameters {
        Parameters::default().with("RoleName", &self.name)
    }
}

/// Runs a command about roles.
pub fn run(command: &RoleCommand) -> anyhow::Result<()> {
    match command {
        RoleCommand::Ls(arguments) => perform(arguments, "ListRoles", Parameters::default(), |answer| {
            print_table(&["NAME", "ID", "ARN"], &rows(answer, "Roles", &["RoleName", "RoleId", "Arn"]));
        }),
        RoleCommand::Create { role, file, description } => {
            let named = role.parameters().with("AssumeRolePolicyDocument", read_document(file)?);
            let parameters = match description {
                Some(text) => named.with("Description", text),
                None => named,
            };
            perform(&role.arguments, "CreateRole", parameters, |answer| {
                let arn = answer.text_at(&["Role", "Arn"]).unwrap_or("-");
                print_line!("made role '{}', {arn}; it gives no rights yet", role.name);
            })
        }
        RoleCommand::Trust { role, file } => {
            let parameters = role.parameters().with("PolicyDocument", read_document(file)?);
            perform(&role.arguments, "UpdateAssumeRolePolicy", parameters, |_| {
                print_line!("changed who may assume role '{}'", role.name);
            })
        }
        RoleCommand::Show(role) => show(role),
        RoleCommand::Rm(role) => perform(&role.arguments, "DeleteRole", role.parameters(), |_| {
            print_line!("removed role '{}'", role.name);
        }),
    }
}

fn show(role: &RoleArguments) -> anyhow::Result<()> {
    let operations = ["GetRole", "ListAttachedRolePolicies", "ListRolePolicies"];
    let all = ask_all(&role.arguments, &operations, &role.parameters())?;
    if role.arguments.output.json {
        return print_json(&all);
    }
    print_line!("{}", all.text_at(&["Role", "Arn"]).unwrap_or("-"));
    print_line!("trust   {}", all.text_at(&["Role", "AssumeRolePolicyDocument"]).unwrap_or("-"));
    print_policies(&all);
    Ok(())
}
