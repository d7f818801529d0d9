//! Connections: input and output, the peer at the other end, and live peers.
//!
//! Events for PGs come out as [`LinkEvent`]s, which `effects.rs` passes to them.

mod admission;
mod opening;
mod pacing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use atoll_connection_limits::{Limits, Strangers};
use atoll_pg::{LEASE_RENEWAL_MS, Leases, Reached};
use atoll_reactor::{CloseCause, ConnectionId, PeerAddress};
use atoll_security_log::{SecurityEvent, note};
use atoll_types::limits::CONNECTIONS_MAX;
use atoll_types::rdma_searches::RdmaSearches;
use atoll_types::records::PeerRole;
use atoll_types::transports::Transport;
use atoll_types::{OsdId, Refusal, RequestId, Room, SharedTransaction, TraceContext};
use atoll_wire::{Link, LinkError, LinkInput, Message};

use crate::clients::ClientTraffic;
use crate::context::Context;
use crate::invariants;
use crate::metrics::Metrics;
use crate::operations::{Answered, Operation, Operations};
use admission::Admission;

/// The peer at the other end of an open link.
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

    fn is_client(self) -> bool {
        matches!(self, Peer::Client | Peer::Gateway)
    }
}

/// A message that has come.
pub(crate) struct Incoming {
    pub peer: Peer,
    pub message: Message,
    /// The span that it is part of, if its sender exports that.
    pub part_of: Option<TraceContext>,
}

/// Events of links for PGs.
pub(crate) enum LinkEvent {
    Up(OsdId),
    Down(OsdId),
}

/// Connections that others have made to this OSD.
#[derive(Default)]
pub(crate) struct LinkCounts {
    /// Those whose frames are in another mode than cluster state wants by now.
    pub in_other_mode: u32,
    pub by_transport: BTreeMap<Transport, u32>,
}

struct Connected {
    connection: ConnectionId,
    /// Known once something has come by it.
    transport: Transport,
    link: Link,
    peer: Option<Peer>,
    /// Hexadecimal of the peer's static key, once known.
    key: Option<String>,
    /// Traffic of the peer, if it is a client.
    traffic: Option<Rc<ClientTraffic>>,
    /// The OSD that this side connects to, if it is the initiator.
    target: Option<OsdId>,
    /// Requests that have not been answered.
    requests_in_flight: usize,
    is_confirmed: bool,
    /// Its number among unauthenticated connections, if it was accepted.
    stranger: Option<u64>,
    /// Parent that the peer has named for its next message.
    part_of: Option<TraceContext>,
    /// When the current key for sending was made.
    keyed_at_ms: u64,
    /// When the peer was last heard; before the handshake is over, when the connection was made.
    heard_at_ms: u64,
}

impl Connected {
    /// The OSD that this connection is to reach over RDMA, until it has shown its key.
    fn sought_over_rdma(&self) -> Option<OsdId> {
        self.target.filter(|_| self.transport == Transport::Rdma && self.peer.is_none())
    }
}

/// Silence after which a peer counts as dead. One whose process ended is noticed at once, because its connections
/// close.
const SILENCE_MAX_MS: u64 = 2_000;
/// Longest time until a peer must have authenticated.
const HANDSHAKE_MAX_MS: u64 = 5_000;
/// Connections whose peers have not proved yet who they are. The others of the 4,096 are for those that have.
const UNPROVED: Limits = Limits { strangers_max: 1_024, address_max: 512, members_max: CONNECTIONS_MAX };

