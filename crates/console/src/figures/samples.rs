//! Metrics as text, read back: Prometheus' format 0.0.4, as our own processes write it.

use std::collections::BTreeMap;

/// Metrics of processes at one time.
pub struct Samples {
    pub(super) unix_ms: u64,
    /// By host and process.
    pub(super) by_process: BTreeMap<(String, String), Vec<Sample>>,
}

impl Samples {
    /// Reads the metrics of processes, given by host and name, at this time.
    pub fn read(unix_ms: u64, told: Vec<(String, String, String)>) -> Self {
        let parsed = told.into_iter().map(|(host, process, text)| ((host, process), parse(&text)));
        Samples { unix_ms, by_process: parsed.collect() }
    }
}

/// A value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", |value| value)
    }
}

/// All values of a text; lines that are none are left out.
pub(super) fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Sample> {
    let (name, rest) = match line.find(['{', ' ']) {
        Some(end) if line.as_bytes()[end] == b'{' => (&line[..end], &line[end + 1..]),
        Some(end) => {
            let value = line[end..].trim().parse().ok()?;
            return Some(Sample { name: line[..end].to_owned(), labels: BTreeMap::new(), value });
        }
        None => return None,
    };
    let (labels, rest) = parse_labels(rest)?;
    Some(Sample { name: name.to_owned(), labels, value: rest.trim().parse().ok()? })
}

/// Parses the labels up to the brace that ends them; returns the rest, too.
fn parse_labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (index, '"') => break index,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.trim_start_matches(',').to_owned(), value);
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let text = "# HELP a b\n# TYPE a counter\na_total{pool=\"x \\\"y\\\" \\\\ z\",operation=\"read\"} 3\nb 0.5\nbroken{ 1\n";
        let samples = parse(text);
        assert_eq!(samples.len(), 2);
        assert_eq!((&samples[0].name[..], samples[0].value), ("a_total", 3.0));
        assert_eq!((samples[0].label("pool"), samples[0].label("operation")), ("x \"y\" \\ z", "read"));
        assert_eq!((&samples[1].name[..], samples[1].value), ("b", 0.5));
    }

    #[test]
    fn what_our_own_metrics_write_is_read() {
        let family: atoll_metrics::Family<1, atoll_metrics::Latency> =
            atoll_metrics::register("atoll_test_samples_seconds", "Test", Default::default());
        family.get_or_create(&[("pool", "p,\"{}".to_owned())]).observe_us(20);
        let text = atoll_metrics::encode(atoll_metrics::TextFormat::Prometheus).unwrap();
        let samples = parse(&text);
        let count = samples.iter().find(|sample| sample.name == "atoll_test_samples_seconds_count").unwrap();
        assert_eq!((count.label("pool"), count.value), ("p,\"{}", 1.0));
        let all = samples.iter().find(|sample| sample.label("le") == "+Inf").unwrap();
        assert_eq!(all.value, 1.0);
    }
}
