//! Connections: who is at the other end, who connects to whom, and who is alive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use atoll_base::frames::FrameMode;
use atoll_base::limits::CONNECTION_REQUESTS_MAX;
use atoll_base::records::PeerRole;
use atoll_base::{OsdId, PgId};
use atoll_pg::{ClientId, LEASE_RENEWAL_MS};
use atoll_reactor::ConnectionId;
use atoll_wire::{Link, LinkError, LinkInput, Message};

use crate::daemon::{Osd, random};

/// Who is at the other end of an open link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Osd(OsdId),
    Client,
    Gateway,
}

impl Peer {
    fn role(self) -> PeerRole {
        match self {
            Peer::Osd(_) => PeerRole::Osd,
            Peer::Client => PeerRole::Client,
            Peer::Gateway => PeerRole::Gateway,
        }
    }
}

pub(crate) struct Connected {
    pub connection: ConnectionId,
    pub link: Link,
    pub peer: Option<Peer>,
    /// Hexadecimal of the peer's static key, once known.
    pub key: Option<String>,
    /// The OSD that this side connects to, if it is the initiator.
    pub target: Option<OsdId>,
    /// Requests that have not been answered.
    pub requests_in_flight: usize,
    is_confirmed: bool,
    /// When what is sent got its key.
    keyed_at_ms: u64,
    /// When the peer was last heard; before the handshake is over, when the connection was made.
    heard_at_ms: u64,
}

/// What a request itself takes, about.
const REQUEST_BYTES: u64 = 1024;
/// A peer that is silent for so long is taken for dead. One whose process ended is noticed at once,
/// because its connections close.
const SILENCE_MAX_MS: u64 = 2_000;
/// A handshake must be done within so long.
const HANDSHAKE_MAX_MS: u64 = 5_000;

#[derive(Default)]
pub(crate) struct Peers {
    /// By the connection's number.
    pub links: BTreeMap<u64, Connected>,
    pub by_osd: BTreeMap<OsdId, u64>,
    /// OSDs that have said that they are full.
    pub full: BTreeSet<OsdId>,
    /// Clients' links from which nothing is read.
    paused: BTreeSet<u64>,
    /// Links with something to send.
    pub with_output: BTreeSet<u64>,
    /// Pings to be answered at the end of the turn: what groups say in it goes first, because it
    /// may take back the leases that an answer grants.
    pings: Vec<(u64, u64)>,
    pinged_at_ms: u64,
}

impl Osd {
    pub(crate) fn accepted(&mut self, connection: ConnectionId) {
        let link = Link::respond(&self.config.key, random());
        self.add_link(connection, link, None);
    }

    fn add_link(&mut self, connection: ConnectionId, link: Link, target: Option<OsdId>) {
        let connected = Connected {
            connection,
            link,
            peer: None,
            key: None,
            target,
            requests_in_flight: 0,
            is_confirmed: false,
            keyed_at_ms: self.now_ms,
            heard_at_ms: self.now_ms,
        };
        self.peers.with_output.insert(connection.number());
        self.peers.links.insert(connection.number(), connected);
    }

    /// Connects to the OSDs with higher numbers that are up and not connected: so each pair has
    /// one connection, and it is clear who makes it. Nobody connects whose key was revoked, or to
    /// whom such a one belongs.
    pub(crate) fn connect_peers(&mut self) {
        let me = self.config.id;
        if !self.map.is_key_of(me, &hex::encode(self.config.key.public())) {
            return;
        }
        let mut wanted: Vec<(OsdId, SocketAddr, String)> = Vec::new();
        for (id, up) in self.map.up.range(OsdId(me.0 + 1)..) {
            let is_connecting = self.peers.links.values().any(|connected| connected.target == Some(*id));
            if let (false, Some(record), Ok(address)) = (is_connecting, self.map.osds.get(id), up.address.parse())
                && self.map.is_key_of(*id, &record.public_key)
            {
                wanted.push((*id, address, record.public_key.clone()));
            }
        }
        for (id, address, key) in wanted {
            let mut remote = [0; 32];
            if hex::decode_to_slice(&key, &mut remote).is_err() {
                tracing::warn!("the record of {id} has no valid public key");
                continue;
            }
            match self.reactor.connect(address) {
                Ok(connection) => {
                    let mode = self.map.frames.modes.of(PeerRole::Osd);
                    let link = Link::initiate(&self.config.key, &remote, mode, random());
                    self.add_link(connection, link, Some(id));
                }
                Err(error) => tracing::warn!("cannot connect to {id} at {address}: {error}"),
            }
        }
    }

