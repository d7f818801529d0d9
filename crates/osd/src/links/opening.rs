//! Opening links: the OSD that connects, and the accepted keys.

use std::io;

use atoll_reactor::{ConnectionId, PeerAddress, RdmaAddress, Reactor, is_not_offered};
use atoll_security_log::{SecurityEvent, note};
use atoll_types::OsdId;
use atoll_types::frames::FrameMode;
use atoll_types::records::{OsdUpRecord, PeerRole};
use atoll_types::transports::{Transport, Way};
use atoll_wire::{Link, Message};

use super::{Connected, Links, Peer};
use crate::clients::ClientTraffic;
use crate::context::Context;
use crate::daemon::random;

/// The peer that holds a key, if cluster state knows it.
fn holder(context: &Context, key: &str) -> Option<Peer> {
    let record = context.map.authorized_keys.get(key)?;
    match record.role {
        PeerRole::Osd => record.osd.map(Peer::Osd),
        PeerRole::Client => Some(Peer::Client),
        PeerRole::Gateway => Some(Peer::Gateway),
    }
}

fn connect_rdma(reactor: &mut Reactor, address: &str) -> io::Result<ConnectionId> {
    let address: RdmaAddress = address.parse().map_err(io::Error::other)?;
    reactor.connect_rdma(&address)
}

/// Begins to connect by the first way that does not fail at once.
fn begin_to_connect(reactor: &mut Reactor, id: OsdId, ways: &[Way]) -> Option<(ConnectionId, FrameMode)> {
    for Way { transport, address, mode } in ways {
        let begun = match transport {
            Transport::SharedMemory => reactor.connect_shared(address),
            Transport::Unix => reactor.connect_local(address),
            Transport::Tcp => address.parse().map_err(io::Error::other).and_then(|tcp| reactor.connect(tcp)),
            Transport::Rdma => connect_rdma(reactor, address),
        };
        match (begun, transport) {
            (Ok(connection), _) => return Some((connection, *mode)),
            (Err(error), Transport::Unix | Transport::SharedMemory) if is_not_offered(&error) => {}
            (Err(error), _) => tracing::warn!("cannot connect to {id} at {address}: {error}"),
        }
    }
    None
}

impl Links {
    /// A peer has connected to this OSD.
    pub fn accepted(&mut self, context: &mut Context, connection: ConnectionId) {
        let address = context.reactor.peer_address(connection);
        let host = match address {
            PeerAddress::Host(host) => Some(host),
            PeerAddress::Process(_) | PeerAddress::Foreign(_) | PeerAddress::Unknown => None,
        };
        let entered = self.strangers.enter(host);
        if let Some(link) = entered.evicted.and_then(|evicted| self.stranger_links.remove(&evicted)) {
            let detail = "the oldest connection whose peer has not proved who it is is closed for a new one";
            note(SecurityEvent::TooManyConnections, address, detail);
            self.close(context, link);
        }
        self.stranger_links.insert(entered.number, connection.number());
        let link = Link::respond(&context.config.key, random());
        self.add(context, connection, link, None);
        let connected = self.by_number.get_mut(&connection.number()).expect("the link was just added");
        connected.stranger = Some(entered.number);
    }

    fn add(&mut self, context: &Context, connection: ConnectionId, link: Link, target: Option<OsdId>) {
        let connected = Connected {
            connection,
            transport: context.reactor.transport(connection),
            link,
            peer: None,
            key: None,
            traffic: None,
            target,
            requests_in_flight: 0,
            is_confirmed: false,
            stranger: None,
            part_of: None,
            keyed_at_ms: context.now_ms(),
            heard_at_ms: context.now_ms(),
        };
        self.with_output.insert(connection.number());
        self.by_number.insert(connection.number(), connected);
    }

    /// Connects to the OSDs with higher numbers that are up and not connected: so each pair has
    /// one connection, and it is clear which side makes it. An OSD whose key was revoked neither connects
    /// nor is connected to. One that is connected without RDMA, though it is to be reached by that, is sought by it
    /// now and then: that connection takes the place of the other when the OSD has shown its key by it.
    pub fn connect(&mut self, context: &mut Context) {
        let me = context.me();
        if !context.map.is_key_of(me, &hex::encode(context.config.key.public())) {
            return;
        }
        let mut wanted: Vec<(OsdId, Vec<Way>, String)> = Vec::new();
        for (id, up) in context.map.up.range(OsdId(me.0 + 1)..) {
            let Some(record) = context.map.osds.get(id) else { continue };
            if context.map.is_key_of(*id, &record.public_key) {
                let ways = self.wanted_ways(*id, up, context);
                if !ways.is_empty() {
                    wanted.push((*id, ways, record.public_key.clone()));
                }
            }
        }
        for (id, ways, key) in wanted {
            let mut remote = [0; 32];
            if hex::decode_to_slice(&key, &mut remote).is_err() {
                tracing::warn!("the record of {id} has no valid public key");
                continue;
            }
            let begun = begin_to_connect(&mut context.reactor, id, &ways);
            let is_sought =
                begun.is_some_and(|(connection, _)| context.reactor.transport(connection) == Transport::Rdma);
            if ways[0].transport == Transport::Rdma && !is_sought {
                self.rdma_searches.failed(id, context.now_ms());
            }
            if let Some((connection, mode)) = begun {
                let link = Link::initiate(&context.config.key, &remote, mode, random());
                self.add(context, connection, link, Some(id));
            }
        }
    }

