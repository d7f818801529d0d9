//! The record of a matrix: a file of JSON lines, one for each run. Reports are made from it alone, and an
//! interrupted run resumes from it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use atoll_bench::{HostFacts, Measurement, Noise};
use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// The format of the lines.
pub const RECORD_FORMAT: u32 = 1;
/// Longer lines are not read.
const LINE_BYTES_MAX: usize = 16 << 20;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum RecordLine {
    /// The first line: subjects, loads and machine.
    Begun(Box<Begun>),
    /// A cluster was started.
    Started(Started),
    /// A run has ended.
    Run(Box<Run>),
    /// A run could not be done.
    Failed(Failed),
}

/// The subject of a matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The matrix's name, such as `encryption-block`.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The question that it answers, in a few sentences.
    pub about: String,
    /// Which of its profiles, such as `short`.
    pub profile: String,
    /// How often each load is run on each subject.
    pub rounds: u32,
    /// How often all clusters were made and filled, each time for the same number of rounds.
    #[serde(default = "one_start")]
    pub starts: u32,
    /// How long each run is measured.
    pub seconds: f64,
    /// How long each runs before.
    pub warm_up_seconds: f64,
    /// Compared subjects, the baseline first.
    pub subjects: Vec<Subject>,
    /// Loads of all subjects.
    pub loads: Vec<Load>,
    /// The machine.
    pub host: HostFacts,
    /// Version of Atoll.
    pub atoll_version: String,
}

fn one_start() -> u32 {
    1
}

/// A system set up in one way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Short, such as `luks`.
    pub name: String,
    /// For people.
    pub title: String,
    /// True if all others are compared with it.
    pub is_baseline: bool,
}

/// Operations of clients under one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Such as `randwrite 4 KiB, 4 clients, depth 32`.
    pub name: String,
    /// Common part of loads that belong in one plot, such as `4 KiB`.
    pub group: String,
    /// True if the load is measured in bytes a second rather than operations.
    pub is_bandwidth: bool,
    /// Data that is read and written, such as `8 GiB`, or `64 objects (hot)`; empty in records that do not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_set: String,
}

/// A cluster that was started for a matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Its name in the matrix.
    pub cluster: String,
    /// System and version: `Atoll 0.1.0`, `Ceph 18.2.7`.
    pub version: String,
    /// How it was started.
    pub how: String,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the subject.
    pub subject: String,
    /// Name of the load.
    pub load: String,
    /// Counts from 0. Runs of one round follow each other, so that they are compared with each
    /// other.
    pub round: u32,
    /// When it ended.
    pub unix_s: u64,
    /// Measured figures.
    pub measurement: Measurement,
    /// Load of other processes.
    pub noise: Noise,
}

/// A run that could not be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// Name of the subject.
    pub subject: String,
    /// Name of the load.
    pub load: String,
    /// Counts from 0.
    pub round: u32,
    /// Why.
    pub error: String,
}

/// A record that was read.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// First line of the record.
    pub begun: Begun,
    /// The clusters.
    pub started: Vec<Started>,
    /// The runs, in order of time.
    pub runs: Vec<Run>,
    /// Those that could not be done and were not made up for later.
    pub failed: Vec<Failed>,
}

