//! Tokens with which programs call the admin API.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use atoll_admin::api_tokens::{self, NewToken};
use atoll_terminal::{print_line, print_note};
use atoll_types::api_tokens::{ApiTokenRecord, TokenScope};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{ReachArgument, RoleArgument, roles_of};
use crate::commands::arguments::OutputArguments;
use crate::commands::cluster::token::parse_duration;
use crate::commands::open_cluster::connected;
use crate::commands::output::{ago, print_json, print_table, utc};

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Create a token with which a program calls the admin API. It is shown this once
    #[command(after_help = "\
Examples:
  (umask 077; atoll operator token create backup --role read-only > token)
  atoll operator token create scaler --role storage --expires 7d --json
  atoll operator token create probe --call getHealth,listPools
  curl --cacert atoll-data/tls/ca.crt -H \"Authorization: Bearer $(cat token)\" https://127.0.0.1:8443/api/v1/health

No token makes, changes or removes operators and tokens.")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Name of the token, such as the program that uses it
        name: String,
        #[command(flatten)]
        scope: ScopeArguments,
        /// Lifetime of the token, such as 12h or 30d [default: the setting api_token_days_max]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
        /// The operator of the console who makes it
        #[arg(long, value_name = "NAME", hide = true)]
        maker: Option<String>,
        #[command(flatten)]
        reach: ReachArgument,
    },
    /// List tokens: the rights of each, its end, and its last use
    #[command(
        after_help = "Example:\n  atoll operator token ls --json | jq -r '.[] | select(.is_live | not) | .name'"
    )]
    Ls(OutputArguments),
    /// Revoke a token: its next call is refused, on all hosts
    #[command(after_help = "Example:\n  atoll operator token revoke scaler")]
    Revoke {
        #[command(flatten)]
        output: OutputArguments,
        /// The token's name
        name: String,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct ScopeArguments {
    /// Roles of operators whose rights the token has; several with commas between them
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    role: Vec<RoleArgument>,
    /// It may make this call and no other, by its operationId in openapi.json; several with commas between them
    #[arg(long, value_name = "CALL", value_delimiter = ',')]
    call: Vec<String>,
}

impl ScopeArguments {
    fn scope(&self) -> anyhow::Result<TokenScope> {
        if let Some(roles) = roles_of(&self.role) {
            return Ok(TokenScope::Roles(roles));
        }
        for call in &self.call {
            anyhow::ensure!(
                atoll_console::is_call_of_tokens(call),
                "there is no call '{call}' that a token may make; docs/reference/api.md has all calls"
            );
        }
        let calls: BTreeSet<String> = self.call.iter().cloned().collect();
        (!calls.is_empty()).then_some(TokenScope::Calls(calls)).context("a token needs --role or --call")
    }
}

/// `atoll operator token`.
pub fn run(command: &TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { output, name, scope, expires, maker, reach } => {
            let scope = scope.scope()?;
            let maker = maker.as_deref();
            let new = NewToken { name, scope, lasts: *expires, maker, reach: reach.reach() };
            connected(output, async |_, client| {
                let (token, record) = api_tokens::create(&client, &new).await?;
                if output.json {
                    let mut told = told(&record);
                    told["token"] = json!(token);
                    return print_json(&told);
                }
                // Alone on standard output, so that it can be taken into a file.
                let until = utc(record.expires_unix_ms);
                print_note!("token '{name}' ({}), which counts until {until}, shown this once:", record.scope);
                print_line!("{token}");
                Ok(())
            })
        }
        TokenCommand::Ls(output) => list(output),
        TokenCommand::Revoke { output, name } => connected(output, async |_, client| {
            api_tokens::revoke(&client, name).await?;
            if output.json {
                return print_json(&json!({ "revoked": name }));
            }
            print_line!("revoked token '{name}'");
            Ok(())
        }),
    }
}

/// Returns a token's record without its secret.
fn told(record: &ApiTokenRecord) -> Value {
    let calls: Vec<&String> = match &record.scope {
        TokenScope::Roles(_) => Vec::new(),
        TokenScope::Calls(calls) => calls.iter().collect(),
    };
    let roles: Vec<&str> = api_tokens::roles_of(&record.scope).into_iter().map(|role| role.name()).collect();
    json!({
        "name": record.name, "roles": roles, "calls": calls,
        "maker": record.maker.as_ref().map(|maker| &maker.name),
        "created_unix_ms": record.created_unix_ms, "expires_unix_ms": record.expires_unix_ms,
        "used_unix_ms": Some(record.used_unix_ms).filter(|used| *used > 0),
        "used_address": Some(&record.used_address).filter(|address| !address.is_empty()),
    })
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    connected(output, async |_, client| {
        let all = api_tokens::list(&client).await?;
        if output.json {
            let rows = all.iter().map(|(record, is_live)| {
                let mut row = told(record);
                row["is_live"] = json!(is_live);
                row
            });
            return print_json(&rows.collect::<Vec<_>>());
        }
        let rows = all.into_iter().map(|(record, is_live)| {
            let used = match record.used_unix_ms {
                0 => "never".to_owned(),
                used => format!("{} ago from {}", ago(used), record.used_address),
            };
            let state = if is_live { utc(record.expires_unix_ms) } else { "worthless".to_owned() };
            let maker = record.maker.as_ref().map_or_else(|| "-".to_owned(), |maker| maker.name.clone());
            vec![record.name, record.scope.to_string(), maker, state, used]
        });
        print_table(&["NAME", "MAY", "MADE BY", "UNTIL", "USED"], &rows.collect::<Vec<_>>());
        Ok(())
    })
}
