//! Questions of strangers about images and hosts. Each costs cluster state a read, so those without result have a
//! budget for each address. Local clients have none: the mode of the socket authenticates them.

use std::net::IpAddr;
use std::time::Instant;

use atoll_connection_limits::{LookUp, LookUps};
use atoll_image::ImageError;
use atoll_reactor::PeerAddress;
use atoll_security_log::{SecurityEvent, note};

use crate::clients::Client;
use crate::open_error::{OpenError, OpenErrorKind};

/// Names that were missing, and budgets of addresses.
pub struct Questions(LookUps);

impl Default for Questions {
    fn default() -> Self {
        Questions(LookUps::new(None))
    }
}

/// Returns the address of a possible stranger.
pub(crate) fn address_of(peer: PeerAddress) -> Option<IpAddr> {
    match peer {
        PeerAddress::Host(address) => Some(address),
        PeerAddress::Process(_) | PeerAddress::Foreign(_) | PeerAddress::Unknown => None,
    }
}

impl Questions {
    /// Returns true if cluster state is asked for a name; an error if its address has asked too much.
    pub fn may_ask(&self, name: &str, peer: PeerAddress) -> Result<bool, OpenError> {
        let Some(address) = address_of(peer) else { return Ok(true) };
        match self.0.look(name, Some(address), Instant::now()) {
            LookUp::Ask => Ok(true),
            LookUp::Missing => Ok(false),
            LookUp::TooMany => {
                let message = "this address has asked for too many names that it cannot have; wait a moment";
                note(SecurityEvent::TooManyConnections, peer, message);
                Err(OpenError { kind: OpenErrorKind::Unavailable, message: message.into() })
            }
        }
    }

    /// Counts a question that came to nothing.
    pub fn count(&self, peer: PeerAddress) {
        if let Some(address) = address_of(peer) {
            self.0.count(Some(address), Instant::now());
        }
    }

    /// Counts it, and remembers the miss for a moment.
    pub fn missed(&self, name: &str, peer: PeerAddress) {
        self.count(peer);
        self.0.missed(name, Instant::now());
    }

    /// Asks for an image, unless it was missing a moment ago.
    pub(crate) async fn image<T>(
        &self,
        name: &str,
        client: &Client,
        ask: impl Future<Output = Result<T, ImageError>>,
    ) -> Result<T, OpenError> {
        if !self.may_ask(name, client.address)? {
            return Err(ImageError::NoSuchImage(name.into()).into());
        }
        let asked = ask.await.map_err(OpenError::from);
        match &asked {
            Err(error) if error.kind == OpenErrorKind::Unknown => self.missed(name, client.address),
            _ => {}
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn client(address: PeerAddress) -> Client {
        Client { address, certificate: None, nvme_host: None }
    }

    fn ask(questions: &Questions, client: &Client, name: &str, asked: &Cell<u32>) -> OpenErrorKind {
        let missing = async {
            asked.set(asked.get() + 1);
            Err::<(), _>(ImageError::NoSuchImage(name.into()))
        };
        futures::executor::block_on(questions.image(name, client, missing)).unwrap_err().kind
    }

    #[test]
    fn images_that_are_made_up_cost_few_look_ups() {
        let (questions, asked) = (Questions::default(), Cell::new(0));
        let stranger = client(PeerAddress::Host([192, 0, 2, 1].into()));
        for number in 0..1_000 {
            ask(&questions, &stranger, &format!("made-up-{number}"), &asked);
        }
        assert!(asked.get() < 60, "{}", asked.get());
        assert_eq!(ask(&questions, &stranger, "more", &asked), OpenErrorKind::Unavailable);
        let other = client(PeerAddress::Host([192, 0, 2, 2].into()));
        let before = asked.get();
        assert_eq!(ask(&questions, &other, "other", &asked), OpenErrorKind::Unknown);
        assert_eq!(ask(&questions, &other, "other", &asked), OpenErrorKind::Unknown);
        assert_eq!(asked.get(), before + 1, "the second was missing a moment ago");
        let local = client(PeerAddress::Process(1));
        assert_eq!(ask(&questions, &local, "other", &asked), OpenErrorKind::Unknown);
        assert_eq!(asked.get(), before + 2, "local clients are no strangers");
    }
}
