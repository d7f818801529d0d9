//! The contract between the loop and a carrier, with the simplest possible carrier.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use atoll_buffers::Received;
use atoll_reactor::{Awaited, Carrier, CloseCause, ConnectionId, Event, ListenAddress, Reactor};
use atoll_types::transports::Transport;
use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};

/// Bytes that one direction has room for.
const ROOM_BYTES: usize = 1000;
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Way {
    bytes: Mutex<VecDeque<u8>>,
    /// Awaited bytes and room of its ends while they sleep.
    receiver_awaits: AtomicUsize,
    sender_awaits: AtomicUsize,
}

/// One end of two queues in memory; each end has a doorbell with which the other wakes it.
struct Queues {
    outgoing: Arc<Way>,
    incoming: Arc<Way>,
    doorbell_of_peer: OwnedFd,
}

impl Queues {
    fn ring_if(&self, awaited: &AtomicUsize, there: usize) {
        let bytes = awaited.load(Ordering::SeqCst);
        if bytes > 0 && there >= bytes && awaited.swap(0, Ordering::SeqCst) > 0 {
            rustix::io::write(&self.doorbell_of_peer, &1_u64.to_ne_bytes()).unwrap();
        }
    }
}

impl Carrier for Queues {
    fn transport(&self) -> Transport {
        Transport::Unix
    }

    fn send(&mut self, queue: &mut VecDeque<Bytes>) -> io::Result<usize> {
        let mut bytes = self.outgoing.bytes.lock().unwrap();
        let mut sent = 0;
        while let Some(mut piece) = queue.pop_front() {
            let taken = piece.split_to(piece.len().min(ROOM_BYTES - bytes.len()));
            bytes.extend(&taken);
            sent += taken.len();
            if !piece.is_empty() {
                queue.push_front(piece);
                break;
            }
        }
        self.ring_if(&self.outgoing.receiver_awaits, bytes.len());
        Ok(sent)
    }

    fn receive(&mut self, received: &mut Received, bytes_max: usize) -> io::Result<usize> {
        let mut bytes = self.incoming.bytes.lock().unwrap();
        let count = bytes.len().min(bytes_max);
        let taken: Vec<u8> = bytes.drain(..count).collect();
        received.push(&taken);
        self.ring_if(&self.incoming.sender_awaits, ROOM_BYTES - bytes.len());
        Ok(count)
    }

    fn has_come(&mut self, awaited: Awaited) -> bool {
        let there = self.incoming.bytes.lock().unwrap().len();
        let room = ROOM_BYTES - self.outgoing.bytes.lock().unwrap().len();
        (awaited.bytes > 0 && there > 0) || (awaited.room > 0 && room > 0)
    }

    fn fall_asleep(&mut self, awaited: Awaited) {
        self.incoming.receiver_awaits.store(awaited.bytes.min(1), Ordering::SeqCst);
        self.outgoing.sender_awaits.store(awaited.room.min(1), Ordering::SeqCst);
    }

    fn awake(&mut self) {
        self.fall_asleep(Awaited { bytes: 0, room: 0 });
    }
}

fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A reactor with a connection that one end of the queues carries.
struct End {
    reactor: Reactor,
    id: ConnectionId,
}

/// Loops stay on their threads, so each end is made by the one that uses it.
fn make_end(socket: TcpEnd, carrier: Queues, own_doorbell: OwnedFd) -> End {
    let mut reactor = Reactor::new().unwrap();
    let id = match socket {
        TcpEnd::Listen(address) => {
            let (_, bound) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
            let ListenAddress::Tcp(bound) = bound else { panic!() };
            address.send(bound).unwrap();
            wait_for_connection(&mut reactor)
        }
        TcpEnd::Connect(address) => {
            reactor.connect(address.recv().unwrap()).unwrap();
            wait_for_connection(&mut reactor)
        }
    };
    assert_eq!(reactor.transport(id), Transport::Tcp);
    reactor.watch_doorbell(own_doorbell);
    reactor.carry(id, Box::new(carrier));
    assert_eq!(reactor.transport(id), Transport::Unix);
    End { reactor, id }
}

enum TcpEnd {
    Listen(std::sync::mpsc::Sender<SocketAddr>),
    Connect(std::sync::mpsc::Receiver<SocketAddr>),
}

fn wait_for_connection(reactor: &mut Reactor) -> ConnectionId {
    loop {
        let mut events = Vec::new();
        reactor.poll(Some(DEADLINE), &mut events).unwrap();
        match events.pop() {
            Some(Event::Accepted { connection, .. } | Event::Connected(connection)) => {
                reactor.pause(connection);
                return connection;
            }
            other => assert!(other.is_none(), "{other:?}"),
        }
    }
}