    pub(crate) fn received(&mut self, connection: ConnectionId) {
        let number = connection.number();
        loop {
            let Some(connected) = self.peers.links.get_mut(&number) else { return };
            let Some(buffer) = self.reactor.received(connection) else { return };
            let input = connected.link.receive(buffer);
            let missing_bytes = connected.link.missing_bytes(buffer);
            // Whoever has not shown a key gets no more time by sending a byte now and then.
            if connected.peer.is_some() {
                connected.heard_at_ms = self.now_ms;
            }
            if connected.link.has_output() {
                self.peers.with_output.insert(number);
            }
            match input {
                Ok(Some(LinkInput::Asked { peer, mode })) => self.link_asked(number, hex::encode(peer), mode),
                Ok(Some(LinkInput::Ready { peer })) => self.link_ready(number, hex::encode(peer)),
                Ok(Some(LinkInput::Message(message))) => {
                    self.message(number, message);
                    // The rest may be many small requests for much data.
                    if self.pace(number) {
                        return;
                    }
                }
                Ok(None) => {
                    self.reactor.expect_bytes(connection, missing_bytes);
                    return;
                }
                Err(error) => return self.drop_link(number, &error),
            }
        }
    }

    /// Stops taking requests from a client that has too many in flight or does not read answers, and
    /// from all when what they have in flight takes too much memory. Says whether this one is stopped.
    fn pace(&mut self, number: u64) -> bool {
        let unsent_bytes_max = self.admission.unsent_bytes_max(self.peers.links.len());
        let Some(connected) = self.peers.links.get_mut(&number) else { return false };
        let unsent_bytes = self.reactor.unsent_bytes(connected.connection);
        let is_over = self.admission.is_closed()
            || connected.requests_in_flight >= CONNECTION_REQUESTS_MAX
            || unsent_bytes > unsent_bytes_max;
        let is_client = matches!(connected.peer, Some(Peer::Client | Peer::Gateway));
        if is_over && is_client && self.peers.paused.insert(number) {
            self.reactor.pause(connected.connection);
        } else if !is_over && self.peers.paused.remove(&number) {
            self.reactor.resume(connected.connection);
        }
        is_over && is_client
    }

    /// Who holds a key, if cluster state knows it.
    fn holder(&self, key: &str) -> Option<Peer> {
        let record = self.map.authorized_keys.get(key)?;
        match record.role {
            PeerRole::Osd => record.osd.map(Peer::Osd),
            PeerRole::Client => Some(Peer::Client),
            PeerRole::Gateway => Some(Peer::Gateway),
        }
    }

    /// Somebody has connected, and wants frames of a mode.
    fn link_asked(&mut self, number: u64, key: String, mode: FrameMode) {
        let Some(peer) = self.holder(&key) else {
            tracing::warn!("refused a connection: its key {key} is not authorised in cluster state");
            return self.close_link(number);
        };
        let right = self.map.frames.modes.of(peer.role());
        let connected = self.peers.links.get_mut(&number).expect("the link has just received");
        let answered = connected.link.answer(right);
        self.peers.with_output.insert(number);
        if answered.is_err() {
            let name = &self.map.authorized_keys[&key].name;
            tracing::warn!(
                "refused a connection of {name} (key {key}): it wants {mode} frames, and cluster state says {right} for \
                 its role, {}; one of us has not seen the last change yet",
                peer.role()
            );
            // What is queued tells the peer the same.
            let output = connected.link.take_output();
            self.reactor.send(connected.connection, output);
            self.reactor.close_after_send(connected.connection);
            self.peers.with_output.remove(&number);
            self.peers.links.remove(&number);
            return;
        }
        (connected.peer, connected.key) = (Some(peer), Some(key));
    }

