//! What a component may look at, and where it puts what it asks of the shell and of other OSDs.

use crate::config::Configuration;
use crate::outbox::Outbox;
use crate::peering::Peering;
use crate::replication::log::Log;

/// The PG around a component, for one event. What the component wants of other components it gives
/// back as an effect, which [`Pg`](crate::Pg) carries out.
pub(crate) struct Context<'a, V> {
    pub config: &'a Configuration,
    pub log: &'a Log,
    pub peering: &'a Peering,
    pub outbox: &'a mut Outbox,
    pub view: &'a V,
}
