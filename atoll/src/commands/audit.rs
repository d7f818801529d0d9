//! Audit logs: whether lines are as they were written.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use atoll_audit::{KnownHead, Verdict, files_of_rooms};
use atoll_cluster::keys;
use atoll_node::NO_LOG;
use atoll_terminal::print_line;
use atoll_types::audit::AuditHeadRecord;
use clap::{Args, Subcommand};
use serde_json::json;

use super::arguments::OutputArguments;
use super::audit_log::logs_of_host;
use super::open_cluster::{OpenCluster, connected};
use super::output::{ago, explain, print_json, print_table};

#[derive(Subcommand)]
pub enum AuditCommand {
    /// Check that no line of an audit log was changed or taken out
    #[command(after_help = "\
Examples:
  atoll audit verify                             the logs of this host, with the files that were set aside
  atoll audit verify /var/log/atoll/s3-audit.jsonl
  atoll audit verify --host h2 /copies/h2/*.jsonl    logs of another host, compared with the records in cluster state
  atoll audit verify --key 9f2c... --json        lines of this process must be there, under its key

Each line has a digest of itself and of the line before. Each minute a line signs the latest digest, and cluster state
stores this signature. A host cannot change its signatures of earlier hours there, so a log that root has rewritten, cut or
replaced is not whole. Run this on another host: the program of a host that was broken into may lie.
Without cluster state (--offline, or no answer) only the chain itself is verified: a user with write access to the files can
then replace a run under another key, or remove the latest lines.

Exit codes: 0 all lines fit, 1 some do not.")]
    Verify(VerifyArguments),
    /// List the latest lines of audit logs that cluster state knows
    #[command(after_help = "\
Examples:
  atoll audit heads                              each log of each host, and when it was last heard of
  atoll audit heads --host h2 --json

A process that runs says at least every half an hour how far its log is. Where that is long ago, the process was stopped or
does not write.")]
    Heads(HeadsArguments),
}

#[derive(Args)]
pub struct VerifyArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// Logs, each with its rooms and the files that were set aside [default: those of this host]
    files: Vec<PathBuf>,
    /// Public keys of processes: a run with each of them must be there, and no run with another
    #[arg(long, value_name = "HEX")]
    key: Vec<String>,
    /// The host of the logs [default: this one]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Do not compare with the records in cluster state
    #[arg(long)]
    offline: bool,
}

#[derive(Args)]
pub struct HeadsArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// Only those of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
}

/// Runs a command.
pub fn run(command: &AuditCommand) -> anyhow::Result<ExitCode> {
    match command {
        AuditCommand::Verify(arguments) => verify_all(arguments),
        AuditCommand::Heads(arguments) => heads(arguments).map(|()| ExitCode::SUCCESS),
    }
}

/// Returns the heads of the logs of a host in cluster state, or the reason why they cannot be read.
fn known_of_host(arguments: &VerifyArguments) -> Result<Vec<AuditHeadRecord>, String> {
    if arguments.offline {
        return Err("--offline".into());
    }
    let known = connected(&arguments.output, async |open, client| {
        let host = arguments.host.clone().unwrap_or_else(|| open.cluster.host_name());
        let listed = client.list::<AuditHeadRecord>(&keys::audit_heads_of(&host)).await?;
        Ok(listed.entries.into_iter().map(|(_, record, _)| record).collect())
    });
    known.map_err(|error| explain(&error))
}

/// The lines that a log has to have. In a log with a name of its own these are those of runs that are in it.
fn known_of_log(log: &Path, known: &[AuditHeadRecord]) -> Vec<KnownHead> {
    // Heads name a log for a collector by its source; its file has that name before the extension.
    let name_of = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let names = [name_of(log.file_name()), name_of(log.file_stem())];
    let head = |record: &AuditHeadRecord| KnownHead {
        run: record.run.clone(),
        number: record.number,
        digest: record.digest.clone(),
        unix_ms: record.unix_ms,
        is_of_log: names.contains(&record.log),
    };
    known.iter().map(head).collect()
}

/// Returns logs with records in cluster state whose files are missing.
fn missing_logs(logs: &[PathBuf], known: &[AuditHeadRecord]) -> Vec<PathBuf> {
    let Some(directory) = logs.first().and_then(|log| log.parent()) else { return Vec::new() };
    let names: BTreeSet<&str> = known.iter().map(|record| &record.log[..]).collect();
    let files = names.into_iter().filter(|name| name.ends_with(".jsonl")).map(|name| directory.join(name));
    files.filter(|file| !logs.contains(file)).collect()
}

/// Returns further rooms of logs that exist, or should by the heads in cluster state.
fn further_rooms(logs: &[PathBuf], known: &[AuditHeadRecord]) -> Vec<PathBuf> {
    let is_known = |file: &Path| known.iter().any(|record| file.file_name() == Some(OsStr::new(&record.log)));
    let rooms = logs.iter().flat_map(|log| files_of_rooms(log));
    rooms.filter(|file| !logs.contains(file) && (file.exists() || is_known(file))).collect()
}

fn verify_all(arguments: &VerifyArguments) -> anyhow::Result<ExitCode> {
    let mut logs = match &arguments.files[..] {
        [] => own_logs(&arguments.output)?,
        files => files.to_vec(),
    };
    let known = known_of_host(arguments);
    let lines = known.as_deref().unwrap_or_default();
    match arguments.files.is_empty() {
        true => logs.extend(missing_logs(&logs, lines)),
        false => logs.extend(further_rooms(&logs, lines)),
    }
    let mut is_whole = true;
    let mut documents = Vec::new();
    let mut keys = Vec::new();
    for log in &logs {
        let mut verdict = verify(log, known_of_log(log, lines))?;
        check_keys(&mut verdict, &arguments.key);
        keys.extend(verdict.runs.values().filter_map(|run| run.key.clone()));
        is_whole &= verdict.is_whole();
        match arguments.output.json {
            true => documents.push(document(log, &verdict)),
            false => say(log, &verdict, known.is_ok()),
        }
    }
    let missing: Vec<&String> = arguments.key.iter().filter(|key| !keys.contains(key)).collect();
    is_whole &= missing.is_empty();
    if arguments.output.json {
        print_json(&json!({
            "is_whole": is_whole,
            "is_compared": known.is_ok(),
            "logs": documents,
            "missing_keys": missing,
        }))?;
    } else {
        missing.iter().for_each(|key| print_line!("no run with the key {key} is there"));
        if let Err(reason) = &known {
            print_line!("not compared with the records in cluster state: {reason}");
        }
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn heads(arguments: &HeadsArguments) -> anyhow::Result<()> {
    let prefix =
        arguments.host.as_ref().map_or_else(|| keys::AUDIT_HEADS.to_owned(), |host| keys::audit_heads_of(host));
    let listed =
        connected(&arguments.output, async |_, client| Ok(client.list::<AuditHeadRecord>(&prefix).await?))?;
    // The latest head of each log.
    let mut latest: BTreeMap<(String, String), AuditHeadRecord> = BTreeMap::new();
    for (_, record, _) in listed.entries.into_iter().filter(|(_, record, _)| record.log != NO_LOG) {
        let name = (record.host.clone(), record.log.clone());
        let is_newer = latest.get(&name).is_none_or(|known| known.unix_ms < record.unix_ms);
        if is_newer {
            latest.insert(name, record);
        }
    }
    if arguments.output.json {
        return print_json(&json!(latest.values().collect::<Vec<_>>()));
    }
    let row = |record: &AuditHeadRecord| {
        let AuditHeadRecord { host, process, log, run, number, unix_ms, .. } = record;
        vec![host.clone(), process.clone(), log.clone(), run.clone(), number.to_string(), ago(*unix_ms)]
    };
    let rows: Vec<_> = latest.values().map(row).collect();
    print_table(&["HOST", "PROCESS", "LOG", "RUN", "LINE", "HEARD OF FOR"], &rows);
    Ok(())
}

fn own_logs(output: &OutputArguments) -> anyhow::Result<Vec<PathBuf>> {
    let directory = OpenCluster::open(&output.data)?.directory;
    logs_of_host(&directory).with_context(|| directory.logs().display().to_string())
}

/// The files of a log that were set aside, by their numbers: 1 is the latest.
fn files_aside(log: &Path) -> anyhow::Result<BTreeMap<u32, PathBuf>> {
    let directory = match log.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = format!("{}.", log.file_name().unwrap_or_default().to_string_lossy());
    let mut found = BTreeMap::new();
    // Cluster state may name logs of a directory that is missing.
    let entries = if directory.exists() { Some(std::fs::read_dir(directory)?) } else { None };
    for entry in entries.into_iter().flatten() {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(number) = file.strip_prefix(&name).and_then(|number| number.parse().ok()) {
            found.insert(number, path);
        }
    }
    Ok(found)
}

fn read(verdict: &mut Verdict, path: &Path) -> anyhow::Result<()> {
    let name = || path.display().to_string();
    let file = File::open(path).with_context(name)?;
    verdict.read(&name(), BufReader::new(file)).with_context(name)
}

/// Reads a log, the files that were set aside first, and notices those that are missing among them.
fn verify(log: &Path, known: Vec<KnownHead>) -> anyhow::Result<Verdict> {
    let aside = files_aside(log).with_context(|| log.display().to_string())?;
    let oldest = aside.last_key_value().map_or(0, |(number, _)| *number);
    // Of one that is gone cluster state may know lines.
    let is_read = log.exists() || known.is_empty();
    let mut verdict = Verdict::knowing(known);
    for number in (1..=oldest).rev() {
        match aside.get(&number) {
            Some(path) => read(&mut verdict, path)?,
            None => verdict.misses(&log.with_added_extension(number.to_string()).display().to_string()),
        }
    }
    if is_read {
        read(&mut verdict, log)?;
    }
    verdict.end(&log.display().to_string());
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
        "known_lines": verdict.known_lines,
        "unknown_runs": verdict.unknown_runs,
        "problems": verdict.problems,
        "more_problems": verdict.more_problems,
        "runs": runs.collect::<Vec<_>>(),
    })
}

fn say(log: &Path, verdict: &Verdict, is_compared: bool) {
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
    if is_compared {
        print_line!("  {} lines are as cluster state knows them", verdict.known_lines);
        verdict.unknown_runs.iter().for_each(|run| print_line!("  cluster state knows no line of run {run}"));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use atoll_audit::{AuditLog, LogConfig, OnFailure, OwnRooms, RoomSizes, Target};

    use super::*;

    /// A log with files that were set aside. Each process makes a run; a run may be as large as a file.
    fn log(directory: &Path, runs: usize, lines: usize) -> PathBuf {
        let path = directory.join("audit.jsonl");
        let config = LogConfig {
            source: "test",
            target: Target::File(path.clone()),
            spool: PathBuf::new(),
            spool_bytes_max: 0,
            on_failure: OnFailure::Lose,
            own_rooms: OwnRooms::default(),
            sizes: RoomSizes { requests_bytes: 9 * 4_000, ..RoomSizes::default() },
            is_short_lived: false,
        };
        for _ in 0..runs {
            let log = AuditLog::open(&config).unwrap().unwrap();
            for number in 0..lines {
                log.add(&json!({ "value": number, "text": "x".repeat(1_000) }));
                // Lines that come together are in one file.
                std::thread::sleep(Duration::from_millis(20));
            }
            log.end(Duration::from_secs(20)).unwrap();
        }
        path
    }

    #[test]
    fn a_missing_file_in_the_middle_is_found() {
        for (runs, lines) in [(1, 16), (8, 3)] {
            let directory = tempfile::tempdir().unwrap();
            let path = log(directory.path(), runs, lines);
            assert!(verify(&path, Vec::new()).unwrap().is_whole());
            let aside = files_aside(&path).unwrap();
            assert!(aside.len() >= 3, "{aside:?}");
            for number in 1..aside.len() as u32 {
                let hidden = directory.path().join("hidden");
                std::fs::rename(&aside[&number], &hidden).unwrap();
                let found = verify(&path, Vec::new()).unwrap();
                assert!(!found.is_whole(), "file {number} of {runs} runs: {found:?}");
                std::fs::rename(&hidden, &aside[&number]).unwrap();
            }
        }
    }

    /// A process that was killed while it set files aside has left a number out.
    #[test]
    fn a_number_that_is_left_out_is_no_missing_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = log(directory.path(), 1, 10);
        let aside = files_aside(&path).unwrap();
        for number in (2..=aside.len() as u32).rev() {
            std::fs::rename(&aside[&number], path.with_added_extension((number + 1).to_string())).unwrap();
        }
        let found = verify(&path, Vec::new()).unwrap();
        assert!(found.is_whole(), "{found:?}");
    }
}
