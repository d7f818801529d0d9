//! The one way to standard output and standard error. A reader that goes away, as `head` does, is no error: later
//! output is dropped, the command does its work to the end, and its exit code is that of the work. Any other
//! failure (a full disk behind `>`) is kept for [`finish`].

use std::cell::RefCell;
use std::fmt::{Arguments, Write as _};
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// Why nothing more can be written to standard output.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

thread_local! {
    /// Where this thread's lines go in place of standard output, while they are kept.
    static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes a call, and keeps the call's standard output in this thread.
pub fn kept<T>(call: impl FnOnce() -> T) -> (T, String) {
    KEPT.with_borrow_mut(|kept| *kept = Some(String::new()));
    let made = call();
    (made, KEPT.with_borrow_mut(Option::take).unwrap_or_default())
}

/// Returns true if the line is kept, and not printed.
fn keep(line: Arguments<'_>) -> bool {
    KEPT.with_borrow_mut(|kept| {
        let Some(kept) = kept else { return false };
        // Writing to a string does not fail.
        let _ = kept.write_fmt(line);
        kept.push('\n');
        true
    })
}

/// Prints a line on standard output: see [`print_line!`](crate::print_line).
pub fn write_line(line: Arguments<'_>) {
    if keep(line) {
        return;
    }
    if FAILURE.get().is_some() {
        return;
    }
    let mut output = io::stdout().lock();
    if let Err(error) = output.write_fmt(line).and_then(|()| output.write_all(b"\n")) {
        // The first failure is the cause of all.
        let _ = FAILURE.set(error);
    }
}

/// Prints a line on standard error: see [`print_note!`](crate::print_note). Without a reader the note is dropped.
pub fn write_note(line: Arguments<'_>) {
    let mut output = io::stderr().lock();
    let _ = output.write_fmt(line).and_then(|()| output.write_all(b"\n"));
}

/// Prints on standard error a text that the next one overwrites: it has no end of line.
pub fn write_status(status: Arguments<'_>) {
    let mut output = io::stderr().lock();
    let _ = output.write_fmt(status).and_then(|()| output.flush());
}

/// Returns true if no output has a reader, so that a command that only prints may end.
pub fn is_closed() -> bool {
    FAILURE.get().is_some()
}

/// Must be called before the program ends: why its output is not complete, unless its reader went away.
pub fn finish() -> io::Result<()> {
    if let Err(error) = io::stdout().flush() {
        let _ = FAILURE.set(error);
    }
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(io::Error::new(error.kind(), error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Prints a line on standard output, as `println!` does; a closed pipe is no reason to panic.
#[macro_export]
macro_rules! print_line {
    () => { $crate::write_line(format_args!("")) };
    ($($argument:tt)*) => { $crate::write_line(format_args!($($argument)*)) };
}

/// Prints a line on standard error, as `eprintln!` does; a closed pipe is no reason to panic.
#[macro_export]
macro_rules! print_note {
    ($($argument:tt)*) => { $crate::write_note(format_args!($($argument)*)) };
}
