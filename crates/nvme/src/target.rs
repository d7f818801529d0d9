//! The target: listening on a reactor's thread, and the controllers of all hosts.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_cluster::ClusterError;
use atoll_connection_limits::{Limits, Places};
use atoll_credentials::nvme::HostSecrets;
use atoll_exports::{
    Client, Exports, OpenError, OpenErrorKind, OpenedExport, RequestMemory, enter, follow_in_flight,
};
use atoll_image::{Bridge, ImageAdmin};
use atoll_keys::random_u64;
use atoll_reactor::{ListenAddress, LocalRuntime, PeerAddress};
use atoll_security_log::{SecurityEvent, note};
use atoll_types::records::ImageRecord;

use crate::association::Association;
use crate::connection;
use crate::handshake::{TlsPeer, proved_psk};
use crate::host_secrets::{HostSecretStore, SecretsError};
use crate::metrics;
use crate::names::Names;
use crate::protocol::{
    ChannelSecurity, ConnectRefusal, ConnectRequest, ControllerConfig, DISCOVERY_SUBSYSTEM, DiscoveryEntry,
    Namespace, QueueConfig, Status, Subject, connect_field,
};
use crate::tls::{ClientHello, TlsError, TlsPsk};

/// Hosts that use an image have places that those without one cannot take.
const LIMITS: Limits = Limits { strangers_max: 256, address_max: 64, members_max: 1_024 };
/// Controllers have numbers up to this; those above have a meaning.
const CONTROLLER_ID_MAX: u16 = 0xFFEF;
/// The number of a controller that is to be chosen.
const ANY_CONTROLLER: u16 = 0xFFFF;
/// How often controllers look after their hosts and images.
pub(crate) const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Serves all images of a cluster to NVMe hosts.
pub struct NvmeTarget {
    pub(crate) runtime: LocalRuntime,
    pub(crate) memory: RequestMemory,
    pub(crate) exports: Rc<Exports>,
    pub(crate) names: Names,
    secrets: HostSecretStore,
    pub(crate) connections: Cell<usize>,
    places: Places,
    associations: RefCell<HashMap<u16, Rc<Association>>>,
    /// Numbers of controllers that were announced to hosts that have yet to authenticate.
    announced: RefCell<HashSet<u16>>,
}

/// A host that connects an admin queue, and its connection.
pub(crate) struct Caller {
    pub client: Client,
    /// The target's address of the connection.
    pub own_address: SocketAddr,
    /// True if the connection has TLS.
    pub is_secured: bool,
    /// The number of its controller, if it was announced before.
    pub announced: Option<u16>,
}

/// Requirements for a host to connect.
pub(crate) struct Demands {
    /// It must prove that it has these.
    pub secrets: Option<HostSecrets>,
    pub security: ChannelSecurity,
}

/// The number of a controller that was announced to a host that has yet to authenticate.
pub(crate) enum ControllerNumber {
    /// It is there, and this is to be one of its queues.
    Known(u16),
    /// It is to be made; no other controller gets the number while this lives.
    Reserved { number: u16, target: Rc<NvmeTarget> },
}

impl ControllerNumber {
    pub fn get(&self) -> u16 {
        match self {
            ControllerNumber::Known(number) | ControllerNumber::Reserved { number, .. } => *number,
        }
    }
}

impl Drop for ControllerNumber {
    fn drop(&mut self) {
        if let ControllerNumber::Reserved { number, target } = self {
            target.announced.borrow_mut().remove(number);
        }
    }
}

impl NvmeTarget {
    /// A target that reaches the cluster through `client`. It lives as long as its thread.
    pub fn new(
        client: &LocalClient,
        bridge: Bridge,
        admin: ImageAdmin,
        secrets: HostSecretStore,
        cluster_id: String,
    ) -> Rc<Self> {
        metrics::register_all();
        let target = Rc::new(NvmeTarget {
            runtime: client.runtime().clone(),
            memory: RequestMemory::default(),
            exports: Rc::new(Exports::new(client, bridge, admin)),
            names: Names::new(cluster_id),
            secrets,
            announced: RefCell::default(),
            connections: Cell::new(0),
            places: Places::new(LIMITS),
            associations: RefCell::default(),
        });
        target.runtime.spawn(follow_in_flight(target.runtime.clone()));
        target.runtime.spawn(Rc::clone(&target).watch());
        target.runtime.spawn(Rc::clone(&target.exports).follow_rights());
        target
    }

