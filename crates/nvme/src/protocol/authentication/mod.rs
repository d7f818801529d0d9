//! DH-HMAC-CHAP, the controller's side (NVM Express Base Specification 2.0, section 8.13.5): a host proves that it holds its
//! secret, and, if it asks for that, the controller that it holds its own.
//!
//! ```text
//! host                                        controller
//! AUTH_Negotiate: hash functions, DH groups ->
//!                                          <- DH-HMAC-CHAP_Challenge: C1, g^x
//! DH-HMAC-CHAP_Reply: response, C2, g^y     ->
//!                                          <- DH-HMAC-CHAP_Success1: response
//! DH-HMAC-CHAP_Success2                     ->    if C2 was valid
//! ```

mod ffdhe;
mod messages;
mod primes;
mod proof;

#[cfg(test)]
mod tests;

use atoll_credentials::nvme::{DhchapSecret, HashFunction, HostSecrets};
use atoll_keys::{fill_random, random_u64};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::{Bytes, BytesMut};

use self::ffdhe::DhKey;
use self::messages::{Challenge, HostMessage, Negotiate, Reply};
use self::proof::{HASH_BYTES_MAX, Proof, Prover, augmented};
use super::types::Nqn;

pub use ffdhe::DhGroup;
pub use messages::Failure;
pub(super) use messages::{MESSAGE_BYTES_MAX, SECURITY_PROTOCOL, SECURITY_SPECIFIC};

/// How far an authentication is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Messages have yet to come or to be fetched.
    UnderWay,
    /// The host has proved itself.
    Done,
    /// It has failed, and was informed; or it has given up.
    Failed(Failure),
}

/// The authentication of one queue.
pub struct Authentication {
    secrets: HostSecrets,
    host: Nqn,
    subsystem: Nqn,
    transaction: u16,
    state: State,
    /// Message for the host to fetch.
    message: Option<Bytes>,
}

enum State {
    Negotiating,
    /// The host must answer this.
    Challenged(Challenged),
    /// It has; Success1 is to be fetched.
    Proved {
        is_mutual: bool,
    },
    /// The host must say that it accepts the controller's response.
    AwaitsSuccess2,
    Done,
    /// Failure1 is to be fetched, if there is one.
    Failed(Failure),
}

struct Challenged {
    hash: HashFunction,
    challenge: [u8; HASH_BYTES_MAX],
    sequence: u32,
    /// None in the NULL group.
    key: Option<DhKey>,
}

impl Challenged {
    fn challenge(&self) -> &[u8] {
        &self.challenge[..self.hash.output_bytes()]
    }
}

impl Authentication {
    /// Starts the authentication of a host that has connected a queue of a subsystem.
    pub fn new(secrets: HostSecrets, host: Nqn, subsystem: Nqn) -> Self {
        Authentication { secrets, host, subsystem, transaction: 0, state: State::Negotiating, message: None }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        match self.state {
            State::Done => Progress::Done,
            State::Failed(failure) if self.message.is_none() => Progress::Failed(failure),
            _ => Progress::UnderWay,
        }
    }

    /// A message of the host. With a DH group this takes a processor for some milliseconds.
    pub fn take(&mut self, message: &[u8]) {
        if let (State::Negotiating, Some(transaction)) = (&self.state, messages::transaction(message)) {
            self.transaction = transaction;
        }
        let taken = messages::read(message).and_then(|(transaction, message)| {
            if transaction != self.transaction {
                return Err(Failure::IncorrectPayload);
            }
            self.take_message(message)
        });
        if let Err(failure) = taken {
            self.fail(failure);
        }
    }

