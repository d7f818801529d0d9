//! Listening: at once, or as soon as a device has the address.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::error::FabricError;
use crate::fabric::{Fabric, ListenerId, Way};
use crate::sys::PassiveEndpoint;

/// How long a listener without a device waits before it looks for one. Each pause is twice the last.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// Interval between looks at a search's result; the search has a thread of its own.
const ASK: Duration = Duration::from_millis(50);

pub(crate) struct Listener {
    pub(super) network: usize,
    /// Away while no device has the address.
    pub(crate) endpoint: Option<PassiveEndpoint>,
    address: SocketAddr,
    absence: Option<Absence>,
}

/// State of a listener without a device.
struct Absence {
    /// Time to search for a device, or to look at the search's result.
    due: Instant,
    /// The pause after the next look.
    pause: Duration,
    look: Option<Receiver<Result<Way, FabricError>>>,
}

impl Absence {
    fn new() -> Self {
        Absence { due: Instant::now() + PAUSE, pause: PAUSE, look: None }
    }
}

impl Listener {
    /// When it has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.absence.as_ref().map(|absence| absence.due)
    }

    /// It accepts no more; without its device it cannot be kept.
    pub(super) fn note_loss(&mut self) {
        (self.endpoint, self.absence) = (None, Some(Absence::new()));
    }

    /// Starts a search for a device, or returns the result of the last one.
    fn go_on(&mut self, provider: &str) -> Option<Result<Way, FabricError>> {
        let absence = self.absence.as_mut()?;
        absence.due = Instant::now() + ASK;
        let Some(look) = &absence.look else {
            let (tell, told) = channel();
            let (provider, address) = (provider.to_owned(), self.address);
            let search = move || drop(tell.send(Way::find_to_listen(&provider, address)));
            let started = std::thread::Builder::new().name("rdma-listen".into()).spawn(search);
            absence.look = Some(told);
            return started.err().map(|error| Err(error.into()));
        };
        match look.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(FabricError::Ended)),
        }
    }

    fn wait_longer(&mut self) {
        let pause = self.absence.as_ref().map_or(PAUSE, |absence| absence.pause);
        let next = Absence { due: Instant::now() + pause, pause: (2 * pause).min(PAUSE_MAX), look: None };
        self.absence = Some(next);
    }
}

impl Fabric {
    /// Listens; gives the address with the port that was chosen. This may take a while, as [`Way::find`] does.
    pub fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), FabricError> {
        let way = Way::find_to_listen(&self.settings.provider, address)?;
        let (network, endpoint) = self.open_listener(&way)?;
        let address = endpoint.address().unwrap_or(address);
        let listener = Listener { network, endpoint: Some(endpoint), address, absence: None };
        Ok((self.add_listener(listener), address))
    }

    /// Listens at once, which may take a while, or as soon as a device has the address: [`Fabric::listening`]
    /// returns the address, and [`Fabric::take_problem`] the reason why not.
    pub fn listen_patiently(&mut self, address: SocketAddr) -> ListenerId {
        match self.listen(address) {
            Ok((id, _)) => id,
            Err(error) => {
                self.problem = Some(no_listener(address, error));
                let absence = Some(Absence::new());
                self.add_listener(Listener { network: 0, endpoint: None, address, absence })
            }
        }
    }

    fn add_listener(&mut self, listener: Listener) -> ListenerId {
        let id = ListenerId(self.next_id());
        self.listeners.insert(id, listener);
        id
    }

    fn open_listener(&mut self, way: &Way) -> Result<(usize, PassiveEndpoint), FabricError> {
        let network = self.network(&way.info)?;
        Ok((network, PassiveEndpoint::listen(&self.networks[network].events, &way.info)?))
    }

    /// Where a listener listens; nowhere while no device has its address.
    pub fn listening(&self, id: ListenerId) -> Option<SocketAddr> {
        let listener = self.listeners.get(&id)?;
        listener.endpoint.as_ref().map(|_| listener.address)
    }

    /// Listens on devices that have come, or come back at the same port.
    pub(super) fn listen_again(&mut self) {
        let is_due = |listener: &Listener| listener.due().is_some_and(|due| due <= Instant::now());
        let due: Vec<_> =
            self.listeners.iter().filter(|(_, listener)| is_due(listener)).map(|(id, _)| *id).collect();
        for id in due {
            let listener = self.listeners.get_mut(&id).expect("it was just found");
            let Some(found) = listener.go_on(&self.settings.provider) else { continue };
            let opened = found.and_then(|way| self.open_listener(&way));
            let listener = self.listeners.get_mut(&id).expect("it was just found");
            match opened {
                Ok((network, endpoint)) => {
                    listener.address = endpoint.address().unwrap_or(listener.address);
                    (listener.network, listener.endpoint, listener.absence) = (network, Some(endpoint), None);
                }
                Err(error) => {
                    listener.wait_longer();
                    self.problem = Some(no_listener(listener.address, error));
                }
            }
        }
    }
}

fn no_listener(address: SocketAddr, source: FabricError) -> FabricError {
    FabricError::NoListener { address, source: Box::new(source) }
}
