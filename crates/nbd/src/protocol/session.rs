//! One connection of a client, from the greeting to the end.

use std::collections::VecDeque;

use atoll_exports::OpenError;
use bytes::BytesMut;

use super::handshake::{Handshake, greeting};
use super::transmission::Transmission;
use super::{Action, CloseReason, ExportInfo, Outcome, Progress, RequestId, SessionConfig, constants};

/// Actions that wait for the shell beyond which the session reads no more. Refusals need no answer of
/// the shell, so the limit on requests in flight does not bound them.
const ACTIONS_QUEUED_MAX: usize = 1024;

/// The server's end of one NBD connection. See the module for how a shell drives it.
pub struct NbdSession {
    config: SessionConfig,
    phase: Phase,
    actions: VecDeque<Action>,
    needed_bytes: usize,
    closed: bool,
}

enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
}

impl NbdSession {
    /// A session that has just been accepted; its greeting is the first action (section "Newstyle
    /// negotiation"). Panics if [`SessionConfig::check`] does not hold.
    pub fn new(config: SessionConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("NBD session: {error}");
        }
        NbdSession {
            config,
            phase: Phase::Handshake(Handshake::new()),
            actions: VecDeque::from([Action::Send(greeting())]),
            needed_bytes: constants::CLIENT_FLAGS_BYTES,
            closed: false,
        }
    }

    /// Takes every whole message out of `buffer`, up to the limits, and queues its actions. An unfinished message
    /// stays in `buffer` (except the payload of a refused WRITE, which is thrown away as it comes). WRITE data is
    /// split off without a copy.
    pub fn receive(&mut self, buffer: &mut BytesMut) {
        while !self.is_saturated() {
            let progress = match &mut self.phase {
                Phase::Handshake(handshake) => handshake.step(&self.config, buffer, &mut self.actions),
                Phase::Transmission(transmission) => transmission.step(&self.config, buffer, &mut self.actions),
            };
            match progress {
                Ok(Progress::Consumed) => {}
                Ok(Progress::Needs(total)) => {
                    assert!(total > buffer.len(), "a message of {total} bytes was left in the buffer");
                    self.needed_bytes = total - buffer.len();
                    return;
                }
                Err(reason) => self.close(reason),
            }
        }
        self.needed_bytes = 0;
    }

    /// How many bytes beyond those in the buffer the session needs before the next [`NbdSession::receive`] can do
    /// anything. More are welcome. Zero means that the last call stopped at a limit: call it again, with the rest
    /// of the buffer, once [`NbdSession::is_saturated`] ends.
    pub fn needed_bytes(&self) -> usize {
        self.needed_bytes
    }

    /// Returns true if [`NbdSession::receive`] would do nothing now: too many requests or actions wait for the
    /// shell, or an option does, or the session is over.
    pub fn is_saturated(&self) -> bool {
        self.closed
            || self.actions.len() >= ACTIONS_QUEUED_MAX
            || match &self.phase {
                Phase::Handshake(handshake) => handshake.is_awaiting(),
                Phase::Transmission(transmission) => transmission.is_full(&self.config),
            }
    }

    /// Returns true if [`Action::Close`] is or was the last action. Outcomes of requests that are still in flight
    /// may be reported and are dropped.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Requests that wait for [`NbdSession::reply`].
    pub fn requests_in_flight(&self) -> usize {
        match &self.phase {
            Phase::Handshake(_) => 0,
            Phase::Transmission(transmission) => transmission.requests_in_flight(),
        }
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Answers [`Action::OpenExport`]. Panics if there was none, or if the export is larger than
    /// `i64::MAX` bytes.
    pub fn export_opened(&mut self, result: Result<ExportInfo, OpenError>) {
        let Phase::Handshake(handshake) = &mut self.phase else {
            panic!("bug in the shell: an export was opened during transmission");
        };
        match handshake.export_opened(&self.config, result, &mut self.actions) {
            Ok(Some(transmission)) => self.phase = Phase::Transmission(transmission),
            Ok(None) => {}
            Err(reason) => self.close(reason),
        }
    }

    /// Answers [`Action::ListExports`]. Panics if there was none, or if a name is longer than
    /// [`constants::STRING_BYTES_MAX`].
    pub fn exports_listed(&mut self, names: Vec<String>) {
        let Phase::Handshake(handshake) = &mut self.phase else {
            panic!("bug in the shell: exports were listed during transmission");
        };
        handshake.exports_listed(&names, &mut self.actions);
    }

    /// Answers [`Action::Request`], in any order. Panics if the request is not in flight or the outcome
    /// does not fit it: data of another length, no extents.
    pub fn reply(&mut self, id: RequestId, outcome: Outcome) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            panic!("bug in the shell: {id:?} was never asked for");
        };
        if self.closed {
            transmission.forget(id);
            return;
        }
        if let Err(reason) = transmission.reply(id, outcome, &mut self.actions) {
            self.close(reason);
        }
    }

    fn close(&mut self, reason: CloseReason) {
        assert!(!self.closed, "a session closes once");
        self.closed = true;
        self.actions.push_back(Action::Close { reason });
    }
}
