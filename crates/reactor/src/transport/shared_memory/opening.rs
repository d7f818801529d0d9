//! How a connection comes to its shared memory. The side that connects makes it and offers it over the Unix
//! socket, with its doorbell; the side that accepts answers with its own, or continues with the socket alone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_types::transports::Transport;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::memory::SharedMemory;
use super::ring::RING_BYTES;
use super::{CARRIED_MAX, Doorbell, SHARED_BYTES, SharedRings, Side};
use crate::connection::{Connection, ConnectionId, ListenerId};
use crate::local_socket::{self, peer_credentials};
use crate::reactor::{CloseCause, Event, Reactor};

/// Beginning of an offer; the last byte is the version of the layout.
const OFFER: [u8; 8] = *b"ATOLLSM\x01";
const OFFER_BYTES: usize = OFFER.len() + 4;
const TAKEN: u8 = 1;
const NOT_TAKEN: u8 = 0;

/// A connection whose bytes are not under way yet, because it may come to have shared memory.
pub(crate) enum Opening {
    /// The peer is to offer some.
    AwaitsOffer,
    /// The peer is to say whether it takes this.
    Offered(SharedMemory),
}

/// Returns the socket for offers to the listener of a name.
fn socket_name(name: &str) -> String {
    format!("{name}-shm")
}

fn offer() -> [u8; OFFER_BYTES] {
    let mut bytes = [0; OFFER_BYTES];
    bytes[..OFFER.len()].copy_from_slice(&OFFER);
    bytes[OFFER.len()..].copy_from_slice(&(RING_BYTES as u32).to_le_bytes());
    bytes
}

fn send_with(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let is_added = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(is_added, "there is room for two descriptors");
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::other("the socket takes only a part of a short message"))
    }
}

/// Receives one message into `bytes`, and the descriptors that came with it.
fn receive_with(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let of_message = |message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    };
    Ok((received.bytes, control.drain().filter_map(of_message).flatten().collect()))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} of shared memory is not one"))
}

/// Returns true if the process that has connected runs as this process's user or root. Other users that can reach
/// the socket must not get this loop's doorbell.
fn is_trusted(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    peer_credentials(socket).is_ok_and(|peer| peer.uid == own || peer.uid == 0)
}

/// Reads an offer. `None`: it is one, but this side cannot take it.
fn take_offer(socket: &OwnedFd) -> io::Result<Option<(SharedMemory, Doorbell)>> {
    let mut bytes = [0; OFFER_BYTES];
    let (count, descriptors) = receive_with(socket, &mut bytes)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if count < OFFER_BYTES || bytes[..OFFER.len() - 1] != OFFER[..OFFER.len() - 1] {
        return Err(broken("the offer"));
    }
    // Another version, or the limit of descriptors has kept them back.
    let Ok([memory, doorbell]) = <[OwnedFd; 2]>::try_from(descriptors) else { return Ok(None) };
    if bytes != offer() {
        return Ok(None);
    }
    Ok(Some((SharedMemory::of_peer(memory, SHARED_BYTES)?, Doorbell(doorbell))))
}

/// Reads an answer. `None`: the peer has not taken the offer.
fn take_answer(socket: &OwnedFd) -> io::Result<Option<Doorbell>> {
    let mut answer = [0; 1];
    let (count, mut descriptors) = receive_with(socket, &mut answer)?;
    match (count, answer, descriptors.pop()) {
        (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, [NOT_TAKEN], None) => Ok(None),
        (_, [TAKEN], Some(doorbell)) => Ok(Some(Doorbell(doorbell))),
        _ => Err(broken("the answer to an offer")),
    }
}

impl Reactor {
    /// Listens for processes of this host that connect with [`Reactor::connect_shared`].
    pub fn listen_shared(&mut self, name: &str) -> io::Result<ListenerId> {
        self.make_doorbell()?;
        let id = self.add_listener(local_socket::listen_on(&socket_name(name))?);
        self.shared_listeners.insert(id);
        Ok(id)
    }

    /// Connects to the listener of this name on this host, by shared memory, or by its Unix socket alone if it
    /// takes no more of these. An error reports at once that there is no listener, that the listener runs as
    /// another user than this process's or root, or (`QuotaExceeded`) that this loop has the largest number of
    /// connections by shared memory.
    pub fn connect_shared(&mut self, name: &str) -> io::Result<ConnectionId> {
        if self.shared_count() >= CARRIED_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.make_doorbell()?;
        let socket = local_socket::connect_to(&socket_name(name))?;
        let (memory, file) = SharedMemory::create(SHARED_BYTES)?;
        send_with(&socket, &offer(), &[file.as_fd(), self.doorbell().0.as_fd()])?;
        Ok(self.add_opening(socket, Opening::Offered(memory)))
    }

    pub(crate) fn add_opening(&mut self, socket: OwnedFd, opening: Opening) -> ConnectionId {
        let id = ConnectionId(self.next_id());
        let mut connection = Connection::new(socket, false);
        connection.opening = Some(opening);
        self.connections.insert(id, connection);
        self.watch_socket(id);
        id
    }

    fn make_doorbell(&mut self) -> io::Result<()> {
        if self.doorbell.is_none() {
            let (doorbell, twin) = Doorbell::create()?;
            self.doorbell = Some(doorbell);
            self.watch_doorbell(twin);
        }
        Ok(())
    }

    fn doorbell(&self) -> &Doorbell {
        self.doorbell.as_ref().expect("it is made before a connection is opened")
    }

    /// Connections that have shared memory or may come to have it.
    fn shared_count(&self) -> usize {
        let is_shared = |connection: &&Connection| match (&connection.opening, &connection.carrier) {
            (Some(Opening::Offered(_)), _) => true,
            (_, carrier) => carrier.as_ref().is_some_and(|carrier| carrier.transport() == Transport::SharedMemory),
        };
        self.connections.values().filter(is_shared).count()
    }

    /// Resumes the opening of a connection, whose socket has brought the awaited message, or its end.
    pub(crate) fn go_on_opening(&mut self, id: ConnectionId, opening: Opening) {
        let carrier = match opening {
            Opening::AwaitsOffer => self.answer_offer(id),
            Opening::Offered(memory) => take_answer(self.connections[&id].socket())
                .map(|answer| answer.map(|peer| SharedRings::new(memory, Side::Connecting, peer)))
                .inspect(|_| self.events.push_back(Event::Connected(id))),
        };
        match carrier {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.fail(id, CloseCause::EndOfStream),
            Err(error) => self.fail(id, CloseCause::Failed(error)),
            Ok(carrier) => {
                let connection = self.connections.get_mut(&id).expect("the caller has looked it up");
                connection.is_connected = true;
                self.touched.insert(id);
                if let Some(carrier) = carrier {
                    self.carry(id, Box::new(carrier));
                }
            }
        }
    }

    fn answer_offer(&mut self, id: ConnectionId) -> io::Result<Option<SharedRings>> {
        let has_room = self.shared_count() < CARRIED_MAX;
        let socket = self.connections[&id].socket();
        let taken = take_offer(socket)?.filter(|_| has_room && is_trusted(socket));
        match &taken {
            Some(_) => send_with(socket, &[TAKEN], &[self.doorbell().0.as_fd()])?,
            None => send_with(socket, &[NOT_TAKEN], &[])?,
        }
        Ok(taken.map(|(memory, peer)| SharedRings::new(memory, Side::Accepting, peer)))
    }
}