    /// The OSD that this one has connected to has answered.
    fn link_ready(&mut self, number: u64, key: String) {
        let holder = self.holder(&key);
        let connected = self.peers.links.get_mut(&number).expect("the link has just received");
        let expected = connected.target.map(Peer::Osd);
        if holder.is_none() || holder != expected {
            tracing::warn!("left a connection: its key {key} is not authorised in cluster state");
            return self.close_link(number);
        }
        (connected.peer, connected.key) = (holder, Some(key));
        // The answer to a fresh handshake proves who the peer is, and this proves it to the peer.
        self.confirm(number);
        self.send_on(number, Message::Ping { tag: self.now_ms });
    }

    /// The peer has shown that it holds its key now. A handshake alone does not show that to the
    /// responder, because its first message may be a replay.
    fn confirm(&mut self, number: u64) {
        let Some(connected) = self.peers.links.get_mut(&number) else { return };
        if std::mem::replace(&mut connected.is_confirmed, true) {
            return;
        }
        let Some(Peer::Osd(osd)) = connected.peer else { return };
        if let Some(old) = self.peers.by_osd.get(&osd).copied() {
            self.close_link(old);
        }
        self.peers.by_osd.insert(osd, number);
        tracing::info!("connected with {osd}");
        self.with_all_groups(|group, view| group.peer_up(osd, view));
    }

    fn drop_link(&mut self, number: u64, error: &LinkError) {
        let peer = self.peers.links.get(&number).and_then(|connected| connected.peer);
        match peer {
            Some(peer) => tracing::warn!("closing a connection with {peer:?}: {error}"),
            // Anybody can cause these; they must not fill the log.
            None => tracing::debug!("closing a connection: {error}"),
        }
        self.close_link(number);
    }

    /// Closes a link and tells the groups if an OSD was at its other end.
    pub(crate) fn close_link(&mut self, number: u64) {
        let Some(connected) = self.peers.links.remove(&number) else { return };
        self.reactor.close(connected.connection);
        self.peers.with_output.remove(&number);
        self.peers.paused.remove(&number);
        self.admission.left(number);
        if let Some(Peer::Osd(osd)) = connected.peer
            && self.peers.by_osd.get(&osd) == Some(&number)
        {
            self.peers.by_osd.remove(&osd);
            tracing::warn!("lost the connection with {osd}");
            self.leases.disconnected(osd);
            self.with_all_groups(|group, view| group.peer_down(osd, view));
        }
    }

