//! Keys of the key service, and the secrets that they wrapped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use atoll_admin::wrapped_secrets::{KeyUses, RewrapReport, forget_bucket_keys, rewrap_all};
use atoll_admin::{keys, sts_key};
use atoll_cluster::ClusterClient;
use atoll_coordinator::unix_ms;
use atoll_image::ImageAdmin;
use atoll_keys::{DEFAULT_KEY, KeyFile, KeyRing, KeyService, Transit, TransitLogin, TransitSettings};
use atoll_node::{BackupOpener, BackupSeal, SecretAge, secret_ages};
use atoll_terminal::{print_line, print_note};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::approval::{OperatorArguments, OptionalOperatorArguments};
use super::arguments::OutputArguments;
use super::identity::AccountArguments;
use super::key_policy::{self, KeyPolicyCommand};
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{ago, explain, print_json, print_table};
use super::secret_file::read_secret_text;

/// Longest passphrase, or file of identities, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List the keys of the key service, their versions, and the number of secrets wrapped by each
    #[command(after_help = "Examples:\n  atoll key ls\n  atoll key ls --json | jq '.[].versions'")]
    Ls(OutputArguments),
    /// Create a key, for SSE-KMS
    #[command(after_help = "\
Example:
  atoll key create project-x
  aws s3 cp file s3://bucket/ --sse aws:kms --sse-kms-key-id project-x

It belongs to the account. Users of the account who may use an object may use its key, unless a policy denies it or the
key has a policy: 'atoll key policy'.")]
    Create {
        #[command(flatten)]
        arguments: AccountArguments,
        /// Letters, digits, '-', '_' and '.'
        name: String,
    },
    /// List the age of all secrets of the cluster and of this host, oldest first, and the command that renews each
    #[command(after_help = "\
Examples:
  atoll key ages
  atoll settings set secret_age_days_max 365     'atoll health' reports those that are older")]
    Ages(OutputArguments),
    /// Give the cluster another key of temporary credentials
    #[command(after_help = "\
Sessions under the previous key stay valid until they end, for at most 36 h; until then the key cannot be rotated again.

Examples:
  atoll key rotate-sts
  atoll key rotate-sts --end-sessions       all temporary credentials are void at once, as after a theft")]
    RotateSts {
        #[command(flatten)]
        output: OutputArguments,
        /// Make all temporary credentials void
        #[arg(long)]
        end_sessions: bool,
    },
    /// Manage policies of keys for SSE-KMS
    #[command(subcommand)]
    Policy(KeyPolicyCommand),
    /// Give a key a new version, rewrap the secrets of older versions with it, and sign all records of cluster
    /// state with a new key; data is not touched
    #[command(after_help = "\
Examples:
  atoll key rotate                    the default key
  atoll key rotate project-x
  atoll key rotate --no-rewrap        only for new secrets; 'atoll key rewrap' does the rest later

Local keys are in keys/kms.json: with several hosts, copy the file to all of them between
'rotate --no-rewrap' and 'rewrap'.")]
    Rotate {
        #[command(flatten)]
        output: OutputArguments,
        /// The key
        #[arg(default_value = DEFAULT_KEY)]
        name: String,
        /// Do not rewrap existing keys
        #[arg(long)]
        no_rewrap: bool,
    },
    /// Wrap the keys of images and buckets, and users' secrets, with the newest versions of their keys
    #[command(
        after_help = "Example:\n  atoll key rewrap        after a rotation elsewhere, or a change of the key service"
    )]
    Rewrap(OutputArguments),
    /// Make gateways drop cached bucket keys and ask the key service again, within seconds
    #[command(after_help = "\
Example:
  atoll key forget --bucket photos      after its key was disabled in the key service")]
    Forget {
        #[command(flatten)]
        output: OutputArguments,
        /// Only this bucket's
        #[arg(long, value_name = "NAME")]
        bucket: Option<String>,
    },
    /// Destroy a key, or the key of one bucket or image: the data that it protects can never be read again
    #[command(after_help = "\
