//! Rates of OSDs, pools, images, gateways and the cluster from the changes of counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::samples::{Sample, Samples};
use super::span::Values;

/// Kinds of subjects with figures.
pub const KINDS: [&str; 8] = ["cluster", "osd", "pool", "client", "image", "gateway", "bucket", "account"];

/// Subject of figures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// `cluster`, `osd`, `pool`, `client`, `image`, `gateway`, `bucket` or `account`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// Figures of one time; none: unknown, or without operations. Of a bucket or an account all requests count as
/// reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it, with their units")]
pub struct Point {
    pub reads_per_second: Option<f64>,
    pub writes_per_second: Option<f64>,
    pub read_bytes_per_second: Option<f64>,
    pub write_bytes_per_second: Option<f64>,
    pub read_p50_us: Option<f64>,
    pub read_p99_us: Option<f64>,
    pub write_p50_us: Option<f64>,
    pub write_p99_us: Option<f64>,
    pub recovery_bytes_per_second: Option<f64>,
}

impl Point {
    /// The fields, in their order.
    pub(super) fn values(&self) -> Values {
        [
            self.reads_per_second,
            self.writes_per_second,
            self.read_bytes_per_second,
            self.write_bytes_per_second,
            self.read_p50_us,
            self.read_p99_us,
            self.write_p50_us,
            self.write_p99_us,
            self.recovery_bytes_per_second,
        ]
    }

    pub(super) fn of(values: &Values) -> Point {
        Point {
            reads_per_second: values[0],
            writes_per_second: values[1],
            read_bytes_per_second: values[2],
            write_bytes_per_second: values[3],
            read_p50_us: values[4],
            read_p99_us: values[5],
            write_p50_us: values[6],
            write_p99_us: values[7],
            recovery_bytes_per_second: values[8],
        }
    }
}

impl Subject {
    /// The schema `FigureSeries` of the API.
    pub(super) fn told(&self, points: &[Option<&Point>]) -> Value {
        let array = |field: fn(&Point) -> Option<f64>| -> Value {
            points.iter().map(|point| point.and_then(field).map_or(Value::Null, Value::from)).collect()
        };
        let mut told = Map::from_iter([
            ("kind".to_owned(), Value::from(self.kind)),
            ("name".to_owned(), Value::from(self.name.clone())),
            ("reads_per_second".to_owned(), array(|point| point.reads_per_second)),
            ("writes_per_second".to_owned(), array(|point| point.writes_per_second)),
            ("read_bytes_per_second".to_owned(), array(|point| point.read_bytes_per_second)),
            ("write_bytes_per_second".to_owned(), array(|point| point.write_bytes_per_second)),
            ("read_p50_us".to_owned(), array(|point| point.read_p50_us)),
            ("read_p99_us".to_owned(), array(|point| point.read_p99_us)),
            ("write_p50_us".to_owned(), array(|point| point.write_p50_us)),
            ("write_p99_us".to_owned(), array(|point| point.write_p99_us)),
        ]);
        if ["cluster", "osd"].contains(&self.kind) {
            told.insert("recovery_bytes_per_second".to_owned(), array(|point| point.recovery_bytes_per_second));
        }
        Value::Object(told)
    }
}

/// Reads, or writes, in a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Direction {
    count: f64,
    bytes: f64,
    /// Operations of at most this many microseconds, by that number; not cumulative over processes, but in itself.
    /// None if there was no operation.
    buckets: BTreeMap<u64, f64>,
}

/// Operations of a subject in a second. Those of several processes and hosts add up, as quantiles do not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    directions: [Direction; 2],
    recovery_bytes: Option<f64>,
}

impl Rates {
    /// Adds another host's rates of the same subject.
    pub fn add(&mut self, other: &Rates) {
        for (direction, other) in self.directions.iter_mut().zip(&other.directions) {
            direction.count += other.count;
            direction.bytes += other.bytes;
            for (bound_us, count) in &other.buckets {
                *direction.buckets.entry(*bound_us).or_default() += count;
            }
        }
        if let Some(bytes) = other.recovery_bytes {
            *self.recovery_bytes.get_or_insert(0.0) += bytes;
        }
    }