    /// Listens and serves connections from then on; returns the address with the chosen port.
    pub fn listen(self: &Rc<Self>, address: SocketAddr) -> std::io::Result<ListenAddress> {
        let (listener, address) = self.runtime.listen(&ListenAddress::Tcp(address))?;
        let target = Rc::clone(self);
        self.runtime.spawn(async move {
            loop {
                let stream = listener.accept().await;
                target.count_connections(1);
                let place = enter(&target.places, stream.peer_address());
                target.runtime.spawn(connection::serve(Rc::clone(&target), stream, place));
            }
        });
        Ok(address)
    }

    pub(crate) fn count_connections(&self, difference: isize) {
        self.connections.set(self.connections.get().saturating_add_signed(difference));
        metrics::set_connections(self.connections.get());
    }

    /// Looks after all controllers for ever.
    async fn watch(self: Rc<Self>) {
        loop {
            self.runtime.sleep(WATCH_PAUSE).await;
            let associations: Vec<Rc<Association>> = self.associations.borrow().values().cloned().collect();
            associations.iter().for_each(Association::look_after);
        }
    }

    /// Returns the requirements for a host to connect. A host without any is remembered for a moment: a stranger can make
    /// up names of hosts, and connect by many queues.
    pub(crate) async fn demands_on(&self, host: &str, peer: PeerAddress) -> Result<Demands, ConnectRefusal> {
        let (questions, name) = (self.exports.questions(), format!("host {host}"));
        if !questions.may_ask(&name, peer).map_err(|error| refused(&error))? {
            return Ok(Demands { secrets: None, security: ChannelSecurity::None });
        }
        let (secrets, wanted) = (self.secrets.clone(), host.to_owned());
        let find = async move {
            let security = secrets.channel_security(&wanted).await?;
            Ok(Demands { secrets: secrets.get(&wanted).await?, security })
        };
        let found = self.exports.bridge().run(find).await;
        let demands = found.map_err(|error: SecretsError| {
            let detail = format!("its authentication settings are unknown now, so it cannot connect: {error}");
            note(SecurityEvent::RefusedClient, format_args!("NVMe host {host}"), detail);
            // It connects again when that is known, unless there is nothing to wait for.
            let is_refused = matches!(error, SecretsError::Cluster(ClusterError::Untrusted { .. }));
            let status = if is_refused { Status::ConnectInvalidHost } else { Status::ConnectControllerBusy };
            ConnectRefusal::new(status)
        })?;
        if demands.secrets.is_none() && demands.security == ChannelSecurity::None {
            questions.missed(&name, peer);
        }
        Ok(demands)
    }

    /// Returns the key of TLS that a host offers and proves to have, and the host's identity by that key.
    pub(crate) async fn offered_psk(
        &self,
        hello: ClientHello,
        peer: PeerAddress,
    ) -> Result<(TlsPsk, TlsPeer), TlsError> {
        let questions = self.exports.questions();
        questions.may_ask("", peer).map_err(|error| TlsError::Keys(error.message))?;
        let secrets = self.secrets.clone();
        let proved = self.exports.bridge().run(async move { proved_psk(&secrets, &hello).await }).await;
        if proved.is_err() {
            questions.count(peer);
        }
        proved
    }

