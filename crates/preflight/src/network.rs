//! The network: this host's cards, and the way to other hosts on which a [`Responder`] answers.

mod judge;
mod path_mtu;
mod peer_address;
mod probe;
mod protocol;
mod responder;

use crate::facts::Facts;
use crate::finding::{Finding, Verdict};
use crate::request::{Request, Stop};

pub use peer_address::PeerAddress;
pub use protocol::PORT_DEFAULT;
pub use responder::{Responder, ResponderLimits};

/// A link below this speed is felt; in megabits a second.
const SPEED_MBIT_WANTED: i64 = 10_000;
/// Size of jumbo frames.
pub(crate) const JUMBO_BYTES: u32 = 9_000;

/// Network cards, real or virtual: no loopback, bridges and the like.
pub(crate) fn interfaces(facts: &Facts) -> Vec<String> {
    let mut names = facts.names("sys/class/net");
    names.retain(|name| facts.exists(&format!("sys/class/net/{name}/device")));
    names
}

/// Returns the kernel's facts about this host's cards that are up.
pub(crate) fn card_findings(facts: &Facts) -> Vec<Finding> {
    let is_up = |name: &String| facts.text(&format!("sys/class/net/{name}/operstate")).as_deref() == Some("up");
    let cards: Vec<String> = interfaces(facts).into_iter().filter(is_up).collect();
    if cards.is_empty() {
        let meaning = "the speed of the network is not known; measure it between two hosts, with iperf3 for one";
        return vec![Finding::not_visible("network.card", meaning)];
    }
    cards.iter().flat_map(|card| [speed(facts, card).on(card), mtu(facts, card).on(card)]).collect()
}

fn speed(facts: &Facts, card: &str) -> Finding {
    let check = "network.speed";
    // Virtual cards say -1, or refuse to be read.
    let Some(mbit) = facts.number(&format!("sys/class/net/{card}/speed")).filter(|mbit| *mbit > 0) else {
        return Finding::not_visible(check, "how fast the link is, is not known; measure it with iperf3");
    };
    let found = format!("{} Gbit/s", mbit as f64 / 1e3);
    let megabytes = mbit / 8;
    let finding = |verdict, meaning: String| {
        Finding::new(check, verdict, found.clone(), meaning).figure("speed_mbit_per_s", mbit as f64)
    };
    if mbit >= SPEED_MBIT_WANTED {
        return finding(Verdict::Ok, format!("at most {megabytes} MB/s in each direction"));
    }
    finding(
        Verdict::Warning,
        format!(
            "at most {megabytes} MB/s in each direction; a primary with three copies needs twice its clients' \
             write rate: the network is slower than one flash drive"
        ),
    )
    .fix(format!("a card, cable and switch port of 10 Gbit/s or more; 'ethtool {card}' shows the negotiated rate"))
}

fn mtu(facts: &Facts, card: &str) -> Finding {
    let check = "network.mtu";
    let Some(bytes) = facts.number(&format!("sys/class/net/{card}/mtu")) else {
        return Finding::not_visible(check, "the largest packet of the card is not known");
    };
    let found = format!("packets of up to {bytes} bytes");
    let finding = |verdict, meaning: &str| {
        Finding::new(check, verdict, found.clone(), meaning).figure("mtu_bytes", bytes as f64)
    };
    if bytes >= i64::from(JUMBO_BYTES) {
        return finding(Verdict::Ok, "jumbo frames, if the whole path carries them: --peer measures it");
    }
    finding(
        Verdict::Advice,
        "jumbo frames (9000) need fewer packets for the same data, which saves CPU on both ends",
    )
    .fix(format!(
        "ip link set {card} mtu 9000, on all hosts and switches of the storage network; then check with --peer"
    ))
}

/// Everything about the way to one peer.
pub(crate) fn peer_findings(peer: &PeerAddress, request: &Request, stop: &Stop) -> Vec<Finding> {
    let subject = peer.to_string();
    let measured = peer.resolve().and_then(|address| probe::measure(address, request.duration, stop));
    match measured {
        Ok(measured) => judge::findings(&measured).into_iter().map(|finding| finding.on(&subject)).collect(),
        Err(error) => vec![
            Finding::new(
                "network.peer",
                Verdict::Problem,
                format!("no answer: {error}"),
                "hosts of one cluster must reach each other",
            )
            .on(&subject)
            .fix(format!(
                "on the peer: atoll preflight --listen {}; and let TCP and UDP of that port through its firewall",
                match peer.port {
                    PORT_DEFAULT => "ITS-ADDRESS".to_owned(),
                    port => format!("ITS-ADDRESS:{port}"),
                }
            )),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;
    use std::time::Duration;

    #[test]
    fn peers_have_ports() {
        let of = |text: &str| text.parse::<PeerAddress>().map(|peer| (peer.host, peer.port));
        assert_eq!(of("a.example"), Ok(("a.example".into(), PORT_DEFAULT)));
        assert_eq!(of("10.0.0.1:99"), Ok(("10.0.0.1".into(), 99)));
        assert_eq!(of("[fd00::1]:99"), Ok(("fd00::1".into(), 99)));
        assert_eq!(of("[fd00::1]"), Ok(("fd00::1".into(), PORT_DEFAULT)));
        assert_eq!(of("fd00::1"), Ok(("fd00::1".into(), PORT_DEFAULT)));
        for bad in ["", ":99", "a:", "a:0", "a:70000", "[fd00::1", "[fd00::1]99"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    fn verdict(name: &str, text: &str, check: fn(&Facts, &str) -> Finding) -> Verdict {
        let (_keep, facts) = facts_of(&[(&format!("sys/class/net/eth0/{name}"), text)]);
        check(&facts, "eth0").verdict
    }

    #[test]
    fn slow_links_are_a_warning() {
        assert_eq!(verdict("speed", "25000", speed), Verdict::Ok);
        assert_eq!(verdict("speed", "1000", speed), Verdict::Warning);
        assert_eq!(verdict("speed", "-1", speed), Verdict::NotVisible);
        assert_eq!(verdict("mtu", "9000", mtu), Verdict::Ok);
        assert_eq!(verdict("mtu", "1500", mtu), Verdict::Advice);
        assert_eq!(verdict("other", "1500", mtu), Verdict::NotVisible);
    }

    #[test]
    fn cards_that_are_up_are_looked_at() {
        let of = |name: &str, file: &str| format!("sys/class/net/{name}/{file}");
        let (_keep, facts) = facts_of(&[
            (&of("lo", "operstate"), "unknown"),
            (&of("eth0", "operstate"), "up"),
            (&of("eth0", "device/x"), ""),
            (&of("eth1", "operstate"), "down"),
            (&of("eth1", "device/x"), ""),
        ]);
        let subjects: Vec<Option<String>> = card_findings(&facts).into_iter().map(|found| found.subject).collect();
        assert_eq!(subjects, [Some("eth0".into()), Some("eth0".into())]);
        let (_keep, facts) = facts_of(&[(&of("lo", "operstate"), "unknown")]);
        assert_eq!(card_findings(&facts)[0].verdict, Verdict::NotVisible);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_a_problem() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let peer = format!("127.0.0.1:{port}").parse().unwrap();
        let request = Request { duration: Duration::from_millis(50), ..Request::default() };
        let findings = peer_findings(&peer, &request, &Stop::default());
        assert_eq!(findings[0].verdict, Verdict::Problem);
        assert!(findings[0].fix.as_ref().unwrap().contains("--listen"));
    }
}
