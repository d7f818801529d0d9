//! Measurements of the way to a peer, and their meaning.

use super::JUMBO_BYTES;
use super::path_mtu::LimitedBy;
use super::probe::{Measured, RoundTrip};
use crate::finding::{Finding, Verdict};

/// Between hosts in one rack with C-states and governor as they should be.
const ROUND_TRIP_US_OK: f64 = 100.0;
/// Above this value operations wait mostly for the network.
const ROUND_TRIP_US_MUCH: f64 = 500.0;
const CLOCK_MS_OK: f64 = 100.0;
/// S3 clients' signatures and certificates' dates bear some minutes.
const CLOCK_MS_MAX: f64 = 60_000.0;
const MTU_USUAL_BYTES: u32 = 1_500;

pub(super) fn findings(measured: &Measured) -> Vec<Finding> {
    vec![round_trip(&measured.round_trip), path(measured), clock(measured.clock_ahead_ms)]
}

fn round_trip(trip: &RoundTrip) -> Finding {
    let found = format!(
        "round trip of 64 bytes over TCP: least {:.0} us, median {:.0} us, p99 {:.0} us ({} times, one at a time)",
        trip.min_us, trip.p50_us, trip.p99_us, trip.count
    );
    let finding = |verdict, meaning: &str| {
        Finding::new("network.round_trip", verdict, found.clone(), meaning)
            .figure("min_us", trip.min_us)
            .figure("p50_us", trip.p50_us)
            .figure("p99_us", trip.p99_us)
    };
    if trip.p50_us <= ROUND_TRIP_US_OK {
        return finding(
            Verdict::Ok,
            "a write waits for two of these, one after the other (client to primary, primary to the others), a read for one",
        );
    }
    let fix = "C-states and governor first (see cpu.*, on both hosts and on a virtual machine's host); then the \
        card's interrupt moderation ('ethtool -C CARD adaptive-rx off rx-usecs 0') and the devices in between";
    if trip.p50_us <= ROUND_TRIP_US_MUCH {
        let meaning =
            "a write waits for two of these, one after the other: good networks need a half or a third of it";
        return finding(Verdict::Advice, meaning).fix(fix);
    }
    let meaning = "a write waits for two of these, one after the other: operations at depth 1 wait for the network more than \
                   for anything else. Hosts this far apart belong to different clusters";
    finding(Verdict::Warning, meaning).fix(fix)
}

fn path(measured: &Measured) -> Finding {
    let check = "network.path_mtu";
    let Some(path) = measured.path else {
        let meaning = "how large packets to this peer may be is not known";
        return Finding::new(check, Verdict::NotVisible, "no datagram is answered", meaning)
            .fix("let UDP of the responder's port through the firewalls of both hosts");
    };
    let (bytes, believed) = (path.bytes, measured.believed_bytes);
    let finding = |verdict, found: String, meaning: &str| {
        Finding::new(check, verdict, found, meaning)
            .figure("path_mtu_bytes", f64::from(bytes))
            .figure("believed_mtu_bytes", f64::from(believed))
    };
    if path.limited_by == LimitedBy::Path && believed > bytes {
        let found = format!(
            "packets of up to {bytes} bytes get through (don't-fragment probes, there and back), but this host believes in \
             {believed}"
        );
        let meaning = "larger packets are dropped silently, so connections stall as soon as data flows: hosts or switches \
                       disagree on the MTU";
        return finding(Verdict::Problem, found, meaning).fix(format!(
            "the same MTU on all hosts, bridges and switch ports between them; until then: ip link set CARD mtu {bytes}"
        ));
    }
    let found = format!("packets of up to {bytes} bytes get through (don't-fragment probes, there and back)");
    if path.limited_by == LimitedBy::Path {
        let meaning = "less than this host's card sends; a router has informed the kernel, which cuts TCP to \
            fit. The router's message may be lost next time";
        return finding(Verdict::Warning, found, meaning)
            .fix("the same MTU on all hosts, bridges and switch ports of the storage network");
    }
    if bytes >= JUMBO_BYTES {
        return finding(Verdict::Ok, found, "jumbo frames get through");
    }
    if bytes < MTU_USUAL_BYTES {
        let meaning =
            "less than usual (1500): a tunnel or an overlay on the way takes its part of each packet, and CPU";
        return finding(Verdict::Advice, found, meaning).fix(
            "a storage network without tunnels, with jumbo frames if its switches can: ip link set CARD mtu 9000",
        );
    }
    let meaning = "all that this host's card sends; jumbo frames (9000), which save CPU, are not set up here";
    finding(Verdict::Advice, found, meaning)
        .fix("ip link set CARD mtu 9000, on all hosts and switches of the storage network; then check again")
}

