//! Dates of conditions: ISO 8601 as the W3C profiles it, or seconds since 1970.

#[cfg(test)]
mod tests;

use jiff::civil::{self, Date};

const MICROSECONDS: i64 = 1_000_000;
const EPOCH: Date = civil::date(1970, 1, 1);

/// Microseconds since 1970. A date without a zone is in UTC; missing parts are the first possible ones.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let is_epoch = text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    if is_epoch {
        return text.parse::<i64>().ok()?.checked_mul(MICROSECONDS);
    }
    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let day = parts.next().map_or(Some(1), |day| digits(day, 2))?;
    if parts.next().is_some() {
        return None;
    }
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?).ok()?;
    let days = i64::from(date.since(EPOCH).ok()?.get_days());
    let time = time.map_or(Some(0), parse_time)?;
    Some(days * 86_400 * MICROSECONDS + time)
}

/// Microseconds since midnight in UTC.
fn parse_time(text: &str) -> Option<i64> {
    let (clock, offset_minutes) = match text.find(['Z', 'z', '+', '-']) {
        None => (text, 0),
        Some(at) => (&text[..at], parse_zone(&text[at..])?),
    };
    let mut parts = clock.split(':');
    let hour = digits(parts.next()?, 2)?;
    let minute = digits(parts.next()?, 2)?;
    let (second, fraction) = match parts.next() {
        None => (0, 0),
        Some(seconds) => match seconds.split_once('.') {
            None => (digits(seconds, 2)?, 0),
            Some((seconds, fraction)) => (digits(seconds, 2)?, parse_fraction(fraction)?),
        },
    };
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some((hour * 3_600 + (minute - offset_minutes) * 60 + second) * MICROSECONDS + fraction)
}

/// Minutes east of UTC.
fn parse_zone(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, zone) = text.split_at(1);
    let (hours, minutes) = match zone.split_once(':') {
        Some((hours, minutes)) => (digits(hours, 2)?, digits(minutes, 2)?),
        None if zone.len() == 4 => (digits(zone.get(..2)?, 2)?, digits(zone.get(2..)?, 2)?),
        None => (digits(zone, 2)?, 0),
    };
    if hours > 23 || minutes > 59 {
        return None;
    }
    let minutes = hours * 60 + minutes;
    Some(if sign == "-" { -minutes } else { minutes })
}

fn parse_fraction(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let six = text.bytes().chain(std::iter::repeat(b'0')).take(6);
    Some(six.fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}

fn digits(text: &str, count: usize) -> Option<i64> {
    let is_plain = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}
