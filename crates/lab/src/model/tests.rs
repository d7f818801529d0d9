//! Cases that were computed by hand.

use super::*;

/// A calibration with nothing beyond the moved data, and CPU time in round figures.
const PLAIN: &str = r#"
name = "plain"
machine = "none"
hosts = 4
ec_chunk = "64k"
osd_threads = 1
[[operation]]
operation = "put"
size = "64k"
redundancy = "3 copies"
cpu_us = 1000
gateway_cpu_us = 400
source = "put 64k"
[[operation]]
operation = "put"
size = "4m"
redundancy = "3 copies"
cpu_us = 22000
gateway_cpu_us = 10400
source = "put 4m"
[[operation]]
operation = "get"
size = "4m"
redundancy = "2+2"
cpu_us = 10000
gateway_cpu_us = 6000
source = "get 4m"
[[operation]]
operation = "randwrite"
size = "4k"
redundancy = "3 copies"
cpu_us = 100
host_in_bytes = 12688
drive_write_bytes = 24576
source = "randwrite 4k"
[[operation]]
operation = "randread"
size = "4k"
redundancy = "3 copies"
cpu_us = 20
source = "randread 4k"
[[reached]]
bottleneck = "network"
least = 0.5
most = 0.8
source = "a run"
[[log]]
operation = "randwrite"
synced_writes = 0.25
source = "log"
[[protection]]
name = "tls"
operation = "put"
cpu_factor = 1.5
in_gateways = true
source = "tls put"
"#;

/// Four hosts with two cores twice as fast, and the workloads behind.
fn cluster(more: &str) -> String {
    format!(
        r#"
name = "small"
hosts = 4
cores_per_host = 2
core_speed = 2
nic_gbit_per_s = 8
round_trip_us = 50
redundancy = "3 copies"
drives = {{ per_host = 2, read_mb_per_s = 2000, write_mb_per_s = 1000, read_iops = 100000, write_iops = 10000, synced_writes_per_s = 2000, read_latency_us = 100 }}
{more}
"#
    )
}

fn predict_one(more: &str) -> Prediction {
    predict(more).unwrap()
}

fn predict(more: &str) -> Result<Prediction, ModelError> {
    let calibration = Calibration::parse("plain", PLAIN)?;
    let mut found = forecast(&ClusterDescription::parse("small", &cluster(more))?, &calibration)?;
    Ok(found.predictions.remove(0))
}

fn per_operation(prediction: &Prediction, name: &str) -> f64 {
    prediction.resources.iter().find(|resource| resource.name == name).unwrap().per_operation
}

fn allows(prediction: &Prediction, name: &str) -> f64 {
    prediction.resources.iter().find(|resource| resource.name == name).unwrap().operations_per_s
}

#[track_caller]
fn is_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found} instead of {expected}");
}

#[test]
fn a_small_replicated_write() {
    let found = predict_one("[[workload]]\noperation = 'randwrite'\nsize = '4k'");
    // 3 x 4,096 bytes and the 400 that were measured beyond them; the primary sends two copies.
    is_near(per_operation(&found, "network in, OSD hosts"), 12_688.0);
    is_near(per_operation(&found, "network out, OSD hosts"), 8_192.0);
    // 4 hosts x 2 cores x 2 in speed / 100 us.
    is_near(allows(&found, "CPU of OSD hosts"), 160_000.0);
    // 8 OSDs with a thread each.
    is_near(allows(&found, "threads of OSDs"), 160_000.0);
    // 4 x 10^9 bytes a second.
    is_near(allows(&found, "network in, OSD hosts"), 4e9 / 12_688.0);
    // 8 drives; three writes of one operation, a log write for four of them, and twice the data.
    is_near(allows(&found, "drives, writes"), 80_000.0 / 3.0);
    is_near(allows(&found, "drives, synced writes"), 16_000.0 / 0.75);
    is_near(allows(&found, "drives, bytes written"), 8e9 / 24_576.0);
    assert_eq!(
        (found.bottleneck.as_str(), found.next.as_deref()),
        ("drives, synced writes", Some("drives, writes"))
    );
    is_near(found.operations_per_s, 16_000.0 / 0.75);
    is_near(found.next_allows.unwrap(), 1.25);
    assert_eq!(found.expected_per_s, None, "drives were never seen as the bottleneck");
    // Two round trips, one synced write of 500 us, two thirds of the CPU time at twice the speed.
    is_near(found.latency_floor_us, 100.0 + 500.0 + 100.0 * 2.0 / 3.0 / 2.0);
}

