//! Audit logs: whether lines are as they were written.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use atoll_audit::Verdict;
use atoll_terminal::print_line;
use clap::{Args, Subcommand};
use serde_json::json;

use super::arguments::OutputArguments;
use super::open_cluster::OpenCluster;
use super::output::print_json;

#[derive(Subcommand)]
pub enum AuditCommand {
    /// Check that no line of an audit log was changed or taken out
    #[command(after_help = "\
Examples:
  atoll audit verify                             the logs of this host, with the files that were set aside
  atoll audit verify /var/log/atoll/s3-audit.jsonl
  atoll audit verify --key 9f2c... --json        lines of this process must be there, under its key

Each line has a digest of itself and of the line before, and each minute a line has a signature of the latest digest. The
key of a process is in its memory only; the first line of each run, its log and a collector have the public key. Somebody
who may write the files can replace all lines of a run under another key, or remove the latest lines: compare keys with
log/PROCESS.log ('audit log ... is chained under key') or with a collector.

Exit codes: 0 all lines fit, 1 some do not.")]
    Verify(VerifyArguments),
}

#[derive(Args)]
pub struct VerifyArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// Logs, without those that were set aside [default: those of this host]
    files: Vec<PathBuf>,
    /// Public keys of processes: a run with each of them must be there, and no run with another
    #[arg(long, value_name = "HEX")]
    key: Vec<String>,
}

/// Runs a command.
pub fn run(command: &AuditCommand) -> anyhow::Result<ExitCode> {
    let AuditCommand::Verify(arguments) = command;
    let logs = match &arguments.files[..] {
        [] => logs_of_host(&arguments.output)?,
        files => files.to_vec(),
    };
    let mut is_whole = true;
    let mut documents = Vec::new();
    let mut keys = Vec::new();
    for log in &logs {
        let mut verdict = verify(log)?;
        check_keys(&mut verdict, &arguments.key);
        keys.extend(verdict.runs.values().filter_map(|run| run.key.clone()));
        is_whole &= verdict.is_whole();
        match arguments.output.json {
            true => documents.push(document(log, &verdict)),
            false => say(log, &verdict),
        }
    }
    let missing: Vec<&String> = arguments.key.iter().filter(|key| !keys.contains(key)).collect();
    is_whole &= missing.is_empty();
    if arguments.output.json {
        print_json(&json!({ "is_whole": is_whole, "logs": documents, "missing_keys": missing }))?;
    } else {
        missing.iter().for_each(|key| print_line!("no run with the key {key} is there"));
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn logs_of_host(output: &OutputArguments) -> anyhow::Result<Vec<PathBuf>> {
    let logs = OpenCluster::open(&output.data)?.directory.logs();
    let names = ["admin-audit", "admin-audit-strangers", "s3-audit", "s3-audit-strangers"];
    let found = names.map(|name| logs.join(name).with_added_extension("jsonl"));
    Ok(found.into_iter().filter(|path| path.exists()).collect())
}

/// Reads a log, the files that were set aside first: `.1` is the latest of these.
fn verify(log: &Path) -> anyhow::Result<Verdict> {
    let aside = (1..).map(|number| log.with_added_extension(number.to_string()));
    let mut files: Vec<PathBuf> = aside.take_while(|path| path.exists()).collect();
    files.reverse();
    files.push(log.to_owned());
    let mut verdict = Verdict::default();
    for path in files {
        let name = || path.display().to_string();
        let file = File::open(&path).with_context(name)?;
        verdict.read(&name(), BufReader::new(file)).with_context(name)?;
    }
    Ok(verdict)
}

fn check_keys(verdict: &mut Verdict, wanted: &[String]) {
    if wanted.is_empty() {
        return;
    }
    let foreign = verdict.runs.iter().filter(|(_, run)| !run.key.as_ref().is_some_and(|key| wanted.contains(key)));
    let problems: Vec<String> = foreign.map(|(id, _)| format!("run {id} has a key that was not named")).collect();
    verdict.problems.extend(problems);
}

fn document(log: &Path, verdict: &Verdict) -> serde_json::Value {
    let runs = verdict.runs.iter().map(|(id, run)| {
        json!({
            "run": id,
            "key": run.key,
            "has_beginning": run.has_beginning,
            "last_number": run.last_number,
            "signed_up_to": run.signed_up_to,
        })
    });
    json!({
        "file": log,
        "is_whole": verdict.is_whole(),
        "lines": verdict.lines,
        "unchained_lines": verdict.unchained_lines,
        "unsigned_lines": verdict.unsigned_lines(),
        "problems": verdict.problems,
        "more_problems": verdict.more_problems,
        "runs": runs.collect::<Vec<_>>(),
    })
}

fn say(log: &Path, verdict: &Verdict) {
    let result = if verdict.is_whole() { "whole" } else { "NOT WHOLE" };
    print_line!(
        "{}: {result}, {} lines in {} runs; the latest {} have no signature yet",
        log.display(),
        verdict.lines,
        verdict.runs.len(),
        verdict.unsigned_lines()
    );
    if verdict.unchained_lines > 0 {
        print_line!("  the first {} lines are of an earlier release, without a chain", verdict.unchained_lines);
    }
    verdict.problems.iter().for_each(|problem| print_line!("  {problem}"));
    if verdict.more_problems > 0 {
        print_line!("  and {} more", verdict.more_problems);
    }
    for (id, run) in &verdict.runs {
        let beginning = if run.has_beginning { "" } else { ", whose first lines are gone" };
        print_line!("  run {id}{beginning}: key {}", run.key.as_deref().unwrap_or("not there"));
    }
}