Examples:
  atoll key destroy --key project-x --force      everything that was written for this key, in all buckets
  atoll key destroy --bucket photos --force      everything in the bucket
  atoll key destroy --bucket records --force --force-destroy-retained --operator ann --password-file -
                                                 although object lock may retain versions: asks for the approval of
                                                 a second operator ('atoll approval'); again when that is there
  atoll key destroy --image disk1 --force        everything in the image

The data stays in place, unreadable; remove it as usual. Old backups of cluster state and of the key
file still have the keys.")]
    Destroy {
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        what: DestroyArguments,
        /// Confirm: this cannot be undone
        #[arg(long)]
        force: bool,
        /// Confirm that versions in buckets with object lock are lost, too, whatever retains them. A second operator has
        /// to approve it
        #[arg(long, requires = "force", requires = "operator")]
        force_destroy_retained: bool,
        #[command(flatten)]
        operator: OptionalOperatorArguments,
    },
    /// Write all that exists once on this host, such as the key file, to a file to be kept elsewhere
    #[command(after_help = "\
Examples:
  atoll key backup /mnt/safe/h1.backup
  atoll key backup /mnt/safe/h1.age --passphrase-file -
  atoll key backup /mnt/safe/h1.age --recipient age1...       only the holder of the identity can open it

It contains cluster.json, credentials.json, keys/ and tls/ of the data directory. Without a passphrase or recipient it is
in clear: its holder can read all data. Encrypted files are in the format of age, so 'age -d' opens them, too.
'atoll health' reports hosts without a backup, and hosts with keys newer than their backup.")]
    Backup {
        #[command(flatten)]
        output: OutputArguments,
        /// A new file
        file: PathBuf,
        /// Encrypt it with the passphrase in a file, or on standard input ('-')
        #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
        passphrase_file: Option<PathBuf>,
        /// Encrypt it to an age recipient; may be given several times
        #[arg(long, value_name = "age1...")]
        recipient: Vec<String>,
    },
    /// Restore missing files of the data directory from a file of 'atoll key backup'; existing files stay
    #[command(after_help = "\
Examples:
  atoll key restore /mnt/safe/h1.backup && atoll up
  atoll key restore /mnt/safe/h1.age --identity ~/age.key && atoll up")]
    Restore {
        #[command(flatten)]
        output: OutputArguments,
        /// The file
        file: PathBuf,
        /// The passphrase of an encrypted file, in a file or on standard input ('-')
        #[arg(long, value_name = "FILE", conflicts_with = "identity")]
        passphrase_file: Option<PathBuf>,
        /// A file with the age identity of an encrypted file: AGE-SECRET-KEY-1...
        #[arg(long, value_name = "FILE")]
        identity: Option<PathBuf>,
    },
    /// Switch to a Vault or OpenBao Transit engine
    #[command(after_help = "\
Example:
  atoll key use-transit --kms-address https://vault:8200 --kms-token-file /run/vault-agent/token
  atoll key rewrap                         rewrap the secrets of the local key
  atoll down; atoll up                     gateways and NBD servers load it when they start

