//! OSDs: showing them, and changing their state, class and weight.

use anyhow::bail;
use atoll_admin::osds::{self, HostStatus, NewLocation, OsdStatus, osd_statuses, osd_tree, weight};
use atoll_coordinator::View;
use atoll_node::{OsdPlace, place_foreign_osd, place_osd, remove_osd};
use atoll_placement::{Location, location};
use atoll_terminal::print_line;
use atoll_types::OsdId;
use atoll_types::records::OsdRecord;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;
use serde_json::json;

use crate::commands::arguments::{OutputArguments, parse_osd_id};
use crate::commands::open_cluster::connected;
use crate::commands::output::{print_json, print_table};

#[derive(Args)]
pub struct OsdsArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSDs, as 3 or osd.3
    #[arg(required = true, value_name = "OSD", value_parser = parse_osd_id)]
    pub ids: Vec<OsdId>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd reweight 3 1.8      for a device of 1.8 TiB
  atoll osd reweight osd.3 0    holds no data, but stays in the cluster

Data moves by itself.")]
pub struct OsdReweightArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD, as 3 or osd.3
    #[arg(value_name = "OSD", value_parser = parse_osd_id)]
    pub id: OsdId,
    /// Share of data that it should hold, by convention its size in TiB
    #[arg(allow_negative_numbers = true)]
    pub weight: f64,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd out 3 && atoll osd rm 3        the second is refused until the data has moved
  atoll osd rm 3 --lost                    its device is gone for good

An OSD that the 'atoll up' of this data directory runs is stopped first. Its device is not touched.")]
pub struct OsdRmArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD, as 3 or osd.3
    #[arg(value_name = "OSD", value_parser = parse_osd_id)]
    pub id: OsdId,
    /// Remove it although PGs depend on it: it never comes back, and data that only it held is lost
    #[arg(long)]
    pub lost: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd create --device /dev/disk/by-id/ata-D       makes osd.3 a part of the cluster, and prints its number
  atoll osd add 3 --device-class hdd --weight 7.2       set what the cluster cannot detect
  atoll osd add 12 --public-key 5f3a... --device-size 2T --host store7    for an OSD made elsewhere

For an OSD of this data directory that is in the cluster, only the given options change. Defaults for any other: this
host with its rack and zone, class ssd, the size in TiB as weight. OSD numbers are never reused.")]
pub struct OsdAddArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD, as 3 or osd.3
    #[arg(value_name = "OSD", value_parser = parse_osd_id)]
    pub id: OsdId,
    /// The host that it is on, a failure domain
    #[arg(long, value_parser = parse_place)]
    pub host: Option<String>,
    /// The rack of the host
    #[arg(long, value_parser = parse_place)]
    pub rack: Option<String>,
    /// The zone of the rack, such as a data centre
    #[arg(long, value_parser = parse_place)]
    pub zone: Option<String>,
    /// Its kind of device, for pools that want only one kind
    #[arg(long, value_name = "CLASS", value_parser = parse_place)]
    pub device_class: Option<String>,
    /// Share of data that it should hold
    #[arg(long)]
    pub weight: Option<f64>,
    /// Its public key, as 'atoll osd create' on its host has said; without it the OSD is of this data directory
    #[arg(long, value_name = "HEX", requires_all = ["device_size", "host"])]
    pub public_key: Option<String>,
    /// The size of its device
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, requires = "public_key")]
    pub device_size: Option<u64>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll osd set-location 0 1 2 --rack r1 --zone east    their hosts are in rack r1 of zone east
  atoll osd set-location 3 --host store7                osd.3 sits in another host now
  atoll osd set-location 3 --rack ''                    back to the default rack

A rack and a zone are given to all OSDs of the hosts. Data moves if a pool's copies are no longer apart.")]
pub struct OsdLocationArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSDs, as 3 or osd.3
    #[arg(required = true, value_name = "OSD", value_parser = parse_osd_id)]
    pub ids: Vec<OsdId>,
    /// The host that they are on
    #[arg(long, value_parser = parse_place)]
    pub host: Option<String>,
    /// The rack of their hosts
    #[arg(long, value_parser = parse_place)]
    pub rack: Option<String>,
    /// The zone of their racks
    #[arg(long, value_parser = parse_place)]
    pub zone: Option<String>,
}

/// Empty for the default.
fn parse_place(text: &str) -> Result<String, String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("use letters, digits, '-', '_' and '.'".into()),
    }
}

fn read(output: &OutputArguments) -> anyhow::Result<View> {
    connected(output, async |_, state| Ok(View::read(&state).await?))
}

/// `atoll osd ls`.
pub fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let osds = osd_statuses(&read(output)?);
    if output.json {
        return print_json(&json!(osds));
    }
    let cells = |osd: &OsdStatus| {
        let percent =
            if osd.total_bytes == 0 { 0.0 } else { osd.used_bytes as f64 * 100.0 / osd.total_bytes as f64 };
        vec![
            osd.id.to_string(),
            osd.host.clone(),
            osd.device_class.clone(),
            state(osd).into(),
            membership(osd).into(),
            format!("{:.3}", osd.weight),
            format_size(osd.total_bytes),
            format!("{percent:.1}%"),
            osd.pgs.to_string(),
            osd.pgs_target.to_string(),
            osd.pgs_primary.to_string(),
        ]
    };
    let headings =
        ["OSD", "HOST", "CLASS", "STATE", "MEMBERSHIP", "WEIGHT", "SIZE", "USE", "PGS", "TARGET", "PRIMARY"];
    print_table(&headings, &osds.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}