pub(crate) struct Links {
    by_number: BTreeMap<u64, Connected>,
    by_osd: BTreeMap<OsdId, u64>,
    rdma_searches: RdmaSearches,
    strangers: Strangers,
    /// Links of strangers, by their numbers among these.
    stranger_links: BTreeMap<u64, u64>,
    /// OSDs that have said that they do not take everything.
    short_of_room: BTreeMap<OsdId, Room>,
    leases: Leases,
    admission: Admission,
    operations: Operations,
    /// Clients' links from which nothing is read.
    paused: BTreeSet<u64>,
    /// Links with something to send.
    with_output: BTreeSet<u64>,
    /// Clients' requests that were answered in this turn, by link and number.
    answered: Vec<((u64, u64), Answered)>,
    /// The newest ping of each link, to be answered at the end of the turn: messages of PGs in that turn go first,
    /// because they may revoke the leases that an answer grants.
    pings: BTreeMap<u64, u64>,
    pinged_at_ms: u64,
    events: VecDeque<LinkEvent>,
}

impl Links {
    pub fn new(memory_target_bytes: u64) -> Self {
        Links {
            by_number: BTreeMap::new(),
            by_osd: BTreeMap::new(),
            rdma_searches: RdmaSearches::default(),
            strangers: Strangers::new(UNPROVED),
            stranger_links: BTreeMap::new(),
            short_of_room: BTreeMap::new(),
            leases: Leases::new(0),
            admission: Admission::new(memory_target_bytes),
            operations: Operations::default(),
            paused: BTreeSet::new(),
            with_output: BTreeSet::new(),
            answered: Vec::new(),
            pings: BTreeMap::new(),
            pinged_at_ms: 0,
            events: VecDeque::new(),
        }
    }

    pub fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// OSDs that are connected.
    pub fn osds(&self) -> Vec<OsdId> {
        self.by_osd.keys().copied().collect()
    }

    /// Returns the last announced room of an OSD.
    pub fn room(&self, osd: OsdId) -> Room {
        self.short_of_room.get(&osd).copied().unwrap_or_default()
    }

    /// The next message of a connection, once it is there whole.
    pub fn receive(&mut self, context: &mut Context, connection: ConnectionId) -> Option<Incoming> {
        let number = connection.number();
        loop {
            let connected = self.by_number.get_mut(&number)?;
            let buffer = context.reactor.received(connection)?;
            let input = connected.link.receive(buffer);
            let missing_bytes = connected.link.missing_bytes(buffer);
            // A peer that has not proved that it has its key gets no more time by sending a byte now and then, nor by a
            // first message, which may be another's.
            if connected.is_confirmed {
                connected.heard_at_ms = context.now_ms();
            }
            if connected.link.has_output() {
                self.with_output.insert(number);
            }
            match input {
                Ok(Some(LinkInput::Asked { peer, mode })) => self.asked(context, number, hex::encode(peer), mode),
                Ok(Some(LinkInput::Ready { peer })) => self.ready(context, number, hex::encode(peer)),
                Ok(Some(LinkInput::Message(Message::Traced { span }))) => connected.part_of = Some(span),
                Ok(Some(LinkInput::Message(message))) => {
                    let peer = connected.peer.expect("messages follow a finished handshake");
                    let part_of = connected.part_of.take();
                    self.confirm(context, number);
                    return Some(Incoming { peer, message, part_of });
                }
                Ok(None) => {
                    context.reactor.expect_bytes(connection, missing_bytes);
                    return None;
                }
                Err(error) => {
                    self.drop_link(context, number, &error);
                    return None;
                }
            }
        }
    }

    /// The peer has shown that it holds its key now. A handshake alone does not show that to the
    /// responder, because its first message may be a replay.
    fn confirm(&mut self, context: &mut Context, number: u64) {
        let Some(connected) = self.by_number.get_mut(&number) else { return };
        if std::mem::replace(&mut connected.is_confirmed, true) {
            return;
        }
        connected.heard_at_ms = context.now_ms();
        let (stranger, peer) = (connected.stranger.take(), connected.peer);
        self.no_stranger(stranger);
        let Some(Peer::Osd(osd)) = peer else { return };
        if let Some(old) = self.by_osd.get(&osd).copied() {
            self.close(context, old);
        }
        let before = self.by_osd.insert(osd, number);
        invariants::one_link_per_osd(osd, before);
        tracing::info!("connected with {osd}");
        self.events.push_back(LinkEvent::Up(osd));
    }

