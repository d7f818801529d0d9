//! Making OSDs.

use atoll_base::OsdId;
use atoll_base::size::format_size;
use atoll_supervisor::{DataDir, OsdChoices, create_osd};

use super::print_json;
use crate::cli::OsdCreateArguments;

/// `atoll osd create`.
pub fn create(arguments: &OsdCreateArguments) -> anyhow::Result<()> {
    let created = create_osd(
        &DataDir::new(&arguments.output.data.data),
        &OsdChoices {
            id: arguments.id.map(OsdId),
            device: arguments.device.clone(),
            device_bytes: arguments.size,
            wal_device: arguments.wal_device.clone(),
            wal_bytes: arguments.wal_size,
            wipe: arguments.wipe,
        },
    )?;
    if arguments.output.json {
        return print_json(&created);
    }
    println!("created  {}", created.id);
    println!("store    {}", created.store_id);
    println!("device   {} ({})", created.device.display(), format_size(created.device_bytes));
    if let (Some(device), Some(bytes)) = (&created.wal_device, created.wal_device_bytes) {
        println!("WAL      {} ({})", device.display(), format_size(bytes));
    }
    println!("next     {}", created.next);
    Ok(())
}
