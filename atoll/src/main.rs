//! The `atoll` program: the command line, and nothing else. The commands' work is in the crates.

// They panic when nobody reads; `print_line!` and `print_note!` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod allocator;
mod cli;
mod commands;
mod memory;
mod watch;

use atoll_terminal::print_note;

/// The store keeps small writes in memory until a checkpoint and then frees them all at once. The system's
/// allocator returns that memory and requests it again, which costs a third of an OSD's CPU in zeroed pages;
/// jemalloc keeps it for the next seconds' writes.
#[global_allocator]
static ALLOCATOR: allocator::WipingAllocator = allocator::WipingAllocator;

fn main() -> std::process::ExitCode {
    memory::protect();
    // Files whose modes nobody sets are this user's alone, whatever the shell says.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let done = cli::run();
    // A command that has failed may have changed something before.
    commands::note_changes(&commands::Author::of_process(), std::env::args().skip(1));
    let code = done.unwrap_or_else(|error| {
        print_note!("atoll: {}", commands::explain(&error));
        std::process::ExitCode::FAILURE
    });
    if let Err(error) = atoll_terminal::finish() {
        print_note!("atoll: not all output could be written: {error}");
        return std::process::ExitCode::FAILURE;
    }
    code
}
