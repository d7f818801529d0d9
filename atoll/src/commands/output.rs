//! Output of commands.

use atoll_coordinator::unix_ms;
pub use atoll_terminal::{print_json, print_table, progress_bar};

/// An error with its causes; one whose text stands in the one before is not said again.
pub fn explain(error: &anyhow::Error) -> String {
    let mut said = String::new();
    let mut before = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !before.contains(&text) {
            let separator = if said.is_empty() { "" } else { ": " };
            said = format!("{said}{separator}{text}");
            before = text;
        }
    }
    said
}

/// A word of a shell's command line, quoted if it must be.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A time as text: `2026-11-26T12:00:00.123Z`.
pub fn utc(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{unix_ms} ms"), |time| format!("{time:.3}"))
}

/// How long ago that was.
pub fn ago(since_unix_ms: u64) -> String {
    duration(unix_ms().saturating_sub(since_unix_ms) / 1000)
}

/// For how long from now.
pub fn until(unix_time_ms: u64) -> String {
    format!("for {}", duration(unix_time_ms.saturating_sub(unix_ms()) / 1000))
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", (seconds + 30) / 60),
        7200..172_800 => format!("{} h", (seconds + 1800) / 3600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("c").context("b").context("a: b");
        assert_eq!(explain(&error), "a: b: c");
        assert_eq!(explain(&anyhow::anyhow!("alone")), "alone");
    }

    #[test]
    fn shell_quoting_gives_one_word() {
        assert_eq!(shell_word("/srv/atoll-data"), "/srv/atoll-data");
        assert_eq!(shell_word("my data"), "'my data'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }
}
