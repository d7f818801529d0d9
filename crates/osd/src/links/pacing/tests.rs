//! One OSD's links in this thread, and a peer at the other end of a socket that reads nothing.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use atoll_buffers::Received;
use atoll_reactor::{Event, ListenAddress, Reactor};
use atoll_types::frames::FrameMode;
use atoll_types::records::{AuthorizedKeyRecord, PeerRole, RECORD_FORMAT};
use atoll_types::transports::Transport;
use atoll_types::{OsdId, Room};
use atoll_wire::{KeyPair, Link, LinkInput, Message};

use crate::config::OsdConfig;
use crate::context::Context;
use crate::links::{Links, Peer};
use crate::metrics::Metrics;

const MEMORY_TARGET_BYTES: u64 = 256 << 20;
const DEADLINE: Duration = Duration::from_secs(30);

struct Ends {
    context: Context,
    links: Links,
    metrics: Metrics,
    started: Instant,
    peer: UnixStream,
    peer_link: Link,
    mode: FrameMode,
    /// Bytes of the peer's that the socket does not take.
    unwritten: Vec<u8>,
    _directory: tempfile::TempDir,
}

impl Ends {
    /// An OSD with a peer of this role, connected.
    fn new(role: PeerRole) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (key, peer_key) = (KeyPair::from_private([1; 32]), KeyPair::from_private([2; 32]));
        let mut reactor = Reactor::new().unwrap();
        let path = directory.path().join("socket");
        reactor.listen(&ListenAddress::Unix(path.clone())).unwrap();
        let config = OsdConfig {
            id: OsdId(0),
            device: path.clone(),
            log_device: None,
            device_key: None,
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            rdma_provider: None,
            key,
            device_is_old: false,
            memory_target_bytes: MEMORY_TARGET_BYTES,
            recovery_bytes_per_second: 0,
            cluster: atoll_cluster::ConnectOptions::new(Vec::<String>::new()),
        };
        let remote = config.key.public();
        let (requests, _) = tokio::sync::mpsc::unbounded_channel();
        let mut context = Context::new(config, reactor, requests);
        let osd = (role == PeerRole::Osd).then_some(OsdId(7));
        let record = AuthorizedKeyRecord { format: RECORD_FORMAT, role, osd, name: "peer".into() };
        context.map.authorized_keys.insert(hex::encode(peer_key.public()), record);
        let mode = context.map.frames.modes.of(role, Transport::Unix);
        let peer = UnixStream::connect(&path).unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut ends = Ends {
            context,
            links: Links::new(MEMORY_TARGET_BYTES),
            metrics: Metrics::new(false),
            started: Instant::now(),
            peer,
            peer_link: Link::initiate(&peer_key, &remote, mode, [3; 32]),
            mode,
            unwritten: Vec::new(),
            _directory: directory,
        };
        ends.open();
        ends
    }

    fn open(&mut self) {
        let mut received = Received::default();
        while !self.peer_link.is_open() {
            assert!(self.started.elapsed() < DEADLINE, "no handshake in {:?} frames", self.mode);
            self.write();
            self.turn();
            let mut bytes = [0; 4096];
            if let Ok(length) = self.peer.read(&mut bytes) {
                received.push(&bytes[..length]);
                while let Some(input) = self.peer_link.receive(&mut received).unwrap() {
                    assert!(matches!(input, LinkInput::Ready { .. }));
                }
            }
        }
    }

    /// Writes the peer's bytes, as far as the socket takes them.
    fn write(&mut self) {
        for bytes in self.peer_link.take_output().unwrap() {
            self.unwritten.extend_from_slice(&bytes);
        }
        match self.peer.write(&self.unwritten) {
            Ok(length) => drop(self.unwritten.drain(..length)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }

    /// A turn of the OSD's loop.
    fn turn(&mut self) {
        let mut events = Vec::new();
        self.context.reactor.poll(Some(Duration::from_millis(1)), &mut events).unwrap();
        self.context.begin_turn(self.started.elapsed().as_micros() as u64);
        for event in events {
            match event {
                Event::Accepted { connection, .. } => self.links.accepted(&mut self.context, connection),
                Event::Received(connection) => {
                    let number = connection.number();
                    while let Some(incoming) = self.links.receive(&mut self.context, connection) {
                        if let Message::Ping { tag } = incoming.message {
                            self.links.pinged(number, tag);
                        }
                        if self.links.pace(&mut self.context, number) {
                            break;
                        }
                    }
                }
                Event::Closed(connection, cause) => {
                    self.links.ended(&mut self.context, connection.number(), &cause);
                }
                _ => {}
            }
        }
        self.links.answer_pings(&mut self.context, Room::Enough);
        self.links.send_output(&mut self.context, &self.metrics, self.started);
        self.links.pace_paused(&mut self.context);
    }

    /// The tags of the answers that have come to the peer.
    fn read_answers(&mut self, received: &mut Received) -> Vec<u64> {
        let (mut bytes, mut tags) = ([0; 4096], Vec::new());
        while let Ok(length @ 1..) = self.peer.read(&mut bytes) {
            received.push(&bytes[..length]);
            while let Some(input) = self.peer_link.receive(received).unwrap() {
                let LinkInput::Message(Message::Pong { tag, .. }) = input else { panic!("pings have Pongs") };
                tags.push(tag);
            }
        }
        tags
    }

    fn unsent_bytes(&self) -> u64 {
        let all = self.links.by_number.values();
        all.map(|connected| self.context.reactor.unsent_bytes(connected.connection) as u64).sum()
    }

    fn has_peer(&self) -> bool {
        !self.links.by_number.is_empty()
    }

    /// As many messages as wanted wait for the peer at once, whatever they are.
    fn flood(&mut self, bytes: u64) {
        let mut tag = 0;
        while self.has_peer() && self.unsent_bytes() < bytes {
            assert!(self.started.elapsed() < DEADLINE, "{} bytes wait", self.unsent_bytes());
            let numbers: Vec<u64> = self.links.by_number.keys().copied().collect();
            for number in numbers {
                for _ in 0..20_000 {
                    tag += 1;
                    self.links.send_on(&mut self.context, number, Message::Ping { tag });
                }
            }
            self.turn();
        }
    }
}

/// Answers to pings wait like answers to reads: nothing more is read from a client that does not take them.
#[test]
fn a_client_that_reads_nothing_is_not_read_from() {
    let mut ends = Ends::new(PeerRole::Client);
    let mut tag = 0;
    let mut most = 0;
    // A ping for each turn has an answer of its own.
    while ends.links.paused.is_empty() {
        assert!(ends.started.elapsed() < DEADLINE, "{} bytes wait for it", ends.unsent_bytes());
        // What is queued without being asked for makes the test short.
        ends.flood(most + (1 << 20));
        for _ in 0..100 {
            tag += 1;
            ends.peer_link.send(Message::Ping { tag }).unwrap();
        }
        ends.write();
        ends.turn();
        most = most.max(ends.unsent_bytes());
    }
    assert!(most <= 68 << 20, "{most} bytes wait for it");
    for _ in 0..1000 {
        tag += 1;
        ends.peer_link.send(Message::Ping { tag }).unwrap();
    }
    (0..50).for_each(|_| {
        ends.write();
        ends.turn();
    });
    assert!(ends.unsent_bytes() <= most, "and no more than before");
}

/// Whatever waits for a peer is bounded, in bytes.
#[test]
fn a_peer_for_which_too_much_waits_is_cut_off() {
    for role in [PeerRole::Osd, PeerRole::Client] {
        let mut ends = Ends::new(role);
        ends.flood(MEMORY_TARGET_BYTES / 4 + (32 << 20));
        assert!(ends.has_peer(), "so much may wait");
        ends.flood(MEMORY_TARGET_BYTES);
        assert!(!ends.has_peer(), "{} bytes wait for it", ends.unsent_bytes());
    }
}

/// The newest ping grants the longest lease; a peer that sends many at a time gets one answer.
#[test]
fn many_pings_of_a_turn_have_one_answer() {
    let mut ends = Ends::new(PeerRole::Client);
    let number = *ends.links.by_number.keys().next().unwrap();
    assert_eq!(ends.links.by_number[&number].peer, Some(Peer::Client));
    (0..1000).for_each(|tag| ends.links.pinged(number, tag));
    assert_eq!(ends.links.pings.len(), 1);
    assert_eq!(ends.links.pings[&number], 999);
}

/// A client pings as often as it likes, with any tags, and reads its answers when it likes. No PG hears of that.
#[test]
fn pings_of_a_client_cost_one_answer_a_turn_and_grant_no_lease() {
    for seed in 1..=8_u64 {
        let mut ends = Ends::new(PeerRole::Client);
        let leases = |ends: &Ends| (0..9).map(|id| ends.links.leases().granted_until_ms(Some(OsdId(id)))).max();
        let before = leases(&ends);
        let mut state = seed;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut sent, mut answers, mut turns) = (Vec::new(), Vec::new(), 0);
        let mut received = Received::default();
        for _ in 0..150 {
            let count = [0, 1, 7, 900][draw(4) as usize];
            for _ in 0..count {
                let tag = [0, 1, u64::MAX, draw(u64::MAX)][draw(4) as usize];
                sent.push(tag);
                ends.peer_link.send(Message::Ping { tag }).unwrap();
            }
            ends.write();
            ends.turn();
            turns += 1;
            assert!(ends.links.pings.is_empty(), "the turn has answered them");
            if draw(3) == 0 {
                answers.extend(ends.read_answers(&mut received));
            }
        }
        while answers.last() != sent.last() || ends.links.by_number.is_empty() {
            assert!(ends.started.elapsed() < DEADLINE, "the last ping has no answer");
            ends.write();
            ends.turn();
            turns += 1;
            answers.extend(ends.read_answers(&mut received));
        }
        assert!(answers.len() <= turns, "{} answers in {turns} turns", answers.len());
        // Each answers one ping, in their order.
        let mut left = sent.iter();
        assert!(answers.iter().all(|tag| left.any(|one| one == tag)), "an answer to nothing");
        assert_eq!(leases(&ends), before, "a client is bound to nobody, and binds nobody");
    }
}
