//! `atoll bench osds`.

use std::time::Duration;

use anyhow::{Context, bail};
use atoll_bench::{OsdSubject, OsdsBench};
use atoll_coordinator::View;
use atoll_terminal::print_line;
use atoll_types::records::{PgRecord, PoolRecord, Redundancy};
use atoll_types::{ObjectName, OsdId, PgId};
use clap::Args;

use super::measurement::TIMEOUT_MS;
use crate::commands::arguments::OutputArguments;
use crate::commands::image::ImageAccess;
use crate::commands::output::{print_json, print_table, progress_bar};

pub const HELP: &str = "\
Examples:
  atoll bench osds
  atoll bench osds --seconds 5 --rounds 5 --json
  atoll pool create one --size 1 --pg-num 128 && atoll bench osds --pool one      writes of each OSD alone

4 KiB are written and read, one at a time, in objects whose primary the OSD is. RATIO is the median latency by
that of the class's median OSD; from 1.5 on an OSD is called slow.";

#[derive(Args)]
pub struct OsdsBenchArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The pool in which objects are made, and removed at the end
    #[arg(long, default_value = "images")]
    pub pool: String,
    /// How long each OSD is written to, and read from, in each round
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How often all OSDs have their turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
}

/// Objects of each OSD.
const OBJECTS: usize = 4;

/// Names tried at most until each OSD has its objects.
const NAMES_MAX: u32 = 100_000;

/// Runs `atoll bench osds`.
pub fn run(arguments: &OsdsBenchArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let view = access.block_on_tokio(async { anyhow::Ok(View::read(&access.open.connect().await?).await?) })?;
    let pool = view.map.pools.values().find(|pool| pool.name == arguments.pool);
    let pool = pool.with_context(|| format!("there is no pool '{}'; see 'atoll pool ls'", arguments.pool))?;
    let bench = OsdsBench {
        pool: pool.id,
        osds: subjects(&view, pool)?,
        duration: Duration::try_from_secs_f64(arguments.seconds)
            .context("--seconds is not a number of seconds")?,
        rounds: arguments.rounds,
    };
    let progress = progress_bar("measuring");
    let report = access.runtime.block_on(bench.run(&access.client, &progress))??;
    if arguments.output.json {
        return print_json(&report);
    }
    let row = |osd: &atoll_bench::OsdReport| {
        let figures = [&osd.write, &osd.read].into_iter().flat_map(|one| {
            let latency = &one.latency_us;
            [
                format!("{:.0}", one.iops),
                latency.p50.to_string(),
                latency.p99.to_string(),
                format!("{:.2}", one.ratio),
            ]
        });
        let first = [osd.osd.to_string(), osd.host.clone(), osd.device_class.clone()];
        let note = if osd.is_slow { "SLOW" } else { "" };
        first.into_iter().chain(figures).chain([note.to_owned()]).collect::<Vec<String>>()
    };
    let titles = [
        "OSD", "HOST", "CLASS", "WRITE/S", "P50 US", "P99 US", "RATIO", "READ/S", "P50 US", "P99 US", "RATIO", "",
    ];
    print_table(&titles, &report.iter().map(row).collect::<Vec<_>>());
    if !matches!(pool.redundancy, Redundancy::Replicated { size: 1, .. }) {
        print_line!("Writes wait for all members of a PG; in a pool with one copy they show each OSD alone.");
    }
    Ok(())
}

/// The OSDs that are primaries in the pool, with names of objects that are theirs.
fn subjects(view: &View, pool: &PoolRecord) -> anyhow::Result<Vec<OsdSubject>> {
    let group = |pg: PgId| view.map.pgs.get(&pg).map(|(record, _): &(PgRecord, _)| record);
    let is_primary =
        |osd: OsdId| view.map.pgs.iter().any(|(pg, (record, _))| pg.pool == pool.id && record.primary == osd);
    let mut subjects: Vec<OsdSubject> = view
        .map
        .osds
        .values()
        .filter(|osd| is_primary(osd.id))
        .map(|osd| OsdSubject {
            osd: osd.id,
            host: osd.host.clone(),
            device_class: osd.device_class.clone(),
            objects: Vec::new(),
        })
        .collect();
    for number in 0..NAMES_MAX {
        let object = ObjectName::new(&format!("bench.osds.{number:08}")).context("the name is too long")?;
        let pg = view.map.pg_of_object(pool, &object);
        let Some(primary) = group(pg).map(|record| record.primary) else { continue };
        let wants = |one: &&mut OsdSubject| one.osd == primary && one.objects.len() < OBJECTS;
        if let Some(subject) = subjects.iter_mut().find(wants) {
            subject.objects.push(object);
        }
        if subjects.iter().all(|subject| subject.objects.len() == OBJECTS) {
            return Ok(subjects);
        }
    }
    bail!("no names were found for objects of each OSD; the pool has too few PGs")
}
