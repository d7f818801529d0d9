//! The keys with which processes connect to OSDs.

use atoll_base::records::PeerRole;
use atoll_coordinator::admin::peer_keys::{self, AuthorizedKey};
use serde_json::{Value, json};

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::PeerKeyCommand;

/// `atoll cluster key`.
pub fn run(command: &PeerKeyCommand) -> anyhow::Result<()> {
    let (PeerKeyCommand::Ls(output) | PeerKeyCommand::Revoke { output, .. } | PeerKeyCommand::Add { output, .. }) =
        command;
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        match command {
            PeerKeyCommand::Ls(_) => print_keys(output.json, &peer_keys::list(&state).await?),
            PeerKeyCommand::Revoke { name, .. } => {
                print_revoked(output.json, &peer_keys::revoke(&state, name).await?)
            }
            PeerKeyCommand::Add { name, public_key, .. } => {
                let (key, record) = peer_keys::add(&state, name, public_key.as_deref()).await?;
                if output.json {
                    return print_json(&as_json(&(key, record)));
                }
                println!("{} may connect to OSDs with the key {key}", record.name);
                Ok(())
            }
        }
    })
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
    println!("revoked the key of {}: its connections end now, and it gets no new ones", record.name);
    match (record.role, record.osd) {
        (PeerRole::Osd, Some(osd)) => {
            println!(
                "others take over what it served; to remove it: end its process, and 'atoll osd rm {}'",
                osd.0
            );
            println!("to trust it again: atoll cluster key add {}", record.name);
        }
        _ => {
            println!("its host can still reach cluster state by the password or certificate that it has");
            println!("to trust it again: atoll cluster key add {}@HOST --public-key {key}", record.role);
        }
    }
    Ok(())
}