The local keys stay in keys/kms.json until 'atoll key destroy' removes them.")]
    UseTransit {
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        transit: TransitArguments,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct DestroyArguments {
    /// The key of the key service
    #[arg(long, value_name = "NAME")]
    pub key: Option<String>,
    /// The keys of this bucket
    #[arg(long, value_name = "NAME")]
    pub bucket: Option<String>,
    /// The key of this image, which must not be attached
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,
}

/// Where a Transit engine is, and how to log in.
#[derive(Args, Clone, Default)]
pub struct TransitArguments {
    /// Keep keys in a Vault or OpenBao Transit engine at this address
    #[arg(long, value_name = "URL", env = "ATOLL_KMS_ADDRESS")]
    pub kms_address: Option<String>,
    /// Name of the key there [default: atoll]; it is made if it is not there and the policy allows it
    #[arg(long, value_name = "NAME", requires = "kms_address")]
    pub kms_key: Option<String>,
    /// Path of the engine [default: transit]
    #[arg(long, value_name = "PATH", requires = "kms_address")]
    pub kms_mount: Option<String>,
    /// Namespace
    #[arg(long, value_name = "NAME", requires = "kms_address")]
    pub kms_namespace: Option<String>,
    /// Certificates of the authorities to trust, in place of the system's
    #[arg(long, value_name = "FILE", requires = "kms_address")]
    pub kms_ca: Option<PathBuf>,
    /// File with a token; an agent may keep it fresh
    #[arg(long, value_name = "FILE", requires = "kms_address", conflicts_with = "kms_role_id")]
    pub kms_token_file: Option<PathBuf>,
    /// Log in by AppRole
    #[arg(long, value_name = "ID", requires = "kms_secret_id_file")]
    pub kms_role_id: Option<String>,
    /// File with the secret id of the role
    #[arg(long, value_name = "FILE", requires = "kms_role_id")]
    pub kms_secret_id_file: Option<PathBuf>,
    /// How long one request may take, in milliseconds [default: 5000]
    #[arg(long, value_name = "MS", requires = "kms_address")]
    pub kms_timeout_ms: Option<u64>,
}

/// Runs a command about keys.
pub fn run(command: &KeyCommand) -> anyhow::Result<()> {
    tokio_runtime()?.block_on(async {
        match command {
            KeyCommand::Ls(output) => list(output).await,
            KeyCommand::Ages(output) => ages(output).await,
            KeyCommand::RotateSts { output, end_sessions } => rotate_sts(output, *end_sessions).await,
            KeyCommand::Create { arguments, name } => create(arguments, name).await,
            KeyCommand::Policy(command) => key_policy::run(command).await,
            KeyCommand::Rotate { output, name, no_rewrap } => rotate(output, name, *no_rewrap).await,
            KeyCommand::Rewrap(output) => rewrap(output).await,
            KeyCommand::Forget { output, bucket } => forget(output, bucket.as_deref()).await,
            KeyCommand::Destroy { output, what, force, force_destroy_retained, operator } => {
                let operator = if *force_destroy_retained { operator.given() } else { None };
                destroy(output, what, *force, operator).await
            }
            KeyCommand::Backup { output, file, passphrase_file, recipient } => {
                backup(output, file, &backup_seal(passphrase_file.as_deref(), recipient)?).await
            }
            KeyCommand::Restore { output, file, passphrase_file, identity } => {
                let read = |file: &Option<PathBuf>, what| {
                    file.as_deref().map(|file| read_secret_text(file, what, SECRET_BYTES_MAX)).transpose()
                };
                let opener = BackupOpener {
                    passphrase: read(passphrase_file, "a passphrase")?,
                    identities: read(identity, "an age identity")?,
                };
                restore(output, file, &opener)
            }
            KeyCommand::UseTransit { output, transit } => use_transit(output, transit).await,
        }
    })
}

async fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let all = keys::list(&open.connect().await?, &*open.keys()?).await?;
    if output.json {
        return print_json(&json!(all));
    }
    let mut rows = Vec::new();
    for key in &all {
        for version in &key.versions {
            let uses: KeyUses = version.has_wrapped;
            let age = match version.created_unix_ms {
                0 => "-".into(),
                created => ago(created),
            };
            let note = if version.wraps { "wraps" } else { "opens only" };
            let counts = [
                uses.images,
                uses.buckets,
                uses.users,
                uses.sts_keys,
                uses.nvme_secrets,
                uses.signing_keys,
                uses.second_factors,
                uses.oidc_secrets,
            ];
            let owner = key.account.clone().unwrap_or_else(|| "all".into());
            let policy = if key.has_policy { "set" } else { "-" };
            let mut row = vec![key.name.clone(), key.service.into(), owner, policy.into()];
            row.extend([version.id.clone(), age, note.into()]);
            row.extend(counts.map(|count| count.to_string()));
            rows.push(row);
        }
    }
    print_table(
        &[
            "KEY",
            "SERVICE",
            "ACCOUNT",
            "POLICY",
            "VERSION",
            "AGE",
            "USE",
            "IMAGES",
            "BUCKET KEYS",
            "ACCESS KEYS",
            "STS KEYS",
            "NVME SECRETS",
            "SIGNING KEYS",
            "SECOND FACTORS",
            "OIDC SECRETS",
        ],
        &rows,
    );
    Ok(())
}

