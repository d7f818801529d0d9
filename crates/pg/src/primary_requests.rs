//! Requests of a primary for this copy that the shell has not answered yet.

use std::collections::BTreeMap;

use atoll_types::{Epoch, OsdId, PgId};
use atoll_wire::{Message, ScrubFinding};

use crate::actions::{ObjectParts, Token};
use crate::outbox::Outbox;

/// Request of a primary to this copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A list of objects.
    List,
    /// An object examined.
    Scrub,
    /// An object sent.
    Object,
}

/// A primary's request; the answer repeats its epoch and tag.
#[derive(Clone, Copy)]
pub(crate) struct PrimaryRequest {
    pub primary: OsdId,
    pub epoch: Epoch,
    pub tag: u64,
}

impl PrimaryRequest {
    /// The object that the primary wants has been read, or cannot be.
    pub fn send_object(self, result: &Result<ObjectParts, String>, pg: PgId, outbox: &mut Outbox) {
        let PrimaryRequest { primary, epoch, tag } = self;
        let Ok(parts) = result else {
            let finding = ScrubFinding::Busy;
            return outbox.send(primary, Message::ScrubReply { pg, epoch, tag, finding });
        };
        for transaction in parts.transactions.clone() {
            outbox.send(primary, Message::ObjectPart { epoch, tag, transaction });
        }
    }
}

/// Requests of primaries under way.
#[derive(Default)]
pub(crate) struct PrimaryRequests {
    requests: BTreeMap<Token, (Wanted, PrimaryRequest)>,
}

impl PrimaryRequests {
    /// A primary wants something: the shell is asked for it under this token.
    pub fn begin(&mut self, wanted: Wanted, request: PrimaryRequest, outbox: &mut Outbox) -> Token {
        let token = outbox.token();
        self.requests.insert(token, (wanted, request));
        token
    }

    /// Takes the request that the shell has answered. `None` if the PG asked for it on its own
    /// behalf.
    pub fn answered(&mut self, token: Token, wanted: Wanted) -> Option<PrimaryRequest> {
        let is_it = self.requests.get(&token).is_some_and(|(of, _)| *of == wanted);
        if is_it { self.requests.remove(&token).map(|(_, request)| request) } else { None }
    }
}