#[test]
fn a_large_get_of_an_erasure_code_is_bound_by_the_network() {
    let text = "[[workload]]\noperation = 'get'\nsize = '4m'\nredundancy = '2+2'\nmeasured_gib_per_s = 1";
    let found = predict_one(text);
    let size = f64::from(4 << 20);
    // To the client, from the primary to the gateway in three of four cases, and half of it between OSDs.
    is_near(per_operation(&found, "network out, OSD hosts"), size * 2.25);
    is_near(per_operation(&found, "network in, OSD hosts"), size * 1.25);
    assert_eq!(found.bottleneck, "network out, OSD hosts");
    is_near(found.operations_per_s, 4e9 / (size * 2.25));
    is_near(found.gib_per_s, 4e9 / 2.25 / f64::from(1 << 30));
    is_near(found.measured_share.unwrap(), 2.25 * f64::from(1 << 30) / 4e9);
    // Four round trips, a read of 100 us; 10 ms of CPU at twice the speed outweigh 4.2 ms on the network.
    is_near(found.latency_floor_us, 200.0 + 100.0 + 5_000.0);
}

#[test]
fn an_upload_to_gateways_of_their_own() {
    let apart = "[gateways]\nhosts = 2\ncores_per_host = 4\nnic_gbit_per_s = 16\n[[workload]]\noperation = 'put'\nsize = '64k'";
    let found = predict_one(apart);
    let size = 65_536.0;
    is_near(per_operation(&found, "network in, OSD hosts"), 3.0 * size);
    is_near(per_operation(&found, "network out, OSD hosts"), 2.0 * size);
    is_near(per_operation(&found, "network in, gateways"), size);
    is_near(per_operation(&found, "network out, gateways"), size);
    is_near(per_operation(&found, "CPU of OSD hosts"), 600.0);
    // Of the data and of the index, on three OSDs: nobody said that they share writes to the log.
    is_near(per_operation(&found, "drives, synced writes"), 6.0);
    is_near(allows(&found, "CPU of gateways"), 2.0 * 4.0 * 2e6 / 400.0);
    // Beside OSDs one of four requests stays on its host.
    let beside = predict_one("[[workload]]\noperation = 'put'\nsize = '64k'");
    is_near(per_operation(&beside, "network in, OSD hosts"), size * (1.0 + 0.75 + 2.0));
    is_near(per_operation(&beside, "network out, OSD hosts"), size * (0.75 + 2.0));
    is_near(per_operation(&beside, "CPU of OSD hosts"), 1_000.0);
}

#[test]
fn objects_shorter_than_a_chunk_are_not_cut() {
    let text = "[[workload]]\noperation = 'put'\nsize = '64k'\nredundancy = '2+2'";
    let found = predict_one(text);
    // One piece of data and two of parity, as large as three copies; CPU time is that of three copies.
    is_near(per_operation(&found, "drives, bytes written"), 3.0 * 65_536.0);
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    assert!(found.notes[0].contains("2+2"), "{}", found.notes[0]);
    // Four times as much is two pieces and two of parity.
    let found = predict_one(&text.replace("64k", "256k"));
    is_near(per_operation(&found, "drives, bytes written"), 2.0 * 262_144.0);
}

#[test]
fn costs_at_sizes_that_were_not_measured() {
    let cpu_of = |size: &str| {
        let found = predict_one(&format!("[[workload]]\noperation = 'put'\nsize = '{size}'"));
        (per_operation(&found, "CPU of OSD hosts"), found.sources.len())
    };
    // Half of the way from 64 KiB to 4 MiB, at 2,080 KiB.
    assert_eq!(cpu_of("2080k"), (11_500.0, 2));
    assert_eq!(cpu_of("64k"), (1_000.0, 1));
    assert_eq!(cpu_of("8m"), (44_000.0, 1));
    assert_eq!(cpu_of("4k"), (1_000.0, 1));
    // In order or not is the same to the model.
    let in_order = predict_one("[[workload]]\noperation = 'write'\nsize = '4k'");
    is_near(per_operation(&in_order, "CPU of OSD hosts"), 100.0);
}

#[test]
fn protections_cost_cpu_where_they_are() {
    let found = predict_one("protections = ['tls']\n[[workload]]\noperation = 'put'\nsize = '64k'");
    is_near(per_operation(&found, "CPU of OSD hosts"), 1_500.0);
    is_near(per_operation(&found, "threads of OSDs"), 600.0);
    assert!(found.sources.contains(&"tls put".to_owned()));
    let get =
        predict_one("protections = ['tls']\n[[workload]]\noperation = 'get'\nsize = '4m'\nredundancy = '2+2'");
    assert!(get.notes.iter().any(|note| note.contains("'tls' with a get")), "{:?}", get.notes);
    let unknown = predict("protections = ['cream']\n[[workload]]\noperation = 'put'\nsize = '64k'").unwrap_err();
    assert!(unknown.to_string().contains("knows no protection 'cream'; it knows tls"), "{unknown}");
}

