//! One connection's TLS: records on one side, their content on the other.
//!
//! It is s2n-tls, because rustls has no external pre-shared keys. The library reads and writes records by
//! callbacks of C: this file is the only one of TLS with `unsafe`, and its public items are safe to call.
#![expect(unsafe_code, reason = "s2n-tls moves records by callbacks with a pointer")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::task::Poll;

use atoll_credentials::nvme::HashFunction;
use atoll_exports::Channel;
use bytes::{Buf, Bytes, BytesMut};
use s2n_tls::config::Builder;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;

use super::TlsError;
use super::psk::TlsPsk;

/// TLS 1.3 with TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384 and nothing else, which are the suites of NVMe/TCP, and
/// (EC)DHE over P-256, P-384 and P-521.
pub(super) const POLICY: &str = "ELBSecurityPolicy-TLS13-1-3-FIPS-2023-04";
/// Largest content of a record.
const RECORD_CONTENT_BYTES: usize = 16 << 10;
/// Records that one key may seal. The bound of AES-GCM is 2^24.5 (RFC 8446, section 5.5), where the library would update
/// the key. The initiators of Linux 6.12 and 7.2 do not take that, and wait for their commands to time out, so a channel
/// ends before.
const RECORDS_MAX: u64 = 23_000_000;
/// Most bytes that a record adds to its content: header, type and tag.
const RECORD_OVERHEAD_BYTES: usize = 32;

/// The server's end of one TLS connection. Its memory is bounded by the bytes of one call, and by the bytes that
/// its user leaves in [`TlsChannel::opened`].
pub(crate) struct TlsChannel {
    connection: Connection,
    /// Dropped after the connection, which has a pointer to it.
    pipe: Rc<RefCell<Pipe>>,
    opened: BytesMut,
    to_seal: Vec<Bytes>,
    /// Records that may still be sealed.
    records_left: u64,
    is_handshaking: bool,
    has_peer_closed: bool,
}

/// Records on their way to and from the library.
#[derive(Default)]
struct Pipe {
    incoming: BytesMut,
    outgoing: BytesMut,
}

impl TlsChannel {
    /// A channel on which the host is about to begin the handshake, with this key and no other.
    pub fn new(psk: &TlsPsk) -> Result<Self, TlsError> {
        Self::of(Connection::new_server(), psk, POLICY)
    }

    /// The host's end with a policy of the library, which begins with [`TlsChannel::receive`] of nothing.
    #[cfg(test)]
    pub fn of_host(psk: &TlsPsk, policy: &str) -> Result<Self, TlsError> {
        Self::of(Connection::new_client(), psk, policy)
    }

    /// Sets the number of records that the key may still seal.
    #[cfg(test)]
    pub fn set_records_left(&mut self, records: u64) {
        self.records_left = records;
    }

    fn of(mut connection: Connection, psk: &TlsPsk, policy: &str) -> Result<Self, TlsError> {
        let mut config = Builder::new();
        config.with_system_certs(false)?;
        config.set_security_policy(&Policy::from_version(policy)?)?;
        // Delays before a failure is told hide what padding looked like in CBC, which there is not.
        config.set_max_blinding_delay(0)?;
        connection.set_config(config.build()?)?;
        connection.set_blinding(Blinding::SelfService)?;
        connection.append_psk(&external(psk)?)?;
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        connection.set_receive_callback(Some(take_incoming))?.set_send_callback(Some(put_outgoing))?;
        let context = Rc::as_ptr(&pipe).cast_mut().cast::<c_void>();
        // SAFETY: the pipe lives as long as the channel, whose fields are dropped in their order.
        unsafe { connection.set_receive_context(context)?.set_send_context(context)? };
        Ok(TlsChannel {
            connection,
            pipe,
            opened: BytesMut::new(),
            to_seal: Vec::new(),
            records_left: RECORDS_MAX,
            is_handshaking: true,
            has_peer_closed: false,
        })
    }

    fn take_opened(&mut self) -> Result<(), TlsError> {
        loop {
            let start = self.opened.len();
            // Growing would copy what is there; a record that does not fit is handed over in parts.
            let room = match self.opened.capacity() - start {
                0 => RECORD_CONTENT_BYTES,
                room => room.min(RECORD_CONTENT_BYTES),
            };
            self.opened.resize(start + room, 0);
            let taken = self.connection.poll_recv(&mut self.opened[start..]);
            let (length, is_more) = match &taken {
                Poll::Ready(Ok(length)) => (*length, *length > 0),
                Poll::Ready(Err(_)) | Poll::Pending => (0, false),
            };
            self.opened.truncate(start + length);
            if let Poll::Ready(taken) = taken {
                self.has_peer_closed = taken? == 0;
            }
            if !is_more {
                return Ok(());
            }
        }
    }

