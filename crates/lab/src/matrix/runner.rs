//! Runs a matrix: every load on every subject, alternately, as often as the profile says.

use std::ops::Range;
use std::path::{Path, PathBuf};

use atoll_bench::{HostFacts, Measurement};

use super::cluster::{self, Running, Stops};
use super::command::Atoll;
use super::definition::{CellName, Load, Matrix, Profile};
use super::record::{Begun, Failed, RECORD_FORMAT, Record, RecordLine, RecordWriter, Run, Subject};
use super::subject::{DataFacts, Lengths, Prepared, prepare};
use crate::error::LabError;

/// How a matrix is run.
pub struct MatrixRun {
    /// The matrix to run.
    pub matrix: Matrix,
    /// Name of the profile.
    pub profile: String,
    /// Subjects to leave out.
    pub without: Vec<String>,
    /// The cells to run; all if there are none.
    pub only: Vec<CellName>,
    /// Where clusters are made, which are removed at the end.
    pub directory: PathBuf,
    /// The record; runs that are in it already are not done again.
    pub record: PathBuf,
    /// This program.
    pub atoll: PathBuf,
    /// Options of `atoll up` for clusters whose keys are in a Transit engine.
    pub transit: Vec<String>,
    /// Processes to stop when a signal ends the command.
    pub stops: Stops,
}