    fn message(&mut self, number: u64, message: Message) {
        self.confirm(number);
        let connected = self.peers.links.get_mut(&number).expect("the link has just received");
        let client = ClientId(number);
        let peer = connected.peer.expect("messages follow a finished handshake");
        match (message, peer) {
            (Message::Read { id, pg, object, request, .. }, _) => {
                connected.requests_in_flight += 1;
                // An answer made of metadata comes into being when it is sent.
                self.admission.arrived(number, id.sequence, REQUEST_BYTES + request.data_bytes_bound());
                self.recovery.client_request(self.now_ms);
                self.scrubs.client_request();
                let Some(()) = self.check_group(number, pg, id.sequence, false) else { return };
                self.with_group(pg, |group, view| group.client_read(client, id, object, request, view));
            }
            (Message::Write { id, answered_below, pg, epoch, request }, _) => {
                connected.requests_in_flight += 1;
                let bytes = request.control_bytes_bound() + request.payload.len();
                self.admission.arrived(number, id.sequence, bytes as u64);
                self.recovery.client_request(self.now_ms);
                self.scrubs.client_request();
                let Some(()) = self.check_group(number, pg, id.sequence, true) else { return };
                self.with_group(pg, |group, view| {
                    group.client_write(client, id, answered_below, epoch, request, view)
                });
            }
            (Message::Ping { tag }, _) => self.peers.pings.push((number, tag)),
            (Message::Pong { tag, is_full }, Peer::Osd(osd)) => {
                self.note_full(osd, is_full);
                if self.leases.renewed(osd, tag, self.now_ms) {
                    // Reads may have waited for it.
                    self.tick_restless_groups();
                }
            }
            (message, Peer::Osd(osd)) => {
                if let Message::ReplicateAck { is_full, .. } = &message {
                    self.note_full(osd, *is_full);
                }
                if matches!(message, Message::Replicate { .. }) {
                    self.recovery.client_request(self.now_ms);
                }
                let Some(pg) = message.pg() else { return };
                if matches!(message, Message::PeerQuery { .. }) {
                    // Perhaps this OSD is to become a member. If its map lags it is asked again.
                    self.add_group(pg);
                }
                if let (Message::Fenced { epoch, .. }, false) = (&message, self.pgs.contains_key(&pg)) {
                    // A process that has no such group serves nothing of it.
                    return self.send_on(number, Message::FencedAck { pg, epoch: *epoch });
                }
                self.with_group(pg, |group, view| group.message(osd, message, view));
            }
            (_, Peer::Client | Peer::Gateway) => {
                tracing::warn!("closing a client's connection: it sent a message that only OSDs may send");
                self.close_link(number);
            }
        }
    }

    /// Answers at once when the group is not here.
    fn check_group(&mut self, number: u64, pg: PgId, sequence: u64, is_write: bool) -> Option<()> {
        if self.pgs.contains_key(&pg) {
            return Some(());
        }
        let refusal = atoll_base::Refusal::NotPrimary;
        self.reply(
            number,
            if is_write {
                Message::WriteReply { sequence, result: Err(refusal) }
            } else {
                Message::ReadReply { sequence, result: Err(refusal), payload: bytes::Bytes::new() }
            },
        );
        None
    }

    fn note_full(&mut self, osd: OsdId, is_full: bool) {
        if is_full {
            if self.peers.full.insert(osd) {
                tracing::warn!("{osd} is full; writes to its placement groups are refused until it has space");
            }
        } else {
            self.peers.full.remove(&osd);
        }
    }

    pub(crate) fn reply(&mut self, number: u64, message: Message) {
        let Some(connected) = self.peers.links.get_mut(&number) else { return };
        connected.requests_in_flight = connected.requests_in_flight.saturating_sub(1);
        if let Message::ReadReply { sequence, .. } | Message::WriteReply { sequence, .. } = &message {
            self.admission.answered(number, *sequence);
        }
        self.send_on(number, message);
        self.pace(number);
    }

    /// Goes on with clients that were stopped, when there is room again: answers were given, or sent.
    pub(crate) fn pace_paused(&mut self) {
        if !self.admission.is_closed() {
            for number in self.peers.paused.clone() {
                self.pace(number);
            }
        }
    }

    pub(crate) fn send_to_peer(&mut self, osd: OsdId, message: Message) {
        if let Some(&number) = self.peers.by_osd.get(&osd) {
            self.send_on(number, message);
        }
    }

    fn send_on(&mut self, number: u64, message: Message) {
        let Some(connected) = self.peers.links.get_mut(&number) else { return };
        match connected.link.send(message) {
            Ok(()) => drop(self.peers.with_output.insert(number)),
            Err(error) => self.drop_link(number, &error),
        }
    }

