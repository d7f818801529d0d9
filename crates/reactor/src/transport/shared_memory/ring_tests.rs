//! The ring against a queue, between threads, and with a peer that lies.

use std::cell::Cell;
use std::collections::VecDeque;
use std::thread::Thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn ring() -> Ring {
    let (memory, _) = SharedMemory::create(4096 + RING_BYTES).unwrap();
    Ring::new(Arc::new(memory), 0, 4096)
}

fn take(consumer: &mut Consumer, count: usize, wake: impl Fn()) -> Vec<u8> {
    let mut taken = Vec::with_capacity(count);
    consumer.take(&mut taken.spare_capacity_mut()[..count], wake).unwrap();
    // SAFETY: so many bytes have been written.
    unsafe { taken.set_len(count) };
    taken
}

fn never() {
    panic!("nobody sleeps");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_come_out_as_they_went_in(steps in prop::collection::vec((any::<bool>(), any::<bool>(), 1..=RING_BYTES + 5000), 1..60)) {
        let ring = ring();
        let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring));
        let (mut queue, mut published, mut next) = (VecDeque::<u8>::new(), 0, 0_u32);
        for (is_put, is_published, count) in steps {
            if is_put {
                let bytes: Vec<u8> = (0..count as u32).map(|at| ((next + at).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
                let has_room = producer.has_room_for(count).unwrap();
                prop_assert_eq!(has_room, RING_BYTES - queue.len() >= count.min(RING_BYTES / 2));
                let pushed = producer.push(&bytes, never).unwrap();
                prop_assert_eq!(pushed, count.min(RING_BYTES - queue.len()));
                queue.extend(&bytes[..pushed]);
                next += pushed as u32;
                if is_published {
                    producer.publish(never).unwrap();
                    published = queue.len();
                }
                prop_assert!(queue.len() - (producer.produced - producer.published) as usize >= published);
                published = queue.len() - (producer.produced - producer.published) as usize;
            } else {
                let available = consumer.available().unwrap();
                prop_assert_eq!(available, published);
                let wanted = if available < count.min(RING_BYTES / 2) { 0 } else { available };
                prop_assert_eq!(consumer.available_of(count).unwrap(), wanted);
                let count = count.min(available);
                let taken = take(&mut consumer, count, never);
                prop_assert!(taken.iter().copied().eq(queue.drain(..count)));
                published -= count;
            }
        }
    }
}

/// Puts all bytes in pieces of changing lengths; sleeps whenever there is no room.
fn produce(mut producer: Producer, bytes: &[u8], consumer: &Thread) {
    let (mut at, mut piece) = (0, 1);
    while at < bytes.len() {
        let end = bytes.len().min(at + piece);
        let pushed = producer.push(&bytes[at..end], || consumer.unpark()).unwrap();
        producer.publish(|| consumer.unpark()).unwrap();
        at += pushed;
        piece = (piece * 7 + 3) % 100_003;
        let rest = bytes.len() - at;
        if pushed == 0 {
            producer.await_room(rest);
            if !producer.has_room_for(rest).unwrap() {
                sleep_until_woken();
            }
            producer.await_room(0);
        }
    }
}

fn sleep_until_woken() {
    let since = std::time::Instant::now();
    std::thread::park_timeout(Duration::from_secs(20));
    assert!(since.elapsed() < Duration::from_secs(20), "a wake-up was lost");
}

#[test]
fn sleepers_are_woken() {
    let ring = ring();
    let (producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring));
    let bytes: Vec<u8> = (0..30_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = bytes.clone();
    let own = std::thread::current();
    let thread = std::thread::spawn(move || produce(producer, &bytes, &own));
    let (mut taken, mut least) = (Vec::new(), 1);
    while taken.len() < expected.len() {
        let wanted = least.min(expected.len() - taken.len());
        let available = consumer.available_of(wanted).unwrap();
        if available > 0 {
            taken.extend(take(&mut consumer, available, || thread.thread().unpark()));
            least = (least * 11 + 1) % 400_009;
            continue;
        }
        consumer.await_bytes(wanted);
        if consumer.available_of(wanted).unwrap() == 0 {
            sleep_until_woken();
        }
        consumer.await_bytes(0);
    }
    thread.join().unwrap();
    assert!(taken == expected);
}

#[test]
fn a_sleeper_is_woken_once_and_only_when_worthwhile() {
    let ring = ring();
    let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring));
    let wake_ups = Cell::new(0);
    let wake = || wake_ups.set(wake_ups.get() + 1);
    consumer.await_bytes(1000);
    for expected in [0, 1, 1] {
        producer.push(&[7; 600], wake).unwrap();
        producer.publish(wake).unwrap();
        assert_eq!(wake_ups.get(), expected);
    }
    assert_eq!(producer.push(&vec![7; RING_BYTES], wake).unwrap(), RING_BYTES - 1800);
    producer.publish(wake).unwrap();
    producer.await_room(usize::MAX);
    for expected in [1, 2, 2] {
        consumer.available().unwrap();
        take(&mut consumer, RING_BYTES / 3, wake);
        assert_eq!(wake_ups.get(), expected);
    }
}

#[test]
fn impossible_counts_are_errors() {
    let end = RING_BYTES as u64;
    let with_words = |produced: u64, consumed: u64| {
        let ring = ring();
        let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring.clone()));
        producer.push(&[7; 100], never).unwrap();
        producer.publish(never).unwrap();
        consumer.available().unwrap();
        take(&mut consumer, 60, never);
        producer.has_room_for(RING_BYTES).unwrap();
        producer.room().unwrap();
        ring.produced().store(produced, Ordering::Relaxed);
        ring.consumed().store(consumed, Ordering::Relaxed);
        (producer.room(), consumer.available())
    };
    assert_eq!(with_words(60 + end, 100), (Ok(RING_BYTES), Ok(RING_BYTES)), "the most that can be");
    assert_eq!(with_words(100, 60), (Ok(RING_BYTES - 40), Ok(40)), "the least");
    for (produced, consumed) in [(61 + end, 101), (99, 59), (0, 0), (u64::MAX, u64::MAX), (1 << 63, 1 << 63)] {
        let (room, available) = with_words(produced, consumed);
        let (room, available) = (room.unwrap_err(), available.unwrap_err());
        assert_eq!((room.count, available.count), (consumed, produced));
        assert!(available.to_string().contains(&format!("it says that it has produced {produced} bytes")));
        assert_eq!(std::io::Error::from(room).kind(), std::io::ErrorKind::InvalidData);
    }
}
