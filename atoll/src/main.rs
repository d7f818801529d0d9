//! The `atoll` program: the command line, and nothing else. What the commands do is in the crates.

mod cli;
mod commands;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let arguments = cli::Arguments::parse();
    match commands::run(arguments) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