    fn take_message(&mut self, message: HostMessage) -> Result<(), Failure> {
        if self.message.is_some() {
            return Err(Failure::IncorrectMessage);
        }
        match (std::mem::replace(&mut self.state, State::Negotiating), message) {
            (State::Negotiating, HostMessage::Negotiate(negotiate)) => self.challenge(&negotiate),
            (State::Challenged(challenged), HostMessage::Reply(reply)) => self.check(&challenged, &reply),
            (State::AwaitsSuccess2, HostMessage::Success2) => {
                self.state = State::Done;
                Ok(())
            }
            (State::AwaitsSuccess2 | State::Challenged(_), HostMessage::Failure2) => {
                self.state = State::Failed(Failure::Authentication);
                Ok(())
            }
            _ => Err(Failure::IncorrectMessage),
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.state = State::Failed(failure);
        self.tell(messages::failure1(self.transaction, failure));
    }

    fn tell(&mut self, message: BytesMut) {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "messages of controllers are short");
        self.message = Some(message.freeze());
    }

    /// The message that is to be fetched next, if there is one.
    pub fn fetch(&mut self) -> Option<Bytes> {
        let message = self.message.take()?;
        if let State::Proved { is_mutual } = self.state {
            self.state = if is_mutual { State::AwaitsSuccess2 } else { State::Done };
        }
        Some(message)
    }

    fn challenge(&mut self, negotiate: &Negotiate) -> Result<(), Failure> {
        if negotiate.secure_channel != 0 {
            return Err(Failure::SecureChannelMismatch);
        }
        if !negotiate.knows_dhchap {
            return Err(Failure::ProtocolNotUsable);
        }
        let hash = HashFunction::ALL.into_iter().find(|hash| negotiate.hashes.contains(hash));
        let hash = hash.ok_or(Failure::HashNotUsable)?;
        let group = DhGroup::ALL.into_iter().find(|group| negotiate.groups.contains(group));
        let group = group.ok_or(Failure::GroupNotUsable)?;
        let mut challenge = [0; HASH_BYTES_MAX];
        fill_random(&mut challenge);
        // 0 would say that there is no number.
        let sequence = (random_u64() as u32).max(1);
        let challenged = Challenged { hash, challenge, sequence, key: DhKey::generate(group) };
        let public_value = challenged.key.as_ref().map(DhKey::public_value).unwrap_or_default();
        let value = challenged.challenge();
        let message =
            Challenge { hash, group, sequence, value, public_value: &public_value }.write(self.transaction);
        self.tell(message);
        self.state = State::Challenged(challenged);
        Ok(())
    }

    fn check(&mut self, challenged: &Challenged, reply: &Reply) -> Result<(), Failure> {
        let hash = challenged.hash;
        let session_key = match &challenged.key {
            None if reply.public_value.is_empty() => None,
            None => return Err(Failure::IncorrectPayload),
            Some(key) => Some(key.agree(&reply.public_value).ok_or(Failure::IncorrectPayload)?),
        };
        let augment = |challenge: &[u8]| match &session_key {
            None => challenge.to_vec(),
            Some(key) => augmented(hash, key, challenge).as_ref().to_vec(),
        };
        let respond = |prover, secret: &DhchapSecret, name: &str, challenge: &[u8], sequence| {
            let (host, subsystem, transaction) = (&self.host[..], &self.subsystem[..], self.transaction);
            let (key, challenge) = (secret.key_of(name), augment(challenge));
            let proof = Proof { hash, key: &key, challenge: &challenge, sequence, transaction, host, subsystem };
            proof.response(prover)
        };
        let expected =
            respond(Prover::Host, &self.secrets.host, &self.host, challenged.challenge(), challenged.sequence);
        verify_slices_are_equal(expected.as_ref(), &reply.response).map_err(|_| Failure::Authentication)?;
        let response = match (&reply.challenge, &self.secrets.controller) {
            (None, _) => None,
            // Both challenges must differ, so that neither side is used to answer for the other.
            (Some(challenge), _) if challenge == challenged.challenge() => return Err(Failure::Authentication),
            (Some(_), None) => return Err(Failure::Authentication),
            (Some(challenge), Some(secret)) => {
                Some(respond(Prover::Controller, secret, &self.subsystem, challenge, reply.sequence))
            }
        };
        let message = messages::success1(self.transaction, hash, response.as_ref().map(AsRef::as_ref));
        self.tell(message);
        self.state = State::Proved { is_mutual: response.is_some() };
        Ok(())
    }
}
