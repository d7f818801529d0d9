//! Operators of the console.

mod oidc;
mod sessions;
mod token;
mod totp;

use std::path::{Path, PathBuf};

use anyhow::Context;
use atoll_admin::operators::{self, Reach};
use atoll_terminal::{print_line, print_note};
use atoll_types::operators::{OperatorRole, OperatorRoles};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::OutputArguments;
use super::open_cluster::connected;
use super::output::{ago, print_json, print_table};
use super::secret_file::read_secret_text;
use oidc::OidcCommand;
use sessions::SessionsCommand;
use token::TokenCommand;
use totp::TotpCommand;

#[derive(Subcommand)]
pub enum OperatorCommand {
    /// Create an operator. The password is shown this once, unless it is given
    #[command(after_help = "\
Examples:
  atoll operator create ann --role admin
  atoll operator create bob --role storage,s3-accounts
  atoll operator create wall --role read-only --password-file ./password")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// The name with which the operator logs in
        name: String,
        /// Roles of the operator, several with commas between them
        #[arg(long, value_name = "ROLE", default_value = "read-only", value_delimiter = ',')]
        role: Vec<RoleArgument>,
        /// A file with the password, or - for standard input [default: one is made and shown]
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        #[command(flatten)]
        reach: ReachArgument,
    },
    /// List operators
    Ls(OutputArguments),
    /// Give an operator other roles or another password; the operator is logged out
    #[command(after_help = "\
Examples:
  atoll operator set ann --new-password
  atoll operator set wall --role storage,security")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
        #[command(flatten)]
        change: ChangeArguments,
        #[command(flatten)]
        reach: ReachArgument,
    },
    /// Remove an operator and end the operator's sessions
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
        #[command(flatten)]
        reach: ReachArgument,
    },
    /// List and end sessions of the console
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Let people log in to the console by OpenID Connect
    #[command(subcommand)]
    Oidc(OidcCommand),
    /// Create, list and revoke tokens with which programs call the admin API
    #[command(subcommand)]
    Token(TokenCommand),
    /// Give operators a second factor, one-time passwords of an authenticator, and take it away
    #[command(subcommand)]
    Totp(TotpCommand),
}

#[derive(Args)]
pub struct ReachArgument {
    /// Refuse to make, change or remove an admin: the console sets this for operators who are not admins
    #[arg(long, hide = true)]
    no_admins: bool,
}

impl ReachArgument {
    fn reach(&self) -> Reach {
        if self.no_admins { Reach::NotAdmins } else { Reach::All }
    }
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ChangeArguments {
    /// New roles of the operator, several with commas between them
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<RoleArgument>,
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
    /// May run OSDs, pools, PGs, and images without reading them
    Storage,
    /// May manage accounts, users, policies and access keys of S3
    S3Accounts,
    /// May manage operators, sessions, keys, and the protection of data
    Security,
    /// May do all of it
    Admin,
}

impl From<RoleArgument> for OperatorRole {
    fn from(argument: RoleArgument) -> Self {
        match argument {
            RoleArgument::ReadOnly => OperatorRole::ReadOnly,
            RoleArgument::Storage => OperatorRole::Storage,
            RoleArgument::S3Accounts => OperatorRole::S3Accounts,
            RoleArgument::Security => OperatorRole::Security,
            RoleArgument::Admin => OperatorRole::Admin,
        }
    }
}

/// The roles that are given, if any are.
fn roles_of(given: &[RoleArgument]) -> Option<OperatorRoles> {
    OperatorRoles::new(given.iter().map(|role| OperatorRole::from(*role)))
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
        OperatorCommand::Create { output, name, role, password_file, reach } => {
            create(output, name, role, password_file.as_deref(), reach.reach())
        }
        OperatorCommand::Ls(output) => list(output),
        OperatorCommand::Set { output, name, change, reach } => set(output, name, change, reach.reach()),
        OperatorCommand::Rm { output, name, reach } => connected(output, async |_, client| {
            operators::remove(&client, name, reach.reach()).await?;
            if output.json {
                return print_json(&json!({ "removed": name }));
            }
            print_line!("removed operator '{name}'");
            Ok(())
        }),
        OperatorCommand::Sessions(command) => sessions::run(command),
        OperatorCommand::Oidc(command) => oidc::run(command),
        OperatorCommand::Token(command) => token::run(command),
        OperatorCommand::Totp(command) => totp::run(command),
    }
}

fn create(
    output: &OutputArguments,
    name: &str,
    role: &[RoleArgument],
    password_file: Option<&Path>,
    reach: Reach,
) -> anyhow::Result<()> {
    let given = password_file.map(read_password).transpose()?;
    let roles = roles_of(role).context("an operator has a role")?;
    connected(output, async |_, client| {
        let password = given.clone().unwrap_or_else(operators::random_password);
        operators::create(&client, name, &roles, &password, reach).await?;
        let made = given.is_none().then_some(&password);
        if output.json {
            let told = json!({
                "name": name, "role": roles.to_string(), "roles": roles.names(), "password": made,
            });
            return print_json(&told);
        }
        match made {
            Some(password) => show_password(name, password),
            None => print_line!("created operator '{name}'"),
        }
        Ok(())
    })
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    connected(output, async |_, client| {
        let all = operators::list(&client).await?;
        if output.json {
            let rows = all.iter().map(|(name, record)| {
                json!({
                    "name": name, "role": record.role.to_string(), "roles": record.role.names(),
                    "has_second_factor": record.has_second_factor(), "created_unix_ms": record.created_unix_ms,
                })
            });
            return print_json(&rows.collect::<Vec<_>>());
        }
        let rows = all.into_iter().map(|(name, record)| {
            let factor = if record.has_second_factor() { "yes" } else { "no" };
            vec![name, record.role.to_string(), factor.into(), format!("{} ago", ago(record.created_unix_ms))]
        });
        print_table(&["NAME", "ROLES", "SECOND FACTOR", "CREATED"], &rows.collect::<Vec<_>>());
        Ok(())
    })
}

fn set(output: &OutputArguments, name: &str, change: &ChangeArguments, reach: Reach) -> anyhow::Result<()> {
    let given = change.password_file.as_deref().map(read_password).transpose()?;
    connected(output, async |_, client| {
        let made = change.new_password.then(operators::random_password);
        let password = made.as_deref().or(given.as_deref());
        operators::set(&client, name, roles_of(&change.role).as_ref(), password, reach).await?;
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