    fn drop_link(&mut self, context: &mut Context, number: u64, error: &LinkError) {
        let connected = self.by_number.get(&number);
        let is_called = connected.is_some_and(|connected| connected.target.is_some());
        match connected.and_then(|connected| connected.peer) {
            Some(peer) => tracing::warn!("closing a connection with {peer:?}: {error}"),
            // An OSD that this one has called may just be starting.
            None if is_called => tracing::debug!("closing a connection: {error}"),
            None => note(SecurityEvent::FailedHandshake, self.address(context, number), error),
        }
        self.close(context, number);
    }

    /// Describes the other end, for operators.
    fn describe(&self, context: &Context, number: u64) -> String {
        let kind = match self.by_number.get(&number).and_then(|connected| connected.peer) {
            Some(Peer::Osd(osd)) => osd.to_string(),
            Some(Peer::Client) => "client".into(),
            Some(Peer::Gateway) => "gateway".into(),
            None => "unknown".into(),
        };
        format!("{kind} at {}", self.address(context, number))
    }

    /// Returns the address of the other end, by the system.
    fn address(&self, context: &Context, number: u64) -> PeerAddress {
        let connected = self.by_number.get(&number);
        connected.map_or(PeerAddress::Unknown, |connected| context.reactor.peer_address(connected.connection))
    }

    /// A connection has ended by itself.
    pub fn ended(&mut self, context: &mut Context, number: u64, cause: &CloseCause) {
        if let Some(osd) = self.by_number.get(&number).and_then(Connected::sought_over_rdma) {
            let why = match cause {
                CloseCause::EndOfStream => "it has closed the connection".to_owned(),
                CloseCause::Failed(error) => error.to_string(),
            };
            tracing::warn!(
                "{osd} is not reached over RDMA: {why}; it is reached without it, and sought again later"
            );
        }
        self.close(context, number);
    }

    /// Closes a link.
    pub fn close(&mut self, context: &mut Context, number: u64) {
        let Some(connected) = self.by_number.remove(&number) else { return };
        context.reactor.close(connected.connection);
        self.no_stranger(connected.stranger);
        self.with_output.remove(&number);
        self.paused.remove(&number);
        self.admission.left(number);
        self.operations.left(number);
        if let Some(osd) = connected.sought_over_rdma() {
            self.rdma_searches.failed(osd, context.now_ms());
        }
        if let Some(Peer::Osd(osd)) = connected.peer
            && self.by_osd.get(&osd) == Some(&number)
        {
            self.by_osd.remove(&osd);
            tracing::warn!("lost the connection with {osd}");
            self.leases.disconnected(osd);
            self.events.push_back(LinkEvent::Down(osd));
        }
    }

    /// Removes an unauthenticated connection, which has authenticated or ended.
    fn no_stranger(&mut self, stranger: Option<u64>) {
        if let Some(stranger) = stranger {
            self.strangers.remove(stranger);
            self.stranger_links.remove(&stranger);
        }
    }

    /// Closes all links.
    pub fn close_all(&mut self, context: &mut Context) {
        for number in self.by_number.keys().copied().collect::<Vec<_>>() {
            self.close(context, number);
        }
    }

    /// Notes a client's request that takes `bytes` bytes, with the data that is read for it.
    pub fn request_arrived(
        &mut self,
        number: u64,
        id: RequestId,
        bytes: u64,
        operation: Operation,
        part_of: Option<TraceContext>,
    ) {
        if let Some(connected) = self.by_number.get_mut(&number) {
            connected.requests_in_flight += 1;
            self.admission.arrived(number, id.sequence, bytes);
            self.operations.arrived(number, id.sequence, operation);
            if let Some(span) = part_of {
                self.operations.note_span(number, id, span);
            }
        }
    }

