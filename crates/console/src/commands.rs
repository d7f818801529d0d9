//! The commands of `atoll` that calls of the API consist of, so that there is one way to do a thing, with one set
//! of checks, one document as the answer, and one line in the log of events.

use serde_json::Value;

/// A command, as its words stand on a command line, without the data directory and `--json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// `osd`, `out`, and options as `--name=value`.
    pub words: Vec<String>,
    /// Positional arguments. It is never taken for an option.
    pub operands: Vec<String>,
    /// A document, and the option that takes a file with it; without one it is the last operand.
    pub document: Option<(Option<&'static str>, Value)>,
}

/// Why a command has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The words are not a command.
    Invalid,
    /// Its subject does not exist.
    NotFound,
    /// The present state does not allow it.
    Conflict,
    /// Cluster state or the key service does not answer.
    Unavailable,
}

/// A command has failed.
#[derive(Clone, Debug)]
pub struct CommandFailure {
    /// Why.
    pub kind: FailureKind,
    /// The same in words.
    pub message: String,
}

/// The runner of commands.
pub trait RunCommands: Send + Sync {
    /// Runs a command for a user of the console, and returns its output with `--json`. Blocks.
    fn run(&self, command: &Command, user: &str) -> Result<Value, CommandFailure>;
}
