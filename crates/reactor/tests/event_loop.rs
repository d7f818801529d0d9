//! The loop against real sockets, files and threads.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use atoll_buffers::BlockBuffer;
use atoll_reactor::{DirectFile, Event, FileOperation, ListenAddress, PeerAddress, Reactor};
use atoll_types::limits::CONNECTIONS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn poll(reactor: &mut Reactor) -> Vec<Event> {
    let mut events = Vec::new();
    reactor.poll(Some(Duration::from_secs(5)), &mut events).unwrap();
    events
}

#[test]
fn echoes_over_tcp_with_partial_sends() {
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    let payload: Vec<u8> = (0..6_000_000_u32).map(|i| i.wrapping_mul(7) as u8).collect();
    let expected = payload.clone();
    let client = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || writer.write_all(&payload).unwrap());
        let mut echoed = vec![0; 6_000_000];
        stream.read_exact(&mut echoed).unwrap();
        sender.join().unwrap();
        echoed
    });
    let mut is_open = true;
    while is_open {
        for event in poll(&mut reactor) {
            match event {
                Event::Received(id) => {
                    let bytes = reactor.received(id).unwrap().split().freeze();
                    reactor.send(id, [bytes]);
                }
                Event::Closed(..) => is_open = false,
                _ => {}
            }
        }
    }
    assert!(client.join().unwrap() == expected);
}

