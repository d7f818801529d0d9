//! Approvals: operations that one operator requests and another approves.

use std::path::PathBuf;

use anyhow::Context;
use atoll_admin::approvals::{self, ProvedOperator, SecondProof};
use atoll_cluster::ClusterClient;
use atoll_terminal::print_line;
use atoll_types::approvals::ApprovalRecord;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::arguments::OutputArguments;
use super::open_cluster::{OpenCluster, connected};
use super::operator::read_password;
use super::output::{ago, print_json, print_table, utc};

#[derive(Subcommand)]
pub enum ApprovalCommand {
    /// List requested operations
    Ls(OutputArguments),
    /// Approve a request of another operator; that operator then repeats the command
    #[command(after_help = "\
Examples:
  atoll approval approve 3f9a02c1 --operator bob --password-file -
  atoll approval approve 3f9a02c1 --operator bob --password-file ./password --code-file -   with a second factor")]
    Approve(DecisionArguments),
    /// Deny a request of another operator, or withdraw your own
    #[command(after_help = "Example:\n  atoll approval deny 3f9a02c1 --operator bob --password-file -")]
    Deny(DecisionArguments),
}

#[derive(Args)]
pub struct DecisionArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// The request, as 'atoll approval ls' names it
    id: String,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// The operator who approves or denies.
#[derive(Args, Clone)]
pub struct OperatorArguments {
    /// Operator with the role admin who approves or denies
    #[arg(long, value_name = "NAME")]
    operator: String,
    /// A file with the operator's password, or - for standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    password_file: PathBuf,
    /// A file with a code of the operator's second factor, if there is one; - for standard input, after the password
    #[arg(long, value_name = "FILE")]
    code_file: Option<PathBuf>,
}

/// The operator who asks, if the command needs one.
#[derive(Args, Clone)]
pub struct OptionalOperatorArguments {
    /// Operator with the role admin who asks
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// A file with the operator's password, or - for standard input [default: -]
    #[arg(long, value_name = "FILE", requires = "operator")]
    password_file: Option<PathBuf>,
    /// A file with a code of the operator's second factor, if there is one; - for standard input, after the password
    #[arg(long, value_name = "FILE", requires = "operator")]
    code_file: Option<PathBuf>,
}

impl OptionalOperatorArguments {
    /// Those that were given.
    pub fn given(&self) -> Option<OperatorArguments> {
        let password_file = self.password_file.clone().unwrap_or_else(|| "-".into());
        let code_file = self.code_file.clone();
        self.operator.clone().map(|operator| OperatorArguments { operator, password_file, code_file })
    }
}

impl OperatorArguments {
    /// Compares the password, and looks at the code if the operator has a second factor.
    pub async fn prove(&self, open: &OpenCluster, client: &ClusterClient) -> anyhow::Result<ProvedOperator> {
        let (password, code) = self.read()?;
        let service = code.as_ref().map(|_| open.keys()).transpose()?;
        let proof = code.as_deref().zip(service.as_deref());
        let proof = proof.map(|(code, service)| SecondProof { service, code });
        Ok(ProvedOperator::by_password(client, &self.operator, &password, proof).await?)
    }

    fn read(&self) -> anyhow::Result<(String, Option<String>)> {
        let password = read_password(&self.password_file)?;
        let both = self.code_file.as_deref().filter(|file| *file == self.password_file);
        match (both, &self.code_file) {
            (Some(_), _) => {
                let (password, code) =
                    password.split_once('\n').context("the second line, with the code, is missing")?;
                Ok((password.trim_end_matches('\r').to_owned(), Some(code.to_owned())))
            }
            (None, Some(file)) => Ok((password, Some(read_password(file)?))),
            (None, None) => Ok((password, None)),
        }
    }
}

fn state(record: &ApprovalRecord) -> String {
    match &record.decision {
        None => "waits".into(),
        Some(decision) if decision.is_approved => format!("approved by {}", decision.operator),
        Some(decision) => format!("denied by {}", decision.operator),
    }
}

/// `atoll approval`.
pub fn run(command: &ApprovalCommand) -> anyhow::Result<()> {
    match command {
        ApprovalCommand::Ls(output) => list(output),
        ApprovalCommand::Approve(arguments) => decide(arguments, true),
        ApprovalCommand::Deny(arguments) => decide(arguments, false),
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let all = connected(output, async |_, client| Ok(approvals::list(&client).await?))?;
    if output.json {
        let documents: Vec<Value> = all.iter().map(|(id, record)| approvals::document(id, record)).collect();
        return print_json(&json!(documents));
    }
    let row = |(id, record): &(String, ApprovalRecord)| {
        vec![
            id.clone(),
            record.action.clone(),
            record.requested_by.clone(),
            format!("{} ago", ago(record.requested_unix_ms)),
            utc(record.expires_unix_ms),
            state(record),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    print_table(&["ID", "ACTION", "ASKED BY", "ASKED", "UNTIL", "STATE"], &rows);
    Ok(())
}

fn decide(arguments: &DecisionArguments, is_approved: bool) -> anyhow::Result<()> {
    let DecisionArguments { output, id, operator } = arguments;
    let record = connected(output, async |open, client| {
        let operator = operator.prove(open, &client).await?;
        Ok(approvals::decide(&client, id, &operator, is_approved).await?)
    })?;
    if output.json {
        return print_json(&approvals::document(id, &record));
    }
    match is_approved {
        true => print_line!("approved: '{}' can give 'atoll {}' again", record.requested_by, record.action),
        false => print_line!("denied: 'atoll {}'", record.action),
    }
    Ok(())
}
