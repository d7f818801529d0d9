//! The boundary between the loop and the carriers of a connection's bytes: its socket ([`socket`]), or a
//! [`Carrier`] beside the socket ([`shared_memory`]) or in place of it ([`rdma`]). Users of the loop see one
//! ordered stream of bytes in each direction, for any carrier.

pub(crate) mod rdma;
pub(crate) mod shared_memory;
mod socket;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use atoll_buffers::Received;
use atoll_types::transports::Transport;
use bytes::Bytes;
use io_uring::{opcode, types};

use crate::connection::{Connection, ConnectionId, PeerAddress, RECEIVE_BYTES_MIN};
use crate::reactor::{CloseCause, Event, Operation, Reactor};

pub(crate) use socket::GatheredSend;

/// Carries the bytes of a connection in place of its socket. The socket stays open without data: when it ends, so
/// does the connection, once the bytes that arrived by the carrier are taken. A carrier without a socket reports
/// the end by an error.
///
/// The loop calls the carrier in every turn, so that two loops that are both awake need not wake each other, or
/// after a report that data has come. All calls return at once. An error ends the connection. A violation by the
/// peer is an error, too.
pub trait Carrier: Send {
    /// Returns its kind, for the status of the cluster.
    fn transport(&self) -> Transport;

    /// Returns true if the carrier reports new data, so that the loop need not look in every turn.
    fn tells(&self) -> bool {
        false
    }

    /// Returns the address of the other end, of a carrier without a socket.
    fn peer_address(&self) -> PeerAddress {
        PeerAddress::Unknown
    }

    /// Takes bytes off the front of `queue` as far as there is room for them, and wakes the peer if it sleeps. Gives
    /// their number.
    fn send(&mut self, queue: &mut VecDeque<Bytes>) -> io::Result<usize>;

    /// Takes bytes that have arrived: into the long run that `received` waits for, otherwise at most `bytes_max`. Gives
    /// their number.
    fn receive(&mut self, received: &mut Received, bytes_max: usize) -> io::Result<usize>;

    /// Returns true if awaited bytes or room have come. An error that the next call would meet counts.
    fn has_come(&mut self, awaited: Awaited) -> bool;

    /// The loop is about to sleep: from now on the peer has to wake it when something has come of this. The loop looks
    /// once more before it sleeps, so that nothing is missed.
    fn fall_asleep(&mut self, awaited: Awaited);

    /// The loop is awake: the peer need not wake it.
    fn awake(&mut self);
}

/// Events that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Bytes from the peer; more than 1 if fewer would be of no use yet. 0: none are taken now.
    pub bytes: usize,
    /// Room for this many queued bytes. A carrier with less room than a queue needs is asked again when it has a
    /// good part of it.
    pub room: usize,
}

impl Connection {
    fn may_receive(&self) -> bool {
        !self.is_receiving && !self.is_paused && !self.is_report_due
    }

    fn awaited(&mut self) -> Awaited {
        let bytes = match self.may_receive() {
            true => self.received.long_run_room().map_or(1, |room| room.len()),
            false => 0,
        };
        Awaited { bytes, room: self.to_send_bytes }
    }

    /// Returns true if the carrier of this connection has work.
    fn has_come(&mut self) -> bool {
        let awaited = self.awaited();
        let is_end_due = self.is_ended && awaited.bytes > 0;
        !self.is_closed && (is_end_due || self.carrier.as_mut().is_some_and(|carrier| carrier.has_come(awaited)))
    }

    /// Returns true if a carrier that reports new data still has some of the reported data.
    fn has_more(&mut self) -> bool {
        let awaited = Awaited { room: 0, ..self.awaited() };
        self.carrier.as_mut().is_some_and(|carrier| carrier.tells() && carrier.has_come(awaited))
    }
}

