//! The content of a matrix file (TOML), and the loads and subjects that it defines.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use atoll_bench::{AccessPattern, COLD_OBJECTS_MIN, WorkingSet};
use atoll_types::size::{format_size, parse_size_bytes};
use serde::{Deserialize, Serialize};

use super::record;
use crate::error::LabError;

/// Matrices that come with Atoll: name and text.
pub const SHIPPED: [(&str, &str); 11] = [
    ("encryption-block", include_str!("../../matrices/encryption-block.toml")),
    ("encryption-object", include_str!("../../matrices/encryption-object.toml")),
    ("redundancy", include_str!("../../matrices/redundancy.toml")),
    ("scale", include_str!("../../matrices/scale.toml")),
    ("transport", include_str!("../../matrices/transport.toml")),
    ("monitoring", include_str!("../../matrices/monitoring.toml")),
    ("ceph", include_str!("../../matrices/ceph.toml")),
    ("ceph-objects", include_str!("../../matrices/ceph-objects.toml")),
    ("data-path", include_str!("../../matrices/data-path.toml")),
    ("training", include_str!("../../matrices/training.toml")),
    ("data-path-compared", include_str!("../../matrices/data-path-compared.toml")),
];
const FILE_BYTES_MAX: u64 = 1 << 20;
const CELLS_MAX: usize = 10_000;
const ROUNDS_MAX: u32 = 1000;

/// A matrix file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Short, for file names.
    pub name: String,
    /// One line.
    pub title: String,
    /// The question that it answers.
    pub about: String,
    /// Its profiles; `full` and `short` at least.
    pub profile: std::collections::BTreeMap<String, Profile>,
    /// Clusters to start.
    pub cluster: Vec<Cluster>,
    /// Compared subjects.
    pub subject: Vec<Subject>,
    /// Loads of all subjects.
    pub load: Vec<Loads>,
}

/// How much of everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// How often each load is run on each subject.
    pub rounds: u32,
    /// How often all clusters are made and filled: each start takes the same number of rounds.
    #[serde(default = "one_start")]
    pub starts: u32,
    /// How long each run is measured.
    pub seconds: f64,
    /// How long it runs before.
    pub warm_up_seconds: f64,
}

impl Profile {
    /// Returns the rounds of a start, which counts from 0.
    pub fn rounds_of(&self, start: u32) -> Range<u32> {
        let each = self.rounds / self.starts;
        start * each..(start + 1) * each
    }

    fn check(&self, name: &str) -> Result<(), String> {
        if self.rounds == 0 || self.rounds > ROUNDS_MAX || self.seconds.is_nan() || self.seconds <= 0.0 {
            return Err(format!("profile '{name}' makes no runs"));
        }
        if self.starts == 0 || !self.rounds.is_multiple_of(self.starts) {
            return Err(format!("profile '{name}': rounds must be a multiple of starts"));
        }
        Ok(())
    }
}

/// A cluster that the matrix starts and stops.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name in the matrix.
    pub name: String,
    /// Options of `atoll up`.
    #[serde(default)]
    pub up: Vec<String>,
    /// Settings in the environment of `atoll up` or of the driver, such as `ATOLL_GARBAGE_GRACE_SECONDS`.
    #[serde(default)]
    pub environment: std::collections::BTreeMap<String, String>,
    /// Pools to make: options of `atoll pool create`, the name first.
    #[serde(default)]
    pub pools: Vec<Vec<String>>,
    /// A program that starts it instead of `atoll up`: `DRIVER up --dir DIR OPTIONS`; a relative
    /// path counts from where the command is run.
    pub driver: Option<PathBuf>,
    /// Options of the driver.
    #[serde(default)]
    pub options: Vec<String>,
    /// True if its keys are in a Transit engine, which a service of the command's caller provides.
    #[serde(default)]
    pub transit: bool,
}

/// A system set up in one way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Short.
    pub name: String,
    /// For people.
    pub title: String,
    /// The cluster that it is on.
    pub cluster: String,
    /// The pool of its images or objects.
    pub pool: Option<String>,
    /// True if its images or objects are sealed.
    #[serde(default = "yes")]
    pub sealed: bool,
    /// How clients reach it.
    #[serde(default)]
    pub way: Way,
    /// True if a Prometheus asks its cluster's processes for their metrics each second.
    #[serde(default)]
    pub scraped: bool,
    /// The subject whose images it works on, which is on the same cluster, if it has none of its own.
    pub images_of: Option<String>,
    /// Loads' groups that it takes part in; all if there are none.
    #[serde(default)]
    pub only: Vec<String>,
}

fn yes() -> bool {
    true
}

