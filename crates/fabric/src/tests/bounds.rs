//! The resources of links are bounded.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use atoll_buffers::Received;

use crate::fabric::{Fabric, Settings};
use crate::message::MESSAGE_BYTES_MAX;
use crate::tests::pair::{DEADLINE, End, address, connect_to, fabric, pair, pattern, run, settings, way};

/// Many links that have been busy, one after the other, with the memory that few need.
#[test]
fn many_links_share_their_receives() {
    const LINKS: usize = 256;
    let settings = Settings { links_max: LINKS, ..settings() };
    let (Some(mut first), Some(mut second)) = (fabric(settings.clone()), fabric(settings)) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    let (mut links, resident_before) = (Vec::new(), resident_bytes());
    for _ in 0..LINKS {
        links.push(connect_to(&mut first, &mut second, bound));
    }
    let idle = second.usage();
    assert_eq!((idle.link_count, idle.granted), (LINKS, 4 * LINKS));
    assert!(idle.message_bytes <= 4 * LINKS * MESSAGE_BYTES_MAX + SLACK_BYTES, "{idle:?}");
    println!("an idle link takes {} bytes of registered memory", idle.message_bytes / LINKS);
    // Where this test is alone in its process: both ends are in it.
    let resident = resident_bytes().saturating_sub(resident_before) / (2 * LINKS);
    println!("an end of an idle link takes {resident} bytes of resident memory, those included");

    // One more is turned away, and that does no harm.
    let _ = first.connect(way(bound));
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

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The largest number of links of a process, which all send something, in the documented memory.
#[test]
fn a_process_has_4096_links() {
    const LINKS: usize = 4096;
    if !may_open(3 * LINKS as u64) {
        return;
    }
    let settings = Settings { links_max: LINKS, ..settings() };
    let (Some(mut first), Some(mut second)) = (fabric(settings.clone()), fabric(settings)) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    let links: Vec<_> = (0..LINKS).map(|_| connect_to(&mut first, &mut second, bound)).collect();
    let idle = second.usage();
    assert!(idle.message_bytes <= 4 * LINKS * MESSAGE_BYTES_MAX + SLACK_BYTES, "{idle:?}");
    second.take_changed();

    const BYTES: usize = 1000;
    let mut queues = vec![VecDeque::from([pattern(BYTES, 7)]); LINKS];
    let mut bytes_by_link: HashMap<_, usize> = HashMap::new();
    let (begun, mut polls) = (Instant::now(), 0);
    while bytes_by_link.values().sum::<usize>() < LINKS * BYTES {
        assert!(begun.elapsed() < 3 * DEADLINE, "{:?}", second.usage());
        for ((asked, _), queue) in links.iter().zip(&mut queues).filter(|(_, queue)| !queue.is_empty()) {
            first.send(*asked, queue).unwrap();
        }
        first.poll(&mut Vec::new());
        second.poll(&mut Vec::new());
        polls += 1;
        for id in second.take_changed() {
            let mut received = Received::default();
            *bytes_by_link.entry(id).or_default() += second.receive(id, &mut received, 1 << 20).unwrap();
        }
    }
    assert!(links.iter().all(|(_, accepted)| bytes_by_link[accepted] == BYTES));
    let busy = second.usage();
    println!(
        "{LINKS} links: {idle:?}, after a message of each, in {polls} polls and {:?}: {busy:?}",
        begun.elapsed()
    );
    assert!(busy.message_bytes <= 4 * LINKS * MESSAGE_BYTES_MAX + SLACK_BYTES + SENDS_BYTES, "{busy:?}");
}

/// Memory beyond need that is made in one piece: the first buffers for sends, and for reads into buffers of the
/// pool.
const SLACK_BYTES: usize = 128 * MESSAGE_BYTES_MAX;
/// All buffers for sends.
const SENDS_BYTES: usize = 1024 * MESSAGE_BYTES_MAX;

/// Returns true if this process may have `count` files open.
fn may_open(count: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limit }).is_ok()
}

