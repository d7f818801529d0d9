//! Keys of the key service, and what they have wrapped.

use anyhow::{Context, bail};
use atoll_base::records::{AuthorizedKeyRecord, PeerRole};
use atoll_cluster::ClusterClient;
use atoll_crypto::{
    DEFAULT_KEY, KeyDescription, KeyFile, KeyRing, KeyService, Transit, TransitLogin, TransitSettings,
};
use atoll_image::ImageAdmin;
use atoll_supervisor::{KeyUses, RewrapReport, UsesByVersion, forget_bucket_keys, rewrap_all};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::health::ago;
use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{DestroyArguments, KeyCommand, OutputArguments, TransitArguments};

/// Runs a command about keys.
pub fn run(command: &KeyCommand) -> anyhow::Result<()> {
    tokio_runtime()?.block_on(async {
        match command {
            KeyCommand::Ls(output) => list(output).await,
            KeyCommand::Create { output, name } => create(output, name).await,
            KeyCommand::Rotate { output, name, no_rewrap } => rotate(output, name, *no_rewrap).await,
            KeyCommand::Rewrap(output) => rewrap(output).await,
            KeyCommand::Forget { output, bucket } => forget(output, bucket.as_deref()).await,
            KeyCommand::Destroy { output, what, force } => destroy(output, what, *force).await,
            KeyCommand::UseTransit { output, transit } => use_transit(output, transit).await,
        }
    })
}

async fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let uses = UsesByVersion::read(&open.connect().await?).await?;
    let keys = open.keys()?.list().await?;
    if output.json {
        let version = |key: &KeyDescription, index: usize| {
            let version = &key.versions[index];
            json!({ "id": version.id, "created_unix_ms": version.created_unix_ms,
                    "wraps": index + 1 == key.versions.len(), "has_wrapped": uses.of(key, &version.id) })
        };
        let key = |key: &KeyDescription| {
            let versions: Vec<_> = (0..key.versions.len()).map(|index| version(key, index)).collect();
            json!({ "name": key.name, "service": key.service, "versions": versions })
        };
        return print_json(&keys.iter().map(key).collect::<Vec<_>>());
    }
    let mut rows = Vec::new();
    for key in &keys {
        for (index, version) in key.versions.iter().enumerate() {
            let KeyUses { images, buckets, users } = uses.of(key, &version.id);
            let age = match version.created_unix_ms {
                0 => "-".into(),
                created => ago(created),
            };
            let note = if index + 1 == key.versions.len() { "wraps" } else { "opens only" };
            let counts = [images, buckets, users].map(|count| count.to_string());
            let mut row = vec![key.name.clone(), key.service.into(), version.id.clone(), age, note.into()];
            row.extend(counts);
            rows.push(row);
        }
    }
    print_table(&["KEY", "SERVICE", "VERSION", "AGE", "USE", "IMAGES", "BUCKET KEYS", "USERS"], &rows);
    Ok(())
}

async fn create(output: &OutputArguments, name: &str) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    open.keys()?.create(name).await?;
    match output.json {
        true => print_json(&json!({ "name": name })),
        false => {
            println!("the key '{name}' is there; S3 clients name it with --sse aws:kms --sse-kms-key-id {name}");
            Ok(())
        }
    }
}

async fn rotate(output: &OutputArguments, name: &str, no_rewrap: bool) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    // A cluster that is not there is noticed before anything changes.
    let state = open.connect().await?;
    let service = open.keys()?;
    if !no_rewrap {
        refuse_if_others_have_copies(&state, &service.list().await?, name).await?;
    }
    let key = service.rotate(name).await?;
    let version = key.versions.last().map(|version| version.id.clone()).unwrap_or_default();
    if !output.json {
        println!("the key '{name}' has version {version}");
    }
    if no_rewrap {
        return match output.json {
            true => print_json(&json!({ "name": name, "version": version })),
            false => Ok(()),
        };
    }
    finish_rewrap(output, rewrap_with_progress(&state, &*service).await?)
}

/// Local keys are in a file of which every host with clients has a copy: what is wrapped with a version
/// that only one copy has, the others cannot open.
async fn refuse_if_others_have_copies(
    state: &ClusterClient,
    keys: &[KeyDescription],
    name: &str,
) -> anyhow::Result<()> {
    let is_local = keys.iter().any(|key| key.name == name && key.service == "local");
    let holders = state.list::<AuthorizedKeyRecord>(atoll_cluster::keys::AUTHORIZED_KEYS).await?.entries;
    let hosts = holders.iter().filter(|(_, record, _)| record.role == PeerRole::Client).count();
    if is_local && hosts > 1 {
        bail!(
            "{hosts} hosts have copies of keys/kms.json, and only this one would get the new version: run 'atoll key rotate \
             --no-rewrap', copy the file to the others at once, then 'atoll key rewrap'"
        );
    }
    Ok(())
}

async fn rewrap(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let state = open.connect().await?;
    finish_rewrap(output, rewrap_with_progress(&state, &*open.keys()?).await?)
}

