//! Log-ins to the console by OpenID Connect.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use atoll_admin::login_oidc::{self, OidcChange, SecretChange};
use atoll_terminal::{print_line, print_note};
use atoll_types::login_oidc::OidcRecord;
use atoll_types::operators::{OperatorRole, OperatorRoles};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::{print_json, print_table, utc};
use crate::commands::secret_file::read_secret_text;

#[derive(Subcommand)]
pub enum OidcCommand {
    /// Set the provider and the roles of its groups; its sessions end
    #[command(after_help = "\
Examples:
  atoll operator oidc set --issuer https://login.example/realms/staff --client-id atoll \\
      --client-secret-file ./secret --console-url https://console.example:8443 \\
      --group storage-team=storage --group sre=admin
  atoll operator oidc set --group storage-team=storage,read-only --group sre=admin   all groups again
  atoll operator oidc set --client-secret-file - < secret                            a new secret
  atoll operator oidc set --public                                                   no secret, PKCE alone
  atoll operator oidc set --ca-file ./ca.pem                                         an authority of your own

At the provider, register CONSOLE-URL/session/oidc/callback as the redirect URI. Omitted settings stay as they are; the
first time needs --issuer, --client-id, --client-secret-file or --public, --console-url and --group. A provider in a
private network needs 'atoll settings set outgoing_networks NETWORK'.")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        change: Box<ChangeArguments>,
    },
    /// Show the provider and the roles of its groups, without the secret
    #[command(after_help = "Example:\n  atoll operator oidc show --json | jq .roles")]
    Show(OutputArguments),
    /// Remove the provider; its sessions end
    #[command(after_help = "\
Example:
  atoll operator oidc rm

