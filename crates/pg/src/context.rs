//! The inputs of a component, and the outbox for its actions and messages.

use crate::config::Configuration;
use crate::outbox::Outbox;
use crate::peering::Peering;
use crate::replication::log::Log;

/// The PG around a component, for one event. Effects on other components are returned, and [`Pg`](crate::Pg)
/// carries them out.
pub(crate) struct Context<'a, V> {
    pub config: &'a Configuration,
    pub log: &'a Log,
    pub peering: &'a Peering,
    pub outbox: &'a mut Outbox,
    pub view: &'a V,
}
