//! The first message of a host that speaks TLS: which keys it offers (RFC 8446, sections 4.1.2, 4.2.11 and 5.1).
//!
//! The library under [`super::TlsChannel`] reads the message for itself. It is read here before, because which key belongs to
//! an identity is only known from cluster state, and because a peer without a key should cost as little as possible.

/// A longer message, with the headers of its records, is refused. Those of hosts have some hundred bytes.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;
/// First byte of a connection that begins with TLS; with a PDU it is 0 (NVMe/TCP Transport Specification 1.0,
/// section 3.6.2.2).
pub(crate) const RECORD_HANDSHAKE: u8 = 22;

const RECORD_HEADER_BYTES: usize = 5;
const RECORD_CONTENT_BYTES_MAX: usize = 1 << 14;
const MESSAGE_HEADER_BYTES: usize = 4;
const MESSAGE_CLIENT_HELLO: u8 = 1;
const RANDOM_BYTES: usize = 32;
const EXTENSION_PRE_SHARED_KEY: u16 = 41;

/// The parts of the message that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// Keys that are offered, in the host's order.
    pub offers: Vec<Offer>,
    /// The part of the message that binders cover.
    pub bound: Vec<u8>,
}

/// A key that the host says to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub identity: Vec<u8>,
    /// Proof that the host has the key.
    pub binder: Vec<u8>,
}

/// Why there is no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Something else came.
    #[error("there is no ClientHello")]
    OtherMessage,
    /// It is not over after 16 KiB.
    #[error("the ClientHello is longer than {HELLO_BYTES_MAX} bytes")]
    TooLong,
    /// Its parts do not fit.
    #[error("the ClientHello is malformed")]
    Malformed,
    /// It offers no pre-shared key, or not as TLS 1.3 does.
    #[error("the host offers no pre-shared key of TLS 1.3")]
    NoKey,
}

impl HelloError {
    /// Returns the alert for the host (RFC 8446, section 6.2).
    pub(super) fn alert(self) -> u8 {
        match self {
            HelloError::OtherMessage => 10,
            HelloError::TooLong | HelloError::Malformed => 50,
            HelloError::NoKey => 40,
        }
    }
}

/// Reads the message out of the first records of a host. None if it is not over.
pub(crate) fn read_client_hello(records: &[u8]) -> Result<Option<ClientHello>, HelloError> {
    match message_in(records)? {
        Some(message) => read_message(&message).map(Some),
        None if records.len() >= HELLO_BYTES_MAX => Err(HelloError::TooLong),
        None => Ok(None),
    }
}

/// The first message, which may be in several records, with its header. None if it is not over.
fn message_in(records: &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
    let mut message = Vec::new();
    let mut rest = records;
    while let Some((header, behind)) = rest.split_at_checked(RECORD_HEADER_BYTES) {
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != RECORD_HANDSHAKE || header[1] != 3 {
            return Err(HelloError::OtherMessage);
        }
        if !(1..=RECORD_CONTENT_BYTES_MAX).contains(&length) {
            return Err(HelloError::Malformed);
        }
        let content = &behind[..length.min(behind.len())];
        message.extend_from_slice(content);
        if let Some(&[kind, high, middle, low]) = message.first_chunk::<MESSAGE_HEADER_BYTES>() {
            let needed = MESSAGE_HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize;
            if kind != MESSAGE_CLIENT_HELLO {
                return Err(HelloError::OtherMessage);
            }
            if needed > HELLO_BYTES_MAX {
                return Err(HelloError::TooLong);
            }
            if message.len() > needed {
                // Nothing may follow before the server has answered (RFC 8446, section 5.1).
                return Err(HelloError::Malformed);
            }
            if message.len() == needed {
                return Ok(Some(message));
            }
        }
        rest = &behind[content.len()..];
    }
    Ok(None)
}

fn read_message(message: &[u8]) -> Result<ClientHello, HelloError> {
    let mut fields = Fields(&message[MESSAGE_HEADER_BYTES..]);
    // Version, random, session, cipher suites and compression: the library looks at them.
    fields.take(2 + RANDOM_BYTES)?;
    fields.short_vector()?;
    fields.vector()?;
    fields.short_vector()?;
    if fields.0.is_empty() {
        return Err(HelloError::NoKey);
    }
    let mut extensions = Fields(fields.vector()?);
    fields.end()?;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let data = extensions.vector()?;
        if kind == EXTENSION_PRE_SHARED_KEY {
            // It is the last one, so that binders are at the end of the message.
            extensions.end()?;
            return read_offers(message, data);
        }
    }
    Err(HelloError::NoKey)
}

/// Reads the extension with the keys.
fn read_offers(message: &[u8], data: &[u8]) -> Result<ClientHello, HelloError> {
    let mut fields = Fields(data);
    let mut identities = Fields(fields.vector()?);
    let bound_bytes = message.len() - fields.0.len();
    let mut binders = Fields(fields.vector()?);
    fields.end()?;
    let mut offers = Vec::new();
    while !identities.0.is_empty() {
        let identity = identities.vector()?.to_vec();
        // The age of a ticket.
        identities.take(4)?;
        offers.push(Offer { identity, binder: binders.short_vector()?.to_vec() });
    }
    binders.end()?;
    if offers.is_empty() {
        Err(HelloError::Malformed)
    } else {
        Ok(ClientHello { offers, bound: message[..bound_bytes].to_vec() })
    }
}

/// Bytes that fields are taken off.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, HelloError> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector whose length has two bytes.
    fn vector(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.number()?;
        self.take(length.into())
    }

    /// One whose length has one byte.
    fn short_vector(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    fn end(&self) -> Result<(), HelloError> {
        if self.0.is_empty() { Ok(()) } else { Err(HelloError::Malformed) }
    }
}
