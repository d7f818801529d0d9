//! What links may take is bounded.

use crate::fabric::{Fabric, Settings};
use crate::message::MESSAGE_BYTES_MAX;
use crate::tests::pair::{End, connect_to, fabric, pair, pattern, run, settings};

/// Many links that have been busy, one after the other, with the memory that few need.
#[test]
fn many_links_share_their_receives() {
    const LINKS: usize = 256;
    let settings = Settings { links_max: LINKS, ..settings() };
    let (Some(mut first), Some(mut second)) = (fabric(settings.clone()), fabric(settings)) else { return };
    let (_, address) = second.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut links = Vec::new();
    for _ in 0..LINKS {
        links.push(connect_to(&mut first, &mut second, address));
    }
    let idle = second.usage();
    assert_eq!((idle.link_count, idle.granted), (LINKS, 4 * LINKS));
    assert!(idle.message_bytes <= (4 * LINKS + 64) * MESSAGE_BYTES_MAX, "{idle:?}");
    println!("an idle link takes {} bytes of registered memory", idle.message_bytes / LINKS);

    // One more is turned away, and that does no harm.
    let _ = first.connect(address);
    let (mut first, mut second) = (first, second);
    for &(asked, accepted) in links.iter().step_by(16) {
        let (mut sender, mut receiver) = (End::new(first, asked), End::new(second, accepted));
        for number in 0..50 {
            sender.queue(pattern(6000, number));
        }
        run(&mut sender, &mut receiver, |_, receiver| receiver.frames.len() == 50);
        (first, second) = (sender.fabric, receiver.fabric);
    }
    let busy = second.usage();
    assert!(busy.granted <= 4 * LINKS + 16 * 28, "{busy:?}");
    for (asked, accepted) in links {
        first.close(asked);
        second.close(accepted);
    }
    assert_eq!(second.usage().granted, 0);
}

#[test]
fn without_memory_for_one_more_link_it_is_refused() {
    let few = Settings { receive_buffers_max: 64, links_max: 100, ..settings() };
    let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(few)) else { return };
    let (_, address) = second.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    for _ in 0..16 {
        connect_to(&mut first, &mut second, address);
    }
    first.connect(address).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        first.poll(&mut events);
        second.poll(&mut Vec::new());
    }
    assert!(matches!(events[..], [crate::fabric::Event::Failed(..)]), "{events:?}");
    assert_eq!(second.usage().link_count, 16);
}

#[test]
fn registrations_are_kept_up_to_a_limit() {
    const LIMIT: usize = 1 << 20;
    let registered = Settings {
        registers_everything: true,
        read_target_bytes_max: LIMIT,
        reference_bytes_min: 16 << 10,
        ..settings()
    };
    let Some((mut first, mut second)) = pair(registered) else { return };
    for round in 0..5 {
        for number in 0..12 {
            first.queue(pattern((32 << 10) + number * 40_000, round));
        }
        // One is larger than all that may be kept.
        first.queue(pattern(3 << 20, round));
        run(&mut first, &mut second, |_, second| second.frames.len() == 13);
        for (number, frame) in second.frames.drain(..).enumerate() {
            let length = if number == 12 { 3 << 20 } else { (32 << 10) + number * 40_000 };
            assert!(frame == pattern(length, round), "frame {number} of round {round}");
        }
        let kept = second.fabric.usage().kept_target_bytes;
        assert!(kept <= LIMIT && kept > 0, "{kept}");
    }
}

/// What peers may read at one time is bounded for each link; more waits, and nothing is copied in its place.
#[test]
fn references_are_bounded() {
    let Some((mut first, mut second)) = pair(Settings { referred_bytes_max: 1 << 20, ..settings() }) else {
        return;
    };
    for number in 0..20 {
        first.queue(pattern(400_000, number));
    }
    for _ in 0..100 {
        first.turn().unwrap();
        assert!(first.fabric.usage().referred_bytes <= 1 << 20);
    }
    assert!(!first.to_send.is_empty() && !first.fabric.has_room(first.id));
    run(&mut first, &mut second, |first, second| {
        assert!(first.fabric.usage().referred_bytes <= 1 << 20);
        second.frames.len() == 20
    });
}

/// What all peers together may read is bounded, too; beyond it bytes are copied, so nobody waits for another's peer.
#[test]
fn beyond_the_bound_of_all_links_bytes_are_copied() {
    let Some((mut first, mut second)) = pair(Settings { referred_bytes_total_max: 0, ..settings() }) else {
        return;
    };
    first.queue(pattern(1 << 20, 4));
    run(&mut first, &mut second, |first, second| {
        assert_eq!(first.fabric.usage().referred_bytes, 0);
        second.frames.len() == 1
    });
    assert_eq!(second.frames[0], pattern(1 << 20, 4));
}

/// A loop that sleeps on the descriptor is woken for everything.
#[test]
fn the_descriptor_wakes_a_sleeper() {
    if fabric(settings()).is_none() {
        return;
    }
    let (tell, told) = std::sync::mpsc::channel();
    let echo = std::thread::spawn(move || {
        let mut fabric = Fabric::open(settings()).unwrap();
        let (_, address) = fabric.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        tell.send(address).unwrap();
        let link = wait_for_link(&mut fabric);
        let mut end = End::new(fabric, link);
        while end.turn().is_ok() {
            while let Some(frame) = end.frames.pop_front() {
                end.queue(frame.into());
            }
            sleep(&end);
        }
    });
    let mut fabric = Fabric::open(settings()).unwrap();
    fabric.connect(told.recv().unwrap()).unwrap();
    let link = wait_for_link(&mut fabric);
    let mut end = End::new(fabric, link);
    for round in 0..60 {
        let length = if round % 3 == 0 { 300_000 } else { 4096 };
        end.queue(pattern(length, round));
        while end.frames.is_empty() {
            end.turn().unwrap();
            sleep(&end);
        }
        assert!(end.frames.pop_front().unwrap() == pattern(length, round));
    }
    drop(end);
    echo.join().unwrap();
}

/// Sleeps until the descriptor wakes; what does not wake it ends the test.
fn sleep(end: &End) {
    if !end.frames.is_empty() || !end.fabric.may_wait() || end.fabric.has_news(end.id) {
        return;
    }
    if !end.to_send.is_empty() && end.fabric.has_room(end.id) {
        return;
    }
    wait(&end.fabric);
}

fn wait(fabric: &Fabric) {
    let descriptor = fabric.descriptor();
    let mut descriptors = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    let woken = rustix::event::poll(&mut descriptors, Some(&timeout)).unwrap();
    assert!(woken > 0, "nothing wakes the sleeper: {:?}", fabric.usage());
}

fn wait_for_link(fabric: &mut Fabric) -> crate::fabric::LinkId {
    let mut events = Vec::new();
    loop {
        fabric.poll(&mut events);
        match events.pop() {
            Some(crate::fabric::Event::Accepted { link, .. } | crate::fabric::Event::Connected(link)) => {
                return link;
            }
            Some(other) => panic!("{other:?}"),
            None if fabric.may_wait() => wait(fabric),
            None => {}
        }
    }
}