/// Progress of a matrix.
#[derive(Clone, Debug)]
pub enum MatrixStep<'a> {
    /// A cluster is being started.
    Starting(&'a str),
    /// A subject is being prepared.
    Preparing(&'a str),
    /// A run begins: how many are done, of all, and which.
    Running {
        /// Runs done.
        done: u64,
        /// Number of all runs.
        all: u64,
        /// Such as `plain, one client: randread 4 KiB, round 2 of 3`.
        what: &'a str,
    },
    /// A run has ended.
    Measured {
        /// Name of the subject.
        subject: &'a str,
        /// Name of the load.
        load: &'a str,
        /// Measured figures.
        measurement: &'a Measurement,
    },
    /// A run could not be done.
    Failed(&'a Failed),
}

impl MatrixRun {
    /// Runs it and returns the record. Started processes are stopped, also if this fails.
    pub fn run(
        &self,
        facts: &dyn Fn(&Path) -> Result<DataFacts, LabError>,
        progress: &dyn Fn(MatrixStep<'_>),
    ) -> Result<Record, LabError> {
        let outcome = self.run_inner(facts, progress);
        let errors = self.stops.stop_all();
        outcome?;
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        Record::read(&self.record)
    }

    fn profile(&self) -> Result<&Profile, LabError> {
        let names: Vec<&str> = self.matrix.profile.keys().map(String::as_str).collect();
        self.matrix.profile.get(&self.profile).ok_or_else(|| {
            LabError::Invalid(format!("there is no profile '{}'; there are {}", self.profile, names.join(", ")))
        })
    }

    fn begun(&self, profile: &Profile, loads: &[Load]) -> Begun {
        let subjects = self.subjects().enumerate().map(|(number, one)| Subject {
            name: one.name.clone(),
            title: one.title.clone(),
            is_baseline: number == 0,
        });
        Begun {
            format: RECORD_FORMAT,
            name: self.matrix.name.clone(),
            title: self.matrix.title.clone(),
            about: self.matrix.about.clone(),
            profile: self.profile.clone(),
            rounds: profile.rounds,
            starts: profile.starts,
            seconds: profile.seconds,
            warm_up_seconds: profile.warm_up_seconds,
            subjects: subjects.collect(),
            loads: loads.iter().map(|load| load.about.clone()).collect(),
            host: HostFacts::here(),
            atoll_version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    fn subjects(&self) -> impl Iterator<Item = &super::definition::Subject> {
        let is_wanted = |name: &String| self.only.is_empty() || self.only.iter().any(|cell| cell.subject == *name);
        let subjects = self.matrix.subject.iter().filter(|one| !self.without.contains(&one.name));
        subjects.filter(move |one| is_wanted(&one.name))
    }

    fn takes(&self, subject: &super::definition::Subject, load: &Load) -> bool {
        subject.takes(load) && (self.only.is_empty() || self.only.contains(&subject.cell(load)))
    }

    /// Opens the record: a new one, or one of the same matrix that was cut short.
    fn open_record(&self, begun: Begun) -> Result<(Record, RecordWriter), LabError> {
        let is_new = std::fs::metadata(&self.record).map_or(true, |file| file.len() == 0);
        if !is_new {
            let record = Record::read(&self.record)?;
            let same = Begun { host: record.begun.host.clone(), ..begun };
            if record.begun != same {
                let detail = "it is the record of something else (another matrix, profile or version); name another \
                              file, or delete it";
                return Err(LabError::File { path: self.record.clone(), detail: detail.into() });
            }
            return Ok((record, RecordWriter::open(&self.record)?));
        }
        let mut writer = RecordWriter::open(&self.record)?;
        writer.write(&RecordLine::Begun(Box::new(begun.clone())))?;
        Ok((Record { begun, ..Record::default() }, writer))
    }

    fn run_inner(
        &self,
        facts: &dyn Fn(&Path) -> Result<DataFacts, LabError>,
        progress: &dyn Fn(MatrixStep<'_>),
    ) -> Result<(), LabError> {
        let profile = self.profile()?;
        let loads = self.matrix.loads().map_err(LabError::Invalid)?;
        let (record, writer) = self.open_record(self.begun(profile, &loads))?;
        let lengths = Lengths { seconds: profile.seconds, warm_up_seconds: profile.warm_up_seconds };
        let mut turns = Turns { lengths, writer, progress, done: 0, all: 0 };
        let cells = |load: &Load| self.subjects().filter(|subject| self.takes(subject, load)).count() as u64;
        turns.all = loads.iter().map(cells).sum::<u64>() * u64::from(profile.rounds);
        for start in 0..profile.starts {
            self.run_start(&loads, profile.rounds_of(start), &record, facts, &mut turns)?;
        }
        Ok(())
    }

    /// Makes and fills the clusters and does some of the rounds; removes the clusters if there is another start.
    fn run_start(
        &self,
        loads: &[Load],
        rounds: Range<u32>,
        record: &Record,
        facts: &dyn Fn(&Path) -> Result<DataFacts, LabError>,
        turns: &mut Turns<'_>,
    ) -> Result<(), LabError> {
        let is_done = |subject: &str, load: &Load, round| record.has(subject, &load.about.name, round);
        let has_work = self.subjects().any(|subject| {
            let mut its_loads = loads.iter().filter(|load| self.takes(subject, load));
            its_loads.any(|load| rounds.clone().any(|round| !is_done(&subject.name, load, round)))
        });
        if !has_work {
            return Ok(());
        }
        let clusters = self.start(&mut turns.writer, turns.progress)?;
        let mut subjects = Vec::new();
        for subject in self.subjects() {
            (turns.progress)(MatrixStep::Preparing(&subject.name));
            let cluster = clusters.iter().find(|one| one.name == subject.cluster).expect("all clusters run");
            let its_loads: Vec<&Load> = loads.iter().filter(|load| self.takes(subject, load)).collect();
            subjects.push((subject, prepare(subject, cluster, &its_loads, facts, &self.stops)?));
        }
        for load in loads {
            let takers: Vec<_> = subjects.iter().filter(|(subject, _)| self.takes(subject, load)).collect();
            for round in rounds.clone() {
                // The first subject changes from round to round, so that what one leaves behind does not
                // always affect the same other one.
                for place in 0..takers.len() {
                    let (subject, prepared) = takers[(place + round as usize) % takers.len()];
                    turns.run(&subject.name, prepared, load, round, is_done(&subject.name, load, round))?;
                }
            }
        }
        self.stops.stop_all().into_iter().next().map_or(Ok(()), Err)
    }

    fn start(
        &self,
        writer: &mut RecordWriter,
        progress: &dyn Fn(MatrixStep<'_>),
    ) -> Result<Vec<Running>, LabError> {
        let wanted: Vec<&String> = self.subjects().map(|subject| &subject.cluster).collect();
        let atoll = Atoll(self.atoll.clone());
        let mut clusters = Vec::new();
        for cluster in self.matrix.cluster.iter().filter(|one| wanted.contains(&&one.name)) {
            if cluster.transit && self.transit.is_empty() {
                return Err(LabError::Invalid(format!(
                    "cluster '{}' keeps its keys in a Transit engine: name one with --transit, or leave its subjects \
                     out with --without",
                    cluster.name
                )));
            }
            progress(MatrixStep::Starting(&cluster.name));
            let running = cluster::start(cluster, &atoll, &self.directory, &self.transit, &self.stops)?;
            writer.write(&RecordLine::Started(running.started.clone()))?;
            clusters.push(running);
        }
        Ok(clusters)
    }
}

struct Turns<'a> {
    lengths: Lengths,
    writer: RecordWriter,
    progress: &'a dyn Fn(MatrixStep<'_>),
    done: u64,
    all: u64,
}

impl Turns<'_> {
    fn run(
        &mut self,
        subject: &str,
        prepared: &Prepared<'_>,
        load: &Load,
        round: u32,
        is_done: bool,
    ) -> Result<(), LabError> {
        let what = format!("{subject}, {}, round {}", load.about.name, round + 1);
        (self.progress)(MatrixStep::Running { done: self.done, all: self.all, what: &what });
        self.done += 1;
        if is_done {
            return Ok(());
        }
        let outcome = prepared.run(load, self.lengths).and_then(|measured| match &measured.first_error {
            None => Ok(measured),
            Some(error) => Err(LabError::Invalid(format!("{} errors, such as: {error}", measured.errors))),
        });
        let (subject, load_name) = (subject.to_owned(), load.about.name.clone());
        match outcome {
            Ok(mut measurement) => {
                let noise = measurement.noise.take().unwrap_or_default();
                let step = MatrixStep::Measured { subject: &subject, load: &load_name, measurement: &measurement };
                (self.progress)(step);
                let unix_s = atoll_bench::unix_s();
                let run = Run { subject, load: load_name, round, unix_s, measurement, noise };
                self.writer.write(&RecordLine::Run(Box::new(run)))
            }
            Err(error) => {
                let failed = Failed { subject, load: load_name, round, error: error.to_string() };
                (self.progress)(MatrixStep::Failed(&failed));
                self.writer.write(&RecordLine::Failed(failed))
            }
        }
    }
}