    /// Returns the sum over `seconds` by the second. Other hosts are sent it, so it has few digits.
    fn over(mut self, seconds: f64) -> Rates {
        let rate = |value: &mut f64| *value = (*value / seconds * 1e3).round() / 1e3;
        for direction in &mut self.directions {
            rate(&mut direction.count);
            rate(&mut direction.bytes);
            direction.buckets.values_mut().for_each(rate);
            if direction.buckets.values().all(|count| *count == 0.0) {
                direction.buckets.clear();
            }
        }
        self.recovery_bytes.iter_mut().for_each(rate);
        self
    }

    /// The figures.
    pub fn point(&self) -> Point {
        let [read, write] = &self.directions;
        let rounded = |value: f64| Some((value * 10.0).round() / 10.0);
        Point {
            reads_per_second: rounded(read.count),
            writes_per_second: rounded(write.count),
            read_bytes_per_second: rounded(read.bytes),
            write_bytes_per_second: rounded(write.bytes),
            read_p50_us: quantile(&read.buckets, 0.5),
            read_p99_us: quantile(&read.buckets, 0.99),
            write_p50_us: quantile(&write.buckets, 0.5),
            write_p99_us: quantile(&write.buckets, 0.99),
            recovery_bytes_per_second: self.recovery_bytes.and_then(rounded),
        }
    }
}

/// Returns the rates between two times.
pub fn rates(before: &Samples, now: &Samples) -> BTreeMap<Subject, Rates> {
    let seconds = now.unix_ms.saturating_sub(before.unix_ms) as f64 / 1e3;
    let mut sums: BTreeMap<Subject, Rates> = BTreeMap::new();
    if seconds <= 0.0 {
        return BTreeMap::new();
    }
    for ((host, process), samples) in &now.by_process {
        // A process that has only just come has no past to compare with.
        let Some(past) = before.by_process.get(&(host.clone(), process.clone())) else { continue };
        let past: BTreeMap<(&str, &BTreeMap<String, String>), f64> =
            past.iter().map(|sample| ((&sample.name[..], &sample.labels), sample.value)).collect();
        for sample in samples {
            let start = past.get(&(&sample.name[..], &sample.labels)).copied().unwrap_or(0.0);
            // A counter that went back began anew.
            let change = if sample.value >= start { sample.value - start } else { sample.value };
            for subject in subjects(process, sample, host) {
                add(sums.entry(subject).or_default(), sample, change);
            }
        }
    }
    sums.into_iter().map(|(subject, sums)| (subject, sums.over(seconds))).collect()
}

/// Returns the subjects of a value. Clients' operations count once for the cluster, at the OSD that answers them.
fn subjects(process: &str, sample: &Sample, host: &str) -> Vec<Subject> {
    let subject = |kind, name: &str| Subject { kind, name: name.to_owned() };
    if sample.name.starts_with("atoll_osd_operation")
        && !sample.name.contains("errors")
        && !sample.label("pool").is_empty()
    {
        vec![subject("osd", process), subject("pool", sample.label("pool")), subject("cluster", "cluster")]
    } else if sample.name.starts_with("atoll_osd_client_operation") {
        vec![subject("client", sample.label("client"))]
    } else if sample.name == "atoll_osd_recovery_read_bytes_total" {
        vec![subject("osd", process), subject("cluster", "cluster")]
    } else if sample.name.starts_with("atoll_image_operation") && !sample.name.contains("errors") {
        vec![subject("image", sample.label("image"))]
    } else if sample.name.starts_with("atoll_s3_bucket_") {
        vec![subject("bucket", sample.label("bucket"))]
    } else if sample.name.starts_with("atoll_s3_account_") {
        vec![subject("account", sample.label("account"))]
    } else if sample.name.starts_with("atoll_s3_request")
        || sample.name == "atoll_s3_received_bytes_total"
        || sample.name == "atoll_s3_sent_bytes_total"
    {
        vec![subject("gateway", &format!("{process}@{host}"))]
    } else {
        Vec::new()
    }
}