/// How clients reach a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Images by the native client, objects by plain HTTP at the gateway.
    #[default]
    Direct,
    /// Objects over TLS, which the gateway ends.
    Tls,
    /// Objects over TLS, which HAProxy ends in front of the gateway.
    Haproxy,
    /// Images through the NBD server, over its Unix socket.
    NbdUnix,
    /// The same over TCP.
    NbdTcp,
}

/// Loads that differ along axes: every combination of the values in lists is one load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loads {
    /// Common part of the names of loads that share one plot; each combination's size is added.
    pub group: String,
    /// Clients, each a process of its own.
    #[serde(default = "one_client")]
    pub clients: u32,
    /// Operations in flight of each client.
    pub depth: u32,
    /// Patterns of block I/O: `randread`, ...
    #[serde(default)]
    pub block: Vec<AccessPattern>,
    /// Operations on objects: `get`, `put`, ...
    #[serde(default)]
    pub object: Vec<String>,
    /// Bytes per operation.
    pub sizes: Vec<String>,
    /// The part of each image that is used. Sets of all clients of less than 8 GiB are called hot in reports.
    #[serde(default = "default_working_set")]
    pub working_set: String,
    /// Number of different objects of each client. Sets of fewer than 100,000 objects and 8 GiB are called hot.
    #[serde(default = "default_objects")]
    pub objects: u64,
    /// Shortest measured time of runs, in seconds, for any profile: rare events need time to be counted.
    #[serde(default)]
    pub seconds_min: f64,
    /// Bytes that a client writes at most in a run: overwritten data keeps its space for a while.
    pub written_bytes_max: Option<String>,
}

fn one_client() -> u32 {
    1
}

fn one_start() -> u32 {
    1
}

fn default_working_set() -> String {
    "8G".into()
}

fn default_objects() -> u64 {
    COLD_OBJECTS_MIN
}

/// A subject under a load.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CellName {
    /// Name of the subject.
    pub subject: String,
    /// Name of the load.
    pub load: String,
}

impl std::fmt::Display for CellName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}, {}", self.subject, self.load)
    }
}

/// One load.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Its name and group.
    pub about: record::Load,
    /// Kind of operations.
    pub work: Work,
    /// Clients.
    pub clients: u32,
    /// Operations in flight of each.
    pub depth: u32,
    /// Bytes per operation.
    pub size_bytes: u64,
    /// Bytes that a client moves at most in a run.
    pub bytes_max: Option<u64>,
    /// Shortest measured time of a run.
    pub seconds_min: f64,
}

impl Load {
    /// Reports whether it leaves work behind: data that was written or removed.
    pub fn writes(&self) -> bool {
        match &self.work {
            Work::Block { pattern, .. } => pattern.is_write() || pattern.is_mixed(),
            Work::Object { operation, .. } => operation != "get" && operation != "list",
        }
    }
}

/// Kind of operations, and their parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Block I/O.
    Block {
        /// Which blocks, and how.
        pattern: AccessPattern,
        /// The part of each image that is used.
        working_set_bytes: u64,
    },
    /// Operations on objects.
    Object {
        /// `get`, `put`, ...
        operation: String,
        /// Number of different objects of each client.
        objects: u64,
    },
}