impl Record {
    /// Reads a record. A last line that was cut short is left out: the run that it was of is done
    /// again.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let wrong = |detail: String| LabError::File { path: path.into(), detail };
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mut record = None;
        let mut reader = BufReader::new(file);
        for number in 1.. {
            let mut text = Vec::new();
            let length = std::io::Read::take(&mut reader, LINE_BYTES_MAX as u64).read_until(b'\n', &mut text);
            if length.map_err(|error| wrong(error.to_string()))? == 0 || !text.ends_with(b"\n") {
                break;
            }
            let line: RecordLine = serde_json::from_slice(&text)
                .map_err(|error| wrong(format!("line {number} is not one of a record: {error}")))?;
            match (line, &mut record) {
                (RecordLine::Begun(begun), None) if begun.format == RECORD_FORMAT => {
                    record = Some(Record { begun: *begun, ..Record::default() });
                }
                (RecordLine::Begun(_), None) => {
                    return Err(wrong("its format is not known to this version".into()));
                }
                (line, Some(record)) => record.take(line),
                (_, None) => return Err(wrong("it does not begin with a line of kind 'begun'".into())),
            }
        }
        record.ok_or_else(|| wrong("it is empty; delete it".into()))
    }

    fn take(&mut self, line: RecordLine) {
        match line {
            // A run that went on after it was cut short begins with this line again.
            RecordLine::Begun(_) => {}
            RecordLine::Started(started) => {
                self.started.retain(|one| one.cluster != started.cluster);
                self.started.push(started);
            }
            RecordLine::Run(run) => {
                let is_same =
                    |one: &Failed| one.subject == run.subject && one.load == run.load && one.round == run.round;
                self.failed.retain(|one| !is_same(one));
                self.runs.push(*run);
            }
            RecordLine::Failed(failed) => self.failed.push(failed),
        }
    }

    /// Returns true if a run is recorded.
    pub fn has(&self, subject: &str, load: &str, round: u32) -> bool {
        self.runs.iter().any(|run| run.subject == subject && run.load == load && run.round == round)
    }

    /// The runs of one cell, in order of their rounds.
    pub fn cell(&self, subject: &str, load: &str) -> Vec<&Run> {
        let mut runs: Vec<&Run> =
            self.runs.iter().filter(|run| run.subject == subject && run.load == load).collect();
        runs.sort_by_key(|run| run.round);
        runs
    }
}

/// Appends lines to a record.
pub struct RecordWriter {
    path: PathBuf,
    file: File,
}

impl RecordWriter {
    /// Opens a record for this run alone, or makes it. A last line that was cut short is cut off.
    pub fn open(path: &Path) -> Result<Self, LabError> {
        let wrong = |error: std::io::Error| LabError::File { path: path.into(), detail: error.to_string() };
        let file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(wrong)?;
        // What looks like a line that was cut short may be one that another run is writing.
        file.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => wrong(error),
            TryLockError::WouldBlock => {
                let detail = "another run writes to it; name another file, or wait".into();
                LabError::File { path: path.into(), detail }
            }
        })?;
        let text = std::fs::read(path).map_err(wrong)?;
        let whole_bytes = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        file.set_len(whole_bytes as u64).map_err(wrong)?;
        Ok(RecordWriter { path: path.into(), file })
    }

    /// Appends a line; it is on the disk when this returns.
    pub fn write(&mut self, line: &RecordLine) -> Result<(), LabError> {
        let mut text = serde_json::to_vec(line).expect("a line of a record can be written as JSON");
        text.push(b'\n');
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        written.map_err(|error| LabError::File { path: self.path.clone(), detail: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(round: u32) -> RecordLine {
        RecordLine::Failed(Failed { subject: "plain".into(), load: "put".into(), round, error: "gone".into() })
    }

    #[test]
    fn a_record_that_was_cut_short_is_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.jsonl");
        let begun = Begun { format: RECORD_FORMAT, name: "x".into(), ..Begun::default() };
        let mut writer = RecordWriter::open(&path).unwrap();
        writer.write(&RecordLine::Begun(Box::new(begun.clone()))).unwrap();
        writer.write(&failed(0)).unwrap();
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"{\"line\":\"run\",\"subj");
        std::fs::write(&path, text).unwrap();
        assert_eq!(Record::read(&path).unwrap().failed.len(), 1);
        let error = RecordWriter::open(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("another run"), "{error}");
        drop(writer);
        RecordWriter::open(&path).unwrap().write(&failed(1)).unwrap();
        let record = Record::read(&path).unwrap();
        assert_eq!((record.begun, record.failed.len()), (begun, 2));
    }

    #[test]
    fn an_invalid_record_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.jsonl");
        for text in
            ["", "oops\n", "{\"line\":\"failed\",\"subject\":\"\",\"load\":\"\",\"round\":0,\"error\":\"\"}\n"]
        {
            std::fs::write(&path, text).unwrap();
            assert!(Record::read(&path).is_err(), "{text}");
        }
    }
}
