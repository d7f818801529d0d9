use super::samples::parse;
use super::*;

const NOW_MS: u64 = 1_000_000;

fn samples(unix_ms: u64, reads: u64, pool: &str, osd: &str) -> Samples {
    let text = format!("atoll_osd_operations_total{{operation=\"read\",pool=\"{pool}\"}} {reads}\n");
    Samples { unix_ms, by_process: BTreeMap::from([(("h".to_owned(), osd.to_owned()), parse(&text))]) }
}

/// Returns the rates of an OSD of a pool that reads `reads` times in a second.
fn reading(osd: &str, reads: u64) -> BTreeMap<Subject, Rates> {
    rates(&samples(0, 0, "p", osd), &samples(1_000, reads, "p", osd))
}

fn query(query: &[(&str, &str)]) -> Vec<(String, String)> {
    query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn of_host(figures: &Figures, asked: &[(&str, &str)]) -> HostFigures {
    figures.own(&Wanted::of(&query(asked), NOW_MS), NOW_MS)
}

fn reads<'a>(told: &'a Value, kind: &str, name: &str) -> &'a Value {
    let series = told["series"].as_array().unwrap();
    let found = series.iter().find(|one| one["kind"] == kind && one["name"] == name);
    &found.unwrap_or_else(|| panic!("no {kind} {name} in {told}"))["reads_per_second"]
}

#[test]
fn every_second_has_a_value_or_null() {
    let figures = Figures::default();
    figures.add(900, 902, reading("osd.0", 5));
    figures.add(902, 904, BTreeMap::new());
    figures.add(904, 906, reading("osd.0", 7));
    let told = joined(of_host(&figures, &[]), Vec::new(), None);
    assert_eq!(told["from_unix_ms"], 900_000);
    assert_eq!(told["count"], 6);
    assert_eq!(*reads(&told, "osd", "osd.0"), json!([5.0, 5.0, null, null, 7.0, 7.0]));
    let asked = [("since_unix_ms", "903000"), ("kind", "osd")];
    let later = joined(of_host(&figures, &asked), Vec::new(), Some(903));
    assert_eq!(*reads(&later, "osd", "osd.0"), json!([7.0, 7.0]));
    assert_eq!(later["series"].as_array().unwrap().len(), 1, "{later}");
    assert_eq!(joined(of_host(&figures, &[("name", "x")]), Vec::new(), None)["series"], json!([]));
}

#[test]
fn ten_minutes_are_kept() {
    let figures = Figures::default();
    for second in 300..1_000 {
        figures.add(second, second + 1, reading("osd.0", 1));
    }
    assert_eq!(joined(of_host(&figures, &[]), Vec::new(), None)["count"], 600);
}

#[test]
fn hosts_add_up_although_their_clocks_differ() {
    let (one, other) = (Figures::default(), Figures::default());
    one.add(990, 994, reading("osd.0", 10));
    // Its clock is 90 s ahead.
    other.add(1_080, 1_082, reading("osd.1", 1));
    other.add(1_082, 1_083, reading("osd.1", 2));
    let sent =
        serde_json::to_string(&other.own(&Wanted::of(&query(&[("last_ms", "60000")]), 0), 1_090_000)).unwrap();
    let sent: HostFigures = serde_json::from_str(&sent).unwrap();
    let told = joined(of_host(&one, &[]), vec![sent.by_clock(NOW_MS)], None);
    assert_eq!(told["count"], 3, "the other host has not told of the last second yet");
    assert_eq!(*reads(&told, "cluster", "cluster"), json!([11.0, 11.0, 12.0]));
    assert_eq!(*reads(&told, "pool", "p"), json!([11.0, 11.0, 12.0]));
    assert_eq!(*reads(&told, "osd", "osd.1"), json!([1.0, 1.0, 2.0]));
}

#[test]
fn a_sum_is_not_told_of_seconds_that_a_host_does_not_know() {
    let (one, other) = (Figures::default(), Figures::default());
    one.add(990, 994, reading("osd.0", 10));
    other.add(992, 994, reading("osd.1", 1));
    let told = joined(of_host(&one, &[]), vec![of_host(&other, &[])], None);
    assert_eq!(*reads(&told, "cluster", "cluster"), json!([null, null, 11.0, 11.0]));
    assert_eq!(*reads(&told, "osd", "osd.0"), json!([10.0, 10.0, 10.0, 10.0]));
    assert_eq!(*reads(&told, "osd", "osd.1"), json!([null, null, 1.0, 1.0]));
}

#[test]
fn a_host_that_stopped_telling_is_not_waited_for() {
    let (one, other) = (Figures::default(), Figures::default());
    one.add(900, 940, reading("osd.0", 10));
    other.add(900, 902, reading("osd.1", 1));
    let told = joined(of_host(&one, &[]), vec![of_host(&other, &[])], None);
    assert_eq!(told["count"], 40);
    assert_eq!(reads(&told, "cluster", "cluster")[39], Value::Null);
}

#[test]
fn another_host_is_asked_for_the_same() {
    let wanted = Wanted::of(&query(&[("kind", "image"), ("name", "a&b=c"), ("since_unix_ms", "990000")]), NOW_MS);
    assert_eq!(wanted.query(), "last_ms=10000&kind=image&name=a%26b%3Dc");
    let parsed: Vec<(String, String)> = form_urlencoded::parse(wanted.query().as_bytes()).into_owned().collect();
    let again = Wanted::of(&parsed, 0);
    assert_eq!((again.last_ms, &again.names[..]), (10_000, &["a&b=c".to_owned()][..]));
}
