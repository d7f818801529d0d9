//! The keys with which processes connect to OSDs.

use atoll_admin::peer_keys::{self, AuthorizedKey};
use atoll_node::{RotatedKey, rotate_static_key};
use atoll_terminal::print_line;
use atoll_types::records::PeerRole;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::{OpenCluster, tokio_runtime};
use crate::commands::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum PeerKeyCommand {
    /// List the authorized keys and their holders
    #[command(after_help = "\
Examples:
  atoll cluster key ls --data ./atoll-data
  atoll cluster key ls --json | jq -r '.[] | select(.role == \"gateway\").name'")]
    Ls(OutputArguments),
    /// Revoke a key: within seconds the connections of its holder end, and it can open no new ones
    #[command(after_help = "\
Examples:
  atoll cluster key revoke gateway@h2            the S3 gateway of host h2
  atoll cluster key revoke client@h2             its NBD server, benches and command line
  atoll cluster key revoke osd.7                 an OSD; other OSDs take over its PGs
  atoll cluster key revoke 5f3ac09be2            by the first digits of the key

The key stays revoked until 'atoll cluster key add'. A host that you no longer trust can still reach cluster state:
'atoll host revoke' shuts out the whole host.")]
    Revoke {
        #[command(flatten)]
        output: OutputArguments,
        /// Its holder as 'ls' shows it, or the first 8 or more digits of the key
        name: String,
    },
    /// Give a process of this host another key
    #[command(after_help = "\
Both keys of a gateway, and of the other clients of the host, are valid afterwards. Processes use the new one from their
next start on; revoke the old one then. An OSD starts again at once, and its old key is void.

Examples:
  atoll cluster key rotate gateway       then restart the gateway, and revoke the key that is printed
  atoll cluster key rotate client        the same for NBD servers and NVMe targets
  atoll cluster key rotate osd.0         one OSD after the other, each when 'atoll health' is well again")]
    Rotate {
        #[command(flatten)]
        output: OutputArguments,
        /// client, gateway or osd.N of this host
        holder: String,
    },
    /// Authorize a key, again or for the first time
    #[command(after_help = "\
Examples:
  atoll cluster key add gateway@h2 --public-key 5f3a...     as 'revoke' has printed it
  atoll cluster key add osd.7")]
    Add {
        #[command(flatten)]
        output: OutputArguments,
        /// client@HOST, gateway@HOST or osd.N
        name: String,
        /// The key, 64 hexadecimal digits; that of an OSD is in its record
        #[arg(long, value_name = "HEX")]
        public_key: Option<String>,
    },
}

/// `atoll cluster key`.
pub fn run(command: &PeerKeyCommand) -> anyhow::Result<()> {
    let (PeerKeyCommand::Ls(output)
    | PeerKeyCommand::Revoke { output, .. }
    | PeerKeyCommand::Rotate { output, .. }
    | PeerKeyCommand::Add { output, .. }) = command;
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        match command {
            PeerKeyCommand::Ls(_) => print_keys(output.json, &peer_keys::list(&state).await?),
            PeerKeyCommand::Revoke { name, .. } => {
                print_revoked(output.json, &peer_keys::revoke(&state, name).await?)
            }
            PeerKeyCommand::Rotate { holder, .. } => {
                let rotated = rotate_static_key(&open.directory, &open.cluster, &state, holder).await?;
                print_rotated(output.json, &rotated)
            }
            PeerKeyCommand::Add { name, public_key, .. } => {
                let (key, record) = peer_keys::add(&state, name, public_key.as_deref()).await?;
                if output.json {
                    return print_json(&as_json(&(key, record)));
                }
                print_line!("{} may connect to OSDs with the key {key}", record.name);
                Ok(())
            }
        }
    })
}

fn print_rotated(is_json: bool, rotated: &RotatedKey) -> anyhow::Result<()> {
    match rotated {
        RotatedKey::Beside { name, old } if is_json => print_json(&json!({ "name": name, "old_public_key": old })),
        RotatedKey::Replaced { name, .. } if is_json => print_json(&json!({ "name": name })),
        RotatedKey::Beside { name, old } => {
            print_line!("{name} has another key, which its processes use from their next start on. After that:");
            print_line!("  atoll cluster key revoke {}", &old[..16]);
            Ok(())
        }
        RotatedKey::Replaced { name, did_run } => {
            let said = if *did_run { "and starts again with it" } else { "for its next start" };
            print_line!("{name} has another key, {said}");
            Ok(())
        }
    }
}

fn as_json((key, record): &AuthorizedKey) -> Value {
    json!({ "name": record.name, "role": record.role, "osd": record.osd, "public_key": key })
}

fn print_keys(is_json: bool, keys: &[AuthorizedKey]) -> anyhow::Result<()> {
    if is_json {
        return print_json(&keys.iter().map(as_json).collect::<Vec<_>>());
    }
    let row = |(key, record): &AuthorizedKey| vec![record.name.clone(), record.role.to_string(), key.clone()];
    print_table(&["NAME", "ROLE", "KEY"], &keys.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

fn print_revoked(is_json: bool, revoked: &AuthorizedKey) -> anyhow::Result<()> {
    if is_json {
        return print_json(&as_json(revoked));
    }
    let (key, record) = revoked;
    print_line!("revoked the key of {}: its connections end now, and it gets no new ones", record.name);
    match (record.role, record.osd) {
        (PeerRole::Osd, Some(osd)) => {
            print_line!(
                "other OSDs take over its PGs; to remove it: end its process, and 'atoll osd rm {}'",
                osd.0
            );
            print_line!("to trust it again: atoll cluster key add {}", record.name);
        }
        _ => {
            print_line!("its host can still reach cluster state; 'atoll host revoke' shuts out all of it");
            print_line!("to trust it again: atoll cluster key add {}@HOST --public-key {key}", record.role);
        }
    }
    Ok(())
}
