//! Looking at OSDs and changing what they shall hold.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use atoll_base::OsdId;
use atoll_base::records::{OsdRecord, OsdUpRecord};
use atoll_base::size::format_size;
use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::admin::{self, osds::NewLocation};
use atoll_coordinator::{View, groups_by_osd, statuses};
use atoll_placement::{Location, location};
use atoll_supervisor::{OsdPlace, ProcessesFile, keep_own_osd, osd_record, place_osd};
use serde_json::{Value, json};

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{
    OsdAddArguments, OsdLocationArguments, OsdReweightArguments, OsdRmArguments, OsdsArguments, OutputArguments,
};

/// How long an OSD that is told to stop may count as running: its lease is 10 s.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

fn connected<T>(
    output: &OutputArguments,
    call: impl AsyncFnOnce(&OpenCluster, ClusterClient) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async { call(&open, open.connect().await?).await })
}

fn read(output: &OutputArguments) -> anyhow::Result<View> {
    connected(output, async |_, state| Ok(View::read(&state).await?))
}

/// One OSD as it is shown.
struct Row<'a> {
    osd: &'a OsdRecord,
    up: Option<&'a OsdUpRecord>,
    is_out_by_itself: bool,
    total_bytes: u64,
    used_bytes: u64,
    /// Groups that it is a member of.
    groups: usize,
    /// Groups that it is the primary of.
    primaries: usize,
    /// Groups that it should be a member of.
    wanted: usize,
}

fn rows(view: &View) -> Vec<Row<'_>> {
    let counts = groups_by_osd(&view.map);
    let mut wanted = BTreeMap::<OsdId, usize>::new();
    for group in statuses(&view.map) {
        group.target.iter().for_each(|osd| *wanted.entry(*osd).or_default() += 1);
    }
    let row = |(id, osd)| {
        let usage = view.usage.get(id);
        let (groups, primaries) = counts.get(id).copied().unwrap_or_default();
        Row {
            osd,
            up: view.map.up.get(id),
            is_out_by_itself: view.auto_out.contains_key(id),
            total_bytes: usage.map_or(osd.device_bytes, |usage| usage.total_bytes),
            used_bytes: usage.map_or(0, |usage| usage.used_bytes),
            groups,
            primaries,
            wanted: wanted.get(id).copied().unwrap_or_default(),
        }
    };
    view.map.osds.iter().map(row).collect()
}

impl Row<'_> {
    fn state(&self) -> &'static str {
        if self.up.is_some() { "up" } else { "down" }
    }

    fn membership(&self) -> &'static str {
        match (self.osd.is_out, self.is_out_by_itself) {
            (false, _) => "in",
            (true, false) => "out",
            (true, true) => "out (was down)",
        }
    }

    fn json(&self) -> Value {
        let Location { zone, rack, host } = location(self.osd);
        json!({
            "id": self.osd.id, "zone": zone, "rack": rack, "host": host, "state": self.state(),
            "is_out": self.osd.is_out, "is_out_by_coordinator": self.is_out_by_itself, "weight": self.osd.weight,
            "device_class": self.osd.device_class, "device_bytes": self.osd.device_bytes,
            "total_bytes": self.total_bytes, "used_bytes": self.used_bytes, "pgs": self.groups,
            "pgs_primary": self.primaries, "pgs_target": self.wanted,
            "address": self.up.map(|up| &up.address), "process_id": self.up.map(|up| up.process_id),
        })
    }
}

/// `atoll osd ls`.
pub fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let view = read(output)?;
    let rows = rows(&view);
    if output.json {
        return print_json(&rows.iter().map(Row::json).collect::<Vec<_>>());
    }
    let cells = |row: &Row<'_>| {
        let percent =
            if row.total_bytes == 0 { 0.0 } else { row.used_bytes as f64 * 100.0 / row.total_bytes as f64 };
        vec![
            row.osd.id.to_string(),
            row.osd.host.clone(),
            row.osd.device_class.clone(),
            row.state().into(),
            row.membership().into(),
            format!("{:.3}", row.osd.weight),
            format_size(row.total_bytes),
            format!("{percent:.1}%"),
            row.groups.to_string(),
            row.wanted.to_string(),
            row.primaries.to_string(),
        ]
    };
    let headings =
        ["OSD", "HOST", "CLASS", "STATE", "MEMBERSHIP", "WEIGHT", "SIZE", "USE", "PGS", "TARGET", "PRIMARY"];
    print_table(&headings, &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}

