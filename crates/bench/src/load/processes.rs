//! Clients in processes of their own, and their messages with the first process.
//!
//! The first gives each its job in a line of JSON on its standard input. Each reports on its standard output its
//! progress of preparing and that it is ready, begins when all are, and finally reports its measurements. A client
//! whose first process is gone ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::figures::{
    ClientMeasurement, CpuByRole, MachineWork, Measurement, NoiseWatch, ProcessTimes, Processes, Setting,
};

/// Messages of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// It prepares: bytes written, and of all.
    Preparing(u64, u64),
    Ready,
    /// The interval that is measured has begun.
    Begun,
    /// It is over.
    Over,
    Measured(Box<ClientMeasurement>),
    Failed(String),
}

fn say(said: &Said) {
    let text = serde_json::to_string(said).expect("messages of clients can be written as JSON");
    // When the first process is gone, nothing reads this, and this process ends as well.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A client's side of the conversation.
pub struct ClientVoice(());

impl ClientVoice {
    /// Takes the job. From now on this process ends with the first.
    pub fn take_job<J: DeserializeOwned>() -> Result<(J, ClientVoice), BenchError> {
        let ends_with_parent =
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        ends_with_parent.map_err(|error| BenchError::Loop(error.into()))?;
        let job = serde_json::from_str(&read_line()?);
        let job = job.map_err(|error| BenchError::Invalid(format!("this is not a client's job: {error}")))?;
        Ok((job, ClientVoice(())))
    }

    /// Reports progress of preparing.
    pub fn preparing(&self, done: u64, all: u64) {
        say(&Said::Preparing(done, all));
    }

    /// Says that it could begin, and waits until all can.
    pub fn wait_for_all(&self) -> Result<(), BenchError> {
        say(&Said::Ready);
        read_line().map(drop)
    }

    /// Reports its measurements, or its error.
    pub fn finish(self, outcome: Result<ClientMeasurement, String>) {
        say(&match outcome {
            Ok(measured) => Said::Measured(Box::new(measured)),
            Err(error) => Said::Failed(error),
        });
    }

    /// Returns the callback for [`super::run_client`]: it reports both ends of the measured interval.
    pub fn edges(&self) -> impl Fn() + use<> {
        let has_begun = std::cell::Cell::new(false);
        move || say(if has_begun.replace(true) { &Said::Over } else { &Said::Begun })
    }
}

fn read_line() -> Result<String, BenchError> {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Err(BenchError::Invalid("this command is started by 'atoll bench' for its clients only".into()));
    }
    Ok(line)
}

/// Measurements of all clients, and of the servers and others meanwhile.
pub struct Outcome {
    /// One for each client.
    pub clients: Vec<ClientMeasurement>,
    /// CPU time of the servers over the interval that was measured.
    pub cpu: CpuByRole,
    /// CPU time of the whole machine over the same interval.
    pub machine: MachineWork,
}

impl Measurement {
    /// Returns the measurement of a run.
    pub fn of(setting: Setting, outcome: &Outcome) -> Self {
        let measured = Measurement::of_clients(setting, &outcome.clients, &outcome.cpu);
        measured.with_machine(&outcome.machine, outcome.cpu.total_us())
    }
}

/// A client in a process of its own. It is ended when this is dropped.
struct ClientProcess {
    child: Child,
    stdin: ChildStdin,
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // It has ended by itself, or is not wanted any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ClientProcess {
    fn start(
        number: usize,
        command: &mut Command,
        job: &str,
        said: mpsc::Sender<(usize, Said)>,
    ) -> Result<Self, BenchError> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().expect("its standard input is a pipe");
        let stdout = child.stdout.take().expect("its standard output is a pipe");
        std::thread::spawn(move || listen(number, BufReader::new(stdout), &said));
        let mut process = ClientProcess { child, stdin };
        process.tell(job)?;
        Ok(process)
    }

    fn tell(&mut self, line: &str) -> Result<(), BenchError> {
        let told = writeln!(self.stdin, "{line}");
        told.map_err(|error| BenchError::Process { what: "a client".into(), detail: error.to_string() })
    }
}

fn listen(number: usize, stdout: impl BufRead, said: &mpsc::Sender<(usize, Said)>) {
    let mut has_ended = false;
    for line in stdout.lines() {
        let Ok(line) = line else { break };
        let heard = serde_json::from_str(&line).unwrap_or_else(|_| Said::Failed(format!("it said: {line}")));
        has_ended = has_ended || matches!(heard, Said::Measured(_) | Said::Failed(_));
        // The receiver is gone when another client has failed.
        let _ = said.send((number, heard));
    }
    if !has_ended {
        let _ = said.send((number, Said::Failed("it ended without a result".into())));
    }
}

/// Runs clients at the same time, each with a job, and reads the servers' CPU time when the first begins to
/// measure and when the first has done so. `progress` gets the progress of preparing.
pub fn run_processes<J: Serialize>(
    mut command: Command,
    jobs: &[J],
    servers: &Processes,
    progress: &dyn Fn(u64, u64),
) -> Result<Outcome, BenchError> {
    let (sender, said) = mpsc::channel();
    let mut processes = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let job = serde_json::to_string(job).expect("a job can be written as JSON");
        processes.push(ClientProcess::start(number, &mut command, &job, sender.clone())?);
    }
    drop(sender);
    let mut prepared = vec![(0, 0); jobs.len()];
    let (mut ready, mut begun, mut over) = (0, None, None);
    let mut measured: Vec<Option<ClientMeasurement>> = jobs.iter().map(|_| None).collect();
    while let Ok((number, heard)) = said.recv() {
        match heard {
            Said::Preparing(done, all) => {
                prepared[number] = (done, all);
                progress(prepared.iter().map(|one| one.0).sum(), prepared.iter().map(|one| one.1).sum());
            }
            Said::Ready => {
                ready += 1;
                if ready == jobs.len() {
                    processes.iter_mut().try_for_each(|process| process.tell("begin"))?;
                }
            }
            Said::Begun => {
                begun.get_or_insert_with(|| (ProcessTimes::read(servers), NoiseWatch::begin()));
            }
            Said::Over => {
                let Some((times, watch)) = &begun else { continue };
                over.get_or_insert_with(|| {
                    let cpu = times.until(&ProcessTimes::read(servers), servers);
                    (cpu, watch.end())
                });
            }
            Said::Measured(one) => measured[number] = Some(*one),
            Said::Failed(detail) => {
                let what = if jobs.len() == 1 { "the client".into() } else { format!("client {number}") };
                return Err(BenchError::Process { what, detail });
            }
        }
    }
    let clients: Option<Vec<ClientMeasurement>> = measured.into_iter().collect();
    let (Some(clients), Some((cpu, machine))) = (clients, over) else {
        return Err(BenchError::Process { what: "a client".into(), detail: "it ended without a result".into() });
    };
    Ok(Outcome { clients, cpu, machine })
}