    /// Returns the ways to connect to an OSD now.
    fn wanted_ways(&mut self, id: OsdId, up: &OsdUpRecord, context: &Context) -> Vec<Way> {
        if up.rdma_address.is_empty() {
            self.rdma_searches.forget(id);
        }
        let (mut is_connecting, mut transport) = (false, None);
        for connected in self.by_number.values().filter(|connected| connected.target == Some(id)) {
            is_connecting |= connected.peer.is_none();
            transport = Some(connected.transport);
        }
        if is_connecting || transport == Some(Transport::Rdma) {
            return Vec::new();
        }
        let mut ways = context.map.frames.ways(PeerRole::Osd, up);
        // One that is connected is sought by RDMA only.
        ways.retain(|way| match way.transport {
            Transport::Rdma => self.rdma_searches.is_due(id, &way.address, context.now_ms()),
            _ => transport.is_none(),
        });
        ways
    }

    /// A peer wants to open a link with frames of a mode.
    pub(super) fn asked(&mut self, context: &mut Context, number: u64, key: String, mode: FrameMode) {
        let Some(peer) = holder(context, &key) else {
            let detail = format!("its key {key} is not authorised in cluster state");
            note(SecurityEvent::RefusedKey, self.address(context, number), detail);
            return self.close(context, number);
        };
        let connected = self.by_number.get_mut(&number).expect("the link has just received");
        connected.transport = context.reactor.transport(connected.connection);
        let right = context.map.frames.modes.of(peer.role(), connected.transport);
        let answered = connected.link.answer(right);
        self.with_output.insert(number);
        if answered.is_err() {
            let name = &context.map.authorized_keys[&key].name;
            tracing::warn!(
                "refused a connection of {name} (key {key}): it wants {mode} frames, and cluster state says {right} for \
                 its role, {}; one of us has not seen the last change yet",
                peer.role()
            );
            // What is queued tells the peer the same.
            if let Ok(output) = connected.link.take_output() {
                context.reactor.send(connected.connection, output);
            }
            context.reactor.close_after_send(connected.connection);
            let stranger = connected.stranger;
            self.with_output.remove(&number);
            self.by_number.remove(&number);
            self.no_stranger(stranger);
            return;
        }
        connected.traffic = peer.is_client().then(|| ClientTraffic::of(&context.map.authorized_keys[&key].name));
        (connected.peer, connected.key) = (Some(peer), Some(key));
    }

    /// The OSD that this one has connected to has answered.
    pub(super) fn ready(&mut self, context: &mut Context, number: u64, key: String) {
        let holder = holder(context, &key);
        let connected = self.by_number.get_mut(&number).expect("the link has just received");
        connected.transport = context.reactor.transport(connected.connection);
        let expected = connected.target.map(Peer::Osd);
        if holder.is_none() || holder != expected {
            tracing::warn!("left a connection: its key {key} is not authorised in cluster state");
            return self.close(context, number);
        }
        (connected.peer, connected.key) = (holder, Some(key));
        // The answer to a fresh handshake proves who the peer is, and this proves it to the peer.
        self.confirm(context, number);
        self.send_on(context, number, Message::Ping { tag: context.now_ms() });
    }

    /// Cuts off the users of a key that was revoked, or belongs to another peer now; all peers, if it is this
    /// OSD's own.
    pub fn key_changed(&mut self, context: &mut Context, key: &str) {
        let holder = holder(context, key);
        let is_own = holder.is_none() && key == hex::encode(context.config.key.public());
        let uses_it = |connected: &Connected| connected.key.as_deref() == Some(key) && connected.peer != holder;
        let users = self.by_number.iter().filter(|(_, connected)| is_own || uses_it(connected));
        let users: Vec<u64> = users.map(|(number, _)| *number).collect();
        if is_own {
            tracing::error!(
                "the key of {id} itself was revoked: it closes all connections and makes no new ones; end its process, \
                 and remove it with 'atoll osd rm'",
                id = context.me()
            );
        }
        for number in users {
            tracing::warn!("closing a connection: its key {key} was revoked");
            self.close(context, number);
        }
    }
}
