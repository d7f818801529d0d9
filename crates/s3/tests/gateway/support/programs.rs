//! Python programs that use boto3: `python_programs.py` runs them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The process that runs them. It ends with this one, whose end of its standard input closes then.
struct Runner {
    _process: Child,
    socket: PathBuf,
}

static RUNNER: OnceLock<Runner> = OnceLock::new();

impl Runner {
    fn start() -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/support/python_programs.py");
        let mut process = Command::new(installed("python3"))
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let mut socket = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut socket).unwrap();
        assert!(socket.ends_with('\n'), "these tests need python3 with boto3: tools/python_venv.sh installs it");
        Runner { _process: process, socket: socket.trim_end().into() }
    }
}

/// A command of `.venv`, where `make test` installs Python packages, or of this machine.
pub fn installed(name: &str) -> PathBuf {
    let installed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin").join(name);
    if installed.exists() { installed } else { PathBuf::from(name) }
}

/// Runs a program with additional variables in its environment; returns its exit status, and its output.
pub async fn run(program: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let runner = RUNNER.get_or_init(Runner::start);
    let mut connection = UnixStream::connect(&runner.socket).await.unwrap();
    let environment: serde_json::Map<_, _> =
        environment.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect();
    let asked = serde_json::json!({ "program": program, "environment": environment });
    connection.write_all(format!("{asked}\n").as_bytes()).await.unwrap();
    let mut said = Vec::new();
    connection.read_to_end(&mut said).await.unwrap();
    let said = String::from_utf8_lossy(&said).into_owned();
    let (said, status) = said.rsplit_once('\0').expect("a program tells its exit status at the end");
    (status.parse().expect("a number"), said.to_owned())
}
