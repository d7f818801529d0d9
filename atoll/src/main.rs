//! The `atoll` program: the command line, and nothing else. What the commands do is in the crates.

mod cli;
mod commands;

use clap::Parser;

/// The store keeps small writes in memory until a checkpoint and then frees them all at once. The
/// system's allocator gives that memory back and takes it anew, which costs a third of an OSD's
/// CPU in zeroed pages; jemalloc keeps it for the next seconds' writes.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    match cli::Arguments::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("atoll: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
