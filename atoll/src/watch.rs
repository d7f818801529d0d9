//! Lists that are shown again whenever they change.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use atoll_terminal::{clear, is_closed, kept, print_line, print_note};
use clap::{Arg, ArgMatches, Command, value_parser};

use crate::commands::explain;

const ARGUMENT: &str = "watch";
/// Commands that show current state, beside those named `ls`.
const SHOWN: [&str; 3] = ["status", "df", "slow"];

/// Gives every list the option `--watch`.
pub fn with_watch(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(&name, |command| {
            if is_list(&command) { command.arg(argument()) } else { with_watch(command) }
        })
    })
}

fn is_list(command: &Command) -> bool {
    !command.has_subcommands() && (command.get_name() == "ls" || SHOWN.contains(&command.get_name()))
}

fn argument() -> Arg {
    Arg::new(ARGUMENT)
        .long(ARGUMENT)
        .value_name("SECONDS")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("2")
        .value_parser(value_parser!(u64).range(1..=3_600))
        .help("Refresh every 2 seconds, or every N, and show changes, until Ctrl-C")
}

/// The pause that `--watch` asks for.
pub fn pause(matches: &ArgMatches) -> Option<Duration> {
    match matches.subcommand() {
        Some((_, matches)) => pause(matches),
        None => matches.try_get_one::<u64>(ARGUMENT).ok().flatten().map(|seconds| Duration::from_secs(*seconds)),
    }
}

/// Makes a list again and again. On a terminal the newest is on the screen; elsewhere each that differs from the
/// one before is printed, JSON as one line. A failure of the first run ends it; a later one may be a moment
/// without cluster state.
pub fn run(pause: Duration, mut list: impl FnMut() -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    // What was printed, or why nothing was.
    let mut shown: Option<Result<String, String>> = None;
    while !is_closed() {
        let (done, text) = kept(&mut list);
        let seen = match done {
            Ok(_) => Ok(text),
            Err(error) if shown.is_some() => Err(format!("atoll: {}", explain(&error))),
            Err(error) => return Err(error),
        };
        if shown.as_ref() != Some(&seen) {
            show(&seen, shown.is_none());
            shown = Some(seen);
        }
        std::thread::sleep(pause);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(seen: &Result<String, String>, is_first: bool) {
    let (Ok(text) | Err(text)) = seen;
    if std::io::stdout().is_terminal() {
        clear();
        print_line!("{}", text.trim_end());
    } else if seen.is_err() {
        print_note!("{text}");
    } else if let Ok(document) = serde_json::from_str::<serde_json::Value>(text) {
        print_line!("{document}");
    } else {
        let gap = if is_first { "" } else { "\n" };
        print_line!("{gap}{}", text.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn every_list_can_be_watched_and_nothing_else() {
        fn check(command: &Command, path: &str) {
            for command in command.get_subcommands() {
                let path = format!("{path} {}", command.get_name());
                let watched = command.get_arguments().any(|argument| argument.get_long() == Some(ARGUMENT));
                let is_shown = is_list(command) || command.get_name() == "health";
                assert_eq!(watched, is_shown, "{path}");
                check(command, &path);
            }
        }
        check(&with_watch(Arguments::command()), "atoll");
    }

    #[test]
    fn a_pause_can_be_given() {
        let pause_of = |words: &[&str]| {
            let words = ["atoll"].iter().chain(words);
            with_watch(Arguments::command()).try_get_matches_from(words).map(|matches| pause(&matches))
        };
        assert_eq!(pause_of(&["osd", "ls"]).unwrap(), None);
        assert_eq!(pause_of(&["osd", "ls", "--watch"]).unwrap(), Some(Duration::from_secs(2)));
        assert_eq!(pause_of(&["image", "snap", "ls", "--watch=5", "disk"]).unwrap(), Some(Duration::from_secs(5)));
        assert!(pause_of(&["osd", "ls", "--watch=0"]).is_err());
        // Their own.
        assert_eq!(pause_of(&["health", "--watch"]).unwrap(), None);
    }
}