    /// Checks if a host may connect that has yet to authenticate; returns the number of its controller. Nothing is
    /// opened for it.
    pub(crate) async fn announce(
        self: &Rc<Self>,
        request: &ConnectRequest,
        client: &Client,
        is_secured: bool,
    ) -> Result<ControllerNumber, ConnectRefusal> {
        if request.queue_id > 0 {
            return self
                .find(request, is_secured)
                .map(|association| ControllerNumber::Known(association.controller_id));
        }
        if request.controller_id != ANY_CONTROLLER {
            return Err(ConnectRefusal::in_data(connect_field::DATA_CONTROLLER_ID));
        }
        if request.subsystem != DISCOVERY_SUBSYSTEM {
            let image = self.names.image(&request.subsystem);
            let image = image.ok_or(ConnectRefusal::in_data(connect_field::DATA_SUBSYSTEM))?;
            self.exports.describe(image, client).await.map_err(|error| refused(&error))?;
        }
        let number = self.free_controller_id();
        self.announced.borrow_mut().insert(number);
        Ok(ControllerNumber::Reserved { number, target: Rc::clone(self) })
    }

    /// Other gateways have controllers of the same subsystems, whose numbers must be others. Chance sees to that: a host
    /// that meets the same number twice connects again.
    fn free_controller_id(&self) -> u16 {
        let (associations, announced) = (self.associations.borrow(), self.announced.borrow());
        loop {
            let chosen = (random_u64() % u64::from(CONTROLLER_ID_MAX)) as u16 + 1;
            if !associations.contains_key(&chosen) && !announced.contains(&chosen) {
                break chosen;
            }
        }
    }

    /// A controller for a host that connects an admin queue.
    pub(crate) async fn associate(
        self: &Rc<Self>,
        request: &ConnectRequest,
        caller: Caller,
    ) -> Result<Rc<Association>, ConnectRefusal> {
        if request.controller_id != ANY_CONTROLLER {
            return Err(ConnectRefusal::in_data(connect_field::DATA_CONTROLLER_ID));
        }
        if request.subsystem == DISCOVERY_SUBSYSTEM {
            let entries =
                self.subsystems(&caller.client, caller.own_address).await.map_err(|error| refused(&error))?;
            let subject = Subject::Discovery(entries);
            return Ok(self.add(request, caller, subject, "discovery".into(), None, 0));
        }
        let image = self.names.image(&request.subsystem);
        let image = image.ok_or(ConnectRefusal::in_data(connect_field::DATA_SUBSYSTEM))?;
        let opened = Association::open(self, image, &caller.client, None).await.map_err(|error| {
            let detail = format!("it cannot use image '{image}': {error}");
            note(SecurityEvent::RefusedClient, caller.client.describe(), detail);
            refused(&error)
        })?;
        let identity = self.names.identity(image, opened.created_unix_ms);
        let namespace = Namespace {
            size_bytes: opened.size_bytes,
            is_read_only: opened.is_read_only,
            is_accessible: opened.device.is_some(),
            is_gone: false,
        };
        let subject = Subject::Namespace { namespace, id: identity.id };
        let association = self.add(request, caller, subject, identity.serial, opened.device, opened.generation);
        self.attach(&association, image, &opened.record).await?;
        Ok(association)
    }

    /// Has a controller end when its host's right to the image is taken away.
    async fn attach(
        self: &Rc<Self>,
        association: &Association,
        image: &str,
        record: &ImageRecord,
    ) -> Result<(), ConnectRefusal> {
        let (target, number) = (Rc::downgrade(self), association.controller_id);
        let end = move || {
            if let Some(target) = target.upgrade() {
                target.end(number);
            }
        };
        association.is_attached(self.exports.attach(record, &association.client, end));
        // To open the image took a while.
        match self.exports.describe(image, &association.client).await {
            Err(error) if error.kind == OpenErrorKind::NotAllowed => {
                self.end(number);
                Err(refused(&error))
            }
            _ => Ok(()),
        }
    }

    fn add(
        self: &Rc<Self>,
        request: &ConnectRequest,
        caller: Caller,
        subject: Subject,
        serial: String,
        device: Option<OpenedExport>,
        generation: u64,
    ) -> Rc<Association> {
        let controller_id = caller.announced.unwrap_or_else(|| self.free_controller_id());
        let mut associations = self.associations.borrow_mut();
        let config = ControllerConfig {
            controller_id,
            subsystem: request.subsystem.clone(),
            serial,
            firmware: env!("CARGO_PKG_VERSION").into(),
            host: request.host.clone(),
            host_id: request.host_id,
            keep_alive_ms: request.keep_alive_ms,
            queues: QueueConfig::default(),
            subject,
        };
        let association = Association::new(self, config, caller, device, generation);
        associations.insert(controller_id, Rc::clone(&association));
        metrics::set_controllers(associations.len());
        association
    }

