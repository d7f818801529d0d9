//! The system refuses to register memory, as it does when this process may lock no more.

use std::time::Instant;

use crate::error::FabricError;
use crate::fabric::{Event, Settings};
use crate::tests::pair::{DEADLINE, End, address, connect, fabric, pattern, run, settings, way};

/// Memory of the first buffers: for sends, for receives, and for reads.
const FIRST_BUFFERS: usize = 3 * 64 * crate::message::MESSAGE_BYTES_MAX;

fn limited(registered_bytes_max: usize) -> Settings {
    Settings { registers_everything: true, registered_bytes_max, ..settings() }
}

fn assert_says_what_to_do(error: &FabricError) {
    assert!(matches!(error, FabricError::NoMemory { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("registering memory for RDMA") && text.contains("lock"), "{text}");
}

#[test]
fn without_registered_memory_no_link_is_asked_for() {
    let (Some(mut first), Some(mut second)) = (fabric(limited(0)), fabric(settings())) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    assert_says_what_to_do(&first.connect(way(bound)).unwrap_err());
    assert_eq!(first.usage().link_count, 0);
}

#[test]
fn without_registered_memory_no_link_is_accepted_and_the_peer_learns_it_soon() {
    let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(limited(0))) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    first.connect(way(bound)).unwrap();
    let (mut events, begun) = (Vec::new(), Instant::now());
    while events.is_empty() {
        assert!(begun.elapsed() < DEADLINE);
        first.poll(&mut events);
        second.poll(&mut Vec::new());
    }
    assert!(matches!(events[..], [Event::Failed(..)]), "{events:?}");
    assert_says_what_to_do(&second.take_problem().unwrap());
    assert!(second.take_problem().is_none(), "it is told once");
    assert_eq!(second.usage().link_count, 0);
}

/// This process may lock less than the first buffers: the system itself refuses them.
#[test]
fn the_limit_of_this_process_is_named() {
    if std::env::var_os("ATOLL_TEST_FABRIC_LOCKED_LITTLE").is_none() {
        eprintln!("skipped: ATOLL_TEST_FABRIC_LOCKED_LITTLE is not set, which tells that little may be locked");
        return;
    }
    let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(settings())) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    let error = first.connect(way(bound)).unwrap_err();
    assert_says_what_to_do(&error);
    assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    println!("{error}");
}

/// A side that can register its first buffers and no more sends and receives everything all the same: its data is
/// copied, and its reads pass through a registered buffer.
#[test]
fn with_little_registered_memory_everything_arrives() {
    for shares_receives in [true, false] {
        let little = Settings { shares_receives, ..limited(FIRST_BUFFERS) };
        let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(little)) else { return };
        let (asked, accepted) = connect(&mut first, &mut second);
        let (mut first, mut second) = (End::new(first, asked), End::new(second, accepted));
        let lengths = [100, 40_000, 3 << 20, 1, 1_000_001, 9000];
        for (number, length) in lengths.into_iter().enumerate() {
            first.queue(pattern(length, number));
            second.queue(pattern(length, number + 7));
        }
        let all = lengths.len();
        run(&mut first, &mut second, |first, second| first.frames.len() == all && second.frames.len() == all);
        for (number, length) in lengths.into_iter().enumerate() {
            assert!(second.frames[number] == pattern(length, number), "frame {number} to the one with little");
            assert!(first.frames[number] == pattern(length, number + 7), "frame {number} from it");
        }
        assert_says_what_to_do(&second.fabric.take_problem().unwrap());
        assert_eq!(second.fabric.usage().kept_target_bytes, 0);
        assert!(first.fabric.take_problem().is_none(), "the other side has all it needs");
    }
}

/// Registrations kept for the next read give way to current needs.
#[test]
fn kept_registrations_give_way() {
    let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(limited(FIRST_BUFFERS + (2 << 20))))
    else {
        return;
    };
    let (asked, accepted) = connect(&mut first, &mut second);
    let (mut first, mut second) = (End::new(first, asked), End::new(second, accepted));
    for round in 0..6 {
        first.queue(pattern((1 << 20) + round * 70_000, round));
        run(&mut first, &mut second, |_, second| second.frames.len() == 1);
        assert!(second.frames.pop_front().unwrap() == pattern((1 << 20) + round * 70_000, round));
    }
    assert!(second.fabric.take_problem().is_none(), "nothing was refused in the end");
}
