//! Links come and go.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::credits::{Credits, GRANT_FIRST};
use crate::device::Device;
use crate::error::FabricError;
use crate::fabric::listening::Listener;
use crate::fabric::{Event, Fabric, LinkId, ListenerId, Network};
use crate::link::{Link, Reading, Stage};
use crate::memory::random_number;
use crate::message::Greeting;
use crate::sys::{Connecting, Endpoint, EventQueue, Info, Library, NetworkFabric};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// A way to an address, as a provider has found it.
pub struct Way {
    pub(super) info: Info,
    address: SocketAddr,
}

/// Where the kernel lists RDMA devices. If there is none, libfabric need not be loaded to say so.
const DEVICES: &str = "/sys/class/infiniband";

fn is_any_in(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

impl Way {
    /// Looks for one. The first use of the library loads it, which looks for adapters; `verbs` waits until the
    /// address is resolved, for seconds if no host has it. So this is not for the thread of an event loop.
    pub fn find(provider: &str, address: SocketAddr) -> Result<Self, FabricError> {
        let info = Way::ask(provider, address, false)?;
        Ok(Way { info, address })
    }

    /// Looks for a device that has this address, to listen on it.
    pub(super) fn find_to_listen(provider: &str, address: SocketAddr) -> Result<Self, FabricError> {
        let info = Way::ask(provider, address, true)?;
        Ok(Way { info, address })
    }

    fn ask(provider: &str, address: SocketAddr, is_listening: bool) -> Result<Info, FabricError> {
        if provider == "verbs" && !is_any_in(Path::new(DEVICES)) {
            let reason = format!("there is no RDMA device in {DEVICES}");
            return Err(FabricError::NoProvider { provider: provider.into(), reason });
        }
        Library::load()?.ways(provider, address, is_listening)
    }
}

impl Fabric {
    /// An endpoint has failed: that of a link, or of a listener.
    pub(crate) fn endpoint_failed(&mut self, endpoint: usize, error: FabricError, events: &mut Vec<Event>) {
        let is_device_gone = matches!(error, FabricError::Failed { code: libc::ENODEV, .. });
        if let Some(&id) = self.by_endpoint.get(&endpoint) {
            match is_device_gone {
                true => self.fail_device(self.links[&id].device, &error, events),
                false => self.fail(id, error, events),
            }
        }
        let is_it =
            |listener: &&mut Listener| listener.endpoint.as_ref().is_some_and(|own| own.number() == endpoint);
        if let Some(listener) = self.listeners.values_mut().find(is_it) {
            listener.note_loss();
        }
    }

    /// Begins to connect; [`Event::Connected`] or [`Event::Failed`] follows.
    pub fn connect(&mut self, way: Way) -> Result<LinkId, FabricError> {
        let Way { info, address } = way;
        let network = self.network(&info)?;
        let (id, greeting) = self.add_link(network, &info, None, address)?;
        let endpoint = self.links[&id].endpoint.as_ref().expect("a new link has an endpoint");
        match endpoint.connect(&info, &greeting.encode()) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.remove(id);
                Err(error)
            }
        }
    }

    pub(super) fn network(&mut self, info: &Info) -> Result<usize, FabricError> {
        let (name, _) = info.names();
        if let Some(index) = self.networks.iter().position(|network| network.name == name) {
            return Ok(index);
        }
        let fabric = NetworkFabric::open(info)?;
        let events = EventQueue::open(&fabric)?;
        self.watch(events.descriptor()?)?;
        self.networks.push(Network { name, fabric, events });
        Ok(self.networks.len() - 1)
    }

    fn device(&mut self, network: usize, info: &Info) -> Result<usize, FabricError> {
        let (_, name) = info.names();
        let is_it = |device: &Device| device.network == network && device.name == name && !device.is_gone();
        if let Some(index) = self.devices.iter().position(is_it) {
            return Ok(index);
        }
        let device = Device::open(&self.settings, network, &self.networks[network].fabric, info)?;
        if let Some(completions) = &device.completions {
            self.watch(completions.descriptor()?)?;
        }
        self.devices.push(device);
        Ok(self.devices.len() - 1)
    }

    /// Makes a link that is not connected, with receives posted for the grant of its greeting.
    fn add_link(
        &mut self,
        network: usize,
        info: &Info,
        listener: Option<ListenerId>,
        peer: SocketAddr,
    ) -> Result<(LinkId, Greeting), FabricError> {
        if self.links.len() >= self.settings.links_max {
            return Err(std::io::Error::other("there are as many RDMA links as there may be").into());
        }
        let index = self.device(network, info)?;
        let device = &mut self.devices[index];
        let events = Arc::clone(&self.networks[network].events);
        let completions = device.completions.as_ref().expect("a device that is gone is not found");
        let endpoint = Endpoint::open(info, &events, completions, device.shared.as_ref(), device.sizes)?;
        let greeting = Greeting { token: random_number(), credits: GRANT_FIRST as u16 };
        let number = endpoint.number();
        let link = Link {
            device: index,
            endpoint: Some(endpoint),
            peer,
            stage: Stage::Opening(listener, Instant::now() + self.settings.patience),
            token_of_peer: 0,
            own_token: greeting.token,
            credits: Credits::new(),
            posted: 0,
            to_send: None,
            copied_bytes: 0,
            is_waiting: false,
            operations: Vec::new(),
            sends: 0,
            referred: Default::default(),
            referred_bytes: 0,
            done: 0,
            arrived: Default::default(),
            reading: Reading::Nothing,
            read_bytes: 0,
            is_ended: false,
            failure: None,
        };
        let id = LinkId(self.next_id());
        device_grants(&mut self.devices[index], &link);
        self.links.insert(id, link);
        self.by_endpoint.insert(number, id);
        self.by_token.insert(greeting.token, id);
        self.unsettled.insert(id);
        if !self.devices[index].has_some_memory() || !self.has_receives(id) {
            self.remove(id);
            let none = || std::io::Error::other("there is no registered memory for one more RDMA link").into();
            return Err(self.devices[index].take_refusal().unwrap_or_else(none));
        }
        Ok((id, greeting))
    }

    /// Deals with events of connecting.
    pub(super) fn take_connecting(&mut self, events: &mut Vec<Event>) {
        self.looked_at = Instant::now();
        for network in 0..self.networks.len() {
            let queue = Arc::clone(&self.networks[network].events);
            loop {
                let event = match queue.read() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    Err(error) => {
                        self.queue_failed(network, error, events);
                        break;
                    }
                };
                match event {
                    Connecting::Requested(endpoint, info, data) => self.requested(network, endpoint, &info, &data),
                    Connecting::Established(endpoint, data) => {
                        if let Some(&id) = self.by_endpoint.get(&endpoint) {
                            self.established(id, &data, events);
                        }
                    }
                    Connecting::Ended(endpoint) => {
                        if let Some(&id) = self.by_endpoint.get(&endpoint) {
                            self.ended(id, events);
                        }
                    }
                    Connecting::Failed(endpoint, error) => self.endpoint_failed(endpoint, error, events),
                }
            }
        }
    }

    /// The queue of events itself reports an error. `verbs` does so for iWARP when no process listens at an
    /// address, and does not name the address: it is that of the only link that is opening. Others are left to
    /// their patience, and open ones to their completions.
    fn queue_failed(&mut self, network: usize, error: FabricError, events: &mut Vec<Event>) {
        let is_asked_for = |id: &&LinkId| {
            let link = &self.links[id];
            matches!(link.stage, Stage::Opening(None, _)) && self.devices[link.device].network == network
        };
        let opening: Vec<LinkId> = self.unsettled.iter().filter(is_asked_for).copied().collect();
        if let [id] = opening[..] {
            self.fail(id, error, events);
        }
    }

    fn requested(&mut self, network: usize, endpoint: usize, info: &Info, data: &[u8]) {
        let is_it = |listener: &Listener| {
            listener.network == network && listener.endpoint.as_ref().is_some_and(|own| own.number() == endpoint)
        };
        let found = self.listeners.iter().find(|(_, listener)| is_it(listener)).map(|(id, _)| *id);
        let Some(listener) = found else { return };
        let accepted = Greeting::decode(data).and_then(|peer| {
            let (id, greeting) = self.add_link(network, info, Some(listener), info.peer().unwrap_or(ANY))?;
            let result = self.links.get_mut(&id).map_or(Ok(()), |link| link.greet(peer)).and_then(|()| {
                let endpoint = self.links[&id].endpoint.as_ref().expect("a new link has an endpoint");
                endpoint.accept(&greeting.encode())
            });
            result.inspect_err(|_| self.remove(id))
        });
        let Err(error) = accepted else { return };
        if let Some(endpoint) = &self.listeners[&listener].endpoint {
            endpoint.reject(info);
        }
        // What peers say wrong is theirs.
        if !matches!(error, FabricError::Peer(_)) {
            self.problem = Some(error);
        }
    }

    fn established(&mut self, id: LinkId, data: &[u8], events: &mut Vec<Event>) {
        let link = self.links.get_mut(&id).expect("endpoints are forgotten with their links");
        let Stage::Opening(listener, _) = link.stage else { return };
        let greeted = match listener {
            // That of the peer came with its request.
            Some(_) => Ok(()),
            None => Greeting::decode(data).and_then(|peer| link.greet(peer)),
        };
        if let Err(error) = greeted {
            return self.fail(id, error, events);
        }
        link.stage = Stage::Open;
        self.unsettled.remove(&id);
        self.due.insert(id);
        events.push(match listener {
            Some(listener) => Event::Accepted { listener, link: id },
            None => Event::Connected(id),
        });
    }

    fn ended(&mut self, id: LinkId, events: &mut Vec<Event>) {
        let link = self.links.get_mut(&id).expect("endpoints are forgotten with their links");
        match link.stage {
            Stage::Open => {
                link.is_ended = true;
                self.changed.insert(id);
            }
            Stage::Opening(..) | Stage::Finishing(_) => self.fail(id, FabricError::Ended, events),
        }
    }

    /// Closes links that had time enough, or have nothing left to do.
    pub(super) fn settle(&mut self, events: &mut Vec<Event>) {
        if self.unsettled.is_empty() {
            return;
        }
        let now = Instant::now();
        for id in self.unsettled.iter().copied().collect::<Vec<_>>() {
            let link = &self.links[&id];
            match link.stage {
                Stage::Opening(_, deadline) if deadline <= now => self.fail(id, FabricError::TimedOut, events),
                Stage::Finishing(deadline) if link.is_sent() || deadline <= now => self.remove(id),
                _ => {}
            }
        }
    }

    /// The link does not work any more. Its user gets an event, or an error when it uses the link.
    pub(super) fn fail(&mut self, id: LinkId, error: FabricError, events: &mut Vec<Event>) {
        self.shut(id);
        let Some(link) = self.links.get_mut(&id) else { return };
        match link.stage {
            Stage::Open => {
                link.failure = link.failure.take().or(Some(error));
                self.changed.insert(id);
            }
            Stage::Finishing(_) | Stage::Opening(Some(_), _) => self.remove(id),
            Stage::Opening(None, _) => {
                self.remove(id);
                events.push(Event::Failed(id, error));
            }
        }
    }

    /// Closes a link once everything that was handed over is sent, but no later than the patience of the settings.
    pub fn finish(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.stage != Stage::Open || link.is_ended || link.failure.is_some() || link.is_sent() {
            return self.remove(id);
        }
        link.stage = Stage::Finishing(Instant::now() + self.settings.patience);
        let device = &mut self.devices[link.device];
        for arrived in link.arrived.drain(..) {
            device.receives.give_back(arrived.buffer);
            link.credits.released();
        }
        self.unsettled.insert(id);
        self.due.insert(id);
    }

    /// Closes a link now.
    pub fn close(&mut self, id: LinkId) {
        self.remove(id);
    }

    pub(super) fn remove(&mut self, id: LinkId) {
        self.shut(id);
        self.links.remove(&id);
        self.unsettled.remove(&id);
        self.due.remove(&id);
        self.changed.remove(&id);
    }

    /// Closes the endpoint of a link, and then frees its memory.
    fn shut(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(endpoint) = link.endpoint.take() else { return };
        self.by_endpoint.remove(&endpoint.number());
        self.by_token.remove(&link.own_token);
        let is_closed = endpoint.close();
        let device = &mut self.devices[link.device];
        device.abandon(&std::mem::take(&mut link.operations), is_closed);
        if device.shared.is_some() {
            device.granted -= link.credits.outstanding() as usize;
        }
        device.extra -= link.credits.extra() as usize;
        device.referred_bytes -= link.referred_bytes;
        link.referred.clear();
        link.referred_bytes = 0;
        for arrived in link.arrived.drain(..) {
            device.receives.give_back(arrived.buffer);
        }
        if let Some((buffer, _)) = link.to_send.take() {
            device.sends.give_back(buffer);
        }
        link.reading = Reading::Nothing;
    }

    /// A device has failed as a whole: all its links have. If it comes back, it is another one.
    pub(super) fn fail_device(&mut self, index: usize, error: &FabricError, events: &mut Vec<Event>) {
        let ids: Vec<_> = self.links.iter().filter(|(_, link)| link.device == index).map(|(id, _)| *id).collect();
        for id in ids {
            let why =
                std::io::Error::other(format!("the RDMA device {} fails: {error}", self.devices[index].name));
            self.fail(id, why.into(), events);
        }
        self.devices[index].close();
    }
}

fn device_grants(device: &mut Device, link: &Link) {
    if device.shared.is_some() {
        device.granted += link.credits.outstanding() as usize;
    }
}

impl Link {
    fn greet(&mut self, peer: Greeting) -> Result<(), FabricError> {
        self.token_of_peer = peer.token;
        self.credits.granted(peer.credits.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_looked_for_before_anything_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let devices = directory.path().join("infiniband");
        assert!(!is_any_in(&devices), "the kernel has no such directory without modules for RDMA");
        std::fs::create_dir(&devices).unwrap();
        assert!(!is_any_in(&devices));
        std::fs::write(devices.join("mlx5_0"), "").unwrap();
        assert!(is_any_in(&devices));
    }
}
