//! Tokens that may read metrics.

use atoll_admin::metrics_tokens;
use atoll_terminal::{print_line, print_note};
use clap::Subcommand;
use serde_json::json;

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::{ago, print_json, print_table};

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Create a token that may read metrics, and nothing else, on all hosts. It is shown this once
    #[command(after_help = "\
Example:
  umask 077; atoll metrics token create prometheus > atoll-token")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Name of the token, such as its user
        name: String,
    },
    /// List tokens
    Ls(OutputArguments),
    /// Remove a token: from then on it is refused
    #[command(after_help = "Example:\n  atoll metrics token rm prometheus")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The token's name
        name: String,
    },
}

/// `atoll metrics token`.
pub fn run(command: &TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { output, name } => connected(output, async |_, client| {
            let token = metrics_tokens::create(&client, name).await?;
            if output.json {
                return print_json(&json!({ "name": name, "token": token }));
            }
            // Alone on standard output, so that it can be taken into a file.
            print_note!("token '{name}', which may read metrics:");
            print_line!("{token}");
            Ok(())
        }),
        TokenCommand::Ls(output) => connected(output, async |_, client| {
            let tokens = metrics_tokens::list(&client).await?;
            if output.json {
                let row = |(name, record): &(String, _)| {
                    let record: &atoll_types::monitoring::MetricsTokenRecord = record;
                    json!({ "name": name, "created_unix_ms": record.created_unix_ms })
                };
                return print_json(&tokens.iter().map(row).collect::<Vec<_>>());
            }
            let row = |(name, record): (String, atoll_types::monitoring::MetricsTokenRecord)| {
                vec![name, format!("{} ago", ago(record.created_unix_ms))]
            };
            print_table(&["NAME", "CREATED"], &tokens.into_iter().map(row).collect::<Vec<_>>());
            Ok(())
        }),
        TokenCommand::Rm { output, name } => connected(output, async |_, client| {
            metrics_tokens::remove(&client, name).await?;
            if output.json {
                return print_json(&json!({ "removed": name }));
            }
            print_line!("removed token '{name}'");
            Ok(())
        }),
    }
}
