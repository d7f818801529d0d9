//! Operators, who may log in to the console.

use std::path::{Path, PathBuf};

use atoll_admin::operators;
use atoll_terminal::{print_line, print_note};
use atoll_types::operators::OperatorRole;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::OutputArguments;
use super::open_cluster::connected;
use super::output::{ago, print_json, print_table};
use super::secret_file::read_secret_text;

#[derive(Subcommand)]
pub enum OperatorCommand {
    /// Create an operator. The password is shown this once, unless it is given
    #[command(after_help = "\
Examples:
  atoll operator create ann --role admin
  atoll operator create wall --role read-only --password-file ./password")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// The name with which the operator logs in
        name: String,
        /// What the operator may do
        #[arg(long, value_name = "ROLE", default_value = "read-only")]
        role: RoleArgument,
        /// A file with the password, or - for standard input [default: one is made and shown]
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// List operators
    Ls(OutputArguments),
    /// Give an operator another role or password; the operator is logged out
    #[command(after_help = "\
Examples:
  atoll operator set ann --new-password
  atoll operator set wall --role admin")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Remove an operator, who is logged out
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
    },
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ChangeArguments {
    /// What the operator may do
    #[arg(long, value_name = "ROLE")]
    pub role: Option<RoleArgument>,
    /// Make a new password, which is shown this once
    #[arg(long, conflicts_with = "password_file")]
    pub new_password: bool,
    /// A file with the new password, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleArgument {
    /// May look at everything but secrets
    ReadOnly,
    /// May change it, too
    Admin,
}

impl From<RoleArgument> for OperatorRole {
    fn from(argument: RoleArgument) -> Self {
        match argument {
            RoleArgument::ReadOnly => OperatorRole::ReadOnly,
            RoleArgument::Admin => OperatorRole::Admin,
        }
    }
}

const PASSWORD_BYTES_MAX: u64 = 4_096;

/// A password, without the end of its line.
pub fn read_password(file: &Path) -> anyhow::Result<String> {
    let text = read_secret_text(file, "a password", PASSWORD_BYTES_MAX)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Shows a password that was made, alone on standard output.
fn show_password(name: &str, password: &str) {
    print_note!("the password of '{name}', which is shown this once:");
    print_line!("{password}");
}

/// `atoll operator`.
pub fn run(command: &OperatorCommand) -> anyhow::Result<()> {
    match command {
        OperatorCommand::Create { output, name, role, password_file } => {
            let given = password_file.as_deref().map(read_password).transpose()?;
            connected(output, async |_, client| {
                let password = given.clone().unwrap_or_else(operators::random_password);
                operators::create(&client, name, (*role).into(), &password).await?;
                let made = given.is_none().then_some(&password);
                if output.json {
                    let role = OperatorRole::from(*role).name();
                    return print_json(&json!({ "name": name, "role": role, "password": made }));
                }
                match made {
                    Some(password) => show_password(name, password),
                    None => print_line!("created operator '{name}'"),
                }
                Ok(())
            })
        }
        OperatorCommand::Ls(output) => connected(output, async |_, client| {
            let all = operators::list(&client).await?;
            if output.json {
                let rows = all.iter().map(|(name, record)| {
                    json!({ "name": name, "role": record.role, "created_unix_ms": record.created_unix_ms })
                });
                return print_json(&rows.collect::<Vec<_>>());
            }
            let rows = all.into_iter().map(|(name, record)| {
                vec![name, record.role.name().to_owned(), format!("{} ago", ago(record.created_unix_ms))]
            });
            print_table(&["NAME", "ROLE", "CREATED"], &rows.collect::<Vec<_>>());
            Ok(())
        }),
        OperatorCommand::Set { output, name, change } => {
            let given = change.password_file.as_deref().map(read_password).transpose()?;
            connected(output, async |_, client| {
                let made = change.new_password.then(operators::random_password);
                let password = made.as_deref().or(given.as_deref());
                operators::set(&client, name, change.role.map(Into::into), password).await?;
                if output.json {
                    return print_json(&json!({ "name": name, "password": made }));
                }
                match &made {
                    Some(password) => show_password(name, password),
                    None => print_line!("changed operator '{name}'"),
                }
                Ok(())
            })
        }
        OperatorCommand::Rm { output, name } => connected(output, async |_, client| {
            operators::remove(&client, name).await?;
            if output.json {
                return print_json(&json!({ "removed": name }));
            }
            print_line!("removed operator '{name}'");
            Ok(())
        }),
    }
}
