//! Durations on the command line: a number with its unit.

/// Returns the seconds of a text such as `90s`, `45m`, `12h` or `7d`.
pub(super) fn parse_seconds(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let unit_seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_seconds)
}
