//! Commands in the audit log: caller, command and outcome.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_audit::{
    AuditLog, Head, LogConfig, OnFailure, ProcessLog, follow_left, note_change, of_process, set_of_process,
};
use atoll_node::DataDir;
use atoll_terminal::print_note;
use clap::ArgMatches;
use serde::Serialize;

use super::audit_log::{follow_key_uses, note_key_uses, own_log};
use super::events::{Author, command_words};
use super::output::explain;

/// Commands that only look, beside those named so: these change neither cluster state nor the host.
const LOOKING: [&str; 19] = [
    "audit heads",
    "audit verify",
    "bench compare",
    "bench model",
    "bench report",
    "completion",
    "df",
    "events",
    "health",
    "image du",
    "image info",
    "key ages",
    "osd tree",
    "preflight",
    "sim",
    "slow",
    "status",
    "store check",
    "top",
];
/// Names of commands that only look, whatever they belong to.
const LOOKING_NAMES: [&str; 8] = ["ls", "show", "query", "map", "why", "simulate", "config", "run"];
/// Characters of the reason why a command has failed.
const ERROR_CHARACTERS_MAX: usize = 300;
/// Longest wait of a command for its lines to be written.
const END_LIMIT: Duration = Duration::from_secs(5);
const SOURCE: &str = "command";
/// Value of a login user id for processes outside of a login session.
const NO_LOGIN: &str = "4294967295";

/// Returns true for commands that only read. Unknown commands count as changes.
pub fn only_looks(words: &[&str]) -> bool {
    let name = words.last().copied().unwrap_or_default();
    // 'bench run' writes; daemons, which have logs of their own, are not told of by 'run'.
    let is_looking = LOOKING_NAMES.contains(&name) && words != ["bench", "run"];
    is_looking || LOOKING.contains(&words.join(" ").as_str())
}

/// The words of a command before its arguments, and its data directory if it has one.
fn called(matches: &ArgMatches) -> (Vec<&str>, Option<PathBuf>) {
    let (mut words, mut matches) = (Vec::new(), matches);
    while let Some((name, inner)) = matches.subcommand() {
        words.push(name);
        matches = inner;
    }
    (words, matches.try_get_one::<PathBuf>("data").ok().flatten().cloned())
}

#[derive(Serialize)]
struct Record<'a> {
    /// Without the data directory. No secret is ever an argument.
    command: &'a str,
    /// The user that logged in, if the effective user differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    login_user_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    succeeded: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
}

/// A command while it runs.
pub struct AuditedCommand {
    log: LogConfig,
    directory: DataDir,
    who: ProcessLog,
    command: String,
    login_user_id: Option<u32>,
    begun: Instant,
}

fn login_user_id() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/self/loginuid").ok()?;
    text.trim().parse().ok().filter(|_| text.trim() != NO_LOGIN)
}

fn on_failure() -> OnFailure {
    match std::env::var("ATOLL_AUDIT_ON_FAILURE").as_deref() {
        Ok("refuse") => OnFailure::Refuse,
        _ => OnFailure::Lose,
    }
}

impl AuditedCommand {
    /// A command begins. `None`: it only looks, or is about no cluster. An error refuses it.
    pub fn begin(matches: &ArgMatches) -> anyhow::Result<Option<Self>> {
        let (words, data) = called(matches);
        let Some(data) = data.filter(|_| !only_looks(&words)) else { return Ok(None) };
        let directory = DataDir::new(&data);
        // It lives as long as the processes that it has started, and others are called meanwhile.
        let process = if words == ["up"] { "supervisor" } else { "command" };
        let author = Author::of_process();
        let command = AuditedCommand {
            log: LogConfig {
                on_failure: on_failure(),
                is_short_lived: process == "command",
                ..own_log(&directory, process, SOURCE)
            },
            who: ProcessLog { host: author.host, process: process.into(), user: Some(author.user) },
            command: command_words(std::env::args().skip(1)),
            login_user_id: login_user_id(),
            directory,
            begun: Instant::now(),
        };
        match command.open() {
            Err(error) if command.log.on_failure == OnFailure::Refuse => {
                anyhow::bail!("the audit log cannot be written, and nothing is done without it: {error}")
            }
            // It is said at the end.
            Err(_) => {}
            Ok(()) => command.note("CommandBegun", None),
        }
        if command.log.on_failure == OnFailure::Refuse {
            command.make_sure()?;
        }
        if words == ["up"] {
            follow_key_uses(command.who.clone(), command.log.clone());
            let directory = command.directory.clone();
            follow_left(move || own_log(&directory, "command", SOURCE))?;
        }
        Ok(Some(command))
    }