    /// As [`NvmeTarget::find`], when commands of former queues are done: a host that connects again repeats
    /// unanswered commands, and then sends the next, and no earlier command must be done after that.
    pub(crate) async fn find_drained(
        &self,
        request: &ConnectRequest,
        is_secured: bool,
    ) -> Result<Rc<Association>, ConnectRefusal> {
        let association = self.find(request, is_secured)?;
        if let Some(image) = &association.image {
            self.exports.drained(image).await.map_err(|error| refused(&error))?;
        }
        // That took a while.
        self.find(request, is_secured)
    }

    /// The controller of an I/O queue.
    fn find(&self, request: &ConnectRequest, is_secured: bool) -> Result<Rc<Association>, ConnectRefusal> {
        let associations = self.associations.borrow();
        let found = associations.get(&request.controller_id);
        let association = found.ok_or(ConnectRefusal::in_data(connect_field::DATA_CONTROLLER_ID))?;
        let controller = association.controller.borrow();
        let config = controller.config();
        if config.subsystem != request.subsystem {
            return Err(ConnectRefusal::in_data(connect_field::DATA_SUBSYSTEM));
        }
        // A queue without TLS of a controller with TLS could be anyone's.
        let is_same = (&config.host, config.host_id) == (&request.host, request.host_id);
        if !is_same || association.is_secured != is_secured {
            return Err(ConnectRefusal::new(Status::ConnectInvalidHost));
        }
        if !controller.has_io_queue(request.queue_id) || association.has_queue(request.queue_id) {
            return Err(ConnectRefusal::in_command(connect_field::QUEUE_ID));
        }
        drop(controller);
        Ok(Rc::clone(association))
    }

    /// The admin queue of a controller is gone, and with it the controller.
    pub(crate) fn end(&self, controller_id: u16) {
        let ended = self.associations.borrow_mut().remove(&controller_id);
        metrics::set_controllers(self.associations.borrow().len());
        if let Some(association) = ended {
            association.end();
        }
    }

    /// Returns the subsystems that a host may use, at the target's address of its connection.
    pub(crate) async fn subsystems(
        &self,
        client: &Client,
        own_address: SocketAddr,
    ) -> Result<Vec<DiscoveryEntry>, OpenError> {
        let names = self.exports.list(client).await?;
        let security = self.security_of(client).await?;
        // Whoever connects to all that is listed does not mean every snapshot.
        let images = names.iter().filter(|name| !name.contains('@'));
        let subsystems = images.filter_map(|image| self.names.subsystem(image));
        Ok(subsystems.map(|subsystem| DiscoveryEntry { subsystem, address: own_address, security }).collect())
    }

    async fn security_of(&self, client: &Client) -> Result<ChannelSecurity, OpenError> {
        let Some(host) = client.nvme_host.clone() else { return Ok(ChannelSecurity::None) };
        let secrets = self.secrets.clone();
        let found = self.exports.bridge().run(async move { secrets.channel_security(&host).await }).await;
        found.map_err(|error| OpenError { kind: OpenErrorKind::Unavailable, message: error.to_string() })
    }
}

fn refused(error: &OpenError) -> ConnectRefusal {
    match error.kind {
        OpenErrorKind::Unknown => ConnectRefusal::in_data(connect_field::DATA_SUBSYSTEM),
        OpenErrorKind::NotAllowed => ConnectRefusal::new(Status::ConnectInvalidHost),
        OpenErrorKind::InUse | OpenErrorKind::Unavailable | OpenErrorKind::Changed => {
            ConnectRefusal::new(Status::ConnectControllerBusy)
        }
    }
}
