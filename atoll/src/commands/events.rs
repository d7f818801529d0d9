//! Past events of the cluster, and events for the changes that commands make.

use anyhow::Context;
use atoll_admin::events::{self, Event, EventFilter};
use atoll_cluster::{ClusterClient, WatchEvent, keys};
use atoll_coordinator::unix_ms;
use atoll_terminal::print_line;
use atoll_types::events::{EventKind, EventRecord, Severity};
use atoll_types::records::RECORD_FORMAT;
use clap::{Args, ValueEnum};

use super::arguments::OutputArguments;
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{shell_word, utc};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll events                          the last 50 events
  atoll events --follow                 and each new one, until Ctrl-C
  atoll events --limit 2000 --min-severity warning --json | jq -r .summary
  atoll events --after 4711 --json      those after event number 4711

Events are health problems that begin and end, OSDs that go down and come back, PGs that fail over, with the cause as
far as it is known, and changes by commands, with their users. The last 2,000 or so are kept in cluster state.")]
pub struct EventsArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Number of events: the latest, or the next ones with --after
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
    /// Only those behind the one with this number
    #[arg(long, value_name = "NUMBER")]
    pub after: Option<i64>,
    /// Only those that are so grave
    #[arg(long, value_name = "SEVERITY", default_value = "note")]
    pub min_severity: SeverityArgument,
    /// Print new events as they come
    #[arg(long)]
    pub follow: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SeverityArgument {
    Note,
    Warning,
    Error,
}

impl From<SeverityArgument> for Severity {
    fn from(argument: SeverityArgument) -> Self {
        match argument {
            SeverityArgument::Note => Severity::Note,
            SeverityArgument::Warning => Severity::Warning,
            SeverityArgument::Error => Severity::Error,
        }
    }
}

/// `atoll events`.
pub fn run(arguments: &EventsArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    tokio_runtime()?.block_on(async {
        let client = open.connect().await?;
        let severity_min = Severity::from(arguments.min_severity);
        let filter = EventFilter { after: arguments.after, limit: arguments.limit, severity_min };
        let listed = events::list(&client, &filter).await?;
        for event in &listed.events {
            show(event, arguments.output.json)?;
        }
        if !arguments.follow {
            return Ok(());
        }
        let mut watch = client.watch_prefix(keys::EVENTS, listed.revision + 1);
        while let Some(event) = watch.next().await {
            let WatchEvent::Put { value, mod_revision: number, .. } = event else { continue };
            let record: EventRecord = serde_json::from_slice(&value).context("an event is no record")?;
            if record.severity >= severity_min {
                show(&Event { number, record }, arguments.output.json)?;
            }
            if atoll_terminal::is_closed() {
                return Ok(());
            }
        }
        anyhow::bail!("cluster state gives no more events")
    })
}

fn show(event: &Event, json: bool) -> anyhow::Result<()> {
    if json {
        // A line each, so that what follows them can read them one by one.
        print_line!("{}", serde_json::to_string(event)?);
        return Ok(());
    }
    let event = &event.record;
    let severity = event.severity.name();
    let cause = event.cause.as_ref().map(|cause| format!(", because {cause}")).unwrap_or_default();
    let user = event.user.iter().zip(&event.host).map(|(user, host)| format!(" (by {user}@{host})"));
    let by: String = user.collect();
    print_line!("{}  {severity:7}  {}: {}{cause}{by}", utc(event.unix_ms), event.code, event.summary);
    Ok(())
}

/// The user that called a command.
pub struct Author {
    pub user: String,
    pub host: String,
}

impl Author {
    /// The user of this process.
    pub fn of_process() -> Self {
        Author { user: user_name(), host: host_name() }
    }

    /// An operator who uses the console.
    pub fn of_console(operator: &str) -> Self {
        Author { user: format!("{operator} (console)"), host: host_name() }
    }
}

/// Notes the change that a command made, and its caller.
pub async fn note_command(
    client: &ClusterClient,
    author: &Author,
    words: impl Iterator<Item = String>,
) -> anyhow::Result<()> {
    let unix_ms = unix_ms();
    let event = EventRecord {
        format: RECORD_FORMAT,
        unix_ms,
        kind: EventKind::Command,
        code: "COMMAND".into(),
        severity: Severity::Note,
        summary: command_words(words),
        subjects: Vec::new(),
        cause: None,
        user: Some(author.user.clone()),
        host: Some(author.host.clone()),
    };
    client.put(&keys::new_event(unix_ms), &event).await?;
    Ok(())
}

const COMMAND_CHARACTERS_MAX: usize = 300;

/// The command as it was given, without the data directory. No secret is ever an argument.
pub fn command_words(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["atoll".to_owned()];
    let mut skips = false;
    for argument in arguments {
        if std::mem::take(&mut skips) || argument.starts_with("--data=") {
            continue;
        }
        skips = argument == "--data";
        if !skips {
            words.push(shell_word(&argument));
        }
    }
    words.join(" ").chars().take(COMMAND_CHARACTERS_MAX).collect()
}

/// The user of this process.
fn user_name() -> String {
    let id = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("uid {id}"))
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_name_commands_without_the_data_directory() {
        let words = |text: &str| command_words(text.split(' ').map(str::to_owned));
        assert_eq!(words("osd out --data /srv/atoll 3"), "atoll osd out 3");
        assert_eq!(words("pool rm --data=/srv/atoll p --yes"), "atoll pool rm p --yes");
        let long = command_words(std::iter::once("x".repeat(1_000)));
        assert_eq!(long.chars().count(), COMMAND_CHARACTERS_MAX);
    }
}