    /// Returns true if the handshake has not ended.
    pub fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    fn seal(&mut self, mut content: &[u8]) -> Result<(), TlsError> {
        while !content.is_empty() {
            match self.connection.poll_send(content) {
                Poll::Ready(taken) => content.advance(taken?),
                // The pipe takes everything.
                Poll::Pending => return Err(TlsError::Stuck),
            }
        }
        Ok(())
    }
}

impl Channel for TlsChannel {
    type Error = TlsError;

    fn receive(&mut self, records: &mut BytesMut) -> Result<(), TlsError> {
        let arrived = records.split();
        if self.has_peer_closed {
            // What follows an orderly end is dropped.
            return Ok(());
        }
        // What is in records is shorter than they are, so this grows once and not record by record.
        self.opened.reserve(arrived.len());
        {
            let mut pipe = self.pipe.borrow_mut();
            if pipe.incoming.is_empty() {
                pipe.incoming = arrived;
            } else {
                pipe.incoming.unsplit(arrived);
            }
        }
        if self.is_handshaking {
            match self.connection.poll_negotiate() {
                Poll::Pending => return Ok(()),
                Poll::Ready(done) => drop(done?),
            }
            // Without the key the library would ask for a certificate, of which there is none.
            if self.connection.negotiated_psk_identity_length()? == 0 {
                return Err(TlsError::Unproved);
            }
            self.is_handshaking = false;
        }
        self.take_opened()
    }

    fn opened(&mut self) -> &mut BytesMut {
        &mut self.opened
    }

    fn expect_bytes(&mut self, bytes: usize) {
        self.opened.reserve(bytes + RECORD_CONTENT_BYTES);
    }

    fn has_peer_closed(&self) -> bool {
        self.has_peer_closed
    }

    fn send(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.to_seal.push(bytes);
        }
    }

    fn take_records(&mut self) -> Result<Bytes, TlsError> {
        let queued = std::mem::take(&mut self.to_seal);
        let length: usize = queued.iter().map(Bytes::len).sum();
        if length > 0 {
            let records = length.div_ceil(RECORD_CONTENT_BYTES);
            self.records_left = self.records_left.checked_sub(records as u64).ok_or(TlsError::KeyUsedUp)?;
            self.pipe.borrow_mut().outgoing.reserve(length + (records + 1) * RECORD_OVERHEAD_BYTES);
        }
        match &queued[..] {
            [] => {}
            [one] => self.seal(one)?,
            several => self.seal(&several.concat())?,
        }
        Ok(self.pipe.borrow_mut().outgoing.split().freeze())
    }

    fn close(&mut self) -> Result<Bytes, TlsError> {
        let mut records = BytesMut::from(self.take_records()?);
        if let Poll::Ready(told) = self.connection.poll_shutdown_send() {
            told?;
        }
        records.unsplit(self.pipe.borrow_mut().outgoing.split());
        Ok(records.freeze())
    }
}

fn external(psk: &TlsPsk) -> Result<Psk, TlsError> {
    let hmac = match psk.hash {
        HashFunction::Sha384 => PskHmac::SHA384,
        _ => PskHmac::SHA256,
    };
    let mut builder = Psk::builder()?;
    builder.set_identity(psk.identity.as_bytes())?.set_secret(psk.expose())?.set_hmac(hmac)?;
    Ok(builder.build()?)
}

/// Says to the library that it has to wait.
fn would_block() -> c_int {
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}

/// Hands records of the host to the library.
unsafe extern "C" fn take_incoming(context: *mut c_void, buffer: *mut u8, length: u32) -> c_int {
    // SAFETY: the context is the pipe of the channel whose connection calls this.
    let pipe = unsafe { &*context.cast::<RefCell<Pipe>>() };
    let Ok(mut pipe) = pipe.try_borrow_mut() else { return would_block() };
    let count = pipe.incoming.len().min(length as usize);
    if count == 0 {
        return would_block();
    }
    // SAFETY: the library has room for `length` bytes there, and its buffer is none of ours.
    unsafe { buffer.copy_from_nonoverlapping(pipe.incoming.as_ptr(), count) };
    pipe.incoming.advance(count);
    count as c_int
}

/// Takes records for the host from the library.
unsafe extern "C" fn put_outgoing(context: *mut c_void, records: *const u8, length: u32) -> c_int {
    // SAFETY: the context is the pipe of the channel whose connection calls this.
    let pipe = unsafe { &*context.cast::<RefCell<Pipe>>() };
    let Ok(mut pipe) = pipe.try_borrow_mut() else { return would_block() };
    if length > 0 {
        // SAFETY: the library has `length` bytes there.
        pipe.outgoing.extend_from_slice(unsafe { std::slice::from_raw_parts(records, length as usize) });
    }
    length as c_int
}