impl Matrix {
    /// Reads one that comes with Atoll, by its name, or a file, by its path.
    pub fn load(name_or_path: &str) -> Result<Self, LabError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Matrix::parse(Path::new(name), text);
        }
        let path = Path::new(name_or_path);
        let wrong = |detail: String| LabError::File { path: path.into(), detail };
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let size = std::fs::metadata(path).map_err(|error| {
            wrong(format!("{error}; name a file, or one of those that come with Atoll: {}", names.join(", ")))
        })?;
        if size.len() > FILE_BYTES_MAX {
            return Err(wrong("it is too large for a matrix".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Matrix::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, LabError> {
        let wrong = |detail: String| LabError::File { path: path.into(), detail };
        let matrix: Matrix = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        matrix.check().map_err(wrong)?;
        Ok(matrix)
    }

    fn check(&self) -> Result<(), String> {
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= 40
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let names = self.cluster.iter().map(|one| &one.name).chain(self.subject.iter().map(|one| &one.name));
        if let Some(name) = names.chain([&self.name]).find(|name| !is_name(name)) {
            return Err(format!("'{name}' is not a name: letters, digits and '-', 40 at most"));
        }
        let clusters: BTreeSet<&String> = self.cluster.iter().map(|one| &one.name).collect();
        if let Some(subject) = self.subject.iter().find(|one| !clusters.contains(&one.cluster)) {
            return Err(format!(
                "subject '{}' is on a cluster '{}' that is not there",
                subject.name, subject.cluster
            ));
        }
        let subjects: BTreeSet<&String> = self.subject.iter().map(|one| &one.name).collect();
        if subjects.len() != self.subject.len() || clusters.len() != self.cluster.len() {
            return Err("two subjects or two clusters have the same name".into());
        }
        self.check_shared_images()?;
        if self.subject.is_empty() || self.profile.is_empty() {
            return Err("it takes a subject and a profile at least".into());
        }
        for (name, profile) in &self.profile {
            profile.check(name)?;
        }
        let loads = self.loads()?;
        let load_names: BTreeSet<&String> = loads.iter().map(|load| &load.about.name).collect();
        if loads.is_empty() || load_names.len() != loads.len() {
            return Err("there are no loads, or two are the same; give them groups of their own".into());
        }
        let groups: BTreeSet<&String> = self.load.iter().map(|load| &load.group).collect();
        if let Some(group) = self.subject.iter().flat_map(|one| &one.only).find(|group| !groups.contains(group)) {
            return Err(format!("there is no group '{group}' of loads"));
        }
        if loads.len() * self.subject.len() > CELLS_MAX {
            return Err(format!("it has more than {CELLS_MAX} cells"));
        }
        Ok(())
    }

    fn check_shared_images(&self) -> Result<(), String> {
        for subject in &self.subject {
            let Some(owner) = &subject.images_of else { continue };
            let mut owners =
                self.subject.iter().filter(|one| one.cluster == subject.cluster && one.images_of.is_none());
            if !owners.any(|one| one.name == *owner) {
                let name = &subject.name;
                return Err(format!(
                    "subject '{name}' has images of '{owner}', which is not an owner of images on its cluster"
                ));
            }
        }
        Ok(())
    }

    /// Every load.
    pub fn loads(&self) -> Result<Vec<Load>, String> {
        let mut all = Vec::new();
        for loads in &self.load {
            for size in &loads.sizes {
                let size_bytes = parse_size_bytes(size)?;
                for &pattern in &loads.block {
                    let working_set_bytes = parse_size_bytes(&loads.working_set)?;
                    all.push(loads.one(pattern.name(), size_bytes, Work::Block { pattern, working_set_bytes })?);
                }
                for operation in &loads.object {
                    let work = Work::Object { operation: operation.clone(), objects: loads.objects };
                    all.push(loads.one(operation, size_bytes, work)?);
                }
            }
        }
        Ok(all)
    }

    /// Every subject under every load that it takes.
    pub fn cells(&self) -> Result<Vec<CellName>, LabError> {
        let loads = self.loads().map_err(LabError::Invalid)?;
        let of = |load: &Load| {
            let takers = self.subject.iter().filter(|subject| subject.takes(load));
            takers.map(|subject| subject.cell(load)).collect::<Vec<_>>()
        };
        Ok(loads.iter().flat_map(of).collect())
    }
}

/// From here on, bytes a second say more than operations a second.
const BANDWIDTH_BYTES: u64 = 1 << 20;

impl Loads {
    fn one(&self, operation: &str, size_bytes: u64, work: Work) -> Result<Load, String> {
        let size = format_size(size_bytes).replace(".0 ", " ");
        let load = Load {
            about: record::Load {
                name: format!("{}: {operation} {size}", self.group),
                group: format!("{}, {size}", self.group),
                is_bandwidth: size_bytes >= BANDWIDTH_BYTES,
                working_set: working_set(&work, self.clients, size_bytes).to_string(),
            },
            work,
            clients: self.clients,
            depth: self.depth,
            size_bytes,
            seconds_min: self.seconds_min,
            bytes_max: None,
        };
        let bytes_max =
            self.written_bytes_max.as_deref().filter(|_| load.writes()).map(parse_size_bytes).transpose()?;
        Ok(Load { bytes_max, ..load })
    }
}

/// The data that all clients of a load read or overwrite.
fn working_set(work: &Work, clients: u32, size_bytes: u64) -> WorkingSet {
    let clients = u64::from(clients);
    match work {
        Work::Block { working_set_bytes, .. } => WorkingSet::Blocks { bytes: working_set_bytes * clients },
        Work::Object { objects, .. } => WorkingSet::Objects { count: objects * clients, size_bytes },
    }
}

impl Subject {
    /// Returns true if a load runs on this subject.
    pub fn takes(&self, load: &Load) -> bool {
        self.only.is_empty() || self.only.iter().any(|group| load.about.name.starts_with(&format!("{group}: ")))
    }

    /// It under a load.
    pub fn cell(&self, load: &Load) -> CellName {
        CellName { subject: self.name.clone(), load: load.about.name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_come_with_atoll_are_sound() {
        for (name, _) in SHIPPED {
            let matrix = Matrix::load(name).unwrap();
            assert_eq!(matrix.name, name);
            assert!(matrix.profile.contains_key("full") && matrix.profile.contains_key("short"), "{name}");
            let loads = matrix.loads().unwrap();
            for subject in &matrix.subject {
                assert!(loads.iter().any(|load| subject.takes(load)), "{name}: {} does nothing", subject.name);
            }
        }
    }

    #[test]
    fn no_load_of_the_training_is_measured() {
        let of = |name: &str| Matrix::load(name).unwrap().loads().unwrap();
        let kind = |load: &Load| match &load.work {
            Work::Block { pattern, .. } => (pattern.name().to_owned(), load.size_bytes),
            Work::Object { operation, .. } => (operation.clone(), load.size_bytes),
        };
        let trained: BTreeSet<_> = of("training").iter().map(kind).collect();
        for (name, _) in SHIPPED.iter().filter(|(name, _)| *name != "training") {
            let measured = of(name).iter().map(kind).find(|kind| trained.contains(kind));
            assert_eq!(measured, None, "{name}");
        }
    }

    const SMALL: &str = r#"
        name = "small"
        title = "t"
        about = "a"
        profile.full = { rounds = 1, seconds = 1.0, warm_up_seconds = 0.0 }
        cluster = [{ name = "one" }]
        subject = [{ name = "s", title = "s", cluster = "one" }]
        load = [{ group = "g", depth = 4, block = ["randread", "randwrite"], sizes = ["4k", "4M"] }]
    "#;

    #[test]
    fn lists_are_axes() {
        let matrix = Matrix::parse(Path::new("small"), SMALL).unwrap();
        let loads = matrix.loads().unwrap();
        let names: Vec<&str> = loads.iter().map(|load| load.about.name.as_str()).collect();
        assert_eq!(names, ["g: randread 4 KiB", "g: randwrite 4 KiB", "g: randread 4 MiB", "g: randwrite 4 MiB"]);
        assert!(!loads[0].about.is_bandwidth && loads[2].about.is_bandwidth);
        assert_eq!(loads[3].about.group, "g, 4 MiB");
        assert_eq!(loads[0].about.working_set, "8 GiB");
    }

    #[test]
    fn small_working_sets_are_called_hot() {
        let block = |working_set_bytes| Work::Block { pattern: AccessPattern::RandomRead, working_set_bytes };
        let object = |objects| Work::Object { operation: "get".into(), objects };
        let text = |work: &Work, clients, size_bytes| working_set(work, clients, size_bytes).to_string();
        assert_eq!(text(&block(256 << 20), 1, 4096), "256 MiB (hot)");
        assert_eq!(text(&block(2 << 30), 4, 4096), "8 GiB");
        assert_eq!(text(&object(64), 1, 65536), "64 objects (hot)");
        assert_eq!(text(&object(100_000), 1, 4096), "100000 objects");
        assert_eq!(text(&object(2_048), 1, 4 << 20), "2048 objects");
    }

    #[test]
    fn each_start_takes_its_part_of_the_rounds() {
        let profile = |rounds, starts| Profile { rounds, starts, seconds: 1.0, warm_up_seconds: 0.0 };
        let rounds: Vec<u32> = (0..3).flat_map(|start| profile(6, 3).rounds_of(start)).collect();
        assert_eq!(rounds, [0, 1, 2, 3, 4, 5]);
        assert_eq!(profile(6, 3).rounds_of(1), 2..4);
        assert!(profile(6, 3).check("p").is_ok());
        for (rounds, starts) in [(6, 0), (6, 4), (0, 1)] {
            assert!(profile(rounds, starts).check("p").is_err(), "{rounds} rounds in {starts} starts");
        }
    }

    #[test]
    fn invalid_definitions_are_refused_with_a_reason() {
        let cases = [
            ("cluster = \"one\"", "cluster = \"two\"", "not there"),
            ("name = \"s\"", "name = \"../s\"", "not a name"),
            ("\"randread\"", "\"randomly\"", "unknown variant"),
            ("\"4M\"", "\"4 monkeys\"", "not a size"),
            ("\"4M\"", "\"4096\"", "two are the same"),
            ("rounds = 1", "rounds = 0", "makes no runs"),
            ("depth", "deepness", "deepness"),
            ("cluster = \"one\"", "cluster = \"one\", images_of = \"t\"", "not an owner"),
        ];
        for (from, to, words) in cases {
            let error = Matrix::parse(Path::new("x"), &SMALL.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(words), "{to}: {error}");
        }
    }
}