/// Returns 0 for reads and 1 for writes; others do not count.
fn direction(sample: &Sample) -> Option<usize> {
    let has_no_operation = ["bucket", "account"].iter().any(|label| !sample.label(label).is_empty());
    match (&sample.name[..], sample.label("operation")) {
        (_, "read") => Some(0),
        (_, "write") => Some(1),
        (name, _) if name.starts_with("atoll_s3_") && name.ends_with("sent_bytes_total") => Some(0),
        (name, _) if name.starts_with("atoll_s3_") && name.ends_with("received_bytes_total") => Some(1),
        (name, _) if name.starts_with("atoll_s3_") && has_no_operation => Some(0),
        (name, operation) if name.starts_with("atoll_s3_") => {
            let is_read = ["Get", "List", "Head", "Select"].iter().any(|verb| operation.starts_with(verb));
            Some(usize::from(!is_read))
        }
        _ => None,
    }
}

fn add(sums: &mut Rates, sample: &Sample, change: f64) {
    if sample.name == "atoll_osd_recovery_read_bytes_total" {
        *sums.recovery_bytes.get_or_insert(0.0) += change;
        return;
    }
    let Some(direction) = direction(sample) else { return };
    let direction = &mut sums.directions[direction];
    let name = &sample.name[..];
    if name.ends_with("_bytes_total") {
        direction.bytes += change;
    } else if name.ends_with("_seconds_bucket") {
        let bound_us =
            sample.label("le").parse::<f64>().map_or(u64::MAX, |seconds| (seconds * 1e6).round() as u64);
        *direction.buckets.entry(bound_us).or_default() += change;
    } else if name.ends_with("_operations_total") || name.ends_with("_requests_total") {
        direction.count += change;
    }
}