    /// Hands everything queued to the reactor, all frames of a link together.
    pub(crate) fn send_output(&mut self) {
        for number in std::mem::take(&mut self.peers.with_output) {
            if let Some(connected) = self.peers.links.get_mut(&number) {
                self.reactor.send(connected.connection, connected.link.take_output());
            }
        }
    }

    /// Drops peers that are silent, and asks the others for leases.
    pub(crate) fn look_after_peers(&mut self) {
        let now_ms = self.now_ms;
        let is_silent = |connected: &Connected| now_ms > connected.heard_at_ms + SILENCE_MAX_MS;
        let osds = self.peers.by_osd.values().copied().collect::<Vec<u64>>();
        for number in osds {
            let Some(connected) = self.peers.links.get(&number) else { continue };
            if is_silent(connected) {
                tracing::warn!("closing a connection whose other end is silent");
                self.close_link(number);
            } else if self.now_ms >= self.peers.pinged_at_ms + LEASE_RENEWAL_MS {
                self.send_on(number, Message::Ping { tag: self.now_ms });
            }
        }
        if self.now_ms >= self.peers.pinged_at_ms + LEASE_RENEWAL_MS {
            self.peers.pinged_at_ms = self.now_ms;
        }
    }

    /// Grants the leases that were asked for in this turn.
    pub(crate) fn answer_pings(&mut self) {
        for (number, tag) in std::mem::take(&mut self.peers.pings) {
            let peer = self.peers.links.get(&number).and_then(|connected| connected.peer);
            if let Some(Peer::Osd(osd)) = peer {
                self.leases.granted(osd, self.now_ms);
            }
            let is_full = self.store.is_full();
            self.send_on(number, Message::Pong { tag, is_full });
        }
    }

    /// Once a second: drops connections that do not get through their handshake, and gives old ones
    /// their next key.
    pub(crate) fn look_after_links(&mut self) {
        let is_late = |connected: &Connected| {
            connected.peer.is_none() && self.now_ms > connected.heard_at_ms + HANDSHAKE_MAX_MS
        };
        let late = self.peers.links.iter().filter(|(_, connected)| is_late(connected));
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close_link(number);
        }
        let rekey_ms = self.map.frames.rekey_seconds.saturating_mul(1_000);
        for connected in self.peers.links.values_mut() {
            if self.now_ms.saturating_sub(connected.keyed_at_ms) >= rekey_ms {
                connected.keyed_at_ms = self.now_ms;
                connected.link.rekey();
            }
        }
    }

    /// Cuts off whoever uses a key that was revoked, or is somebody else's now; everyone, if it is our
    /// own.
    pub(crate) fn key_changed(&mut self, key: &str) {
        let holder = self.holder(key);
        let is_own = holder.is_none() && key == hex::encode(self.config.key.public());
        let uses_it = |connected: &Connected| connected.key.as_deref() == Some(key) && connected.peer != holder;
        let users = self.peers.links.iter().filter(|(_, connected)| is_own || uses_it(connected));
        let users: Vec<u64> = users.map(|(number, _)| *number).collect();
        if is_own {
            tracing::error!(
                "the key of {id} itself was revoked: it closes all connections, and nobody makes new ones; end its process, \
                 and remove it with 'atoll osd rm'",
                id = self.config.id
            );
        }
        for number in users {
            tracing::warn!("closing a connection: its key {key} was revoked");
            self.close_link(number);
        }
    }

    /// Connections that others have made whose frames are in another mode than cluster state wants
    /// by now.
    pub(crate) fn links_in_other_mode(&self) -> u32 {
        let accepted = self.peers.links.values().filter(|connected| connected.target.is_none());
        let modes = &self.map.frames.modes;
        let is_other = |connected: &&Connected| {
            connected.peer.is_some_and(|peer| modes.of(peer.role()) != connected.link.mode())
        };
        accepted.filter(is_other).count() as u32
    }
}
