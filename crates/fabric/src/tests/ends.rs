//! Links end: by their users, by their peers, or by force.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::FabricError;
use crate::fabric::{Event, Fabric, Settings, Way};
use crate::tests::pair::{DEADLINE, End, address, connect, connect_to, fabric, pair, pattern, run, settings, way};

/// Turns until the link reports its end.
fn end_of(end: &mut End) -> FabricError {
    let begun = Instant::now();
    loop {
        match end.turn() {
            Err(error) => return error,
            Ok(_) => assert!(begun.elapsed() < DEADLINE, "the link goes on"),
        }
    }
}

#[test]
fn data_sent_before_the_end_arrives_and_then_the_end() {
    for shares_receives in [true, false] {
        let Some((mut first, mut second)) = pair(Settings { shares_receives, ..settings() }) else { return };
        for number in 0..4 {
            first.queue(pattern(100_000 * number, number));
        }
        while !first.to_send.is_empty() {
            first.turn().unwrap();
            second.turn().unwrap();
        }
        first.fabric.finish(first.id);
        let begun = Instant::now();
        let error = loop {
            first.fabric.poll(&mut Vec::new());
            match second.turn() {
                Err(error) => break error,
                Ok(_) => assert!(begun.elapsed() < DEADLINE),
            }
        };
        assert!(matches!(error, FabricError::Ended), "{error}");
        assert_eq!(second.frames.len(), 4);
        assert!(
            second.frames.iter().enumerate().all(|(number, frame)| *frame == pattern(100_000 * number, number))
        );
        assert_eq!(first.fabric.usage().link_count, 0);
        second.fabric.close(second.id);
        let usage = second.fabric.usage();
        assert_eq!((usage.link_count, usage.granted, usage.referred_bytes), (0, 0, 0));
    }
}

/// A piece for the peer to read belongs to the link until the link is closed, and then to its sender alone.
#[test]
fn a_piece_that_was_not_read_is_free_when_the_link_is_closed() {
    let Some((mut first, second)) = pair(settings()) else { return };
    let piece = pattern(1 << 20, 1);
    first.to_send.push_back(piece.clone());
    first.turn().unwrap();
    assert_eq!(first.fabric.usage().referred_bytes, 1 << 20);
    assert!(!piece.is_unique(), "the link has it");
    first.fabric.close(first.id);
    assert!(piece.is_unique(), "nobody else has it any more");
    assert_eq!(first.fabric.usage().referred_bytes, 0);
    drop(second);
}

/// A link that ends in the middle of transfers both ways leaves every buffer to its owner, for either closing side
/// and any pending operation.
#[test]
fn a_link_that_ends_in_mid_transfer_leaves_every_buffer_to_its_owner() {
    for turns in 0..24 {
        let registered = Settings { registers_everything: turns % 2 == 0, ..settings() };
        let Some((mut first, mut second)) = pair(registered) else { return };
        let pieces: Vec<Bytes> = (1..7).map(|number| pattern(300_000 * number, number)).collect();
        for piece in &pieces {
            first.queue(piece.clone());
            second.queue(piece.clone());
        }
        for _ in 0..turns {
            first.turn().unwrap();
            second.turn().unwrap();
        }
        let (mut first, mut second) = if turns % 3 == 0 { (second, first) } else { (first, second) };
        first.fabric.close(first.id);
        end_of(&mut second);
        second.fabric.close(second.id);
        for end in [&mut first, &mut second] {
            end.to_send.clear();
            let device = &end.fabric.devices[0];
            assert_eq!(device.sends.free_count(), device.sends.count(), "after {turns} turns");
            assert_eq!(
                device.receives.free_count() + device.posted,
                device.receives.count(),
                "after {turns} turns"
            );
            assert_eq!(end.fabric.usage().referred_bytes, 0);
        }
        assert!(pieces.iter().all(Bytes::is_unique), "after {turns} turns: nobody else has a piece");
        // The next link has the same buffers, into which nothing of the last one comes any more.
        let (asked, accepted) = connect(&mut first.fabric, &mut second.fabric);
        let (mut first, mut second) = (End::new(first.fabric, asked), End::new(second.fabric, accepted));
        first.queue(pattern(700_000, turns));
        run(&mut first, &mut second, |_, second| second.frames.len() == 1);
        assert!(second.frames[0] == pattern(700_000, turns));
    }
}

#[test]
fn a_peer_that_is_not_there_is_an_error() {
    let Some(mut fabric) = fabric(settings()) else { return };
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind(address(0)).unwrap().local_addr().unwrap();
    let id = fabric.connect(way(port)).unwrap();
    let begun = Instant::now();
    loop {
        let mut events = Vec::new();
        fabric.poll(&mut events);
        match events.pop() {
            Some(Event::Failed(failed, error)) => {
                assert_eq!(failed, id);
                let error = std::io::Error::from(error);
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
                break;
            }
            Some(other) => panic!("{other:?}"),
            None => assert!(begun.elapsed() < DEADLINE),
        }
    }
    assert_eq!(fabric.usage().link_count, 0);
}

