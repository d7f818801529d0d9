//! Values that pass between an NBD session and its shell.

use atoll_exports::OpenError;
use bytes::Bytes;

use super::constants::{BLOCK_BYTES_MIN_MAX, BLOCK_BYTES_PREFERRED_MIN, PAYLOAD_BYTES_MAX};

/// Limits that a session sets its client, and its description (section "Size constraints").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// Offsets and lengths must be multiples of this, in bytes. A power of two.
    pub block_bytes_min: u32,
    /// Multiples of this are served best, in bytes. A power of two.
    pub block_bytes_preferred: u32,
    /// Longest READ and WRITE, in bytes; at most [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u32,
    /// Longest TRIM, WRITE_ZEROES and BLOCK_STATUS, in bytes. These carry no payload, and clients send
    /// them for as much as 4 GiB at once.
    pub effect_bytes_max: u32,
    /// Most requests waiting for [`super::NbdSession::reply`] at once.
    pub requests_in_flight_max: usize,
    /// Payload bytes of the requests in flight beyond which no further request is taken. The last one
    /// taken may exceed it, so that any single request fits.
    pub payload_in_flight_bytes_max: u64,
    /// Most options before transmission, so that every negotiation ends.
    pub options_max: u32,
    /// Policy for TLS.
    pub tls: TlsPolicy,
}

/// Policy of a session for STARTTLS (section "TLS support").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// It is refused (`NOTLS`).
    Unavailable,
    /// The client may choose (`SELECTIVETLS` without any TLS-only export).
    Offered,
    /// Without it nothing is answered (`FORCEDTLS`).
    Required,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            block_bytes_min: 1,
            block_bytes_preferred: 4096,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            effect_bytes_max: u32::MAX,
            requests_in_flight_max: 1024,
            payload_in_flight_bytes_max: 64 << 20,
            options_max: 64,
            tls: TlsPolicy::Unavailable,
        }
    }
}

impl SessionConfig {
    /// Checks the rules of section "Size constraints" and that every limit lets something through.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (min, preferred) = (self.block_bytes_min, self.block_bytes_preferred);
        if !min.is_power_of_two() || min > BLOCK_BYTES_MIN_MAX {
            return Err(ConfigError::MinimumBlock(min));
        }
        if !preferred.is_power_of_two() || preferred < min.max(BLOCK_BYTES_PREFERRED_MIN) {
            return Err(ConfigError::PreferredBlock(preferred));
        }
        // Zero is a multiple of everything, so the lower bounds also rule out zero.
        for (length, limit) in [(self.payload_bytes_max, PAYLOAD_BYTES_MAX), (self.effect_bytes_max, u32::MAX)] {
            if length < preferred || length > limit {
                return Err(ConfigError::MaximumLength(length));
            }
        }
        let limits =
            [self.requests_in_flight_max as u64, self.payload_in_flight_bytes_max, u64::from(self.options_max)];
        if limits.contains(&0) {
            return Err(ConfigError::ZeroLimit);
        }
        Ok(())
    }
}

/// Why a [`SessionConfig`] is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The minimum block size is not allowed.
    #[error("minimum block size {0}: must be a power of two of at most 65536 bytes")]
    MinimumBlock(u32),
    /// The preferred block size is not allowed.
    #[error("preferred block size {0}: must be a power of two of at least 512 bytes and the minimum block size")]
    PreferredBlock(u32),
    /// A longest request is not allowed.
    #[error(
        "maximum request length {0}: must be at least the preferred block size and, for payloads, at most 32 MiB"
    )]
    MaximumLength(u32),
    /// A limit lets nothing through.
    #[error("a limit of an NBD session is zero: nothing could pass")]
    ZeroLimit,
}

/// An export as its session describes it to the client (section "Transmission flags").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes; at most `i64::MAX`, because clients keep it in a signed integer.
    pub size_bytes: u64,
    /// True if every change is refused.
    pub read_only: bool,
    /// True if a flush on one connection covers completed writes of others.
    pub multi_conn: bool,
    /// True if zeroing can be faster than writing. Where it cannot, requests that insist on it fail.
    pub fast_zero: bool,
}

/// Why an export is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenPurpose {
    /// To describe it; nothing is read or written. The shell need not keep it open.
    Inspect,
    /// To serve it in this session from now on.
    Serve,
}

/// Names one request of a session. Cookies cannot: a client may use one twice at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// One request of the client, checked: in range, aligned, allowed (section "Request types").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Id for [`super::NbdSession::reply`].
    pub id: RequestId,
    /// The client's id of the request; for logs only.
    pub cookie: u64,
    /// The operation.
    pub kind: RequestKind,
}