#[test]
fn no_more_connections_than_a_process_may_have() {
    const MORE: usize = 8;
    const WAITING: usize = 64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    let connect = move || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    // A client connects when another is accepted, so that the kernel's queue has room.
    let (is_accepted, accepted_one) = std::sync::mpsc::channel();
    let clients = std::thread::spawn(move || {
        let mut clients: Vec<_> = (0..WAITING).map(|_| connect()).collect();
        clients.extend((0..CONNECTIONS_MAX + MORE - WAITING).map(|_| {
            accepted_one.recv().unwrap();
            connect()
        }));
        // The last ones are closed without a word; the first one stays until it goes by itself.
        let is_closed = |stream: &mut std::net::TcpStream| stream.read(&mut [0]).is_ok_and(|length| length == 0);
        assert!(clients.split_off(CONNECTIONS_MAX).iter_mut().all(is_closed));
        drop(clients.remove(0));
        clients
    });
    let mut accepted = Vec::new();
    let mut gone = None;
    while gone.is_none() {
        for event in poll(&mut reactor) {
            match event {
                Event::Accepted { connection, .. } => {
                    accepted.push(connection);
                    let _ = is_accepted.send(());
                }
                Event::Closed(closed, _) => gone = Some(closed),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((accepted.len(), gone), (CONNECTIONS_MAX, accepted.first().copied()));
    let clients = clients.join().unwrap();
    let next = connect();
    let events = poll(&mut reactor);
    assert!(matches!(events[..], [Event::Accepted { .. }]), "there is a place again: {events:?}");
    drop((clients, next));
}

#[test]
fn connects_and_reports_refusal() {
    let mut reactor = Reactor::new().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = reactor.connect(closed).unwrap();
    let events = poll(&mut reactor);
    assert!(matches!(events[..], [Event::Closed(closed, _)] if closed == id), "{events:?}");
}

#[test]
fn echoes_over_a_local_socket() {
    let name = format!("atoll-test-{}", std::process::id());
    let mut server = Reactor::new().unwrap();
    assert!(server.connect_local(&name).is_err(), "nobody listens yet");
    server.listen_local(&name).unwrap();
    assert!(server.listen_local(&name).is_err(), "the name is taken");
    let payload = bytes::Bytes::from((0..6_000_000_u32).map(|i| i.wrapping_mul(7) as u8).collect::<Vec<u8>>());
    let id = server.connect_local(&name).unwrap();
    server.send(id, [payload.clone()]);
    let (mut accepted, mut echoed) = (None, Vec::new());
    while echoed.len() < payload.len() {
        for event in poll(&mut server) {
            match event {
                Event::Accepted { connection, .. } => accepted = Some(connection),
                Event::Connected(connected) => assert_eq!(connected, id),
                Event::Received(from) if from == id => {
                    echoed.extend_from_slice(&server.received(id).unwrap().split());
                }
                Event::Received(from) => {
                    let bytes = server.received(from).unwrap().split().freeze();
                    server.send(from, [bytes]);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(echoed == payload);
    let own = std::process::id() as i32;
    for end in [id, accepted.unwrap()] {
        assert_eq!(server.peer_address(end), PeerAddress::Process(own));
    }
    server.close(id);
    let events = poll(&mut server);
    assert!(matches!(events[..], [Event::Closed(closed, _)] if Some(closed) == accepted), "{events:?}");
}

#[test]
fn files_timers_and_wakes() {
    files_timers_and_wakes_with(Duration::ZERO);
}

#[test]
fn files_timers_and_wakes_while_polling_busily() {
    files_timers_and_wakes_with(Duration::from_millis(1));
}

fn files_timers_and_wakes_with(busy_poll: Duration) {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("device");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let mut reactor = Reactor::new().unwrap();
    reactor.set_busy_poll(busy_poll);
    let direct = DirectFile::open(&path).unwrap();
    assert!(DirectFile::open(&path).is_err(), "a device is used by one process only");
    let file = reactor.add_file(direct);
    let buffer = Arc::new(BlockBuffer::from_bytes(&[7; 12288]));
    let pieces = vec![(Arc::clone(&buffer), 2, 1), (buffer, 0, 1)];
    reactor.start_file(file, 1, FileOperation::Write { offset: 8192, pieces, durable: true });
    assert!(matches!(poll(&mut reactor)[..], [Event::File { tag: 1, result: Ok(None) }]));
    reactor.start_file(file, 2, FileOperation::Read { offset: 4096, block_count: 3 });
    let events = poll(&mut reactor);
    let [Event::File { tag: 2, result: Ok(Some(read)) }] = &events[..] else { panic!("{events:?}") };
    assert!(read.as_slice()[..4096].iter().all(|&b| b == 0) && read.as_slice()[4096..].iter().all(|&b| b == 7));
    reactor.start_file(file, 3, FileOperation::Read { offset: 1 << 20, block_count: 1 });
    assert!(matches!(poll(&mut reactor)[..], [Event::File { tag: 3, result: Err(_) }]));

    reactor.set_timer(Duration::from_millis(20), 9);
    assert!(matches!(poll(&mut reactor)[..], [Event::Timer(9)]));
    let wake = reactor.wake_handle();
    let waker = std::thread::spawn(move || wake.wake());
    assert!(matches!(poll(&mut reactor)[..], [Event::Woken]));
    waker.join().unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(3)] {
        let mut none = Vec::new();
        reactor.poll(Some(wait), &mut none).unwrap();
        assert!(none.is_empty());
    }
}

#[test]
fn a_connection_is_reported_after_a_pause_though_all_its_bytes_were_taken() {
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"early").unwrap();
    let next_received = |reactor: &mut Reactor| loop {
        let events = poll(reactor);
        assert!(!events.is_empty(), "nothing is reported");
        if let Some(id) = events.iter().find_map(|event| match event {
            Event::Received(id) => Some(*id),
            _ => None,
        }) {
            break id;
        }
    };
    let id = next_received(&mut reactor);
    assert_eq!(&reactor.received(id).unwrap().split()[..], b"early");
    reactor.pause(id);
    reactor.resume_with_report(id);
    assert_eq!(next_received(&mut reactor), id);
    assert!(reactor.received(id).unwrap().is_empty());
    client.write_all(b"late").unwrap();
    next_received(&mut reactor);
    assert_eq!(&reactor.received(id).unwrap()[..], b"late");
}

#[test]
fn bytes_left_over_a_pause_are_reported_again() {
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"early").unwrap();
    let received = |events: &[Event]| {
        events.iter().find_map(|event| if let Event::Received(id) = event { Some(*id) } else { None })
    };
    let id = loop {
        if let Some(id) = received(&poll(&mut reactor)) {
            break id;
        }
    };
    assert_eq!(&reactor.received(id).unwrap()[..], b"early");
    reactor.pause(id);
    reactor.resume(id);
    reactor.send(id, [bytes::Bytes::from_static(b"answer")]);
    let again = loop {
        if let Some(id) = received(&poll(&mut reactor)) {
            break id;
        }
    };
    assert_eq!(&reactor.received(again).unwrap().split()[..], b"early");
    client.write_all(b"late").unwrap();
    let later = loop {
        if let Some(id) = received(&poll(&mut reactor)) {
            break id;
        }
    };
    assert_eq!(&reactor.received(later).unwrap()[..], b"late");
}

/// A long run arrives in a buffer of its own, whatever comes in front of it and behind it, and over a pause.
#[test]
fn long_runs_arrive_whole() {
    const LONG_BYTES: usize = 3_000_001;
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    let sent: Vec<u8> = (0..8 + LONG_BYTES + 8).map(|at| (at % 249) as u8).collect();
    let expected = sent.clone();
    let (reported, has_reported) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        for piece in sent.chunks(700_000) {
            // The next one follows when something of this one has arrived.
            while has_reported.try_recv().is_ok() {}
            client.write_all(piece).unwrap();
            let _ = has_reported.recv();
        }
        client
    });
    let (mut is_awaited, mut events, mut reports) = (false, Vec::new(), 0);
    let (id, buffer) = loop {
        reactor.poll(None, &mut events).unwrap();
        let Some(Event::Received(id)) = events.drain(..).next_back() else { continue };
        reports += 1;
        let _ = reported.send(());
        let received = reactor.received(id).unwrap();
        if !is_awaited && received.len() >= 8 {
            assert_eq!(received.split_to(8)[..], expected[..8]);
            received.expect_long_run(LONG_BYTES);
            is_awaited = true;
        }
        if let Some(buffer) = received.take_long_run() {
            break (id, buffer);
        }
        reactor.pause(id);
        reactor.resume(id);
    };
    drop(reported);
    assert!(reports > 3, "who waits for a long run hears of it meanwhile");
    assert_eq!(buffer.as_slice()[..LONG_BYTES], expected[8..8 + LONG_BYTES]);
    while reactor.received(id).unwrap().len() < 8 {
        reactor.poll(None, &mut events).unwrap();
    }
    assert_eq!(reactor.received(id).unwrap()[..], expected[8 + LONG_BYTES..]);
    sender.join().unwrap();
}

/// Short sends take another way than long ones, but never before earlier sends.
#[test]
fn short_sends_stay_behind_long_ones() {
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    let lengths = [5_000_000, 10, 70_000, 1, 64 << 10, 3_000_000, 100];
    let pieces: Vec<Vec<u8>> = (1..).zip(lengths).map(|(value, length)| vec![value; length]).collect();
    let expected = pieces.concat();
    let expected_bytes = expected.len();
    let client = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"go").unwrap();
        // The socket's buffer is full by now, so that some is left over of every way.
        std::thread::sleep(Duration::from_millis(100));
        let mut found = vec![0; expected_bytes];
        stream.read_exact(&mut found).unwrap();
        found
    });
    let (mut pieces, mut connection, mut events) = (pieces.into_iter(), None, Vec::new());
    loop {
        reactor.poll(Some(Duration::from_millis(1)), &mut events).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Received(id) => connection = Some(id),
                Event::Closed(..) => return assert!(client.join().unwrap() == expected),
                _ => {}
            }
        }
        if let Some(id) = connection
            && let Some(piece) = pieces.next()
        {
            reactor.send(id, [piece.into()]);
        }
    }
}

/// The system's congestion control for its network, perhaps BBR, stalls large transfers within a host.
#[test]
fn connections_within_a_host_use_reno() {
    let mut reactor = Reactor::new().unwrap();
    let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let ListenAddress::Tcp(address) = address else { panic!() };
    reactor.connect(address).unwrap();
    let mut is_accepted = false;
    while !is_accepted {
        is_accepted = poll(&mut reactor).iter().any(|event| matches!(event, Event::Accepted { .. }));
    }
    let port = format!(":{}", address.port());
    let ends = ["sport", "dport"].map(|end| {
        let arguments = ["-H", "-O", "-tni", "state", "established", end, "=", &port];
        let output = std::process::Command::new("ss").args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    for end in ends {
        assert!(end.split_whitespace().any(|word| word == "reno"), "{end}");
    }
}