#[test]
fn without_memory_for_one_more_link_it_is_refused() {
    let few = Settings { receive_buffers_max: 64, links_max: 100, ..settings() };
    let (Some(mut first), Some(mut second)) = (fabric(settings()), fabric(few)) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    for _ in 0..16 {
        connect_to(&mut first, &mut second, bound);
    }
    first.connect(way(bound)).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        first.poll(&mut events);
        second.poll(&mut Vec::new());
    }
    assert!(matches!(events[..], [crate::fabric::Event::Failed(..)]), "{events:?}");
    assert_eq!(second.usage().link_count, 16);
}

/// Both sides have memory for the first messages of all links and no more, which busy links use up. Each has much to
/// send to the other on all links, and all of it arrives.
#[test]
fn two_sides_without_memory_for_more_receives_progress() {
    for shares_receives in [true, false] {
        const LINKS: usize = 16;
        let few = Settings { receive_buffers_max: 4 * LINKS, links_max: 100, shares_receives, ..settings() };
        let (Some(mut first), Some(mut second)) = (fabric(few.clone()), fabric(few)) else { return };
        let (_, bound) = second.listen(address(0)).unwrap();
        let links: Vec<_> = (0..LINKS).map(|_| connect_to(&mut first, &mut second, bound)).collect();
        const BYTES: usize = 600_000;
        let queue = || VecDeque::from_iter((0..200).map(|number| pattern(BYTES / 200, number)));
        let mut queues: Vec<_> = links.iter().map(|_| [queue(), queue()]).collect();
        let mut received = vec![[0, 0]; LINKS];
        let begun = Instant::now();
        while received.iter().flatten().sum::<usize>() < 2 * LINKS * BYTES {
            let usage = (first.usage(), second.usage());
            assert!(begun.elapsed() < DEADLINE, "nothing moves: {received:?}, {usage:?}");
            first.poll(&mut Vec::new());
            second.poll(&mut Vec::new());
            for (index, (asked, accepted)) in links.iter().enumerate() {
                first.send(*asked, &mut queues[index][0]).unwrap();
                second.send(*accepted, &mut queues[index][1]).unwrap();
                let mut buffer = Received::default();
                received[index][0] += first.receive(*asked, &mut buffer, 32 << 10).unwrap();
                received[index][1] += second.receive(*accepted, &mut buffer, 32 << 10).unwrap();
            }
        }
    }
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

/// The bytes that peers may read at one time are bounded for each link; more waits, and nothing is copied in its
/// place.
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

/// The bytes that all peers together may read are bounded, too; beyond it bytes are copied, so no link waits for
/// another's peer.
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

/// A link that finds all buffers for sends in use sleeps until one is free.
#[test]
fn a_link_without_a_buffer_is_reported_when_one_is_free() {
    let few = Settings { send_buffers_max: 64, ..settings() };
    let (Some(mut first), Some(mut second)) = (fabric(few), fabric(settings())) else { return };
    let (_, bound) = second.listen(address(0)).unwrap();
    let links: Vec<_> = (0..24).map(|_| connect_to(&mut first, &mut second, bound).0).collect();
    while first.has_work() {
        first.poll(&mut Vec::new());
    }
    first.take_changed();
    // Three messages of each link fit into what its peer has granted, and those of 21 links into the buffers.
    let mut queues = vec![VecDeque::from([pattern(20_000, 1)]); links.len()];
    for (link, queue) in links.iter().zip(&mut queues) {
        first.send(*link, queue).unwrap();
    }
    let (last, queue) = (links[23], &mut queues[23]);
    assert_eq!(queue[0].len(), 20_000, "nothing of it was taken");
    assert!(!first.has_work() && !first.has_room(last), "there is nothing to do but to wait");
    assert!(first.deadline().is_some());
    let begun = Instant::now();
    while !first.take_changed().contains(&last) || !first.has_room(last) {
        assert!(begun.elapsed() < DEADLINE, "it is not told");
        first.poll(&mut Vec::new());
    }
    assert!(first.send(last, queue).unwrap() > 0);
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
        let (_, bound) = fabric.listen(address(0)).unwrap();
        tell.send(bound).unwrap();
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
    fabric.connect(way(told.recv().unwrap())).unwrap();
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

/// Sleeps until the descriptor wakes; a missing wake-up ends the test.
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