impl Reactor {
    /// Has the bytes of a connection carried by `carrier` from now on. Its socket must be connected, and nothing may
    /// have been received by it: [`Reactor::pause`] keeps the loop from that.
    pub fn carry(&mut self, id: ConnectionId, carrier: Box<dyn Carrier>) {
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_closed) else {
            return;
        };
        assert!(!connection.is_sending && !connection.is_receiving, "the socket carries nothing");
        connection.carrier = Some(carrier);
        self.carried.push(id);
        self.watch_socket(id);
        self.touched.insert(id);
    }

    /// Wakes the loop each time that a descriptor becomes readable, for carriers whose peers wake it by one. Nothing is
    /// read from it.
    pub fn watch_doorbell(&mut self, doorbell: OwnedFd) {
        let descriptor = types::Fd(doorbell.as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).multi(true).build();
        self.submit(Operation::Doorbell { doorbell }, entry);
    }

    /// Returns the transport that carries the bytes of a connection.
    pub fn transport(&self, id: ConnectionId) -> Transport {
        let carrier = self.connections.get(&id).and_then(|connection| connection.carrier.as_ref());
        match (carrier, self.peer_address(id)) {
            (Some(carrier), _) => carrier.transport(),
            (None, PeerAddress::Process(_) | PeerAddress::Foreign(_)) => Transport::Unix,
            (None, PeerAddress::Host(_) | PeerAddress::Unknown) => Transport::Tcp,
        }
    }

    /// Reports when there is something to read from a connection's socket, or its end.
    pub(crate) fn watch_socket(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("the caller has looked it up");
        connection.operations += 1;
        let descriptor = types::Fd(connection.socket().as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, (libc::POLLIN | libc::POLLRDHUP) as u32).build();
        self.submit(Operation::SocketWatch { connection: id }, entry);
    }

    /// A socket that is watched has brought something, or its end. Beside a carrier nothing belongs on it.
    pub(crate) fn socket_watched(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("connections outlive their operations");
        connection.operations -= 1;
        match connection.opening.take() {
            Some(opening) if !connection.is_closed => self.go_on_opening(id, opening),
            _ => {
                connection.is_ended = true;
                self.touched.insert(id);
            }
        }
        self.forget_if_idle(id);
    }

    /// Hands queued bytes to the transports, and lets the sockets receive.
    pub(crate) fn start_transfers(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.is_closed || !connection.is_connected {
                continue;
            }
            match connection.carrier.is_some() {
                true => self.send_by_carrier(id),
                false => self.send_by_socket(id),
            }
            let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_closed) else {
                continue;
            };
            if connection.is_sent() && connection.close_after_send {
                self.close(id);
            } else if connection.carrier.is_none() && connection.may_receive() {
                self.receive_by_socket(id);
            } else if connection.has_more() {
                self.told.insert(id);
            }
        }
    }

    fn send_by_carrier(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("the caller has looked it up");
        let carrier = connection.carrier.as_mut().expect("the caller has seen it");
        if connection.is_ended {
            // Nobody reads it any more.
            connection.to_send.clear();
            connection.to_send_bytes = 0;
        }
        if connection.to_send.is_empty() {
            return;
        }
        match carrier.send(&mut connection.to_send) {
            Ok(sent) => connection.to_send_bytes -= sent,
            Err(error) => {
                self.fail(id, CloseCause::Failed(error));
                self.forget_if_idle(id);
            }
        }
    }

    /// Takes bytes that have come by carriers.
    pub(crate) fn look_at_carriers(&mut self) {
        // Backwards, because one that ends is taken out.
        for index in (0..self.carried.len()).rev() {
            self.look_at_carrier(self.carried[index]);
        }
        for id in std::mem::take(&mut self.told) {
            self.look_at_carrier(id);
            // There may be more, of which nobody tells again.
            self.touched.insert(id);
        }
    }

    fn look_at_carrier(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_closed) else {
            return;
        };
        if !connection.to_send.is_empty() {
            self.touched.insert(id);
        }
        if !connection.may_receive() {
            return;
        }
        let is_ended = connection.is_ended;
        let carrier = connection.carrier.as_mut().expect("it is carried");
        let result = carrier.receive(&mut connection.received, connection.receive_bytes);
        match result {
            Ok(0) if is_ended => self.fail(id, CloseCause::EndOfStream),
            Ok(0) => {}
            Ok(_) => {
                connection.receive_bytes = RECEIVE_BYTES_MIN;
                self.events.push_back(Event::Received(id));
            }
            Err(error) => self.fail(id, CloseCause::Failed(error)),
        }
        self.forget_if_idle(id);
    }

    /// Returns true if a carrier has work for the loop.
    pub(crate) fn has_carried(&mut self) -> bool {
        let connections = &mut self.connections;
        !self.told.is_empty()
            || self.carried.iter().any(|id| connections.get_mut(id).is_some_and(Connection::has_come))
    }

    /// Informs all peers behind carriers whether this loop sleeps.
    pub(crate) fn tell_carriers(&mut self, is_asleep: bool) {
        for id in &self.carried {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            let awaited = connection.awaited();
            if let Some(carrier) = &mut connection.carrier {
                match is_asleep {
                    true => carrier.fall_asleep(awaited),
                    false => carrier.awake(),
                }
            }
        }
    }
}
