//! Looking at the store on a device that no OSD uses.

mod archive;
mod devices;

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Context;
use atoll_osd::DamagedStore;
use atoll_store::{CheckOptions, CheckPhase, CheckReport, DumpOptions, DumpRecord, ObjectRecord, check, dump};
use atoll_terminal::print_line;
use atoll_types::size::format_size;
use atoll_types::{ObjectName, PgId};
use clap::Subcommand;

use self::archive::{StoreExportArguments, StoreImportArguments};
use self::devices::{StoreDevices, context, log_and_key, open, without_store};
use super::arguments::parse_object_name;
use super::output::{print_json, progress_bar};

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Check a store without changing it: its metadata, its log, and with --data every block
    #[command(after_help = "\
Examples:
  atoll store check --device ./atoll-data/osd-0/device
  atoll store check --device /dev/disk/by-id/nvme-A --wal-device /dev/disk/by-id/nvme-C-part1 --data
  atoll store check --device ./atoll-data/osd-0/device --json | jq .problems

Stop the OSD first; encrypted devices are unlocked as it does. Exit codes: 0 no problems, 1 problems were found or it failed, 2 wrong usage.")]
    Check {
        #[command(flatten)]
        devices: StoreDevices,
        /// Also read all data and compare it with its checksums
        #[arg(long)]
        data: bool,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Have a store open again that met damaged metadata while it was in use
    #[command(after_help = "\
Examples:
  atoll store accept-damage --device ./atoll-data/osd-0/device          shows the remembered damage and its consequences
  atoll store accept-damage --device ./atoll-data/osd-0/device --yes

Only for the last copy of data: otherwise replace the device, and the OSD is filled by its peers. All copies of the \
OSD are marked as incomplete first. So each is backfilled from a better one, if there is any; for a PG without a better \
one see 'atoll pg why PGID'. The damage itself stays: data below an unreadable page is lost, and the OSD ends \
again when it meets that page. Copy the readable data to other OSDs, and then replace the device.

Stop the OSD first; encrypted devices are unlocked as by the OSD. Exit codes: 0 done, 1 no damage is remembered, --yes is \
missing, or it failed, 2 wrong usage.")]
    AcceptDamage {
        #[command(flatten)]
        devices: StoreDevices,
        /// Yes: no copy of this OSD counts any more
        #[arg(long)]
        yes: bool,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Export the readable objects of a store, also of one that does not open, into a file
    Export(StoreExportArguments),
    /// Put the objects of a file of 'atoll store export' back into the cluster
    Import(StoreImportArguments),
    /// Print the content of a store
    #[command(after_help = "\
Examples:
  atoll store dump --device ./atoll-data/osd-0/device
  atoll store dump --device ./atoll-data/osd-0/device --pg 1.2f
  atoll store dump --device ./atoll-data/osd-0/device --pg 1.2f --object @pg --json

Stop the OSD first. With --json each line is one record.")]
    Dump {
        #[command(flatten)]
        devices: StoreDevices,
        /// Only this PG
        #[arg(long, value_name = "PG")]
        pg: Option<PgId>,
        /// Only objects of this name, with their extents, checksums and omap keys
        #[arg(long, value_name = "NAME", value_parser = parse_object_name)]
        object: Option<ObjectName>,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
}

/// Runs a store command.
pub fn run(command: &StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Check { devices, data, json } => check_store(devices, CheckOptions { data: *data }, *json),
        StoreCommand::AcceptDamage { devices, yes, json } => accept_damage(devices, *yes, *json),
        StoreCommand::Export(arguments) => archive::export(arguments),
        StoreCommand::Import(arguments) => archive::import(arguments),
        StoreCommand::Dump { devices, pg, object, json } => {
            dump_store(devices, &DumpOptions { pg: *pg, object: object.clone() }, *json)
        }
    }
}

// ---- damage ---------------------------------------------------------------------------------

fn accept_damage(devices: &StoreDevices, yes: bool, json: bool) -> anyhow::Result<()> {
    let (log, key) = log_and_key(devices)?;
    let mut store = DamagedStore::open(&devices.device, log.as_deref(), key.as_ref())?;
    let Some(damage) = store.remembered().map_err(without_store).with_context(|| context(devices))? else {
        anyhow::bail!("{} remembers no damage: there is nothing to accept", context(devices));
    };
    if !yes {
        anyhow::bail!(
            "{} met damage: {damage}.\nWith --yes it opens again. No copy of its OSD counts then: each is \
             backfilled from a better one, and a PG without one waits for 'atoll pg accept'. Data below an \
             unreadable page is lost, and the OSD ends again when it meets that page. If other OSDs have copies \
             of all data, replace the device instead. Nothing was changed",
            context(devices)
        );
    }
    let pgs = store.forget().with_context(|| context(devices))?;
    if json {
        let pgs: Vec<String> = pgs.iter().map(PgId::to_string).collect();
        return print_json(&serde_json::json!({ "damage": damage, "incomplete_pgs": pgs }));
    }
    print_line!("{} opens again; {} copies of PGs are marked as incomplete", context(devices), pgs.len());
    print_line!("start its OSD, and see 'atoll pg why' for PGs that have no better copy");
    Ok(())
}

// ---- check ----------------------------------------------------------------------------------

fn check_store(devices: &StoreDevices, options: CheckOptions, json: bool) -> anyhow::Result<()> {
    let mut disk = open(devices)?;
    let (metadata, data) = (progress_bar("reading metadata"), progress_bar("reading data"));
    let mut progress = |phase, done, all| match phase {
        CheckPhase::Metadata => metadata(done, all),
        CheckPhase::Data => data(done, all),
    };
    let report =
        check(&mut disk, options, &mut progress).map_err(without_store).with_context(|| context(devices))?;
    if json {
        print_json(&report)?;
    } else {
        print_report(&report);
    }
    match report.problem_count {
        0 => Ok(()),
        1 => anyhow::bail!("{}: 1 problem was found", context(devices)),
        count => anyhow::bail!("{}: {count} problems were found", context(devices)),
    }
}

fn print_report(report: &CheckReport) {
    let log = match report.is_replayed {
        true => format!("{} records were replayed in memory", report.log_records),
        false => "not replayed, since the metadata is too damaged".into(),
    };
    let copies = match report.superblock_copies {
        1 => "; the other copy of the superblock is not whole, as after a power cut",
        _ => "",
    };
    print_line!("checkpoint  generation {}{copies}", report.generation);
    print_line!("log         {log}");
    print_line!("pgs         {}", report.pgs);
    print_line!("objects     {}, {} omap entries", report.objects, report.omap_entries);
    print_line!(
        "metadata    {} in {} pages, {} levels below the root",
        format_size(report.metadata_bytes),
        report.metadata_pages,
        report.depth
    );
    let shared = match report.shared_bytes {
        0 => String::new(),
        bytes => format!(", {} of it shared", format_size(bytes)),
    };
    let checked = if report.is_data_checked { "all read and checked" } else { "not read (--data reads it)" };
    print_line!(
        "data        {} of {}{shared}; {checked}",
        format_size(report.data_bytes),
        format_size(report.region_bytes)
    );
    for finding in &report.problems {
        let state = if finding.after_replay { "with the log replayed: " } else { "" };
        print_line!("problem     {state}{}", finding.problem);
    }
    let more = report.problem_count - report.problems.len() as u64;
    if more > 0 {
        print_line!("            and {more} more");
    }
}

// ---- dump -----------------------------------------------------------------------------------

fn dump_store(devices: &StoreDevices, options: &DumpOptions, json: bool) -> anyhow::Result<()> {
    let mut disk = open(devices)?;
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    dump(&mut disk, options, &mut |record| {
        written = match json {
            true => serde_json::to_string(&record)
                .map_err(std::io::Error::from)
                .and_then(|line| writeln!(output, "{line}")),
            false => print_record(&mut output, &record),
        };
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .map_err(without_store)
    .with_context(|| context(devices))?;
    match written.and_then(|()| output.flush()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the output"),
    }
}

fn print_record(output: &mut impl Write, record: &DumpRecord) -> std::io::Result<()> {
    match record {
        DumpRecord::Superblock(copy) => writeln!(
            output,
            "superblock  block {}{}: store {}, generation {}, incarnation {:016x}, {} bytes, {} objects, {} pages, \
             log from record {} at {}",
            copy.block,
            if copy.is_in_force { " (in force)" } else { "" },
            copy.store_id,
            copy.generation,
            copy.incarnation,
            copy.device_bytes,
            copy.object_count,
            copy.page_count,
            copy.wal_sequence,
            copy.wal_position,
        ),
        DumpRecord::Layout(layout) => writeln!(
            output,
            "layout      log {} blocks from {}{}; data {} blocks from {}; {} log records replayed",
            layout.wal_blocks,
            layout.wal_start,
            if layout.wal_is_apart { " of its own device" } else { "" },
            layout.data_blocks,
            layout.data_start,
            layout.log_records_replayed,
        ),
        DumpRecord::Pg { pg, head, applied_number, log_entries, oldest } => {
            let oldest = oldest.map_or_else(String::new, |oldest| format!(" from {oldest} on"));
            writeln!(
                output,
                "pg          {pg}  head {head}  transaction {applied_number}  {log_entries} log entries{oldest}"
            )
        }
        DumpRecord::Object(object) => print_object(output, object),
        DumpRecord::Damage { detail } => writeln!(output, "damage      {detail}"),
    }
}

fn print_object(output: &mut impl Write, object: &ObjectRecord) -> std::io::Result<()> {
    writeln!(
        output,
        "object      {}  {}  {} bytes  version {}  {} blocks  {} seals  {} omap entries ({} bytes){}",
        object.pg,
        object.object,
        object.size_bytes,
        object.version,
        object.blocks,
        object.seals,
        object.omap_entries,
        object.omap_bytes,
        if object.may_share { "  shares blocks" } else { "" },
    )?;
    for extent in &object.extents {
        let crcs: Vec<String> = extent.crcs.iter().map(|crc| format!("{crc:08x}")).collect();
        let (index, block, count) = (extent.index, extent.device_block, extent.crcs.len());
        writeln!(output, "  {count} blocks from {index} on at {block}, CRC-32C {}", crcs.join(" "))?;
    }
    object.omap_keys.iter().try_for_each(|key| writeln!(output, "  omap {key}"))
}