    /// Notes the stages of a client's request that is answered next, because it took long.
    pub fn took_long(&mut self, number: u64, sequence: u64, reached: Vec<Reached>) {
        self.operations.took_long(number, sequence, reached);
    }

    /// Returns true if a client's request is exported as a trace.
    pub fn is_traced(&self, number: u64, sequence: u64) -> bool {
        self.operations.is_traced(number, sequence)
    }

    /// Informs the next member of a write's parent, if that is exported.
    pub fn tell_span(&mut self, context: &mut Context, to: OsdId, write: &SharedTransaction) {
        if let Some(span) = self.operations.span_of(write) {
            self.send_to_osd(context, to, Message::Traced { span });
        }
    }

    /// Clients' operations that have taken long and are not answered.
    pub fn slow_in_flight(&self, context: &Context) -> Vec<((u64, u64), &Operation)> {
        self.operations.slow_in_flight(context.now_us())
    }

    /// The client and the pool of an operation, in words.
    pub fn asker(&self, context: &Context, number: u64, operation: &Operation) -> (String, Option<String>) {
        let pool = context.map.pools.get(&operation.pg.pool).map(|pool| pool.name.clone());
        (self.describe(context, number), pool)
    }

    /// Answers a client's request.
    pub fn reply(&mut self, context: &mut Context, number: u64, mut message: Message) {
        match &mut message {
            Message::ReadReply { sequence, opens_seals, result, payload } => {
                *opens_seals = self.operations.opens_seals(number, *sequence);
                let error = result.as_ref().err().map(Refusal::name);
                self.answered.push(((number, *sequence), Answered { read_bytes: payload.len() as u64, error }));
            }
            Message::WriteReply { sequence, result, .. } => {
                let error = result.as_ref().err().map(Refusal::name);
                self.answered.push(((number, *sequence), Answered { read_bytes: 0, error }));
            }
            _ => {}
        }
        self.send_on(context, number, message);
    }

    pub fn send_to_osd(&mut self, context: &mut Context, osd: OsdId, message: Message) {
        if let Some(&number) = self.by_osd.get(&osd) {
            self.send_on(context, number, message);
        }
    }

    pub fn send_on(&mut self, context: &mut Context, number: u64, message: Message) {
        let Some(connected) = self.by_number.get_mut(&number) else { return };
        match connected.link.send(message) {
            Ok(()) => drop(self.with_output.insert(number)),
            Err(error) => self.drop_link(context, number, &error),
        }
    }

    fn answer_sent(&mut self, number: u64, sequence: u64) {
        let Some(connected) = self.by_number.get_mut(&number) else { return };
        if cfg!(debug_assertions) {
            let (counted, held) = (connected.requests_in_flight, self.admission.requests_of(number));
            invariants::replies_answer_requests(number, counted, held);
        }
        connected.requests_in_flight = connected.requests_in_flight.saturating_sub(1);
        self.admission.answered(number, sequence);
    }

    pub fn note_room(&mut self, osd: OsdId, room: Room) {
        if room == self.room(osd) {
            return;
        }
        match room {
            Room::Enough => drop(self.short_of_room.remove(&osd)),
            Room::Overwrites | Room::Deletes => {
                tracing::warn!("{osd} is full; writes to its PGs are refused until it has space");
                self.short_of_room.insert(osd, room);
            }
        }
    }

    /// A peer asks whether this OSD is alive.
    pub fn pinged(&mut self, number: u64, tag: u64) {
        self.pings.insert(number, tag);
    }

    /// A peer has answered a ping. True if that has renewed its lease.
    pub fn ponged(&mut self, context: &Context, osd: OsdId, tag: u64) -> bool {
        self.leases.renewed(osd, tag, context.now_ms())
    }

    /// The clock stood still: no lease is relied on that was asked for before. They are requested again at the
    /// next tick.
    pub fn clock_stood_still(&mut self, context: &Context) {
        tracing::warn!(
            "the clock of this machine stood still; leases are requested again before anything is \
            read"
        );
        self.leases.clock_stood_still(context.now_ms());
        self.pinged_at_ms = 0;
    }