/// `atoll osd tree`.
pub fn tree(output: &OutputArguments) -> anyhow::Result<()> {
    let view = read(output)?;
    let mut rows = rows(&view);
    rows.sort_by_key(|row| (location(row.osd), row.osd.id));
    if output.json {
        let host = |rows: &[Row<'_>]| {
            let Location { zone, rack, host } = location(rows[0].osd);
            let osds: Vec<_> = rows.iter().map(Row::json).collect();
            json!({ "zone": zone, "rack": rack, "host": host, "weight": weight(rows), "osds": osds })
        };
        let hosts = rows.chunk_by(|one, other| location(one.osd) == location(other.osd));
        return print_json(&hosts.map(host).collect::<Vec<_>>());
    }
    let mut table = Vec::new();
    let domain = |indent: &str, kind: &str, name: &str, rows: &[Row<'_>]| {
        let mut cells = vec![format!("{indent}{kind} {name}"), format!("{:.3}", weight(rows))];
        cells.extend((0..4).map(|_| String::new()));
        cells
    };
    for zone in rows.chunk_by(|one, other| location(one.osd).zone == location(other.osd).zone) {
        table.push(domain("", "zone", location(zone[0].osd).zone, zone));
        for rack in zone.chunk_by(|one, other| location(one.osd).rack == location(other.osd).rack) {
            table.push(domain("  ", "rack", location(rack[0].osd).rack, rack));
            for host in rack.chunk_by(|one, other| one.osd.host == other.osd.host) {
                table.push(domain("    ", "host", &host[0].osd.host, host));
                for row in host {
                    table.push(vec![
                        format!("      {}", row.osd.id),
                        format!("{:.3}", row.osd.weight),
                        row.osd.device_class.clone(),
                        row.state().into(),
                        row.membership().into(),
                        row.up.map_or_else(String::new, |up| up.address.clone()),
                    ]);
                }
            }
        }
    }
    print_table(&["NAME", "WEIGHT", "CLASS", "STATE", "MEMBERSHIP", "ADDRESS"], &table);
    Ok(())
}

/// What a domain shall hold: an OSD that is out holds nothing.
fn weight(rows: &[Row<'_>]) -> f64 {
    rows.iter().filter(|row| !row.osd.is_out).map(|row| row.osd.weight).sum()
}

fn print_osds(
    output: &OutputArguments,
    osds: &[OsdRecord],
    what: impl Fn(&OsdRecord) -> String,
) -> anyhow::Result<()> {
    if output.json {
        return print_json(&osds);
    }
    osds.iter().for_each(|osd| println!("{}", what(osd)));
    Ok(())
}

/// `atoll osd out` and `atoll osd in`.
pub fn set_out(arguments: &OsdsArguments, is_out: bool) -> anyhow::Result<()> {
    let changed = connected(&arguments.output, async |_, state| {
        let mut changed = Vec::new();
        for id in &arguments.ids {
            changed.push(admin::osds::set_out(&state, *id, is_out).await?);
        }
        Ok(changed)
    })?;
    print_osds(&arguments.output, &changed, |osd| match is_out {
        true => format!("{} is out: what it holds moves to others ('atoll osd ls' counts its groups)", osd.id),
        false => format!("{} is in", osd.id),
    })
}

/// `atoll osd reweight`.
pub fn reweight(arguments: &OsdReweightArguments) -> anyhow::Result<()> {
    let changed = connected(&arguments.output, async |_, state| {
        Ok(admin::osds::reweight(&state, arguments.id, arguments.weight).await?)
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
    let changed = connected(&arguments.output, async |_, state| {
        Ok(admin::osds::set_location(&state, &arguments.ids, &new).await?)
    })?;
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
        let (Some(key), Some(bytes)) = (&arguments.public_key, arguments.device_size) else {
            return Ok(place_osd(&open.directory, &state, arguments.id, &place).await?);
        };
        if state.get::<OsdRecord>(&keys::osd(arguments.id)).await?.is_some() {
            bail!("{} is a part of the cluster already ('atoll osd ls'); choose another number", arguments.id);
        }
        if key.len() != 64 || !key.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')) {
            bail!("--public-key {key}: a key has 64 hexadecimal digits, as 'atoll osd create' prints it");
        }
        let record = osd_record(arguments.id, key.clone(), bytes, &place);
        admin::osds::add(&state, &record).await?;
        Ok(record)
    })?;
    print_osds(&arguments.output, &[added], |osd| {
        let Location { zone, rack, host } = location(osd);
        format!("{} is a part of the cluster, on host {host} in rack {rack} of zone {zone}", osd.id)
    })
}

/// `atoll osd rm`.
pub fn remove(arguments: &OsdRmArguments) -> anyhow::Result<()> {
    let removed = connected(&arguments.output, async |open, state| {
        admin::osds::refuse_held(&state, arguments.id, arguments.lost).await?;
        let is_ours = keep_own_osd(&open.directory, arguments.id, false)?;
        let outcome = async {
            if is_ours && ProcessesFile::running(&open.directory).is_some() {
                let deadline = Instant::now() + STOP_PATIENCE;
                while state.get::<OsdUpRecord>(&keys::osd_up(arguments.id)).await?.is_some()
                    && Instant::now() < deadline
                {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            anyhow::Ok(admin::osds::remove(&state, arguments.id, arguments.lost).await?)
        };
        let outcome = outcome.await;
        if is_ours && outcome.is_err() {
            keep_own_osd(&open.directory, arguments.id, true)?;
        }
        outcome
    })?;
    print_osds(&arguments.output, &[removed], |osd| {
        format!("removed {}; its device is as it was, and may be used anew with 'atoll osd create --wipe'", osd.id)
    })
}
