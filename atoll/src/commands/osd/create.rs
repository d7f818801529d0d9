//! Making OSDs.

use std::path::PathBuf;

use anyhow::bail;
use atoll_node::{CreatedOsd, DataDir, OsdChoices, UnlockWith, add_osd};
use atoll_preflight::{Facts, Finding, Verdict, remote_drive};
use atoll_terminal::{print_line, print_note};
use atoll_types::OsdId;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;
use serde::Serialize;

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::tokio_runtime;
use crate::commands::output::print_json;

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd create --data ./atoll-data --device /dev/disk/by-id/nvme-A
  atoll osd create --data ./atoll-data --device /dev/disk/by-id/ata-B --wal-device /dev/disk/by-id/nvme-C-part1
  atoll osd create --data ./atoll-data --device /mnt/disk3/osd --size 100G
  atoll osd create --data ./atoll-data --device /dev/disk/by-id/nvme-D --encrypt --kms
  atoll up --data ./atoll-data                     a cluster of these

A device that holds anything is refused unless --wipe is given; one that is in use or has partitions always is.")]
pub struct OsdCreateArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The block device, or the file
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Make the file with this size, sparse; only for a file that is not there yet
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub size: Option<u64>,
    /// A block device or file, on a faster disk, for the write-ahead log alone
    #[arg(long, value_name = "PATH")]
    pub wal_device: Option<PathBuf>,
    /// Use only this much of the WAL device, and make the file if it is not there yet [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, requires = "wal_device")]
    pub wal_size: Option<u64>,
    /// Destroy the content of the devices
    #[arg(long)]
    pub wipe: bool,
    /// Make the devices LUKS2 volumes, unlocked by one of the following; 'cryptsetup' can read and change
    /// their headers
    #[arg(long, requires = "unlock")]
    pub encrypt: bool,
    #[command(flatten)]
    pub unlock: UnlockArguments,
    /// The OSD's number [default: the lowest that has no device]
    #[arg(long, value_name = "N")]
    pub id: Option<u32>,
}

/// Secrets that unlock the devices of an OSD.
#[derive(Args, Clone)]
#[group(id = "unlock", multiple = false)]
pub struct UnlockArguments {
    /// The passphrase of the devices is the first line of this file, without its line feed
    #[arg(long, value_name = "PATH")]
    pub passphrase_file: Option<PathBuf>,
    /// The passphrase of the devices is the whole content of this file, as with 'cryptsetup --key-file'
    #[arg(long, value_name = "PATH")]
    pub key_file: Option<PathBuf>,
    /// The passphrases of the devices are random and wrapped by the cluster's key service
    #[arg(long)]
    pub kms: bool,
}

/// `atoll osd create`.
pub fn create(arguments: &OsdCreateArguments) -> anyhow::Result<()> {
    let unlock_with = unlock_with(&arguments.unlock);
    if unlock_with.is_some() && !arguments.encrypt {
        bail!("--passphrase-file, --key-file and --kms name the secret of an encrypted OSD; give --encrypt, too");
    }
    let choices = OsdChoices {
        id: arguments.id.map(OsdId),
        device: arguments.device.clone(),
        device_bytes: arguments.size,
        wal_device: arguments.wal_device.clone(),
        wal_bytes: arguments.wal_size,
        wipe: arguments.wipe,
        encrypt: unlock_with,
    };
    let directory = DataDir::new(&arguments.output.data.data);
    let created = tokio_runtime()?.block_on(add_osd(&directory, &choices))?;
    let remote_drives = remote_drives(&created);
    for drive in remote_drives.iter().filter(|drive| drive.verdict >= Verdict::Advice) {
        let (device, fix) =
            (drive.subject.as_deref().unwrap_or_default(), drive.fix.as_deref().unwrap_or_default());
        print_note!("atoll: WARNING: {device} is a remote drive ({}): {}. {fix}", drive.found, drive.meaning);
    }
    if arguments.output.json {
        return print_json(&CreatedAndDrives { created: &created, remote_drives });
    }
    print_line!("created  {}", created.id);
    print_line!("key      {}", created.public_key);
    print_line!("store    {}", created.store_id);
    print_line!("device   {} ({})", created.device.display(), format_size(created.device_bytes));
    if let (Some(device), Some(bytes)) = (&created.wal_device, created.wal_device_bytes) {
        print_line!("WAL      {} ({})", device.display(), format_size(bytes));
    }
    match &created.unlock_with {
        None => {}
        Some(UnlockWith::Kms) => print_line!("LUKS2    unlocked by the cluster's key service"),
        Some(UnlockWith::PassphraseFile(path) | UnlockWith::KeyFile(path)) => {
            print_line!("LUKS2    unlocked by {}: without it nothing can be read, so keep a copy", path.display());
        }
    }
    print_line!("next     {}", created.next);
    Ok(())
}

/// Output of `--json`.
#[derive(Serialize)]
struct CreatedAndDrives<'a> {
    #[serde(flatten)]
    created: &'a CreatedOsd,
    /// Findings of 'atoll preflight' about devices on other hosts.
    remote_drives: Vec<Finding>,
}

fn remote_drives(created: &CreatedOsd) -> Vec<Finding> {
    let devices = [Some(&created.device), created.wal_device.as_ref()];
    devices.into_iter().flatten().filter_map(|device| remote_drive(&Facts::of_this_host(), device)).collect()
}

/// Returns the secret named for an OSD's devices; the command line allows one.
pub fn unlock_with(arguments: &UnlockArguments) -> Option<UnlockWith> {
    let passphrase_file = arguments.passphrase_file.clone().map(UnlockWith::PassphraseFile);
    let key_file = arguments.key_file.clone().map(UnlockWith::KeyFile);
    passphrase_file.or(key_file).or(arguments.kms.then_some(UnlockWith::Kms))
}
