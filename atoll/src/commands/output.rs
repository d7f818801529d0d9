//! What commands print.

use atoll_coordinator::unix_ms;
pub use atoll_terminal::{print_json, print_table, progress_bar};

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
