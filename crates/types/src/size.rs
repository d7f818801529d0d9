//! Sizes as people write them: `4k`, `64K`, `4M`, `1.5GiB`.

/// Parses a size in bytes. Suffixes are powers of 1024, in either case, with or without `iB`; `KB` and its like are
/// refused, because they are powers of 1000 elsewhere.
pub fn parse_size_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let suffix = suffix.trim().to_ascii_lowercase();
    // One letter of the unit decides between 10,000 and 10,240 bytes, and people mean either by it.
    if suffix.len() == 2 && suffix.ends_with('b') {
        let unit = suffix[..1].to_ascii_uppercase();
        return Err(format!(
            "'{text}' may be of 1000 or of 1024: sizes are of 1024 here, so write {number}{unit} or {number}{unit}iB"
        ));
    }
    let shift = match suffix.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(format!("'{text}' is not a size: use a number with k, M, G, T or P, such as 4G")),
    };
    let value: f64 = number.parse().map_err(|_| format!("'{text}' is not a size: it has no number, try 4G"))?;
    let bytes = value * (1_u64 << shift) as f64;
    if !(bytes.is_finite() && bytes < 2f64.powi(63)) {
        return Err(format!("'{text}' is too large"));
    }
    if bytes.fract() != 0.0 {
        return Err(format!("'{text}' is not a whole number of bytes"));
    }
    Ok(bytes as u64)
}

/// Formats a size with a binary suffix and at most one decimal: `4.0 GiB`, `512 B`.
pub fn format_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut suffix = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        suffix = next;
    }
    if suffix == "B" { format!("{bytes} B") } else { format!("{value:.1} {suffix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        assert_eq!(parse_size_bytes("4k"), Ok(4096));
        assert_eq!(parse_size_bytes("4M"), Ok(4 << 20));
        assert_eq!(parse_size_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size_bytes("512"), Ok(512));
        assert_eq!(parse_size_bytes("2 TiB"), Ok(2 << 40));
        assert_eq!(parse_size_bytes("512B"), Ok(512));
        assert!(parse_size_bytes("10KB").unwrap_err().contains("write 10K or 10KiB"));
        for bad in ["", "x", "4x", "-1", "1e9", "0.3", "9999999P", "1..5k"] {
            assert!(parse_size_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_print() {
        assert_eq!(format_size(512), "512 B");
        assert_eq!(format_size(4 << 30), "4.0 GiB");
    }
}
