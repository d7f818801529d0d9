//! Connections over RDMA, through the provider `tcp`. Where libfabric is not installed there is nothing to test.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use atoll_reactor::{CloseCause, ConnectionId, Event, PeerAddress, RdmaAddress, Reactor};
use atoll_types::transports::Transport;
use bytes::Bytes;

const DEADLINE: Duration = Duration::from_secs(10);

fn local(port: u16) -> RdmaAddress {
    RdmaAddress { provider: "tcp".into(), address: SocketAddr::from(([127, 0, 0, 1], port)) }
}

/// A loop whose events are taken one by one.
struct Turns {
    reactor: Reactor,
    events: Vec<Event>,
}

impl Turns {
    fn new() -> Self {
        Turns { reactor: Reactor::new().unwrap(), events: Vec::new() }
    }

    /// The next event but that a search for a peer has ended.
    fn next(&mut self) -> Event {
        for _ in 0..1000 {
            self.events.retain(|event| !matches!(event, Event::Woken));
            if !self.events.is_empty() {
                return self.events.remove(0);
            }
            self.reactor.poll(Some(DEADLINE), &mut self.events).unwrap();
        }
        panic!("nothing happens");
    }
}

/// Sends received bytes back, until the peer closes, which it then reports.
fn echo(tell: &Sender<Option<RdmaAddress>>) {
    let mut turns = Turns::new();
    let listener = turns.reactor.listen_rdma(&local(0)).unwrap();
    let Some(bound) = turns.reactor.rdma_address(listener) else {
        eprintln!("skipped: {}", turns.reactor.take_rdma_problem().unwrap());
        return tell.send(None).unwrap();
    };
    tell.send(Some(bound)).unwrap();
    loop {
        match turns.next() {
            Event::Accepted { connection, .. } => {
                assert_eq!(turns.reactor.transport(connection), Transport::Rdma);
                let peer = turns.reactor.peer_address(connection);
                assert_eq!(peer, PeerAddress::Host([127, 0, 0, 1].into()));
            }
            Event::Received(id) => {
                let bytes = turns.reactor.received(id).unwrap().split().freeze();
                turns.reactor.send(id, [bytes]);
            }
            Event::Closed(_, cause) => {
                let is_end = match &cause {
                    CloseCause::EndOfStream => true,
                    CloseCause::Failed(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
                };
                assert!(is_end, "{cause:?}");
                return tell.send(None).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

fn with_echo(test: impl FnOnce(&mut Turns, ConnectionId, &Receiver<Option<RdmaAddress>>)) {
    let (tell, told) = channel();
    let server = std::thread::spawn(move || echo(&tell));
    if let Some(address) = told.recv().unwrap() {
        let mut turns = Turns::new();
        let id = turns.reactor.connect_rdma(&address).unwrap();
        assert!(matches!(turns.next(), Event::Connected(connected) if connected == id));
        test(&mut turns, id, &told);
    }
    server.join().unwrap();
}

fn pattern(length: usize) -> Bytes {
    (0..length).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn echoes_over_rdma() {
    with_echo(|turns, id, told| {
        for length in [1, 4096, 100_000, 4 << 20] {
            turns.reactor.send(id, [pattern(length)]);
            let mut echoed = Vec::new();
            while echoed.len() < length {
                assert!(matches!(turns.next(), Event::Received(_)));
                echoed.extend_from_slice(&turns.reactor.received(id).unwrap().split());
            }
            assert!(echoed == pattern(length));
        }
        turns.reactor.close(id);
        // What is under way is waited for, without the caller.
        for _ in 0..1000 {
            turns.reactor.poll(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
            if told.try_recv() == Ok(None) {
                return;
            }
        }
        panic!("the peer does not see the end");
    });
}

/// A long run that is awaited is read into its own buffer.
#[test]
fn a_long_run_comes_over_rdma() {
    const LENGTH: usize = 3 << 20;
    with_echo(|turns, id, _| {
        turns.reactor.received(id).unwrap().expect_long_run(LENGTH);
        turns.reactor.send(id, [pattern(LENGTH)]);
        let run = loop {
            assert!(matches!(turns.next(), Event::Received(_)));
            if let Some(run) = turns.reactor.received(id).unwrap().take_long_run() {
                break run;
            }
        };
        assert!(run.as_slice()[..LENGTH] == pattern(LENGTH)[..]);
        turns.reactor.close(id);
        turns.reactor.poll(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
    });
}

#[test]
fn queued_data_is_sent_before_the_end() {
    let (tell, told) = channel();
    let receiver = std::thread::spawn(move || {
        let mut turns = Turns::new();
        let listener = turns.reactor.listen_rdma(&local(0)).unwrap();
        let Some(bound) = turns.reactor.rdma_address(listener) else { return tell.send(None).unwrap() };
        tell.send(Some(bound)).unwrap();
        let mut arrived = 0;
        loop {
            match turns.next() {
                Event::Accepted { .. } => {}
                Event::Received(id) => arrived += turns.reactor.received(id).unwrap().split().len(),
                Event::Closed(..) => break assert_eq!(arrived, 5_000_000),
                other => panic!("{other:?}"),
            }
        }
    });
    if let Some(address) = told.recv().unwrap() {
        let mut turns = Turns::new();
        let id = turns.reactor.connect_rdma(&address).unwrap();
        turns.reactor.send(id, [pattern(5_000_000)]);
        assert!(matches!(turns.next(), Event::Connected(_)));
        turns.reactor.close_after_send(id);
        while !receiver.is_finished() {
            let mut events = Vec::new();
            turns.reactor.poll(Some(Duration::from_millis(10)), &mut events).unwrap();
            assert!(events.is_empty(), "{events:?}");
        }
    }
    receiver.join().unwrap();
}

#[test]
fn a_peer_that_is_not_there_is_reported() {
    let mut turns = Turns::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Ok(id) = turns.reactor.connect_rdma(&local(free)) else { return };
    match turns.next() {
        Event::Closed(closed, CloseCause::Failed(error)) => {
            assert_eq!((closed, error.kind()), (id, std::io::ErrorKind::ConnectionRefused));
        }
        other => panic!("{other:?}"),
    }
    let other = RdmaAddress { provider: "verbs".into(), ..local(free) };
    let error = turns.reactor.connect_rdma(&other).unwrap_err().to_string();
    assert!(error.contains("uses the libfabric provider 'tcp'"), "{error}");
    assert_eq!("tcp:127.0.0.1:7".parse(), Ok(local(7)));
    assert!("127.0.0.1:7".parse::<RdmaAddress>().is_err());
}
