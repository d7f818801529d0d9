//! The one way to standard output and standard error. A reader that goes away, as `head` does, is no error: later
//! output is dropped, the command does its work to the end, and its exit code is that of the work. Any other
//! failure (a full disk behind `>`) is kept for [`finish`]. Nothing in a line acts on a terminal.

use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use crate::visible_text;

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

/// Returns true if the text is kept, and not printed.
fn keep(text: &str) -> bool {
    KEPT.with_borrow_mut(|kept| match kept {
        Some(kept) => {
            kept.push_str(text);
            true
        }
        None => false,
    })
}

fn write_text(text: &str) {
    if keep(text) || FAILURE.get().is_some() {
        return;
    }
    if let Err(error) = io::stdout().lock().write_all(text.as_bytes()) {
        // The first failure is the cause of all.
        let _ = FAILURE.set(error);
    }
}

fn visible(line: Arguments<'_>) -> String {
    let mut text = visible_text(&line.to_string()).into_owned();
    text.push('\n');
    text
}

/// Prints a line on standard output: see [`print_line!`](crate::print_line).
pub fn write_line(line: Arguments<'_>) {
    write_text(&visible(line));
}

/// Clears a terminal for a new text: the cursor goes to the corner, and everything below is erased.
pub fn clear() {
    write_text("\x1b[H\x1b[J");
}

/// Prints a line on standard error: see [`print_note!`](crate::print_note). Without a reader the note is dropped.
pub fn write_note(line: Arguments<'_>) {
    let _ = io::stderr().lock().write_all(visible(line).as_bytes());
}

/// Prints on standard error a text that the next one overwrites: it has no end of line. It is printed as it is, so it
/// has no names that others have chosen.
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
