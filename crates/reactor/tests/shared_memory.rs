//! Connections over shared memory: between threads and processes, and with peers that do not keep to the rules.

#![allow(clippy::unwrap_used)]

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atoll_reactor::{CloseCause, ConnectionId, Event, PeerAddress, Reactor};
use atoll_types::transports::Transport;
use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// As the protocol has it.
const RING_BYTES: usize = 512 << 10;
const SHARED_BYTES: u64 = 4096 + 2 * RING_BYTES as u64;
/// Where the words of the ring from the connecting side are in the memory.
const PRODUCED_AT: u64 = 0;
const CONSUMED_AT: u64 = 128;
/// Where those of the other ring are.
const OTHER_RING_AT: u64 = 512;
const BYTES_AT: u64 = 4096;

const DEADLINE: Duration = Duration::from_secs(20);

fn name(what: &str) -> String {
    format!("atoll-test-{what}-{}", std::process::id())
}

fn server(name: &str) -> Reactor {
    let mut server = Reactor::new().unwrap();
    server.listen_shared(name).unwrap();
    server
}

fn poll(reactor: &mut Reactor) -> Vec<Event> {
    let mut events = Vec::new();
    reactor.poll(Some(Duration::from_millis(20)), &mut events).unwrap();
    events
}

/// Polls until `look` returns a value for an event.
fn until<T>(reactor: &mut Reactor, mut look: impl FnMut(&mut Reactor, Event) -> Option<T>) -> T {
    let since = std::time::Instant::now();
    let mut events = Vec::new();
    while since.elapsed() < DEADLINE {
        reactor.poll(Some(DEADLINE), &mut events).unwrap();
        for event in events.drain(..) {
            if let Some(found) = look(reactor, event) {
                return found;
            }
        }
    }
    panic!("it does not happen");
}

/// Two loops in one thread with a connection between them, and its ids.
fn pair(server: &mut Reactor, name: &str) -> (Reactor, ConnectionId, ConnectionId) {
    let mut client = Reactor::new().unwrap();
    let id = client.connect_shared(name).unwrap();
    let (mut accepted, mut is_connected) = (None, false);
    while accepted.is_none() || !is_connected {
        for event in poll(server) {
            match event {
                Event::Accepted { connection, .. } => accepted = Some(connection),
                other => panic!("{other:?}"),
            }
        }
        is_connected |= poll(&mut client).iter().any(|event| matches!(event, Event::Connected(_)));
    }
    (client, id, accepted.unwrap())
}

fn received(reactor: &mut Reactor) -> Bytes {
    until(reactor, |reactor, event| match event {
        Event::Received(id) => Some(reactor.received(id).unwrap().split().freeze()),
        Event::Accepted { .. } | Event::Connected(_) => None,
        other => panic!("{other:?}"),
    })
}