#[test]
fn few_requests_in_flight_are_a_bottleneck_too() {
    let found = predict_one("[[workload]]\noperation = 'randread'\nsize = '4k'\nconcurrency = 2");
    // A round trip of 50 us, 100 us of the drive, 20 us of CPU at twice the speed.
    is_near(found.latency_floor_us, 160.0);
    is_near(found.operations_per_s, 2.0 / 160e-6);
    assert_eq!(found.bottleneck, "clients' requests in flight");
}

#[test]
fn descriptions_that_make_no_sense_are_refused() {
    let workload = "[[workload]]\noperation = 'put'\nsize = '64k'";
    for (text, words) in [
        ("", "workload"),
        ("[[workload]]\noperation = 'put'\nsize = '64q'", "not a size"),
        ("[[workload]]\noperation = 'put'\nsize = '0'", "size or concurrency 0"),
        ("[[workload]]\noperation = 'push'\nsize = '64k'", "push"),
        ("[[workload]]\noperation = 'put'\nsize = '64k'\nredundancy = '4+2'", "4+2 on 4 hosts"),
        ("[[workload]]\noperation = 'put'\nsize = '64k'\nredundancy = '4-2'", "no redundancy"),
        ("[[workload]]\noperation = 'put'\nsize = '64k'\nhosts = 4000000", "from 3 to 100000"),
        ("[[workload]]\noperation = 'put'\nsize = '64k'\nmeasured_per_s = -1", "measured"),
        ("colour = 'red'\n[[workload]]\noperation = 'put'\nsize = '64k'", "colour"),
    ] {
        let error = predict(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let parse = |from: &str, to: &str| ClusterDescription::parse("f", &cluster(workload).replace(from, to));
    for figure in ["0", "-1", "nan", "inf"] {
        let error = parse("cores_per_host = 2", &format!("cores_per_host = {figure}")).unwrap_err();
        assert!(error.to_string().contains("cores_per_host"), "{error}");
    }
    let calibration =
        |from: &str, to: &str| Calibration::parse("c", &PLAIN.replace(from, to)).unwrap_err().to_string();
    assert!(calibration("cpu_us = 22000", "cpu_us = 0").contains("make no sense"));
    assert!(calibration("cpu_factor = 1.5", "cpu_factor = inf").contains("'tls'"));
    assert!(calibration("hosts = 4", "hosts = 0").contains("hosts"));
}

#[test]
fn missing_calibration_is_named() {
    let without =
        |operation: &str| PLAIN.replace(&format!("operation = \"{operation}\""), "operation = \"randread\"");
    let text = cluster("[[workload]]\noperation = 'put'\nsize = '64k'");
    let described = ClusterDescription::parse("small", &text).unwrap();
    let error = forecast(&described, &Calibration::parse("c", &without("put")).unwrap()).unwrap_err();
    assert!(error.to_string().contains("no figures of a put"), "{error}");
    let apart = cluster(
        "[gateways]\nhosts = 1\ncores_per_host = 4\nnic_gbit_per_s = 16\n[[workload]]\noperation = 'put'\nsize = '64k'",
    );
    let described = ClusterDescription::parse("small", &apart).unwrap();
    let joint = PLAIN.replace("gateway_cpu_us = 400\n", "");
    let error = forecast(&described, &Calibration::parse("c", &joint).unwrap()).unwrap_err();
    assert!(error.to_string().contains("which part of the CPU time is the gateways'"), "{error}");
}

#[test]
fn all_that_is_built_in_works() {
    for calibration in CALIBRATIONS {
        let parsed = Calibration::parse(calibration.name, calibration.text).unwrap();
        for described in CLUSTERS {
            let cluster = ClusterDescription::parse(described.name, described.text).unwrap();
            match forecast(&cluster, &parsed) {
                Ok(found) => assert_eq!(found.predictions.len(), cluster.workloads.len()),
                Err(error) => panic!("{} with {}: {error}", described.name, calibration.name),
            }
        }
    }
    assert!(BuiltIn::find(CLUSTERS, "none").is_none());
}

#[test]
fn a_prediction_names_the_range_that_was_measured_with_its_bottleneck() {
    let found = predict_one("[[workload]]\noperation = 'get'\nsize = '4m'\nredundancy = '2+2'");
    assert!(found.bottleneck.starts_with("network"), "{}", found.bottleneck);
    let (least, most) = found.expected_per_s.unwrap();
    is_near(least, found.operations_per_s * 0.5);
    is_near(most, found.operations_per_s * 0.8);
    let wrong = PLAIN.replacen("least = 0.5", "least = 0.9", 1);
    let error = Calibration::parse("c", &wrong).unwrap_err();
    assert!(error.to_string().contains("the least first"), "{error}");
}
