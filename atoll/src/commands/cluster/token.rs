//! Tokens with which hosts join.

use std::time::Duration;

use anyhow::Context;
use atoll_node::{create_token, list_tokens, revoke_token};
use atoll_terminal::{print_line, print_note};
use atoll_types::join::{HostRole, JoinTokenRecord, JoinedHost};
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::commands::arguments::OutputArguments;
use crate::commands::durations::parse_seconds;
use crate::commands::open_cluster::{OpenCluster, tokio_runtime};
use crate::commands::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Create a token with which one host can join. Keep it secret like a password
    #[command(after_help = "\
Examples:
  atoll cluster token create --data ./atoll-data
  atoll cluster token create --data ./atoll-data --role osd --ttl 10m")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Kinds of processes that the host runs
        #[arg(long, default_value = "host")]
        role: RoleArgument,
        /// How long the token may be used, such as 30s, 10m, 1h, 7d
        #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1h")]
        ttl: Duration,
        /// How many hosts may use the token
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        uses: u32,
    },
    /// List tokens
    Ls(OutputArguments),
    /// Revoke a token; a host that has used it stays in the cluster
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// Its id, as 'ls' shows it
        id: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RoleArgument {
    /// Runs OSDs; cannot read sealed data of clients
    Osd,
    /// Runs S3 gateways, and administers nothing
    Gateway,
    /// Runs gateways, NBD servers and tools, and administers the cluster
    Client,
    /// All of that
    Host,
}

impl From<RoleArgument> for HostRole {
    fn from(role: RoleArgument) -> Self {
        match role {
            RoleArgument::Osd => HostRole::Osd,
            RoleArgument::Gateway => HostRole::Gateway,
            RoleArgument::Client => HostRole::Client,
            RoleArgument::Host => HostRole::Host,
        }
    }
}

pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time; give a number and s, m, h or d, such as 90s or 1h");
    let total = Some(parse_seconds(text).ok_or_else(wrong)?).filter(|total| (1..=365 * 86_400).contains(total));
    total.map(Duration::from_secs).ok_or_else(|| format!("'{text}': choose 1 second to 365 days"))
}

/// `atoll cluster token`.
pub fn run(command: &TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { output, role, ttl, uses } => {
            let open = OpenCluster::open(&output.data)?;
            let token = tokio_runtime()?.block_on(async {
                let state = open.connect().await?;
                anyhow::Ok(create_token(&open.cluster, &state, (*role).into(), *ttl, *uses).await?)
            })?;
            if output.json {
                return print_json(
                    &json!({ "id": token.id, "token": token.to_text(), "ttl_seconds": ttl.as_secs(), "uses": uses }),
                );
            }
            // Alone on standard output, so that a script can take it.
            let hosts = if *uses == 1 { "one host".to_owned() } else { format!("{uses} hosts") };
            print_note!("token {}, for {hosts}, to be used within {} s:", token.id, ttl.as_secs());
            print_line!("{}", token.to_text());
            Ok(())
        }
        TokenCommand::Ls(output) => list(output),
        TokenCommand::Rm { output, id } => {
            let open = OpenCluster::open(&output.data)?;
            tokio_runtime()?.block_on(async { anyhow::Ok(revoke_token(&open.connect().await?, id).await?) })?;
            if output.json {
                return print_json(&json!({ "revoked": id }));
            }
            print_line!("revoked token {id}");
            Ok(())
        }
    }
}

fn state_of(record: &JoinTokenRecord, now_ms: u64) -> String {
    let by = |joined: &JoinedHost| match &joined.address {
        Some(address) => format!("{} from {address}", joined.host),
        None => joined.host.clone(),
    };
    let hosts: Vec<String> = record.users().map(by).collect();
    let mut parts = Vec::new();
    if !hosts.is_empty() {
        parts.push(format!("used by {}", hosts.join(", ")));
    }
    if record.has_uses_left() {
        parts.push(match record.expires_unix_ms.checked_sub(now_ms) {
            Some(left_ms) => format!("valid for {} s", left_ms / 1000),
            None => "expired".into(),
        });
    }
    if let Some(refused) = &record.refused {
        parts.push(format!("tried {} more times, last from {}", refused.count, refused.address));
    }
    parts.join("; ")
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let tokens = tokio_runtime()?.block_on(async { anyhow::Ok(list_tokens(&open.connect().await?).await?) })?;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .context("the clock of this host is before 1970")?
        .as_millis() as u64;
    if output.json {
        let row = |(id, record): &(String, JoinTokenRecord)| {
            json!({
                "id": id, "role": record.role, "created_unix_ms": record.created_unix_ms,
                "expires_unix_ms": record.expires_unix_ms, "is_expired": record.expires_unix_ms < now_ms,
                "used_by": record.used_by.as_ref().map(|host| &host.host),
                "uses": record.uses, "used": record.users().collect::<Vec<_>>(), "refused": record.refused,
            })
        };
        return print_json(&tokens.iter().map(row).collect::<Vec<_>>());
    }
    let rows: Vec<_> = tokens
        .iter()
        .map(|(id, record)| vec![id.clone(), record.role.to_string(), state_of(record, now_ms)])
        .collect();
    print_table(&["ID", "ROLE", "STATE"], &rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "s", "1", "-1h", "0s", "1w", "99999999999999999999h", "366d", "1\u{20ac}"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
