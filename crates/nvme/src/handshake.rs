//! How a connection begins: with TLS, or with the first PDU. Both come to the same port, and the first byte
//! distinguishes them (NVMe/TCP Transport Specification 1.0, section 3.6.1).

use std::io;

use atoll_exports::Channel;
use atoll_metrics::tls as tls_metrics;
use atoll_security_log::{SecurityEvent, note};
use bytes::{Bytes, BytesMut};

use crate::connection::Connection;
use crate::host_secrets::{HostSecretStore, SecretsError};
use crate::protocol::{ChannelSecurity, ConnectRefusal, ConnectRequest, Nqn, Status, connect_field};
use crate::tls::{ClientHello, Identity, RECORD_HANDSHAKE, TlsChannel, TlsError, TlsPsk, read_client_hello};

/// A host that sends more before the handshake is over is cut off.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;
/// Keys that a host may offer and that are looked for.
const OFFERS_MAX: usize = 4;

/// A host that has proved by TLS that it has a key, and the subsystem of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsPeer {
    pub host: Nqn,
    pub subsystem: Nqn,
}

/// Why a handshake has failed.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("the connection ended within the handshake: {0}")]
    Ended(#[from] io::Error),
    #[error("the handshake is longer than {HANDSHAKE_BYTES_MAX} bytes")]
    TooLong,
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Connection {
    /// Waits for the host's first bytes and, if TLS begins with them, for its keys. False if nothing can follow.
    pub(crate) async fn begin(&self) -> bool {
        match self.transport.first_byte().await {
            Ok(RECORD_HANDSHAKE) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
        let begun = self.begin_tls().await;
        tls_metrics::handshake(begun.is_ok());
        match &begun {
            Ok(()) => return true,
            Err(HandshakeError::Tls(error @ TlsError::Keys(_))) => {
                let detail = format!("no NVMe host can use TLS: {error}");
                note(SecurityEvent::RefusedClient, self.transport.peer_address(), detail);
            }
            Err(error) => note(SecurityEvent::FailedTls, self.transport.peer_address(), error),
        }
        self.transport.close();
        false
    }

    async fn begin_tls(&self) -> Result<(), HandshakeError> {
        let mut records = BytesMut::new();
        let found = self.find_psk(&mut records).await;
        if let Err(HandshakeError::Tls(error)) = &found {
            self.transport.send_records(Bytes::copy_from_slice(&error.alert_record()));
        }
        let (psk, peer) = found?;
        let mut channel = TlsChannel::new(&psk)?;
        let done = self.handshake(&mut channel, records).await;
        if done.is_err() {
            // There may be an alert.
            self.transport.send_records(channel.close().unwrap_or_default());
        }
        done?;
        self.transport.secure(channel);
        self.tls_peer.replace(Some(peer));
        Ok(())
    }

    /// The key that the host means and has. Its bytes stay in `records`.
    async fn find_psk(&self, records: &mut BytesMut) -> Result<(TlsPsk, TlsPeer), HandshakeError> {
        let hello = loop {
            self.transport.take_received(records);
            match read_client_hello(records).map_err(TlsError::from)? {
                Some(hello) => break hello,
                None => self.transport.receive().await?,
            }
        };
        // Nothing more is taken from this host until its key is known.
        self.transport.pause();
        let found = self.target.offered_psk(hello, self.transport.peer_address()).await;
        if self.is_over() {
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        }
        self.transport.resume();
        Ok(found?)
    }

    async fn handshake(&self, channel: &mut TlsChannel, mut records: BytesMut) -> Result<(), HandshakeError> {
        let mut taken_bytes = 0;
        loop {
            taken_bytes += records.len();
            channel.receive(&mut records)?;
            self.transport.send_records(channel.take_records()?);
            if !channel.is_handshaking() {
                return Ok(());
            }
            if taken_bytes > HANDSHAKE_BYTES_MAX {
                return Err(HandshakeError::TooLong);
            }
            self.transport.receive().await?;
            self.transport.take_received(&mut records);
        }
    }

    /// Checks if a host may connect over this channel.
    pub(crate) fn check_channel(
        &self,
        request: &ConnectRequest,
        security: ChannelSecurity,
    ) -> Result<(), ConnectRefusal> {
        let (why, refusal) = match &*self.tls_peer.borrow() {
            Some(peer) if peer.host != request.host => {
                ("connects with the key of another host", ConnectRefusal::new(Status::ConnectInvalidHost))
            }
            Some(peer) if peer.subsystem != request.subsystem => (
                "connects to another subsystem than its key is for",
                ConnectRefusal::in_data(connect_field::DATA_SUBSYSTEM),
            ),
            None if security == ChannelSecurity::Required => {
                ("connects without TLS, for which it has a key", ConnectRefusal::new(Status::ConnectInvalidHost))
            }
            _ => return Ok(()),
        };
        let why = format!("NVMe host {} {why}", request.host);
        note(SecurityEvent::FailedNvmeAuthentication, self.transport.peer_address(), why);
        Err(refusal)
    }
}

/// The first offered key that is the one of a host, if the host proves that it has it.
pub(crate) async fn proved_psk(
    store: &HostSecretStore,
    hello: &ClientHello,
) -> Result<(TlsPsk, TlsPeer), TlsError> {
    for offer in hello.offers.iter().take(OFFERS_MAX) {
        let Some(identity) = Identity::parse(&offer.identity) else { continue };
        let found = store.tls_key(identity.host).await;
        let Some(key) = found.map_err(|error: SecretsError| TlsError::Keys(error.to_string()))? else { continue };
        if let Some(psk) = TlsPsk::of_offer(&key, &identity, &offer.binder, &hello.bound) {
            let peer = TlsPeer { host: identity.host.to_owned(), subsystem: identity.subsystem.to_owned() };
            return Ok((psk, peer));
        }
    }
    Err(TlsError::Unproved)
}