    /// Grants the leases that were asked for in this turn.
    pub fn answer_pings(&mut self, context: &mut Context, room: Room) {
        for (number, tag) in std::mem::take(&mut self.pings) {
            let peer = self.by_number.get(&number).and_then(|connected| connected.peer);
            if let Some(Peer::Osd(osd)) = peer {
                self.leases.granted(osd, context.now_ms());
            }
            self.send_on(context, number, Message::Pong { tag, room });
        }
    }

    /// Drops peers that are silent, and asks the others for leases.
    pub fn tick(&mut self, context: &mut Context) {
        let now_ms = context.now_ms();
        let is_due = now_ms >= self.pinged_at_ms + LEASE_RENEWAL_MS;
        let osds = self.by_osd.values().copied().collect::<Vec<u64>>();
        for number in osds {
            let Some(connected) = self.by_number.get(&number) else { continue };
            if now_ms > connected.heard_at_ms + SILENCE_MAX_MS {
                tracing::warn!("closing a connection whose other end is silent");
                self.close(context, number);
            } else if is_due {
                self.send_on(context, number, Message::Ping { tag: now_ms });
            }
        }
        if is_due {
            self.pinged_at_ms = now_ms;
        }
    }

    /// Once a second: drops connections that do not get through their handshake, and gives old ones
    /// their next key.
    pub fn second(&mut self, context: &mut Context) {
        let now_ms = context.now_ms();
        let is_late =
            |connected: &Connected| !connected.is_confirmed && now_ms > connected.heard_at_ms + HANDSHAKE_MAX_MS;
        let late = self.by_number.iter().filter(|(_, connected)| is_late(connected));
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close(context, number);
        }
        let rekey_ms = context.map.frames.rekey_seconds.saturating_mul(1_000);
        for connected in self.by_number.values_mut() {
            if now_ms.saturating_sub(connected.keyed_at_ms) >= rekey_ms {
                connected.keyed_at_ms = now_ms;
                connected.link.rekey();
            }
        }
        self.check();
    }

    /// Checks invariants between the turns of the loop.
    fn check(&self) {
        let has = |number: &u64| self.by_number.contains_key(number);
        invariants::links_are_known(self.paused.iter().chain(&self.with_output).all(has));
        for (osd, number) in &self.by_osd {
            let connected = self.by_number.get(number);
            let is_its_own = connected.is_some_and(|link| link.is_confirmed && link.peer == Some(Peer::Osd(*osd)));
            invariants::an_osds_link_is_its_own(*osd, is_its_own);
        }
        self.admission.check();
    }

    /// How many connections there are to each kind of peer, and how many operations wait for their answers.
    pub fn measure(&self) {
        let roles = [("osd", PeerRole::Osd), ("client", PeerRole::Client), ("gateway", PeerRole::Gateway)];
        for (name, role) in roles {
            for transport in Transport::ALL {
                let is_one = |link: &&Connected| {
                    link.transport == transport && link.peer.is_some_and(|peer| peer.role() == role)
                };
                Metrics::set_links(name, transport, self.by_number.values().filter(is_one).count());
            }
        }
        Metrics::set_in_flight(self.operations.len());
    }

    /// Counts the connections that others have made.
    pub fn count_accepted(&self, context: &Context) -> LinkCounts {
        let modes = &context.map.frames.modes;
        let mut counts = LinkCounts::default();
        for connected in self.by_number.values().filter(|connected| connected.target.is_none()) {
            let Some(peer) = connected.peer else { continue };
            let is_other = modes.of(peer.role(), connected.transport) != connected.link.mode();
            counts.in_other_mode += u32::from(is_other);
            *counts.by_transport.entry(connected.transport).or_default() += 1;
        }
        counts
    }
}
