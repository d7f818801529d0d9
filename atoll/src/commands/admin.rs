//! The admin server, and how calls of its API run commands.

use atoll_files::Access;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use atoll_admin::AdminError;
use atoll_audit::Target;
use atoll_cluster::ClusterError;
use atoll_console::{AdminServer, AdminServerConfig, Command, CommandFailure, FailureKind, RunCommands};
use atoll_iam::operations::IamError;
use atoll_image::ImageError;
use atoll_keys::{KeyError, random_u64};
use atoll_node::NodeError;
use clap::Subcommand;
use serde_json::Value;

use super::audit_log::{self, AuditRoomArguments};
use super::audited::note_of_console;
use super::daemon::{DaemonArguments, prepare};
use super::events::Author;
use super::explain;
use super::open_cluster::{note_changes, tokio_runtime};

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Run in the foreground, where 'atoll up --admin-listen' has said
    #[command(after_help = "\
Examples:
  atoll admin run --data ./atoll-data
  atoll admin run --data ./atoll-data --listen 10.0.0.1:8444 --session-seconds 900")]
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        /// Listen here instead
        #[arg(long, value_name = "IP:PORT")]
        listen: Option<String>,
        /// Lifetime of sessions of this console, if less than the setting session_seconds of the cluster
        #[arg(long, value_name = "SECONDS", env = "ATOLL_SESSION_SECONDS")]
        session_seconds: Option<u64>,
        /// Where a line of JSON for each call that may change something goes: a file, or the URL of a collector that
        /// takes them by POST, or 'off' [default: DIR/log/admin-audit.jsonl]
        #[arg(long, value_name = "FILE|URL|off", env = "ATOLL_ADMIN_AUDIT_LOG")]
        audit_log: Option<Target>,
        #[command(flatten)]
        audit_room: AuditRoomArguments,
    },
}

/// Parses the arguments of a command and runs it.
pub type Execute = fn(Vec<String>) -> anyhow::Result<ExitCode>;

/// Runs the admin server. `execute` is the command line.
pub fn run(command: &AdminCommand, execute: Execute) -> anyhow::Result<()> {
    let AdminCommand::Run { daemon, listen, session_seconds, audit_log, audit_room } = command;
    let open = prepare(daemon, "admin")?;
    let listen = listen.clone().or_else(|| open.cluster.admin_listen());
    let listen = listen.context("this host has no admin server: 'atoll up --admin-listen off' has said so")?;
    let name = ("admin", "admin", atoll_console::AUDIT_SOURCE);
    let audit = audit_log::open(&open, name, audit_log.as_ref(), audit_room)?;
    let config = AdminServerConfig {
        audit,
        listen,
        session_max: session_seconds.map(Duration::from_secs),
        commands: Arc::new(InProcess { data: open.directory.root().to_owned(), execute }),
    };
    tokio_runtime()?.block_on(async {
        let server = AdminServer::bind(open.directory, open.cluster, config).await?;
        tracing::info!("the admin server listens on https://{}", server.address());
        server.serve().await;
        Ok(())
    })
}

/// Runs commands in threads of this process and keeps their output.
struct InProcess {
    data: PathBuf,
    execute: Execute,
}

