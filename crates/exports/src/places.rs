//! Places of connections to a server of images.

use atoll_connection_limits::{Place, Places};
use atoll_reactor::PeerAddress;
use atoll_security_log::{SecurityEvent, note};

use crate::questions::address_of;

/// A place for a connection that has come. Over a Unix socket only the limit of all strangers holds.
pub fn enter(places: &Places, peer: PeerAddress) -> Place {
    let place = places.enter(address_of(peer));
    if place.has_taken_another() {
        let detail = "the oldest connection without an image is closed for a new one";
        note(SecurityEvent::TooManyConnections, peer, detail);
    }
    place
}