/// Kinds of [`Request`]. Lengths are never zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestKind {
    /// Read; the outcome is [`Outcome::Data`] of exactly `length` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Write.
    Write {
        /// First byte.
        offset: u64,
        /// The data.
        data: Bytes,
        /// Reply only when it is durable.
        fua: bool,
    },
    /// Make every write that has been replied to durable.
    Flush,
    /// The data is no longer needed; dropping it is optional.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Reply only when it is durable.
        fua: bool,
    },
    /// The range must read as zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Reply only when it is durable.
        fua: bool,
        /// The range must stay allocated.
        no_hole: bool,
        /// Fail with [`ErrorCode::NotSupported`] if it is not faster than writing.
        fast: bool,
    },
    /// Describe the range; the outcome is [`Outcome::Extents`].
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
        /// One extent is enough.
        one_extent: bool,
    },
}

/// Part of an export with one allocation status (section "`base:allocation` metadata context").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes, not zero.
    pub length: u64,
    /// Nothing is allocated here.
    pub is_hole: bool,
    /// It reads as zeros.
    pub is_zero: bool,
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done; for requests that return nothing.
    Done,
    /// Read data.
    Data(Bytes),
    /// Consecutive extents from the request's offset, at least one. The session cuts them to the
    /// request's length and may send fewer.
    Extents(Vec<StatusExtent>),
    /// Failed.
    Failed {
        /// Error code for the client.
        code: ErrorCode,
        /// Details for people; sent only in structured replies.
        message: String,
    },
}

/// Error values that may be sent in a reply (section "Error values").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// NBD_EPERM: not permitted.
    NotPermitted = 1,
    /// NBD_EIO: input/output error.
    Io = 5,
    /// NBD_ENOMEM: out of memory.
    NoMemory = 12,
    /// NBD_EINVAL: invalid request.
    Invalid = 22,
    /// NBD_ENOSPC: no space left.
    NoSpace = 28,
    /// NBD_EOVERFLOW: too long.
    Overflow = 75,
    /// NBD_ENOTSUP: a fast zero request that cannot be fast.
    NotSupported = 95,
    /// NBD_ESHUTDOWN: the server is going down.
    ShuttingDown = 108,
}

/// Next steps of the shell, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes.
    Send(Bytes),
    /// From here on everything goes over TLS, in both directions: begin the handshake as its server, and pass
    /// decrypted bytes to [`super::NbdSession::receive`].
    StartTls,
    /// Carry out a request and report its outcome by [`super::NbdSession::reply`].
    Request(Request),
    /// Open an export and report by [`super::NbdSession::export_opened`]. The empty name asks for the default.
    OpenExport {
        /// Its name.
        name: String,
        /// Purpose of the opening.
        purpose: OpenPurpose,
    },
    /// Find the names of all exports and report by [`super::NbdSession::exports_listed`].
    ListExports,
    /// Send the rest and close the connection. The last action.
    Close {
        /// Why.
        reason: CloseReason,
    },
}

/// Why a session ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client left during negotiation, as it may.
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client left after all its requests were answered, as it should.
    #[error("the client disconnected")]
    Disconnected,
    /// The client asked for an export in the old way, which cannot report an error.
    #[error("export refused: {0}")]
    ExportRefused(OpenError),
    /// The client broke the protocol or a limit.
    #[error("NBD protocol violated by the client: {0}")]
    Violated(#[from] ProtocolError),
}

/// Errors of a client that end the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Client flags that were not offered.
    #[error("unknown client flags in {0:#x}; does the peer speak NBD?")]
    UnknownClientFlags(u32),
    /// An option does not begin as options do.
    #[error("an option begins with {0:#x} instead of IHAVEOPT")]
    OptionMagic(u64),
    /// An option's data is too long.
    #[error("option {option} has {length} bytes of data, more than the maximum of {max}")]
    OptionTooLong {
        /// The option.
        option: u32,
        /// Its data, in bytes.
        length: u32,
        /// The limit.
        max: usize,
    },
    /// Too many options.
    #[error("more than {0} options without choosing an export")]
    TooManyOptions(u32),
    /// EXPORT_NAME with a name that is not one; this option cannot report an error.
    #[error("the export name is not text of at most {0} bytes")]
    ExportName(usize),
    /// EXPORT_NAME although the block size is not the default and this client cannot know it.
    #[error(
        "the export needs requests aligned to {0} bytes; use a client that negotiates block sizes (NBD_OPT_GO)"
    )]
    BlockSizeRequired(u32),
    /// EXPORT_NAME without the TLS that is required; this option cannot report an error.
    #[error("the client chose an export without TLS, which this server requires")]
    TlsRequired,
    /// More bytes came with STARTTLS. Unencrypted bytes must never count as encrypted ones.
    #[error("{0} bytes came after STARTTLS before TLS had begun")]
    BytesBeforeTls(usize),
    /// A request does not begin as requests do.
    #[error("a request begins with {0:#x} instead of the request magic")]
    RequestMagic(u32),
    /// A WRITE is too long.
    #[error("WRITE of {length} bytes, more than the maximum of {max}")]
    WriteTooLong {
        /// Its payload, in bytes.
        length: u32,
        /// The limit.
        max: u32,
    },
}
