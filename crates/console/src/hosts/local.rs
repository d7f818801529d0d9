//! Answers of this host's processes.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_admin_socket::{Answer, AskError, PG_COPIES_ROUTE, SLOW_ROUTE, ask};
use atoll_metrics::slow::SlowOperation;
use atoll_node::DataDir;
use atoll_types::pg_copies::PgCopy;
use futures::future::join_all;
use serde::{Deserialize, Serialize};

/// A process that takes longer hangs. Less than other hosts wait.
const PROCESS_LIMIT: Duration = Duration::from_secs(2);
const METRICS_ROUTE: &str = "/metrics";

/// Answers of one host's processes, by their names, and the reasons of missing ones.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OfHost<T> {
    pub told: BTreeMap<String, T>,
    pub unanswered: BTreeMap<String, String>,
}

/// An answer that every process can give.
pub trait Tells: Sized {
    /// Where other hosts' admin servers give it out.
    const HOST_ROUTE: &'static str;
    /// Where a process does.
    const PROCESS_ROUTE: &'static str;
    /// Returns true if a process is asked for it.
    fn is_of(process: &str) -> bool;
    /// Parses a process' answer; an error for anything else.
    fn read(body: &[u8]) -> Result<Self, String>;
}

/// The slow operations of a process.
impl Tells for Vec<SlowOperation> {
    const HOST_ROUTE: &'static str = "/slow";
    const PROCESS_ROUTE: &'static str = SLOW_ROUTE;

    fn is_of(_process: &str) -> bool {
        true
    }

    fn read(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| format!("no list of operations: {error}"))
    }
}

/// An OSD's copies of PGs.
impl Tells for Vec<PgCopy> {
    const HOST_ROUTE: &'static str = PG_COPIES_ROUTE;
    const PROCESS_ROUTE: &'static str = PG_COPIES_ROUTE;

    fn is_of(process: &str) -> bool {
        process.starts_with("osd.")
    }

    fn read(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| format!("no list of copies: {error}"))
    }
}

/// The metrics of a process, as Prometheus' text.
impl Tells for String {
    const HOST_ROUTE: &'static str = "/metrics";
    const PROCESS_ROUTE: &'static str = METRICS_ROUTE;

    fn is_of(process: &str) -> bool {
        ["gateway", "nbd", "nvme"].contains(&process) || process.starts_with("osd.")
    }

    fn read(body: &[u8]) -> Result<Self, String> {
        Ok(String::from_utf8_lossy(body).into_owned())
    }
}

/// Asks processes of this host, all at once.
pub(crate) async fn ask_processes<T: Tells>(directory: &DataDir, processes: &[String]) -> OfHost<T> {
    let ask_one = async |process: &String| {
        let socket = directory.admin_socket(process);
        let asked = tokio::time::timeout(PROCESS_LIMIT, ask(&socket, T::PROCESS_ROUTE, None));
        (process.clone(), told(asked.await.unwrap_or_else(|_| Err(no_answer(&socket)))))
    };
    let answers = join_all(processes.iter().filter(|process| T::is_of(process)).map(ask_one)).await;
    let mut of_host = OfHost { told: BTreeMap::new(), unanswered: BTreeMap::new() };
    for (process, answer) in answers {
        match answer {
            Ok(told) => drop(of_host.told.insert(process, told)),
            Err(reason) => drop(of_host.unanswered.insert(process, reason)),
        }
    }
    of_host
}

fn no_answer(socket: &std::path::Path) -> AskError {
    AskError::NoAnswer { path: socket.to_owned(), reason: format!("nothing for {} s", PROCESS_LIMIT.as_secs()) }
}

fn told<T: Tells>(answer: Result<Answer, AskError>) -> Result<T, String> {
    T::read(&answer.map_err(|error| error.to_string())?.body)
}