fn clock(ahead_ms: f64) -> Finding {
    let direction = if ahead_ms < 0.0 { "behind" } else { "ahead of" };
    let found = format!("its clock is {:.1} ms {direction} this host's", ahead_ms.abs());
    let finding = |verdict, meaning: &str| {
        Finding::new("network.clock", verdict, found.clone(), meaning).figure("clock_ahead_ms", ahead_ms)
    };
    let fix = "apt install chrony on both hosts; 'chronyc makestep' sets a clock right at once";
    if ahead_ms.abs() <= CLOCK_MS_OK {
        return finding(Verdict::Ok, "logs of both hosts can be read side by side");
    }
    if ahead_ms.abs() <= CLOCK_MS_MAX {
        let meaning =
            "Atoll's leases count time that has passed and bear it; logs of both hosts do not fit together";
        return finding(Verdict::Warning, meaning).fix(fix);
    }
    finding(
        Verdict::Problem,
        "S3 signatures, presigned URLs and certificates are valid on one host and not on the other",
    )
    .fix(fix)
}

#[cfg(test)]
mod tests {
    use super::super::path_mtu::PathMtu;
    use super::*;

    fn trip(p50_us: f64) -> RoundTrip {
        RoundTrip { count: 10, min_us: p50_us / 2.0, p50_us, p99_us: p50_us * 2.0 }
    }

    #[test]
    fn long_ways_are_a_warning() {
        assert_eq!(round_trip(&trip(60.0)).verdict, Verdict::Ok);
        assert_eq!(round_trip(&trip(300.0)).verdict, Verdict::Advice);
        assert_eq!(round_trip(&trip(2_000.0)).verdict, Verdict::Warning);
        assert_eq!(round_trip(&trip(60.0)).figures["p99_us"], 120.0);
    }

    fn of_path(path: Option<(u32, LimitedBy)>, believed_bytes: u32) -> Verdict {
        let path = path.map(|(bytes, limited_by)| PathMtu { bytes, limited_by });
        super::path(&Measured { round_trip: trip(1.0), clock_ahead_ms: 0.0, path, believed_bytes }).verdict
    }

    #[test]
    fn packets_that_vanish_are_a_problem() {
        assert_eq!(of_path(Some((9_000, LimitedBy::Interface)), 9_000), Verdict::Ok);
        assert_eq!(of_path(Some((1_500, LimitedBy::Interface)), 1_500), Verdict::Advice);
        assert_eq!(of_path(Some((1_400, LimitedBy::Interface)), 1_400), Verdict::Advice);
        assert_eq!(of_path(Some((1_500, LimitedBy::Path)), 1_500), Verdict::Warning);
        assert_eq!(of_path(Some((1_500, LimitedBy::Path)), 9_000), Verdict::Problem);
        assert_eq!(of_path(None, 1_500), Verdict::NotVisible);
    }

    #[test]
    fn clocks_should_agree() {
        assert_eq!(clock(3.0).verdict, Verdict::Ok);
        assert_eq!(clock(-3_000.0).verdict, Verdict::Warning);
        assert!(clock(-3_000.0).found.contains("3000.0 ms behind"));
        assert_eq!(clock(-300_000.0).verdict, Verdict::Problem);
    }
}
