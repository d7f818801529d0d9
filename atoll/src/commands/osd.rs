//! Making OSDs.

use anyhow::bail;
use atoll_base::OsdId;
use atoll_base::size::format_size;
use atoll_supervisor::{DataDir, OsdChoices, UnlockWith, add_osd};

use super::{print_json, tokio_runtime};
use crate::cli::{OsdCreateArguments, UnlockArguments};

/// `atoll osd create`.
pub fn create(arguments: &OsdCreateArguments) -> anyhow::Result<()> {
    let unlock_with = unlock_with(&arguments.unlock);
    if unlock_with.is_some() && !arguments.encrypt {
        bail!("--passphrase-file, --key-file and --kms say what unlocks an encrypted OSD; give --encrypt, too");
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
    if arguments.output.json {
        return print_json(&created);
    }
    println!("created  {}", created.id);
    println!("key      {}", created.public_key);
    println!("store    {}", created.store_id);
    println!("device   {} ({})", created.device.display(), format_size(created.device_bytes));
    if let (Some(device), Some(bytes)) = (&created.wal_device, created.wal_device_bytes) {
        println!("WAL      {} ({})", device.display(), format_size(bytes));
    }
    match &created.unlock_with {
        None => {}
        Some(UnlockWith::Kms) => println!("LUKS2    unlocked by the cluster's key service"),
        Some(UnlockWith::PassphraseFile(path) | UnlockWith::KeyFile(path)) => {
            println!("LUKS2    unlocked by {}: without it nothing can be read, so keep a copy", path.display());
        }
    }
    println!("next     {}", created.next);
    Ok(())
}

/// What was named to unlock an OSD's devices, of which the command line allows one.
pub fn unlock_with(arguments: &UnlockArguments) -> Option<UnlockWith> {
    let passphrase_file = arguments.passphrase_file.clone().map(UnlockWith::PassphraseFile);
    let key_file = arguments.key_file.clone().map(UnlockWith::KeyFile);
    passphrase_file.or(key_file).or(arguments.kms.then_some(UnlockWith::Kms))
}
