//! Figures as text.

use jiff::Timestamp;

use super::statistics::{Ratio, Spread};

/// A figure with as many digits as say something, and commas between thousands.
pub fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => thousands(value.round()),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share in percent.
pub fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

/// A ratio: `0.87`.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// The interval of a ratio: `0.84 to 0.91`.
pub fn interval(of: &Ratio) -> Option<String> {
    of.interval.map(|interval| format!("{} to {}", end(interval.low), end(interval.high)))
}

/// An end of an interval that is close to 1 says on which side of it it is.
fn end(value: f64) -> String {
    if value != 1.0 && (value - 1.0).abs() < 0.005 { format!("{value:.3}") } else { ratio(value) }
}

/// The ends of a spread, if there is more than one figure.
pub fn ends(spread: &Spread) -> Option<String> {
    (spread.count > 1).then(|| format!("{} to {}", figure(spread.min), figure(spread.max)))
}

/// A short form for axes: `20k`.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{unit}", trimmed(scaled))
}

/// A duration in microseconds in the unit that suits it, for axes: `2 ms`.
pub fn duration(us: f64) -> String {
    match us {
        1e6.. => format!("{} s", trimmed(us / 1e6)),
        1e3.. => format!("{} ms", trimmed(us / 1e3)),
        _ => format!("{} us", trimmed(us)),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The UTC date and time of seconds since 1970.
pub fn date(unix_s: u64) -> String {
    let at = i64::try_from(unix_s).ok().and_then(|unix_s| Timestamp::from_second(unix_s).ok());
    at.map_or("unknown".into(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

/// Text from outside without characters that command terminals or that HTML cannot hold.
pub fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(figure(1_234_567.4), "1,234,567");
        assert_eq!((figure(99.96), figure(9.876), figure(999.6)), ("100.0".into(), "9.88".into(), "1,000".into()));
        assert_eq!((short(20_000.0), short(1_500_000.0), short(0.5)), ("20k".into(), "1.5M".into(), "0.5".into()));
        assert_eq!(
            (duration(50.0), duration(2_000.0), duration(10e6)),
            ("50 us".into(), "2 ms".into(), "10 s".into())
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(date(u64::MAX), "unknown");
    }

    #[test]
    fn nothing_from_outside_commands_a_terminal() {
        assert_eq!(printable("a\x1b[31mb\n"), "a [31mb ");
    }
}