    /// Opens the log, unless there is no cluster to have one.
    fn open(&self) -> std::io::Result<()> {
        // 'up' may have chosen another target meanwhile.
        let target = own_log(&self.directory, &self.who.process, SOURCE).target;
        let config = LogConfig { target, ..self.log.clone() };
        let log = if self.directory.has_cluster() { AuditLog::open_own(&config)? } else { None };
        set_of_process(self.who.clone(), log);
        Ok(())
    }

    /// Waits until all noted lines are in the log.
    fn make_sure(&self) -> anyhow::Result<()> {
        let Some(log) = self.close() else { return Ok(()) };
        if log.end(END_LIMIT).is_none_or(|heads| heads.is_empty()) {
            anyhow::bail!("the audit log cannot be written, and nothing is done without it")
        }
        Ok(self.open()?)
    }

    /// From now on this process has no log.
    fn close(&self) -> Option<AuditLog> {
        let log = of_process();
        set_of_process(self.who.clone(), None);
        log
    }

    fn note(&self, operation: &str, done: Option<&anyhow::Result<ExitCode>>) {
        let shorten = |error: &anyhow::Error| explain(error).chars().take(ERROR_CHARACTERS_MAX).collect();
        note_change(
            SOURCE,
            operation,
            &Record {
                command: &self.command,
                login_user_id: self.login_user_id,
                succeeded: done.map(|done| done.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS)),
                error: done.and_then(|done| done.as_ref().err().map(shorten)),
                duration_ms: done.map(|_| self.begun.elapsed().as_millis() as u64),
            },
        );
    }

    /// The command is over. Gives who has called it, and the latest lines of the log.
    pub fn end(self, done: &anyhow::Result<ExitCode>) -> (ProcessLog, Vec<Head>) {
        let opened = if of_process().is_none() { self.open() } else { Ok(()) };
        note_key_uses(|| ());
        self.note("CommandEnded", Some(done));
        let written = match (opened, self.close()) {
            (Ok(()), Some(log)) => log.end(END_LIMIT).ok_or_else(|| "it cannot be written".to_owned()),
            (Ok(()), None) => Ok(Vec::new()),
            (Err(error), _) => Err(error.to_string()),
        };
        let heads = written.unwrap_or_else(|reason| {
            print_note!("atoll: the audit log of commands does not have this one: {reason}");
            Vec::new()
        });
        (self.who, heads)
    }
}

/// Says that an operator of the console has had a command run. `operands` are names that any user may have chosen.
pub fn note_of_console(user: &str, words: &[String], operands: &[String], done: Result<(), String>) {
    let called: Vec<&str> = words.iter().map(String::as_str).take_while(|word| !word.starts_with('-')).collect();
    if only_looks(&called) {
        return;
    }
    #[derive(Serialize)]
    struct OfConsole<'a> {
        operator: &'a str,
        #[serde(flatten)]
        record: Record<'a>,
    }
    let command = command_words(words.iter().chain(operands).cloned());
    let record = Record {
        command: &command,
        login_user_id: None,
        succeeded: Some(done.is_ok()),
        error: done.err().map(|error| error.chars().take(ERROR_CHARACTERS_MAX).collect()),
        duration_ms: None,
    };
    note_change(SOURCE, "CommandEnded", &OfConsole { operator: user, record });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::all_commands;

    /// Commands that are not known to only read have lines. A command that is added has them, too.
    #[test]
    fn commands_that_change_something_are_audited() {
        let all = all_commands();
        let audited: Vec<String> =
            all.iter().filter(|words| !only_looks(&refs(words))).map(|words| words.join(" ")).collect();
        for changing in [
            "up",
            "down",
            "join",
            "credentials",
            "osd rm",
            "osd create",
            "store accept-damage",
            "store dump",
            "pool rm",
            "pg accept",
            "key destroy",
            "key backup",
            "key restore",
            "image rm",
            "image export",
            "bucket set",
            "operator create",
            "state restore",
            "state snapshot",
            "nvme host set",
            "bench block",
            "bench run",
            "cluster token create",
            "host revoke",
            "policy put",
            "account key create",
            "image lock break",
        ] {
            assert!(audited.iter().any(|words| words == changing), "{changing}");
        }
        for looking in LOOKING {
            assert!(all.iter().any(|words| words.join(" ") == looking), "there is no command {looking}");
        }
    }

    fn refs(words: &[String]) -> Vec<&str> {
        words.iter().map(String::as_str).collect()
    }
}