fn state(osd: &OsdStatus) -> &'static str {
    if osd.is_up { "up" } else { "down" }
}

fn membership(osd: &OsdStatus) -> &'static str {
    match (osd.is_out, osd.is_out_by_coordinator) {
        (false, _) => "in",
        (true, false) => "out",
        (true, true) => "out (was down)",
    }
}

/// `atoll osd tree`.
pub fn tree(output: &OutputArguments) -> anyhow::Result<()> {
    let hosts = osd_tree(&read(output)?);
    if output.json {
        return print_json(&json!(hosts));
    }
    let mut table = Vec::new();
    let domain = |indent: &str, kind: &str, name: &str, hosts: &[HostStatus]| {
        let weight = weight(hosts.iter().flat_map(|host| &host.osds));
        let mut cells = vec![format!("{indent}{kind} {name}"), format!("{weight:.3}")];
        cells.extend((0..4).map(|_| String::new()));
        cells
    };
    for zone in hosts.chunk_by(|one, other| one.zone == other.zone) {
        table.push(domain("", "zone", &zone[0].zone, zone));
        for rack in zone.chunk_by(|one, other| one.rack == other.rack) {
            table.push(domain("  ", "rack", &rack[0].rack, rack));
            for host in rack {
                table.push(domain("    ", "host", &host.host, std::slice::from_ref(host)));
                for osd in &host.osds {
                    table.push(vec![
                        format!("      {}", osd.id),
                        format!("{:.3}", osd.weight),
                        osd.device_class.clone(),
                        state(osd).into(),
                        membership(osd).into(),
                        osd.address.clone().unwrap_or_default(),
                    ]);
                }
            }
        }
    }
    print_table(&["NAME", "WEIGHT", "CLASS", "STATE", "MEMBERSHIP", "ADDRESS"], &table);
    Ok(())
}

fn print_osds(
    output: &OutputArguments,
    osds: &[OsdRecord],
    what: impl Fn(&OsdRecord) -> String,
) -> anyhow::Result<()> {
    if output.json {
        return print_json(&osds);
    }
    osds.iter().for_each(|osd| print_line!("{}", what(osd)));
    Ok(())
}

/// `atoll osd out` and `atoll osd in`.
pub fn set_out(arguments: &OsdsArguments, is_out: bool) -> anyhow::Result<()> {
    let changed = connected(&arguments.output, async |_, state| {
        let mut changed = Vec::new();
        for id in &arguments.ids {
            changed.push(osds::set_out(&state, *id, is_out).await?);
        }
        Ok(changed)
    })?;
    print_osds(&arguments.output, &changed, |osd| match is_out {
        true => format!("{} is out: its data moves to others ('atoll osd ls' counts its PGs)", osd.id),
        false => format!("{} is in", osd.id),
    })
}

/// `atoll osd reweight`.
pub fn reweight(arguments: &OsdReweightArguments) -> anyhow::Result<()> {
    let changed = connected(&arguments.output, async |_, state| {
        Ok(osds::reweight(&state, arguments.id, arguments.weight).await?)
    })?;
    print_osds(&arguments.output, &[changed], |osd| format!("{} has the weight {}", osd.id, osd.weight))
}

/// `atoll osd set-location`.
pub fn set_location(arguments: &OsdLocationArguments) -> anyhow::Result<()> {
    let new =
        NewLocation { host: arguments.host.clone(), rack: arguments.rack.clone(), zone: arguments.zone.clone() };
    if new.host.is_none() && new.rack.is_none() && new.zone.is_none() {
        bail!("nothing was said about where they are; give --host, --rack or --zone");
    }
    let changed =
        connected(
            &arguments.output,
            async |_, state| Ok(osds::set_location(&state, &arguments.ids, &new).await?),
        )?;
    print_osds(&arguments.output, &changed, |osd| {
        let Location { zone, rack, host } = location(osd);
        format!("{} is on host {host} in rack {rack} of zone {zone}", osd.id)
    })
}

/// `atoll osd add`.
pub fn add(arguments: &OsdAddArguments) -> anyhow::Result<()> {
    let place = OsdPlace {
        host: arguments.host.clone(),
        rack: arguments.rack.clone(),
        zone: arguments.zone.clone(),
        device_class: arguments.device_class.clone(),
        weight: arguments.weight,
    };
    let added = connected(&arguments.output, async |open, state| {
        Ok(match (&arguments.public_key, arguments.device_size) {
            (Some(key), Some(bytes)) => place_foreign_osd(&state, arguments.id, key, bytes, &place).await?,
            _ => place_osd(&open.directory, &state, arguments.id, &place).await?,
        })
    })?;
    print_osds(&arguments.output, &[added], |osd| {
        let Location { zone, rack, host } = location(osd);
        format!("{} is a part of the cluster, on host {host} in rack {rack} of zone {zone}", osd.id)
    })
}

/// `atoll osd rm`.
pub fn remove(arguments: &OsdRmArguments) -> anyhow::Result<()> {
    let removed = connected(&arguments.output, async |open, state| {
        Ok(remove_osd(&open.directory, &state, arguments.id, arguments.lost).await?)
    })?;
    print_osds(&arguments.output, &[removed], |osd| {
        format!("removed {}; its device is unchanged, and can be reused with 'atoll osd create --wipe'", osd.id)
    })
}
