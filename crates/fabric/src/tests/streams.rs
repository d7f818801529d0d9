//! Bytes arrive as they were sent, however they are cut and whatever the device wants.

use std::collections::VecDeque;

use bytes::Bytes;
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::fabric::Settings;
use crate::tests::pair::{pair, pattern, run, settings};

fn random_payload(random: &mut Xoshiro256StarStar) -> Bytes {
    let bits = random.next_u32() % 21;
    let length = (random.next_u32() as usize) % (1 << bits);
    pattern(length, random.next_u32() as usize % 251)
}

fn both_ways(settings: Settings, seed: u64, count: usize) {
    let Some((mut first, mut second)) = pair(settings) else { return };
    let mut random = Xoshiro256StarStar::seed_from_u64(seed);
    let mut expected = [VecDeque::new(), VecDeque::new()];
    for number in 0..count {
        let payload = random_payload(&mut random);
        let (end, expected) = match number % 2 {
            0 => (&mut first, &mut expected[1]),
            _ => (&mut second, &mut expected[0]),
        };
        expected.push_back(payload.clone());
        end.queue(payload);
    }
    run(&mut first, &mut second, |first, second| {
        first.frames.len() == expected[0].len() && second.frames.len() == expected[1].len()
    });
    for (end, expected) in [(&first, &expected[0]), (&second, &expected[1])] {
        for (number, (arrived, sent)) in end.frames.iter().zip(expected).enumerate() {
            assert!(arrived == sent, "frame {number} of {} bytes, seed {seed}", sent.len());
        }
    }
    // The last acknowledgements give everything back.
    run(&mut first, &mut second, |first, second| {
        first.fabric.usage().referred_bytes + second.fabric.usage().referred_bytes == 0
    });
}

#[test]
fn random_pieces_arrive_as_they_were_sent() {
    for seed in 0..8 {
        both_ways(settings(), seed, 120);
    }
}

#[test]
fn they_do_without_shared_receives() {
    both_ways(Settings { shares_receives: false, ..settings() }, 100, 200);
}

#[test]
fn they_do_where_everything_must_be_registered() {
    both_ways(Settings { registers_everything: true, ..settings() }, 200, 200);
}

#[test]
fn they_do_with_little_of_everything() {
    let scarce = Settings {
        extra_grant_max: 0,
        send_buffers_max: 64,
        receive_buffers_max: 64,
        referred_bytes_max: 100_000,
        referred_bytes_total_max: 300_000,
        registers_everything: true,
        read_target_bytes_max: 200_000,
        ..settings()
    };
    both_ways(scarce, 300, 200);
}

/// A reference to a receiver that waits for no long run is copied to it.
#[test]
fn a_reference_need_not_be_awaited() {
    let Some((mut first, mut second)) = pair(settings()) else { return };
    let whole = pattern(3 << 20, 7);
    first.to_send.push_back(whole.clone());
    let mut arrived = Vec::new();
    while arrived.len() < whole.len() {
        let mut events = Vec::new();
        first.fabric.poll(&mut events);
        second.fabric.poll(&mut events);
        first.fabric.send(first.id, &mut first.to_send).unwrap();
        second.fabric.receive(second.id, &mut second.received, 32 << 10).unwrap();
        arrived.extend_from_slice(&second.received.split());
    }
    assert!(arrived == whole);
}

/// The receiver stops taking, the sender stops sending, and nothing is lost.
#[test]
fn a_receiver_that_pauses_holds_the_sender_up() {
    let Some((mut first, mut second)) = pair(settings()) else { return };
    for number in 0..200 {
        first.queue(pattern(4096, number));
    }
    for _ in 0..2000 {
        first.turn().unwrap();
        second.fabric.poll(&mut Vec::new());
    }
    let held = first.to_send.len();
    assert!(
        held > 200 * 2 - 60,
        "{held} pieces are left, so many more were taken than the first grant has room for"
    );
    run(&mut first, &mut second, |_, second| second.frames.len() == 200);
    assert!(second.frames.iter().enumerate().all(|(number, frame)| *frame == pattern(4096, number)));
}