/// Runs `first` and `second` on threads of their own, with a carried connection between them.
fn between_two_loops(
    first: impl FnOnce(End) + Send + 'static,
    second: impl FnOnce(End) + Send + 'static,
) -> (Arc<Way>, Arc<Way>) {
    let ways = (Arc::new(Way::default()), Arc::new(Way::default()));
    let doorbells = (doorbell(), doorbell());
    let twin = |descriptor: &OwnedFd| descriptor.as_fd().try_clone_to_owned().unwrap();
    let queues = |outgoing: &Arc<Way>, incoming: &Arc<Way>, peer: &OwnedFd| Queues {
        outgoing: Arc::clone(outgoing),
        incoming: Arc::clone(incoming),
        doorbell_of_peer: twin(peer),
    };
    let (of_first, of_second) = (queues(&ways.0, &ways.1, &doorbells.1), queues(&ways.1, &ways.0, &doorbells.0));
    let (tell, told) = std::sync::mpsc::channel();
    let threads = [
        std::thread::spawn(move || first(make_end(TcpEnd::Listen(tell), of_first, doorbells.0))),
        std::thread::spawn(move || second(make_end(TcpEnd::Connect(told), of_second, doorbells.1))),
    ];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ways
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Takes bytes until there are `length`, or until the connection ends.
fn take(end: &mut End, length: usize) -> Vec<u8> {
    let (mut taken, mut events) = (Vec::new(), Vec::new());
    while taken.len() < length {
        let since = Instant::now();
        end.reactor.poll(Some(DEADLINE), &mut events).unwrap();
        assert!(since.elapsed() < DEADLINE, "nothing happens; {} of {length} bytes", taken.len());
        for event in events.drain(..) {
            match event {
                Event::Received(id) => taken.extend_from_slice(&end.reactor.received(id).unwrap().split()),
                Event::Closed(_, CloseCause::EndOfStream) => return taken,
                other => panic!("{other:?}"),
            }
        }
    }
    taken
}

#[test]
fn bytes_go_both_ways_through_little_room_and_sleeping_loops() {
    const LENGTH: usize = 100_000;
    let both = |mut end: End| {
        end.reactor.resume(end.id);
        end.reactor.send(end.id, [Bytes::from(pattern(LENGTH))]);
        assert!(take(&mut end, LENGTH) == pattern(LENGTH));
        // What is queued goes out before the end; the peer may have ended already.
        while end.reactor.unsent_bytes(end.id) > 0 {
            end.reactor.poll(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        }
    };
    between_two_loops(both, both);
}

#[test]
fn data_sent_before_the_end_arrives() {
    let sender = |mut end: End| {
        end.reactor.send(end.id, [Bytes::from(pattern(5_000))]);
        end.reactor.close_after_send(end.id);
        while end.reactor.unsent_bytes(end.id) > 0 {
            end.reactor.poll(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        }
    };
    let receiver = |mut end: End| {
        // The end comes while nothing is taken.
        end.reactor.poll(Some(Duration::from_millis(50)), &mut Vec::new()).unwrap();
        end.reactor.resume(end.id);
        assert!(take(&mut end, usize::MAX) == pattern(5_000));
    };
    between_two_loops(sender, receiver);
}

#[test]
fn a_paused_connection_takes_nothing() {
    // Who leaves first takes the connection away from the other.
    let looked = Arc::new(Barrier::new(2));
    let has_looked = Arc::clone(&looked);
    let sender = move |mut end: End| {
        end.reactor.send(end.id, [Bytes::from(pattern(3_000))]);
        let since = Instant::now();
        while end.reactor.unsent_bytes(end.id) > 2_000 && since.elapsed() < DEADLINE {
            end.reactor.poll(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        }
        // No more goes, however long one waits.
        for _ in 0..15 {
            end.reactor.poll(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        }
        let unsent_bytes = end.reactor.unsent_bytes(end.id);
        looked.wait();
        assert_eq!(unsent_bytes, 2_000, "back-pressure");
    };
    let receiver = move |mut end: End| {
        let mut events = Vec::new();
        for _ in 0..20 {
            end.reactor.poll(Some(Duration::from_millis(10)), &mut events).unwrap();
        }
        has_looked.wait();
        assert!(events.is_empty(), "{events:?}");
    };
    let (to_receiver, _) = between_two_loops(sender, receiver);
    assert_eq!(to_receiver.bytes.lock().unwrap().len(), ROOM_BYTES);
}

/// A peer that ends leaves the queued bytes without a reader.
#[test]
fn a_connection_that_ends_while_bytes_are_queued_is_reported() {
    let leaver = |end: End| drop(end.reactor);
    let sender = |mut end: End| {
        end.reactor.resume(end.id);
        end.reactor.send(end.id, [Bytes::from(pattern(50_000))]);
        assert!(take(&mut end, 1).is_empty());
        assert_eq!(end.reactor.unsent_bytes(end.id), 0);
    };
    between_two_loops(leaver, sender);
}