impl RunCommands for InProcess {
    fn run(&self, command: &Command, user: &str) -> Result<Value, CommandFailure> {
        let internal = |error: std::io::Error| CommandFailure {
            kind: FailureKind::Unavailable,
            message: format!("A file for the command cannot be made: {error}."),
        };
        let document = match &command.document {
            Some((option, document)) => {
                Some((option, DocumentFile::write(&self.data, document).map_err(internal)?))
            }
            None => None,
        };
        let mut arguments = vec!["atoll".to_owned()];
        arguments.extend(command.words.iter().cloned());
        arguments.extend(["--json".to_owned(), format!("--data={}", self.data.display())]);
        if let Some((Some(option), file)) = &document {
            arguments.push(format!("--{option}={}", file.0.display()));
        }
        // From here on nothing is taken for an option.
        arguments.push("--".to_owned());
        arguments.extend(command.operands.iter().cloned());
        if let Some((None, file)) = &document {
            arguments.push(file.0.display().to_string());
        }
        let (outcome, printed) = atoll_terminal::kept(|| (self.execute)(arguments));
        // One that has failed may have changed something before.
        let words = command.words.iter().chain(&command.operands).cloned();
        note_changes(&Author::of_console(user), words);
        let done = outcome.as_ref().map(drop).map_err(explain);
        note_of_console(user, &command.words, &command.operands, done);
        outcome.map_err(|error| failure(&error))?;
        serde_json::from_str(&printed).map_err(|error| CommandFailure {
            kind: FailureKind::Unavailable,
            message: format!("The command gave no document: {error}."),
        })
    }
}

/// A file with a document, which is there for as long as this is.
struct DocumentFile(PathBuf);

impl DocumentFile {
    fn write(data: &Path, document: &Value) -> std::io::Result<Self> {
        let path = data.join("run").join(format!("document-{:016x}.json", random_u64()));
        let mut file = atoll_files::make(&path, Access::Owner)?;
        let made = DocumentFile(path);
        file.write_all(document.to_string().as_bytes())?;
        Ok(made)
    }
}

