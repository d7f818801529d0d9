//! How large objects are.

use atoll_types::size::{format_size, parse_size_bytes};
use serde::{Deserialize, Serialize};

/// The largest object that one PUT may bring (Amazon S3, "Uploading objects").
const OBJECT_BYTES_MAX: u64 = 5 << 30;
const PARTS_MAX: usize = 64;
const WEIGHT_MAX: u32 = 1_000_000;

/// Sizes with their weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeDistribution(Vec<(u64, u32)>);

impl SizeDistribution {
    /// The size of an object, which depends on its number alone. Of any run of numbers, the sizes are
    /// in proportion to their weights as nearly as can be (additive recurrence by the golden ratio).
    pub fn size_bytes(&self, number: u64) -> u64 {
        let fraction = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut left = ((u128::from(fraction) * u128::from(self.weights())) >> 64) as u64;
        for (size_bytes, weight) in &self.0 {
            match left.checked_sub(u64::from(*weight)) {
                None => return *size_bytes,
                Some(rest) => left = rest,
            }
        }
        0
    }

    /// Their mean.
    pub fn mean_bytes(&self) -> u64 {
        let sum: u128 = self.0.iter().map(|(size, weight)| u128::from(*size) * u128::from(*weight)).sum();
        (sum / u128::from(self.weights().max(1))) as u64
    }

    /// The smallest.
    pub fn min_bytes(&self) -> u64 {
        self.0.iter().map(|(size, _)| *size).min().unwrap_or(0)
    }

    /// The largest.
    pub fn max_bytes(&self) -> u64 {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }

    fn weights(&self) -> u64 {
        self.0.iter().map(|(_, weight)| u64::from(*weight)).sum()
    }
}

impl std::fmt::Display for SizeDistribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let [(size_bytes, _)] = self.0.as_slice() {
            return f.write_str(&format_size(*size_bytes));
        }
        let parts: Vec<String> =
            self.0.iter().map(|(size, weight)| format!("{}:{weight}", format_size(*size))).collect();
        f.write_str(&parts.join(","))
    }
}

impl std::str::FromStr for SizeDistribution {
    type Err = String;

    /// `64k`, or sizes with weights such as `4k:50,1m:40,64m:10`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |part: &str| {
            format!(
                "'{part}' in '{text}' is not a size with a weight: use one size, such as 64k, or up to {PARTS_MAX} \
                 with weights of 1 to {WEIGHT_MAX}, such as 4k:50,1m:40,64m:10; objects have at most 5 GiB"
            )
        };
        let mut parts = Vec::new();
        for part in text.split(',') {
            let (size, weight) = match part.split_once(':') {
                Some((size, weight)) => (size, weight.parse().map_err(|_| wrong(part))?),
                None if text == part => (part, 1),
                None => return Err(wrong(part)),
            };
            let size_bytes = parse_size_bytes(size).map_err(|_| wrong(part))?;
            if size_bytes > OBJECT_BYTES_MAX || !(1..=WEIGHT_MAX).contains(&weight) || parts.len() == PARTS_MAX {
                return Err(wrong(part));
            }
            parts.push((size_bytes, weight));
        }
        Ok(SizeDistribution(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_size_is_that_of_all() {
        let sizes: SizeDistribution = "64k".parse().unwrap();
        assert!((0..100).all(|number| sizes.size_bytes(number) == 65536));
        assert_eq!((sizes.mean_bytes(), sizes.max_bytes()), (65536, 65536));
    }

    #[test]
    fn sizes_come_by_weight_even_among_few() {
        let sizes: SizeDistribution = "4k:50,1m:40,64m:10".parse().unwrap();
        assert_eq!(sizes.mean_bytes(), (4096 * 50 + (1 << 20) * 40 + (64 << 20) * 10) / 100);
        for first in [0, 1, 77, 1_000_000] {
            let drawn: Vec<u64> = (first..first + 200).map(|number| sizes.size_bytes(number)).collect();
            for (size_bytes, expected) in [(4096, 100), (1 << 20, 80), (64 << 20, 20)] {
                let count = drawn.iter().filter(|one| **one == size_bytes).count();
                assert!(count.abs_diff(expected) <= 4, "{size_bytes} from {first}: {count}");
            }
        }
    }

    #[test]
    fn an_invalid_distribution_is_refused() {
        for text in ["", "x", "4k:", "4k:0", "4k:50,1m", "4k,1m", "6g", "4k:50:1", "4k:99999999"] {
            assert!(text.parse::<SizeDistribution>().is_err(), "{text}");
        }
    }
}
