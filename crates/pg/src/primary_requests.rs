//! Requests of a primary for this copy that the shell has not answered yet.

use std::collections::BTreeMap;

use atoll_types::{Epoch, OsdId};

use crate::actions::Token;

/// What a primary wants of this copy.
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

/// Requests of primaries under way.
#[derive(Default)]
pub(crate) struct PrimaryRequests {
    requests: BTreeMap<Token, (Wanted, PrimaryRequest)>,
}

impl PrimaryRequests {
    pub fn begin(&mut self, token: Token, wanted: Wanted, request: PrimaryRequest) {
        self.requests.insert(token, (wanted, request));
    }

    /// Takes the request that the shell has answered. `None` if the PG asked for it on its own
    /// behalf.
    pub fn answered(&mut self, token: Token, wanted: Wanted) -> Option<PrimaryRequest> {
        let is_it = self.requests.get(&token).is_some_and(|(of, _)| *of == wanted);
        if is_it { self.requests.remove(&token).map(|(_, request)| request) } else { None }
    }
}