impl Drop for DocumentFile {
    fn drop(&mut self) {
        // It holds no secret, and the next start of the process does not mind it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Why a command has failed, for callers of the API.
fn failure(error: &anyhow::Error) -> CommandFailure {
    let text = explain(error);
    let mut message: String =
        text.chars().take(1).flat_map(char::to_uppercase).chain(text.chars().skip(1)).collect();
    if !message.ends_with('.') {
        message.push('.');
    }
    let kind = error.chain().find_map(kind_of).unwrap_or(FailureKind::Conflict);
    CommandFailure { kind, message }
}

/// `None` if an error does not say.
fn kind_of(cause: &(dyn std::error::Error + 'static)) -> Option<FailureKind> {
    let of_arguments = cause.downcast_ref::<clap::Error>().map(|_| FailureKind::Invalid);
    of_arguments
        .or_else(|| cause.downcast_ref().map(of_cluster))
        .or_else(|| cause.downcast_ref().map(of_admin))
        .or_else(|| cause.downcast_ref().map(of_image))
        .or_else(|| cause.downcast_ref().map(of_key))
        .or_else(|| match cause.downcast_ref()? {
            NodeError::Cluster(error) => Some(of_cluster(error)),
            NodeError::Admin(error) => Some(of_admin(error)),
            _ => None,
        })
}

fn of_cluster(error: &ClusterError) -> FailureKind {
    match error {
        ClusterError::AlreadyExists { .. } | ClusterError::Conflict { .. } => FailureKind::Conflict,
        _ => FailureKind::Unavailable,
    }
}

fn of_key(error: &KeyError) -> FailureKind {
    match error {
        KeyError::ServiceUnavailable { .. } => FailureKind::Unavailable,
        _ => FailureKind::Conflict,
    }
}

fn of_admin(error: &AdminError) -> FailureKind {
    match error {
        AdminError::Cluster(error) => of_cluster(error),
        AdminError::Crypto(error) => of_key(error),
        AdminError::Image(error) => of_image(error),
        AdminError::Iam(error) => of_iam(error),
        AdminError::NoSuchAccount(_)
        | AdminError::NoSuchPolicy { .. }
        | AdminError::NoSuchOsd(_)
        | AdminError::NoSuchPool(_)
        | AdminError::NoSuchPg(_)
        | AdminError::NoSuchBucket(_)
        | AdminError::NoSuchKey(_) => FailureKind::NotFound,
        AdminError::PgNotMade(_) | AdminError::Refused(_) => FailureKind::Conflict,
    }
}

fn of_image(error: &ImageError) -> FailureKind {
    match error {
        ImageError::NoSuchImage(_) | ImageError::NoSuchSnapshot { .. } | ImageError::NotInTrash(_) => {
            FailureKind::NotFound
        }
        ImageError::Unfit(_) => FailureKind::Invalid,
        ImageError::Cluster(error) => of_cluster(error),
        ImageError::Key(error) => of_key(error),
        ImageError::NotServing { .. } => FailureKind::Unavailable,
        ImageError::Client(_) if !error.is_no_space() => FailureKind::Unavailable,
        _ => FailureKind::Conflict,
    }
}

/// AWS says it by the status.
fn of_iam(error: &IamError) -> FailureKind {
    match error.status() {
        400 => FailureKind::Invalid,
        404 => FailureKind::NotFound,
        _ => FailureKind::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_process(execute: Execute) -> (tempfile::TempDir, InProcess) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("run")).unwrap();
        let data = directory.path().to_owned();
        (directory, InProcess { data, execute })
    }

    fn command(words: &[&str], operands: &[&str], document: Option<(Option<&'static str>, Value)>) -> Command {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Command { words: owned(words), operands: owned(operands), document }
    }

    /// Prints its arguments, and the content of the file named by the last one.
    fn echo(arguments: Vec<String>) -> anyhow::Result<ExitCode> {
        let document = arguments.last().and_then(|file| std::fs::read_to_string(file).ok());
        atoll_terminal::print_line!("{}", serde_json::json!({ "arguments": arguments, "document": document }));
        Ok(ExitCode::SUCCESS)
    }

    #[test]
    fn a_command_gets_its_arguments_and_returns_its_output() {
        let (directory, runner) = in_process(echo);
        let document = serde_json::json!({ "a": 1 });
        let told = runner.run(&command(&["policy", "create"], &["--all"], Some((None, document))), "ann").unwrap();
        let arguments: Vec<&str> =
            told["arguments"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
        let data = format!("--data={}", directory.path().display());
        assert_eq!(arguments[..6], ["atoll", "policy", "create", "--json", &data, "--"]);
        assert_eq!(arguments[6], "--all");
        assert_eq!(told["document"], "{\"a\":1}");
        assert_eq!(std::fs::read_dir(directory.path().join("run")).unwrap().count(), 0, "the file is gone");
    }

    #[test]
    fn failures_are_classified_by_error_and_not_by_text() {
        let fails = |execute: Execute| {
            let (_directory, runner) = in_process(execute);
            runner.run(&command(&["x"], &[], None), "ann").unwrap_err()
        };
        let missing = fails(|_| Err(ImageError::NoSuchImage("a".into()).into()));
        let message = "There is no image 'a'; see 'atoll image ls'.";
        assert_eq!((missing.kind, &missing.message[..]), (FailureKind::NotFound, message));
        let refused = fails(|_| Err(AdminError::Refused("there is no room".into()).into()));
        assert_eq!(refused.kind, FailureKind::Conflict, "words do not count");
        let unfit = fails(|_| Err(AdminError::Image(ImageError::Unfit("0 bytes".into())).into()));
        assert_eq!(unfit.kind, FailureKind::Invalid);
        let osd = fails(|_| Err(NodeError::Admin(AdminError::NoSuchOsd(atoll_types::OsdId(7))).into()));
        assert_eq!(osd.kind, FailureKind::NotFound);
        for (error, kind) in [
            (IamError::NoSuchEntity("x".into()), FailureKind::NotFound),
            (IamError::DeleteConflict("x".into()), FailureKind::Conflict),
            (IamError::MalformedPolicyDocument("x".into()), FailureKind::Invalid),
        ] {
            assert_eq!(of_admin(&error.into()), kind);
        }
        let other = fails(|_| Err(ClusterError::AlreadyExists { key: "k".into() }.into()));
        assert_eq!(other.kind, FailureKind::Conflict);
        assert_eq!(fails(|_| Ok(ExitCode::SUCCESS)).kind, FailureKind::Unavailable, "it has printed nothing");
    }
}