async fn ages(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let ages = secret_ages(&open.directory, &open.cluster, &open.connect().await?).await?;
    if output.json {
        return print_json(&ages);
    }
    let row = |age: &SecretAge| {
        let since = age.since_unix_ms.map_or_else(|| "-".to_owned(), ago);
        vec![age.secret.clone(), since, age.place.clone(), age.rotated_by.to_owned()]
    };
    print_table(&["SECRET", "AGE", "PLACE", "SUCCESSOR BY"], &ages.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

async fn rotate_sts(output: &OutputArguments, ends_sessions: bool) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let until = sts_key::rotate(&open.connect().await?, &*open.keys()?, ends_sessions).await?;
    if output.json {
        return print_json(&json!({ "sessions_before_until_unix_ms": until }));
    }
    match until {
        Some(_) => {
            print_line!("new sessions are made under another key; existing ones stay valid until they end")
        }
        None => print_line!("sessions are made under another key; those that there were are void"),
    }
    Ok(())
}

async fn create(arguments: &AccountArguments, name: &str) -> anyhow::Result<()> {
    let AccountArguments { output, account } = arguments;
    let open = OpenCluster::open(&output.data)?;
    keys::create(&open.connect().await?, &*open.keys()?, account.as_deref(), name).await?;
    match output.json {
        true => print_json(&json!({ "name": name })),
        false => {
            print_line!(
                "the key '{name}' is there; S3 clients name it with --sse aws:kms --sse-kms-key-id {name}"
            );
            Ok(())
        }
    }
}

async fn rotate(output: &OutputArguments, name: &str, no_rewrap: bool) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    // A cluster that is not there is noticed before anything changes.
    let state = open.connect().await?;
    let service = open.keys()?;
    let version = keys::rotate(&state, &*service, name, !no_rewrap).await?;
    if !output.json {
        print_line!("the key '{name}' has version {version}");
    }
    if no_rewrap {
        return match output.json {
            true => print_json(&json!({ "name": name, "version": version })),
            false => Ok(()),
        };
    }
    finish_rewrap(output, rewrap_and_sign(&state, service).await?)
}

async fn rewrap(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let state = open.connect().await?;
    finish_rewrap(output, rewrap_and_sign(&state, open.keys()?).await?)
}

/// Wraps all keys again, and signs all records with a new key.
async fn rewrap_and_sign(state: &ClusterClient, service: Arc<dyn KeyService>) -> anyhow::Result<RewrapReport> {
    let mut report = rewrap_with_progress(state, &*service).await?;
    let (signed, refused) = atoll_authority::rotate(&state.without_guard(), service, unix_ms()).await?;
    report.signed = signed;
    report.failed.extend(refused.into_iter().map(|finding| {
        format!("{}: it is refused, so it was not signed again; see 'atoll cluster sign'", finding.stored.key)
    }));
    Ok(report)
}

async fn rewrap_with_progress(state: &ClusterClient, service: &dyn KeyService) -> anyhow::Result<RewrapReport> {
    let bar = ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("{spinner} {pos} records rewrapped, {elapsed}")?);
    let report = rewrap_all(state, service, &|done| bar.set_position(done)).await;
    bar.finish_and_clear();
    Ok(report?)
}

fn finish_rewrap(output: &OutputArguments, report: RewrapReport) -> anyhow::Result<()> {
    if output.json {
        print_json(&report)?;
    } else {
        print_line!("{} secrets rewrapped, {} were up to date", report.rewrapped, report.unchanged);
        if report.signed > 0 {
            print_line!("{} records signed with a new key", report.signed);
        }
    }
    for failure in &report.failed {
        print_note!("{failure}");
    }
    if !report.failed.is_empty() {
        bail!("{} records could not be rewrapped; they are unchanged", report.failed.len());
    }
    Ok(())
}

async fn forget(output: &OutputArguments, bucket: Option<&str>) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let buckets = forget_bucket_keys(&open.connect().await?, bucket).await?;
    match output.json {
        true => print_json(&json!({ "buckets": buckets })),
        false => {
            print_line!("gateways ask for the keys of {buckets} buckets again, within 2 s");
            Ok(())
        }
    }
}

