//! A histogram of durations that costs a few nanoseconds for each: the buckets are powers of two, and there is no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The first bucket has durations of at most this power of two, in microseconds: 16.
const FIRST_BITS: u32 = 4;
/// 16 µs, 32 µs, ... 16.8 s, and everything above.
const BUCKET_COUNT: usize = 22;

#[derive(Debug, Default)]
struct Inner {
    /// Not cumulative.
    buckets: [AtomicU64; BUCKET_COUNT],
    sum_us: AtomicU64,
}

/// How long operations took.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Inner>);

impl Latency {
    /// Counts an operation of `duration_us` microseconds.
    pub fn observe_us(&self, duration_us: u64) {
        // Counts are read one by one, so no order among them is promised.
        self.0.buckets[bucket_of(duration_us)].fetch_add(1, Ordering::Relaxed);
        self.0.sum_us.fetch_add(duration_us, Ordering::Relaxed);
    }

    /// Counts an operation of `duration`.
    pub fn observe(&self, duration: std::time::Duration) {
        self.observe_us(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }
}

fn bucket_of(duration_us: u64) -> usize {
    let bits = u64::BITS - duration_us.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(BUCKET_COUNT - 1)
}

/// The most that a bucket has, in seconds.
fn bound_seconds(bucket: usize) -> f64 {
    if bucket == BUCKET_COUNT - 1 { f64::INFINITY } else { (1_u64 << (bucket as u32 + FIRST_BITS)) as f64 / 1e6 }
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let counts = self.0.buckets.each_ref().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> =
            counts.iter().enumerate().map(|(bucket, count)| (bound_seconds(bucket), *count)).collect();
        let sum_seconds = self.0.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum_seconds, counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl TypedMetric for Latency {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_bucket_that_holds_it() {
        for duration_us in (0..200).chain([1_000, 16_384, 16_385, 1 << 23, (1 << 24) + 1, u64::MAX]) {
            let bucket = bucket_of(duration_us);
            let seconds = duration_us as f64 / 1e6;
            assert!(seconds <= bound_seconds(bucket), "{duration_us} µs in bucket {bucket}");
            assert!(bucket == 0 || seconds > bound_seconds(bucket - 1), "{duration_us} µs in bucket {bucket}");
        }
    }

    #[test]
    fn buckets_add_up_in_the_text() {
        let latency = crate::register("atoll_test_duration_seconds", "Durations", Latency::default());
        for duration_us in [10, 17, 17, 20_000_000] {
            latency.observe_us(duration_us);
        }
        let text = crate::encode(crate::TextFormat::OpenMetrics).unwrap();
        for line in [
            r#"atoll_test_duration_seconds_bucket{le="0.000016"} 1"#,
            r#"atoll_test_duration_seconds_bucket{le="0.000032"} 3"#,
            r#"atoll_test_duration_seconds_bucket{le="+Inf"} 4"#,
            "atoll_test_duration_seconds_count 4",
            "atoll_test_duration_seconds_sum 20.000044",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