async fn rewrap_with_progress(state: &ClusterClient, service: &dyn KeyService) -> anyhow::Result<RewrapReport> {
    let bar = ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("{spinner} {pos} records wrapped anew, {elapsed}")?);
    let report = rewrap_all(state, service, &|done| bar.set_position(done)).await;
    bar.finish_and_clear();
    Ok(report?)
}

fn finish_rewrap(output: &OutputArguments, report: RewrapReport) -> anyhow::Result<()> {
    if output.json {
        print_json(&report)?;
    } else {
        println!("{} secrets wrapped anew, {} were so already", report.rewrapped, report.unchanged);
    }
    for failure in &report.failed {
        eprintln!("{failure}");
    }
    if !report.failed.is_empty() {
        bail!("{} records could not be wrapped anew; they are as they were", report.failed.len());
    }
    Ok(())
}

async fn forget(output: &OutputArguments, bucket: Option<&str>) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let buckets = forget_bucket_keys(&open.connect().await?, bucket, false).await?;
    match output.json {
        true => print_json(&json!({ "buckets": buckets })),
        false => {
            println!("gateways ask for the keys of {buckets} buckets again, within 2 s");
            Ok(())
        }
    }
}

async fn destroy(output: &OutputArguments, what: &DestroyArguments, force: bool) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let state = open.connect().await?;
    let service = open.keys()?;
    let (kind, name) = match what {
        DestroyArguments { key: Some(name), .. } => ("key", name),
        DestroyArguments { bucket: Some(name), .. } => ("bucket", name),
        DestroyArguments { image: Some(name), .. } => ("image", name),
        _ => bail!("name a key, a bucket or an image"),
    };
    if kind == "key" {
        check_unused(&service.list().await?, &UsesByVersion::read(&state).await?, name, force)?;
    } else if !force {
        bail!("everything in the {kind} '{name}' would be lost for good; say --force if that is meant");
    }
    match kind {
        "key" => {
            service.destroy(name).await?;
            forget_bucket_keys(&state, None, false).await?;
        }
        "bucket" => drop(forget_bucket_keys(&state, Some(name), true).await?),
        _ => ImageAdmin::new(state, service).destroy_key(name).await?,
    }
    match output.json {
        true => print_json(&json!({ "destroyed": kind, "name": name })),
        false => {
            println!(
                "the key of {kind} '{name}' is destroyed; old backups of cluster state and key file may have it"
            );
            Ok(())
        }
    }
}

/// A key that has wrapped nothing may go; another needs `--force`.
fn check_unused(keys: &[KeyDescription], uses: &UsesByVersion, name: &str, force: bool) -> anyhow::Result<()> {
    let key = keys.iter().find(|key| key.name == name);
    let key = key.with_context(|| format!("there is no key '{name}'; 'atoll key ls' names all"))?;
    let wrapped: u64 = key.versions.iter().map(|version| uses.of(key, &version.id).total()).sum();
    if wrapped > 0 && !force {
        bail!(
            "the key '{name}' has wrapped the keys of {wrapped} images, buckets and users, and all that is in them would be \
             lost for good; 'atoll key ls' shows them; say --force if that is meant"
        );
    }
    Ok(())
}

/// The settings that arguments make, if they name a service.
pub fn transit_settings(arguments: &TransitArguments) -> anyhow::Result<Option<TransitSettings>> {
    let Some(address) = arguments.kms_address.clone() else { return Ok(None) };
    let absolute = |path: &std::path::PathBuf| std::path::absolute(path).context(path.display().to_string());
    let login = match (&arguments.kms_token_file, &arguments.kms_role_id, &arguments.kms_secret_id_file) {
        (Some(path), None, _) => TransitLogin::TokenFile(absolute(path)?),
        (None, Some(role_id), Some(path)) => TransitLogin::AppRole {
            mount: "approle".into(),
            role_id: role_id.clone(),
            secret_id_file: absolute(path)?,
        },
        _ => bail!("say how to log in at {address}: --kms-token-file, or --kms-role-id with --kms-secret-id-file"),
    };
    Ok(Some(TransitSettings {
        address,
        mount: arguments.kms_mount.clone().unwrap_or_else(|| "transit".into()),
        key: arguments.kms_key.clone().unwrap_or_else(|| DEFAULT_KEY.into()),
        namespace: arguments.kms_namespace.clone(),
        ca_file: arguments.kms_ca.as_ref().map(absolute).transpose()?,
        login,
        timeout_ms: arguments.kms_timeout_ms.unwrap_or(5_000),
    }))
}

async fn use_transit(output: &OutputArguments, arguments: &TransitArguments) -> anyhow::Result<()> {
    let settings = transit_settings(arguments)?.context("--kms-address says where the service is")?;
    let open = OpenCluster::open(&output.data)?;
    let path = open.directory.key_service_file();
    let transit = Transit::new(settings.clone())?;
    transit.make_default_key().await?;
    let key = settings.key.clone();
    KeyFile::read(&path)?.with_transit(settings).replace(&path)?;
    KeyRing::open(&path)?;
    match output.json {
        true => print_json(&json!({ "file": path, "key": key })),
        false => {
            println!(
                "new keys are wrapped by '{key}' there. Now: atoll key rewrap; then restart gateways and NBD servers; on \
                 other hosts, copy {} first",
                path.display()
            );
            Ok(())
        }
    }
}