/// A peer that listens and never answers, because its fabric is not polled.
#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let impatient = Settings { patience: Duration::from_millis(300), ..settings() };
    let (Some(mut silent), Some(mut fabric)) = (fabric(settings()), fabric(impatient)) else { return };
    let (_, bound) = silent.listen(address(0)).unwrap();
    fabric.connect(way(bound)).unwrap();
    let begun = Instant::now();
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(fabric.deadline().is_some() && begun.elapsed() < DEADLINE);
        fabric.poll(&mut events);
    }
    assert!(matches!(events[..], [Event::Failed(_, FabricError::TimedOut)]), "{events:?}");
}

/// A device that is removed takes its links along, and all that the process has of it. The listener listens again when
/// a device has its address.
#[test]
fn a_device_that_goes_ends_its_links_and_may_come_back() {
    let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(settings())) else { return };
    let (listener, bound) = second.listen(address(0)).unwrap();
    let (asked, accepted) = connect_to(&mut first, &mut second, bound);
    let gone = || FabricError::Failed { what: "connecting over RDMA", code: libc::ENODEV, text: "none".into() };
    let of_link = second.links[&accepted].endpoint.as_ref().unwrap().number();
    let of_listener = second.listeners[&listener].endpoint.as_ref().unwrap().number();
    for endpoint in [of_link, of_listener] {
        second.endpoint_failed(endpoint, gone(), &mut Vec::new());
    }
    assert!(second.take_changed().contains(&accepted));
    let mut second = End::new(second, accepted);
    assert!(end_of(&mut second).to_string().contains("fails"));
    let usage = second.fabric.usage();
    assert_eq!((usage.message_bytes, usage.posted, usage.granted), (0, 0, 0));
    second.fabric.close(accepted);
    assert!(!second.fabric.is_released() && second.fabric.deadline().is_some());
    second.fabric.poll(&mut Vec::new());
    assert!(second.fabric.is_released(), "the library keeps devices as long as it is loaded");
    end_of(&mut End::new(std::mem::replace(&mut first, fabric(settings()).unwrap()), asked));

    let (mut second, begun) = (second.fabric, Instant::now());
    while second.listeners[&listener].endpoint.is_none() {
        assert!(second.deadline().is_some() && begun.elapsed() < DEADLINE, "it does not listen again");
        second.poll(&mut Vec::new());
    }
    let (asked, accepted) = connect_to(&mut first, &mut second, bound);
    let (mut first, mut second) = (End::new(first, asked), End::new(second, accepted));
    first.queue(pattern(300_000, 3));
    run(&mut first, &mut second, |_, second| second.frames.len() == 1);
}

#[test]
fn a_provider_that_does_not_exist_is_named() {
    if fabric(settings()).is_none() {
        return;
    }
    let error = Way::find("no-such", "127.0.0.1:1".parse().unwrap()).err().unwrap().to_string();
    assert!(error.contains("'no-such'") && error.contains("fi_info"), "{error}");
}

/// The peer of [`a_peer_that_is_killed_in_a_transfer_leaves_nothing_behind`], in a process of its own.
#[test]
fn child_that_sends_until_it_is_killed() {
    let Ok(peer) = std::env::var("ATOLL_TEST_FABRIC_PEER") else { return };
    let mut fabric = Fabric::open(settings()).unwrap();
    let id = fabric.connect(way(peer.parse().unwrap())).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        fabric.poll(&mut events);
    }
    assert!(matches!(events[..], [Event::Connected(_)]), "{events:?}");
    let mut end = End::new(fabric, id);
    let payload = Bytes::from(vec![7; 1 << 20]);
    loop {
        while end.to_send.len() < 64 {
            end.queue(payload.clone());
        }
        end.turn().unwrap();
    }
}

#[test]
fn a_peer_that_is_killed_in_a_transfer_leaves_nothing_behind() {
    let Some(mut fabric) = fabric(settings()) else { return };
    let (_, bound) = fabric.listen(address(0)).unwrap();
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["tests::ends::child_that_sends_until_it_is_killed", "--exact"])
            .env("ATOLL_TEST_FABRIC_PEER", bound.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let mut events = Vec::new();
        while events.is_empty() {
            assert!(begun.elapsed() < DEADLINE);
            fabric.poll(&mut events);
        }
        let Some(Event::Accepted { link, .. }) = events.pop() else { panic!() };
        let mut end = End::new(fabric, link);
        while end.frames.len() < 3 + round {
            end.turn().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let error = end_of(&mut end);
        assert!(!matches!(error, FabricError::Peer(_)), "{error}");
        assert!(end.frames.iter().all(|frame| frame.len() == 1 << 20 && frame.iter().all(|byte| *byte == 7)));
        end.fabric.close(end.id);
        fabric = end.fabric;
        let usage = fabric.usage();
        assert_eq!((usage.link_count, usage.granted, usage.referred_bytes), (0, 0, 0));
    }
    // The next peer finds everything as it was.
    let mut other = Fabric::open(settings()).unwrap();
    let (asked, accepted) = connect(&mut other, &mut fabric);
    let (mut first, mut second) = (End::new(other, asked), End::new(fabric, accepted));
    first.queue(pattern(300_000, 3));
    run(&mut first, &mut second, |_, second| second.frames.len() == 1);
}
