//! Commands of the program `atoll-lab`, which this program runs in its own place.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;

const PROGRAM: &str = "atoll-lab";
/// Names the program that `atoll-lab` measures.
const MEASURED: &str = "ATOLL_PROGRAM";

/// Arguments that `atoll-lab` reads.
#[derive(Args)]
pub struct LaboratoryArguments {
    /// Its arguments: see --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Runs a command of `atoll-lab`. Returns only if that program cannot be run.
pub fn run(command: &str, arguments: &LaboratoryArguments) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let program = beside(&own);
    let error = Command::new(&program).arg(command).args(&arguments.arguments).env(MEASURED, &own).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "this command is part of the program {PROGRAM}, which is neither in {} nor on PATH: install it, or build it by \
             'cargo build --release -p {PROGRAM}'",
            own.parent().unwrap_or(Path::new("/")).display()
        ),
        _ => anyhow::Error::new(error).context(format!("cannot run {}", program.display())),
    })
}

/// The program beside this one; without one, its name, which is searched for on PATH.
fn beside(own: &Path) -> PathBuf {
    let program = own.with_file_name(PROGRAM);
    if program.is_file() { program } else { PROGRAM.into() }
}
