//! Several hosts: join tokens, and joining.

use anyhow::Context;
use atoll_supervisor::{Choices, DataDir, EtcdChoices, JoinToken, create_token, join, list_tokens, revoke_token};
use serde_json::json;

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{EtcdArguments, HostArguments, JoinArguments, OutputArguments, TokenCommand};

impl From<&EtcdArguments> for EtcdChoices {
    fn from(arguments: &EtcdArguments) -> Self {
        EtcdChoices {
            endpoints: arguments.etcd.clone(),
            ca: arguments.etcd_ca.clone(),
            certificate: arguments.etcd_cert.clone(),
            key: arguments.etcd_key.clone(),
            user: arguments.etcd_user.clone().zip(arguments.etcd_password_file.clone()),
        }
    }
}

/// What was said about this host and its etcd.
pub fn host_choices(etcd: &EtcdArguments, host: &HostArguments) -> Choices {
    Choices {
        etcd: etcd.into(),
        host: host.host.clone(),
        rack: host.rack.clone(),
        zone: host.zone.clone(),
        listen: host.listen,
        advertise: host.advertise,
        key_service: host.key_service.clone(),
        ..Choices::default()
    }
}

/// `atoll join`.
pub fn run_join(arguments: &JoinArguments) -> anyhow::Result<()> {
    let directory = DataDir::new(&arguments.data.data);
    let token = JoinToken::from_text(&arguments.token)?;
    let choices = host_choices(&arguments.etcd, &arguments.host);
    let cluster = tokio_runtime()?.block_on(join(&directory, &token, &choices))?;
    let data = directory.root().display();
    println!("joined   cluster {} as {} '{}'", cluster.cluster_id, cluster.role, cluster.host_name());
    if cluster.role.has_clients() && !directory.key_service_file().exists() {
        println!(
            "missing  {}: copy keys/kms.json of a host that has it, over a safe way; without it neither gateway nor NBD \
             server can work here",
            directory.key_service_file().display()
        );
    }
    if cluster.role.has_osds() && !cluster.is_reachable() {
        println!("missing  an address for OSDs: give --listen IP to 'atoll up'");
    }
    if cluster.role.has_osds() {
        println!("next     atoll osd create --data {data} --device PATH");
    }
    println!("         atoll up --data {data}");
    Ok(())
}

/// `atoll cluster token`.
pub fn token(command: &TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { output, role, ttl } => {
            let open = OpenCluster::open(&output.data)?;
            let token = tokio_runtime()?.block_on(async {
                let state = open.connect().await?;
                anyhow::Ok(create_token(&open.cluster, &state, (*role).into(), *ttl).await?)
            })?;
            if output.json {
                return print_json(
                    &json!({ "id": token.id, "token": token.to_text(), "ttl_seconds": ttl.as_secs() }),
                );
            }
            // Alone on standard output, so that a script can take it.
            eprintln!("token {}, for one host, to be used within {} s:", token.id, ttl.as_secs());
            println!("{}", token.to_text());
            Ok(())
        }
        TokenCommand::Ls(output) => list(output),
        TokenCommand::Rm { output, id } => {
            let open = OpenCluster::open(&output.data)?;
            tokio_runtime()?.block_on(async { anyhow::Ok(revoke_token(&open.connect().await?, id).await?) })?;
            if output.json {
                return print_json(&json!({ "revoked": id }));
            }
            println!("revoked token {id}");
            Ok(())
        }
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let tokens = tokio_runtime()?.block_on(async { anyhow::Ok(list_tokens(&open.connect().await?).await?) })?;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .context("the clock of this host is before 1970")?
        .as_millis() as u64;
    if output.json {
        let row = |(id, record): &(String, atoll_base::join::JoinTokenRecord)| {
            json!({
                "id": id, "role": record.role, "created_unix_ms": record.created_unix_ms,
                "expires_unix_ms": record.expires_unix_ms, "is_expired": record.expires_unix_ms < now_ms,
                "used_by": record.used_by.as_ref().map(|host| &host.host),
            })
        };
        return print_json(&tokens.iter().map(row).collect::<Vec<_>>());
    }
    let rows: Vec<_> = tokens
        .iter()
        .map(|(id, record)| {
            let state = match &record.used_by {
                Some(joined) => format!("used by {}", joined.host),
                None if record.expires_unix_ms < now_ms => "expired".into(),
                None => format!("valid for {} s", (record.expires_unix_ms - now_ms) / 1000),
            };
            vec![id.clone(), record.role.to_string(), state]
        })
        .collect();
    print_table(&["ID", "ROLE", "STATE"], &rows);
    Ok(())
}
