//! Latencies: a histogram while they are counted, its percentiles, and its text form.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Ten minutes: whatever takes longer is counted as that.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Fewest operations with a 99.9th percentile: the slowest ten are beyond it then.
const P999_OPERATIONS_MIN: u64 = 10_000;

/// Latencies in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile; `None` of fewer than 10,000 operations.
    pub p999: Option<u64>,
    /// The slowest.
    pub max: u64,
}

/// Counts latencies by value, three digits exactly (HdrHistogram, G. Tene).
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("the bounds are valid"))
    }
}

/// The 99.9th percentile if there are enough operations for one.
pub(crate) fn p999(operations: u64, p999_us: u64) -> Option<u64> {
    (operations >= P999_OPERATIONS_MIN).then_some(p999_us)
}

impl LatencyHistogram {
    /// Counts one operation.
    pub fn record(&mut self, latency: Duration) {
        self.record_us(latency.as_micros() as u64, 1);
    }

    /// Counts several operations of the same latency.
    pub fn record_us(&mut self, latency_us: u64, count: u64) {
        self.0.saturating_record_n(latency_us.max(1), count);
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &LatencyHistogram) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency in microseconds that this share (0 to 1) of the operations did not exceed.
    pub fn at_quantile_us(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// Its percentiles.
    pub fn latency(&self) -> Latency {
        Latency {
            mean: super::round(self.0.mean()),
            p50: self.at_quantile_us(0.5),
            p99: self.at_quantile_us(0.99),
            p999: p999(self.count(), self.at_quantile_us(0.999)),
            max: self.0.max(),
        }
    }

    /// The histogram in HdrHistogram's own format (V2, deflated) in base64, as its tools read it.
    pub fn to_text(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.0, &mut bytes).expect("writing to a vector does not fail");
        STANDARD.encode(bytes)
    }

    /// Reads that form.
    pub fn from_text(text: &str) -> Result<Self, BenchError> {
        let wrong = |detail: String| BenchError::Invalid(format!("this is not a histogram: {detail}"));
        let bytes = STANDARD.decode(text).map_err(|error| wrong(error.to_string()))?;
        let read: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|error| wrong(format!("{error:?}")))?;
        let mut histogram = LatencyHistogram::default();
        for value in read.iter_recorded() {
            histogram.record_us(value.value_iterated_to(), value.count_since_last_iteration());
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_as_text() {
        let mut histogram = LatencyHistogram::default();
        (1..=1000).for_each(|value| histogram.record_us(value, 1));
        let read = LatencyHistogram::from_text(&histogram.to_text()).unwrap();
        assert_eq!(read.latency(), histogram.latency());
        assert_eq!((read.count(), read.at_quantile_us(0.5)), (1000, 500));
        assert!(LatencyHistogram::from_text("AAAA").is_err());
        assert!(LatencyHistogram::from_text("not base64!").is_err());
    }

    #[test]
    fn a_tail_takes_ten_thousand_operations() {
        let mut histogram = LatencyHistogram::default();
        histogram.record_us(100, 9_999);
        assert_eq!(histogram.latency().p999, None);
        histogram.record_us(100, 1);
        assert_eq!(histogram.latency().p999, Some(100));
    }

    #[test]
    fn counts_of_several_clients_add_up() {
        let (mut one, mut other) = (LatencyHistogram::default(), LatencyHistogram::default());
        one.record_us(100, 99);
        other.record_us(10_000, 1);
        one.add(&other);
        assert_eq!(one.count(), 100);
        assert_eq!(one.at_quantile_us(0.5), 100);
        assert!(one.latency().max >= 10_000);
        assert!((one.latency().mean - 199.0).abs() < 1.0, "{:?}", one.latency());
    }
}