/// Returns a quantile of cumulative buckets, evenly filled, in microseconds; none without operations.
fn quantile(buckets: &BTreeMap<u64, f64>, share: f64) -> Option<f64> {
    let total = buckets.last_key_value().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let wanted = total * share;
    let (mut lower_us, mut below) = (0, 0.0);
    for (bound_us, count) in buckets {
        if *count >= wanted {
            if *bound_us == u64::MAX {
                return Some(lower_us as f64);
            }
            let part = if *count > below { (wanted - below) / (count - below) } else { 1.0 };
            return Some((lower_us as f64 + part * (bound_us - lower_us) as f64).round());
        }
        (lower_us, below) = (*bound_us, *count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::samples::parse;
    use super::*;

    fn samples(unix_ms: u64, text: &str) -> Samples {
        Samples { unix_ms, by_process: BTreeMap::from([(("h1".to_owned(), "osd.0".to_owned()), parse(text))]) }
    }

    fn points(before: &Samples, now: &Samples) -> BTreeMap<Subject, Point> {
        rates(before, now).into_iter().map(|(subject, rates)| (subject, rates.point())).collect()
    }

    #[test]
    fn changes_become_rates_and_quantiles() {
        let before = samples(1_000, "atoll_osd_operations_total{operation=\"read\",pool=\"images\"} 10\n");
        let text = "atoll_osd_operations_total{operation=\"read\",pool=\"images\"} 30\n\
                    atoll_osd_operation_bytes_total{operation=\"read\",pool=\"images\"} 81920\n\
                    atoll_osd_operation_duration_seconds_bucket{operation=\"read\",pool=\"images\",le=\"0.001\"} 10\n\
                    atoll_osd_operation_duration_seconds_bucket{operation=\"read\",pool=\"images\",le=\"0.002\"} 20\n\
                    atoll_osd_operation_duration_seconds_bucket{operation=\"read\",pool=\"images\",le=\"+Inf\"} 20\n\
                    atoll_osd_recovery_read_bytes_total 4000\n";
        let points = points(&before, &samples(3_000, text));
        let of = |kind: &'static str, name: &str| &points[&Subject { kind, name: name.to_owned() }];
        for point in [of("osd", "osd.0"), of("pool", "images"), of("cluster", "cluster")] {
            assert_eq!(point.reads_per_second, Some(10.0));
            assert_eq!(point.read_bytes_per_second, Some(40_960.0));
            assert_eq!((point.read_p50_us, point.read_p99_us), (Some(1_000.0), Some(1_980.0)));
            assert_eq!((point.writes_per_second, point.write_p99_us), (Some(0.0), None));
        }
        assert_eq!(of("osd", "osd.0").recovery_bytes_per_second, Some(2_000.0));
        assert_eq!(of("pool", "images").recovery_bytes_per_second, None);
    }

    #[test]
    fn clients_are_told_by_their_names() {
        let text = |n: u32| {
            format!(
                "atoll_osd_client_operations_total{{client=\"gateway@h1\",operation=\"write\"}} {n}\n\
                 atoll_osd_client_operation_bytes_total{{client=\"gateway@h1\",operation=\"write\"}} {}\n",
                n * 10
            )
        };
        let points = points(&samples(0, &text(1)), &samples(1_000, &text(3)));
        let point = &points[&Subject { kind: "client", name: "gateway@h1".into() }];
        assert_eq!((point.writes_per_second, point.write_bytes_per_second), (Some(2.0), Some(20.0)));
        assert_eq!(points.len(), 1, "pools and OSDs count it once");
    }

    #[test]
    fn accounts_and_buckets_have_requests_and_bytes() {
        let text = |n: u32| {
            ["account", "bucket"]
                .map(|kind| {
                    format!(
                        "atoll_s3_{kind}_requests_total{{{kind}=\"a\"}} {n}\n\
                         atoll_s3_{kind}_received_bytes_total{{{kind}=\"a\"}} {}\n\
                         atoll_s3_{kind}_sent_bytes_total{{{kind}=\"a\"}} {}\n",
                        n * 10,
                        n * 100
                    )
                })
                .concat()
        };
        let points = points(&samples(0, &text(1)), &samples(1_000, &text(3)));
        for kind in ["account", "bucket"] {
            let point = &points[&Subject { kind, name: "a".into() }];
            assert_eq!((point.reads_per_second, point.writes_per_second), (Some(2.0), Some(0.0)), "{kind}");
            let bytes = (point.write_bytes_per_second, point.read_bytes_per_second);
            assert_eq!(bytes, (Some(20.0), Some(200.0)), "{kind}");
        }
    }

    #[test]
    fn what_two_hosts_tell_of_a_pool_is_one_figure() {
        let text = |fast: u32, slow: u32| {
            format!(
                "atoll_osd_operations_total{{operation=\"read\",pool=\"p\"}} {slow}\n\
                 atoll_osd_operation_duration_seconds_bucket{{operation=\"read\",pool=\"p\",le=\"0.001\"}} {fast}\n\
                 atoll_osd_operation_duration_seconds_bucket{{operation=\"read\",pool=\"p\",le=\"0.002\"}} {slow}\n\
                 atoll_osd_operation_duration_seconds_bucket{{operation=\"read\",pool=\"p\",le=\"+Inf\"}} {slow}\n"
            )
        };
        let of_host = |fast, slow| rates(&samples(0, &text(0, 0)), &samples(1_000, &text(fast, slow)));
        let pool = Subject { kind: "pool", name: "p".into() };
        let mut sum = of_host(90, 90)[&pool].clone();
        assert_eq!(sum.point().read_p50_us, Some(500.0));
        sum.add(&of_host(0, 90)[&pool]);
        sum.add(&of_host(0, 0)[&pool]);
        assert_eq!((sum.point().reads_per_second, sum.point().read_p50_us), (Some(180.0), Some(1_000.0)));
        assert_eq!(sum.point().read_p99_us, Some(1_980.0), "a tenth of a host's reads is not left out");
        let sent: Rates = serde_json::from_str(&serde_json::to_string(&sum).unwrap()).unwrap();
        assert_eq!(sent, sum);
    }

    #[test]
    fn a_counter_that_begins_anew_is_no_negative_rate() {
        let text = |count: u32| format!("atoll_osd_operations_total{{operation=\"write\",pool=\"p\"}} {count}\n");
        let points = points(&samples(0, &text(1_000)), &samples(1_000, &text(5)));
        let osd = Subject { kind: "osd", name: "osd.0".into() };
        assert_eq!(points[&osd].writes_per_second, Some(5.0));
    }
}