While passwords are off ('atoll settings set local_login false'), the removal is refused.")]
    Rm(OutputArguments),
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ChangeArguments {
    /// The provider's address, exactly as its own configuration has it
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// Name of the console at the provider
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// A file with the secret of the client, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "public")]
    client_secret_file: Option<PathBuf>,
    /// The client has no secret
    #[arg(long)]
    public: bool,
    /// Address of a console, to which the provider returns browsers; may be given several times
    #[arg(long, value_name = "URL")]
    console_url: Vec<String>,
    /// A group of the provider and its roles, separated by commas; may be given several times
    #[arg(long, value_name = "GROUP=ROLE", value_parser = parse_group)]
    group: Vec<(String, OperatorRoles)>,
    /// The claim with the name for logs [default: preferred_username]
    #[arg(long, value_name = "CLAIM")]
    name_claim: Option<String>,
    /// The claim with the groups [default: groups]
    #[arg(long, value_name = "CLAIM")]
    groups_claim: Option<String>,
    /// Scopes requested from the provider [default: 'openid profile email groups']
    #[arg(long, value_name = "SCOPES")]
    scope: Option<String>,
    /// Allowed difference of the provider's clock, at most 300 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    skew_seconds: Option<u64>,
    /// A file with the authorities of the provider's certificate (PEM); an empty file: those of the system
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

const SECRET_BYTES_MAX: u64 = 8 << 10;

/// The name of a group may have '='; roles have none.
fn parse_group(text: &str) -> Result<(String, OperatorRoles), String> {
    let (group, names) = text.rsplit_once('=').ok_or("give a group and its roles, such as sre=admin")?;
    let find = |name: &str| OperatorRole::find(name).ok_or_else(|| format!("'{name}' is no role of operators"));
    let roles = names.split(',').map(find).collect::<Result<Vec<_>, _>>()?;
    let roles = OperatorRoles::new(roles).ok_or("a group needs a role")?;
    Ok((group.to_owned(), roles))
}

impl ChangeArguments {
    fn change(&self) -> anyhow::Result<OidcChange> {
        let mut roles = BTreeMap::new();
        for (group, of_group) in &self.group {
            let before = roles.insert(group.clone(), of_group.clone());
            anyhow::ensure!(before.is_none(), "the group '{group}' is given twice; give its roles with commas");
        }
        let secret = match &self.client_secret_file {
            Some(file) => SecretChange::New(read_client_secret(file)?),
            None if self.public => SecretChange::Public,
            None => SecretChange::Keep,
        };
        let read =
            |file: &PathBuf| fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
        Ok(OidcChange {
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            secret,
            scopes: self.scope.clone(),
            name_claim: self.name_claim.clone(),
            groups_claim: self.groups_claim.clone(),
            roles: Some(roles).filter(|roles| !roles.is_empty()),
            console_urls: Some(self.console_url.clone()).filter(|urls| !urls.is_empty()),
            skew_seconds: self.skew_seconds,
            authorities_pem: self.ca_file.as_ref().map(read).transpose()?,
        })
    }
}

fn read_client_secret(file: &Path) -> anyhow::Result<String> {
    let text = read_secret_text(file, "a client's secret", SECRET_BYTES_MAX)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// `atoll operator oidc`.
pub fn run(command: &OidcCommand) -> anyhow::Result<()> {
    match command {
        OidcCommand::Set { output, change } => {
            let change = change.change()?;
            connected(output, async |open, client| {
                let record = login_oidc::set(&client, &*open.keys()?, &change).await?;
                if output.json {
                    return print_json(&as_json(&record));
                }
                print_line!("people log in by {}", record.issuer);
                for url in &record.console_urls {
                    print_note!("redirect URI at the provider: {url}/session/oidc/callback");
                }
                Ok(())
            })
        }
        OidcCommand::Show(output) => connected(output, async |_, client| {
            let found = login_oidc::find(&client).await?.map(|(record, _)| record);
            if output.json {
                return print_json(&found.as_ref().map(as_json));
            }
            match &found {
                Some(record) => show(record),
                None => print_line!(
                    "log-ins by OpenID Connect are not set up; 'atoll operator oidc set' sets a provider"
                ),
            }
            Ok(())
        }),
        OidcCommand::Rm(output) => connected(output, async |_, client| {
            login_oidc::remove(&client).await?;
            if output.json {
                return print_json(&json!({ "removed": true }));
            }
            print_line!("log-ins by OpenID Connect are off");
            Ok(())
        }),
    }
}

/// Returns the record without its secret.
fn as_json(record: &OidcRecord) -> Value {
    let roles = record.roles.iter().map(|(group, roles)| (group.clone(), json!(roles.names())));
    let redirects = record.console_urls.iter().map(|url| format!("{url}/session/oidc/callback"));
    json!({
        "issuer": record.issuer, "client_id": record.client_id, "has_secret": record.secret.is_some(),
        "secret_set_unix_ms": record.secret.as_ref().map(|secret| secret.set_unix_ms),
        "scopes": record.scopes, "name_claim": record.name_claim, "groups_claim": record.groups_claim,
        "roles": roles.collect::<serde_json::Map<_, _>>(), "console_urls": record.console_urls,
        "redirect_uris": redirects.collect::<Vec<_>>(), "skew_seconds": record.skew_seconds,
        "has_own_authorities": !record.authorities_pem.is_empty(), "changed_unix_ms": record.changed_unix_ms,
    })
}

fn show(record: &OidcRecord) {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let secret = record.secret.as_ref().map_or("none: a public client".into(), |_| "yes".into());
    let authorities = if record.authorities_pem.is_empty() { "of the system" } else { "of a file" };
    let mut rows = vec![
        row("issuer", record.issuer.clone()),
        row("client", record.client_id.clone()),
        row("secret", secret),
        row("scopes", record.scopes.clone()),
        row("claim of the name", record.name_claim.clone()),
        row("claim of the groups", record.groups_claim.clone()),
        row("clocks may differ by", format!("{} s", record.skew_seconds)),
        row("authorities", authorities.into()),
        row("changed", utc(record.changed_unix_ms)),
    ];
    rows.extend(record.console_urls.iter().map(|url| row("console", url.clone())));
    rows.extend(record.roles.iter().map(|(group, roles)| row(&format!("group {group}"), roles.to_string())));
    print_table(&["WHAT", "VALUE"], &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_split_from_their_roles_at_the_last_sign() {
        let (group, roles) = parse_group("cn=sre,dc=example=admin,storage").unwrap();
        assert_eq!((&group[..], roles.names()), ("cn=sre,dc=example", vec!["storage", "admin"]));
        for wrong in ["sre", "sre=", "sre=root", "sre=admin,", "sre=Admin"] {
            assert!(parse_group(wrong).is_err(), "{wrong}");
        }
    }
}