fn closed(reactor: &mut Reactor) -> CloseCause {
    until(reactor, |_, event| match event {
        Event::Closed(_, cause) => Some(cause),
        _ => None,
    })
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn echoes_over_shared_memory() {
    const LENGTH: usize = 6_000_000;
    let name = name("echo");
    let mut server = server(&name);
    let client = std::thread::spawn({
        let name = name.clone();
        move || {
            let mut client = Reactor::new().unwrap();
            let id = client.connect_shared(&name).unwrap();
            // It is queued until the connection is there.
            client.send(id, pattern(LENGTH).chunks(100_001).map(Bytes::copy_from_slice));
            let mut echoed = Vec::new();
            let own = PeerAddress::Process(std::process::id() as i32);
            while echoed.len() < LENGTH {
                echoed.extend_from_slice(&received(&mut client));
                assert_eq!((client.transport(id), client.peer_address(id)), (Transport::SharedMemory, own));
            }
            echoed
        }
    });
    let accepted = until(&mut server, |server, event| {
        match event {
            Event::Received(id) => {
                assert_eq!(server.transport(id), Transport::SharedMemory);
                let bytes = server.received(id).unwrap().split().freeze();
                server.send(id, [bytes]);
            }
            Event::Closed(id, CloseCause::EndOfStream) => return Some(id),
            Event::Accepted { .. } => {}
            other => panic!("{other:?}"),
        }
        None
    });
    assert!(client.join().unwrap() == pattern(LENGTH));
    assert!(server.received(accepted).is_none());
}

#[test]
fn long_runs_go_to_buffers_of_their_own() {
    const LONG_BYTES: usize = 3_000_001;
    let name = name("long-runs");
    let mut server = server(&name);
    let bytes = pattern(8 + LONG_BYTES + 8);
    let client = std::thread::spawn({
        let (name, bytes) = (name.clone(), bytes.clone());
        move || {
            let mut client = Reactor::new().unwrap();
            let id = client.connect_shared(&name).unwrap();
            let mut pieces = bytes.chunks(700_000);
            loop {
                if client.unsent_bytes(id) == 0
                    && let Some(piece) = pieces.next()
                {
                    client.send(id, [Bytes::copy_from_slice(piece)]);
                }
                if poll(&mut client).iter().any(|event| matches!(event, Event::Closed(_, CloseCause::EndOfStream)))
                {
                    break;
                }
            }
        }
    });
    let mut is_awaited = false;
    let (id, buffer) = until(&mut server, |server, event| {
        let Event::Received(id) = event else { return None };
        let received = server.received(id).unwrap();
        if !is_awaited && received.len() >= 8 {
            assert_eq!(received.split_to(8)[..], bytes[..8]);
            received.expect_long_run(LONG_BYTES);
            is_awaited = true;
        }
        let buffer = received.take_long_run();
        server.pause(id);
        server.resume(id);
        buffer.map(|buffer| (id, buffer))
    });
    assert!(buffer.as_slice()[..LONG_BYTES] == bytes[8..8 + LONG_BYTES]);
    while server.received(id).unwrap().len() < 8 {
        poll(&mut server);
    }
    assert_eq!(server.received(id).unwrap()[..], bytes[8 + LONG_BYTES..]);
    server.close(id);
    client.join().unwrap();
}

#[test]
fn a_reader_that_pauses_stops_the_writer() {
    let name = name("pause");
    let mut server = server(&name);
    let (mut client, id, accepted) = pair(&mut server, &name);
    server.pause(accepted);
    client.send(id, [pattern(2 * RING_BYTES).into()]);
    for _ in 0..5 {
        poll(&mut client);
        assert!(poll(&mut server).is_empty());
    }
    assert_eq!(client.unsent_bytes(id), RING_BYTES, "the ring is full");
    server.resume(accepted);
    let mut taken = Vec::new();
    while taken.len() < 2 * RING_BYTES {
        taken.extend_from_slice(&received(&mut server));
        poll(&mut client);
    }
    assert!(taken == pattern(2 * RING_BYTES) && client.unsent_bytes(id) == 0);
}

#[test]
fn data_sent_before_the_end_arrives() {
    let name = name("end");
    let mut server = server(&name);
    let (mut client, id, accepted) = pair(&mut server, &name);
    client.send(id, [pattern(100_000).into()]);
    client.close_after_send(id);
    poll(&mut client);
    drop(client);
    server.pause(accepted);
    poll(&mut server);
    server.resume(accepted);
    let mut taken = Vec::new();
    let cause = until(&mut server, |server, event| match event {
        Event::Received(id) => {
            taken.extend_from_slice(&server.received(id).unwrap().split());
            None
        }
        Event::Closed(_, cause) => Some(cause),
        other => panic!("{other:?}"),
    });
    assert!(matches!(cause, CloseCause::EndOfStream), "{cause:?}");
    assert!(taken == pattern(100_000));
}

/// Memory that is behind each mapping of a connection in this process, in KiB.
fn resident_kib() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_connections = maps.split("memfd:atoll-transport").skip(1);
    let resident = |map: &str| {
        let line = map.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    of_connections.map(resident).collect()
}

/// Beyond the limit there is the socket alone, with the same bytes in the same order.
#[test]
fn a_loop_shares_memory_with_a_limited_number_of_peers() {
    let name = name("limit");
    let mut server = server(&name);
    let mut many = Reactor::new().unwrap();
    let ids: Vec<ConnectionId> = (0..64).map(|_| many.connect_shared(&name).unwrap()).collect();
    assert_eq!(many.connect_shared(&name).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    while ids.iter().any(|id| many.transport(*id) != Transport::SharedMemory) {
        poll(&mut server);
        poll(&mut many);
    }
    let idle = resident_kib().into_iter().filter(|kib| *kib <= 8).count();
    assert!(idle >= 2 * 64, "who carries nothing takes two pages at most, on both sides: {:?}", resident_kib());
    let (mut client, id, accepted) = pair(&mut server, &name);
    assert_eq!((client.transport(id), server.transport(accepted)), (Transport::Unix, Transport::Unix));
    client.send(id, [Bytes::from_static(b"by the socket")]);
    poll(&mut client);
    assert_eq!(received(&mut server)[..], *b"by the socket");
    many.close(ids[7]);
    closed(&mut server);
    let (client, id, _) = pair(&mut server, &name);
    assert_eq!(client.transport(id), Transport::SharedMemory, "there is room again");
    let refusal = Reactor::new().unwrap().connect_shared("atoll-test-nobody").unwrap_err();
    assert_eq!(refusal.kind(), io::ErrorKind::ConnectionRefused);
}

// ---- another process --------------------------------------------------------------------------

const CHILD: &str = "ATOLL_TEST_SENDS_TO";

/// Not a test of its own: the process that is killed in the next one.
#[test]
fn child_that_sends_without_end() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let mut client = Reactor::new().unwrap();
    let id = client.connect_shared(&name).unwrap();
    loop {
        client.send(id, [pattern(1_000_000).into()]);
        while client.unsent_bytes(id) > 0 {
            poll(&mut client);
        }
    }
}

struct KilledOnDrop(Child);

impl KilledOnDrop {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_peer_that_is_killed_ends_the_connection() {
    let name = name("killed");
    let mut server = server(&name);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_sends_without_end", "--nocapture"])
        .env(CHILD, &name)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = KilledOnDrop(child);
    let expected = pattern(1_000_000);
    let (mut taken, mut is_killed) = (0, false);
    let cause = until(&mut server, |server, event| match event {
        Event::Received(id) => {
            for byte in &server.received(id).unwrap().split() {
                assert_eq!(*byte, expected[taken % expected.len()], "after {taken} bytes");
                taken += 1;
            }
            assert_eq!(server.transport(id), Transport::SharedMemory);
            if taken > 3_000_000 && !std::mem::replace(&mut is_killed, true) {
                child.kill();
            }
            None
        }
        Event::Closed(_, cause) => Some(cause),
        _ => None,
    });
    assert!(matches!(cause, CloseCause::EndOfStream) && is_killed, "{cause:?}");
}

// ---- peers that do not keep to the rules ------------------------------------------------------

fn offer(ring_bytes: usize) -> Vec<u8> {
    [&b"ATOLLSM\x01"[..], &(ring_bytes as u32).to_le_bytes()].concat()
}

fn memory(length: u64, seals: SealFlags) -> std::fs::File {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, length).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn sealed_memory() -> std::fs::File {
    memory(SHARED_BYTES, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Connects as a peer would and says something, with descriptors.
fn connect_and_say(name: &str, bytes: &[u8], descriptors: &[BorrowedFd]) -> UnixStream {
    let address = SocketAddr::from_abstract_name(format!("{name}-shm")).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(&stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    stream
}

fn failure(reactor: &mut Reactor) -> String {
    match closed(reactor) {
        CloseCause::Failed(error) => error.to_string(),
        CloseCause::EndOfStream => panic!("it failed"),
    }
}

fn answer(server: &mut Reactor, mut stream: &UnixStream) -> u8 {
    stream.set_nonblocking(true).unwrap();
    let mut answer = [0; 1];
    let since = std::time::Instant::now();
    while !matches!(stream.read(&mut answer), Ok(1)) {
        assert!(since.elapsed() < DEADLINE, "the server answers");
        poll(server);
    }
    stream.set_nonblocking(false).unwrap();
    answer[0]
}

#[test]
fn offers_that_are_none_end_the_connection() {
    let name = name("offers");
    let mut server = server(&name);
    let (sealed, bell) = (sealed_memory(), doorbell());
    let both = [sealed.as_fd(), bell.as_fd()];
    for bytes in [&b"ATOLL\x00\x00\x07handshake"[..], b"ATOLLSM\x01", b"A"] {
        let _stream = connect_and_say(&name, bytes, &both);
        assert!(failure(&mut server).contains("the offer of shared memory is not one"), "{bytes:?}");
    }
    for (file, why) in [
        (memory(SHARED_BYTES, SealFlags::empty()), "not sealed"),
        (memory(SHARED_BYTES, SealFlags::SHRINK), "not sealed"),
        (memory(SHARED_BYTES - 1, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "in place of"),
        (tempfile::tempfile().unwrap(), "no memory that can be sealed"),
    ] {
        let _stream = connect_and_say(&name, &offer(RING_BYTES), &[file.as_fd(), bell.as_fd()]);
        assert!(failure(&mut server).contains(why), "{why}");
    }
    let silent = connect_and_say(&name, b"", &[]);
    drop(silent);
    assert!(matches!(closed(&mut server), CloseCause::EndOfStream));
}

/// Another version's layout, or a process that may have no more descriptors: the bytes go by the socket.
#[test]
fn offers_that_cannot_be_taken_leave_the_socket() {
    let name = name("untaken");
    let mut server = server(&name);
    let (sealed, bell) = (sealed_memory(), doorbell());
    let other_version = [b"ATOLLSM\x02", &offer(RING_BYTES)[8..]].concat();
    let both = [sealed.as_fd(), bell.as_fd()];
    let cases: [(&[u8], &[BorrowedFd]); 4] = [
        (&offer(2 * RING_BYTES), &both),
        (&other_version, &both),
        (&offer(RING_BYTES), &both[..1]),
        (&offer(RING_BYTES), &[]),
    ];
    for (bytes, descriptors) in cases {
        let mut stream = connect_and_say(&name, bytes, descriptors);
        assert_eq!(answer(&mut server, &stream), 0);
        stream.write_all(b"by the socket").unwrap();
        assert_eq!(received(&mut server)[..], *b"by the socket");
    }
}

#[test]
fn a_peer_that_publishes_impossible_counts_is_cut_off() {
    let name = name("counts");
    let mut server = server(&name);
    for (at, count) in [
        (PRODUCED_AT, RING_BYTES as u64 + 4),
        (PRODUCED_AT, 1),
        (PRODUCED_AT, u64::MAX),
        (OTHER_RING_AT + CONSUMED_AT, 3),
        (OTHER_RING_AT + CONSUMED_AT, u64::MAX),
    ] {
        let (memory, bell) = (sealed_memory(), doorbell());
        let stream = connect_and_say(&name, &offer(RING_BYTES), &[memory.as_fd(), bell.as_fd()]);
        assert_eq!(answer(&mut server, &stream), 1);
        memory.write_all_at(b"hey", BYTES_AT).unwrap();
        memory.write_all_at(&3_u64.to_ne_bytes(), PRODUCED_AT).unwrap();
        // Nobody rings the server's doorbell, so it has to look.
        let id = loop {
            if let [Event::Received(id)] = poll(&mut server)[..] {
                break id;
            }
        };
        assert_eq!(server.received(id).unwrap().split()[..], *b"hey");
        memory.write_all_at(&count.to_ne_bytes(), at).unwrap();
        server.send(id, [pattern(2 * RING_BYTES).into()]);
        let error = failure(&mut server);
        assert!(error.contains("the peer broke the ring in shared memory"), "{error}");
        assert!(error.contains(&format!(" {count} bytes")), "{error}");
    }
    // Other connections go on.
    let (mut client, id, _) = pair(&mut server, &name);
    client.send(id, [Bytes::from_static(b"still here")]);
    poll(&mut client);
    assert_eq!(received(&mut server)[..], *b"still here");
}

/// The words with which a peer announces that it sleeps, and the bytes of the ring while they are taken, do no
/// harm.
#[test]
fn a_peer_that_scribbles_harms_only_itself() {
    let name = name("scribbles");
    let mut server = server(&name);
    let (memory, bell) = (sealed_memory(), doorbell());
    let mut stream = connect_and_say(&name, &offer(RING_BYTES), &[memory.as_fd(), bell.as_fd()]);
    assert_eq!(answer(&mut server, &stream), 1);
    let scribbler = std::thread::spawn(move || {
        for round in 0..20_000_u64 {
            for word in 2..4 {
                memory.write_all_at(&round.wrapping_mul(u64::MAX / 7).to_ne_bytes(), word * 128).unwrap();
                memory.write_all_at(&(round % 3).to_ne_bytes(), OTHER_RING_AT + word * 128).unwrap();
            }
            memory.write_all_at(&round.to_ne_bytes(), BYTES_AT + round % 4096).unwrap();
            if round % 4 == 0 {
                memory.write_all_at(&round.to_ne_bytes(), PRODUCED_AT).unwrap();
            }
        }
    });
    let mut taken = 0;
    while !scribbler.is_finished() {
        for event in poll(&mut server) {
            if let Event::Received(id) = event {
                let bytes = server.received(id).unwrap().split().freeze();
                taken += bytes.len();
                server.send(id, [bytes]);
            }
        }
    }
    scribbler.join().unwrap();
    assert!(taken > 1000);
    // Nothing belongs on the socket.
    stream.write_all(b"a word").unwrap();
    assert!(matches!(closed(&mut server), CloseCause::EndOfStream));
}

#[test]
fn answers_that_are_none_end_the_connection() {
    let name = name("answers");
    let address = SocketAddr::from_abstract_name(format!("{name}-shm")).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    for bytes in [&[1_u8][..], &[2], &[]] {
        let mut client = Reactor::new().unwrap();
        client.connect_shared(&name).unwrap();
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut [0; 12]).unwrap();
        stream.write_all(bytes).unwrap();
        drop(stream);
        match closed(&mut client) {
            CloseCause::EndOfStream => assert!(bytes.is_empty()),
            CloseCause::Failed(error) => assert!(error.to_string().contains("answer"), "{error}"),
        }
    }
}