async fn destroy(
    output: &OutputArguments,
    what: &DestroyArguments,
    force: bool,
    operator: Option<OperatorArguments>,
) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let state = open.connect().await?;
    let retained = match operator {
        Some(operator) => Some(operator.prove(&open, &state).await?),
        None => None,
    };
    let consent = keys::Consent { force, retained };
    let service = open.keys()?;
    let (kind, name) = match what {
        DestroyArguments { key: Some(name), .. } => ("key", name),
        DestroyArguments { bucket: Some(name), .. } => ("bucket", name),
        DestroyArguments { image: Some(name), .. } => ("image", name),
        _ => bail!("name a key, a bucket or an image"),
    };
    if kind != "key" && !consent.force {
        bail!("everything in the {kind} '{name}' would be lost for good; say --force if that is meant");
    }
    match kind {
        "key" => keys::destroy(&state, &*service, name, consent).await?,
        "bucket" => keys::destroy_of_bucket(&state, name, consent).await?,
        _ => ImageAdmin::new(state, service).destroy_key(name).await?,
    }
    match output.json {
        true => print_json(&json!({ "destroyed": kind, "name": name })),
        false => {
            print_line!(
                "the key of {kind} '{name}' is destroyed; old backups of cluster state and key file may have it"
            );
            Ok(())
        }
    }
}

fn backup_seal(passphrase_file: Option<&Path>, recipients: &[String]) -> anyhow::Result<BackupSeal> {
    Ok(match (passphrase_file, recipients) {
        (Some(file), _) => BackupSeal::Passphrase(read_secret_text(file, "a passphrase", SECRET_BYTES_MAX)?),
        (None, []) => BackupSeal::Clear,
        (None, recipients) => BackupSeal::Recipients(recipients.to_vec()),
    })
}

async fn backup(output: &OutputArguments, file: &Path, protection: &BackupSeal) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let made = atoll_node::back_up(&open.directory, &open.cluster, file, protection)?;
    let noted = async {
        anyhow::Ok(atoll_node::note_backup(&open.directory, &open.cluster, &open.connect().await?, &made).await?)
    };
    match noted.await {
        Ok(true) => {}
        Ok(false) => bail!(
            "{} does not have a key that was made meanwhile; make another backup, in another file",
            file.display()
        ),
        Err(error) => print_note!("'atoll health' does not learn of this backup: {}", explain(&error)),
    }
    let count = made.files;
    match output.json {
        true => print_json(&json!({ "file": file, "files": count })),
        false => {
            let care = match protection {
                BackupSeal::Clear => "keep it apart from the devices, and secret: it is not encrypted",
                BackupSeal::Passphrase(_) => "keep it apart from the devices, and the passphrase apart from it",
                BackupSeal::Recipients(_) => "keep it apart from the devices, and the identity apart from it",
            };
            print_line!("{count} files are in {}; {care}", file.display());
            Ok(())
        }
    }
}

fn restore(output: &OutputArguments, file: &Path, opener: &BackupOpener) -> anyhow::Result<()> {
    let directory = atoll_node::DataDir::new(&output.data.data);
    let restored = atoll_node::restore(&directory, file, opener)?;
    match (output.json, &restored[..]) {
        (true, _) => print_json(&json!({ "restored": restored }))?,
        (false, []) => print_line!("nothing is missing in {}; nothing was changed", directory.root().display()),
        (false, names) => print_line!("put back {}", names.join(", ")),
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
    let state = open.connect().await?;
    let transit = Transit::new(settings.clone())?;
    transit.make_default_key().await?;
    let key = settings.key.clone();
    let (file, ()) = KeyFile::change(&path, |file| {
        file.transit = Some(settings);
        Ok(())
    })?;
    KeyRing::open(&path)?;
    keys::forget_backups(&state, &file.holds()).await?;
    match output.json {
        true => print_json(&json!({ "file": path, "key": key })),
        false => {
            print_line!(
                "new keys are wrapped by '{key}' there. Now: atoll key rewrap; then restart gateways and NBD servers; on \
                 other hosts, copy {} first",
                path.display()
            );
            Ok(())
        }
    }
}
