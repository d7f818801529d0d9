//! Sessions of operators in the console.

use atoll_admin::sessions;
use atoll_terminal::print_line;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::{ago, print_json, print_table, utc};

#[derive(Subcommand)]
pub enum SessionsCommand {
    /// List current sessions of the console, on all hosts
    #[command(after_help = "\
Examples:
  atoll operator sessions ls
  atoll operator sessions ls --json | jq -r '.[] | select(.user == \"ann\") | .id'

A host with OSDs only cannot write to cluster state, so sessions of its console are not listed. They end with those of
their operator: 'atoll operator sessions end --operator NAME'.")]
    Ls(OutputArguments),
    /// End sessions: the next call of each is refused, on all hosts
    #[command(after_help = "\
Examples:
  atoll operator sessions end 1f0c2a97          one, by the first digits of its id
  atoll operator sessions end --operator ann    all of an operator, or of oidc:NAME
  atoll operator sessions end --all             of all operators")]
    End {
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        which: WhichArguments,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct WhichArguments {
    /// A session, by the first digits of its id (at least 8)
    id: Option<String>,
    /// All sessions of this operator
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// All sessions of all operators
    #[arg(long)]
    all: bool,
}

/// Digits of an id that are shown in a table.
const SHOWN_DIGITS: usize = 12;

/// `atoll operator sessions`.
pub fn run(command: &SessionsCommand) -> anyhow::Result<()> {
    match command {
        SessionsCommand::Ls(output) => list(output),
        SessionsCommand::End { output, which } => end(output, which),
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    connected(output, async |_, client| {
        let all = sessions::list(&client).await?;
        if output.json {
            let rows = all.iter().map(|(id, session)| {
                json!({
                    "id": id, "user": session.user, "host": session.host, "address": session.address,
                    "subject": session.oidc.as_ref().map(|identity| &identity.subject),
                    "groups": session.oidc.iter().flat_map(|identity| &identity.groups).collect::<Vec<_>>(),
                    "created_unix_ms": session.created_unix_ms, "used_unix_ms": session.used_unix_ms,
                    "expires_unix_ms": session.expires_unix_ms,
                })
            });
            return print_json(&rows.collect::<Vec<_>>());
        }
        let rows = all.into_iter().map(|(id, session)| {
            let began = format!("{} ago", ago(session.created_unix_ms));
            let used = format!("{} ago", ago(session.used_unix_ms));
            let id = id.chars().take(SHOWN_DIGITS).collect();
            vec![id, session.user, session.address, session.host, began, used, utc(session.expires_unix_ms)]
        });
        let heads = ["ID", "OPERATOR", "FROM", "CONSOLE OF", "BEGAN", "USED", "ENDS AT THE LATEST"];
        print_table(&heads, &rows.collect::<Vec<_>>());
        Ok(())
    })
}

fn end(output: &OutputArguments, which: &WhichArguments) -> anyhow::Result<()> {
    connected(output, async |_, client| {
        let ended = match &which.id {
            Some(id) => vec![sessions::end(&client, id).await?.1.user],
            None => sessions::end_all(&client, which.operator.as_deref()).await?,
        };
        if output.json {
            return print_json(&json!({ "ended": ended }));
        }
        match (&which.id, &ended[..]) {
            (Some(_), _) => print_line!("ended a session of {}", ended.join(", ")),
            (None, []) => print_line!("there are no operators"),
            (None, _) => print_line!("ended all sessions of {}", ended.join(", ")),
        }
        Ok(())
    })
}
