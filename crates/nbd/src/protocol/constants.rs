//! Numbers of the NBD protocol. Every name is that of the document (`doc/proto.md` of
//! NetworkBlockDevice/nbd) without its `NBD_` prefix; all integers travel in network byte order.

/// First magic of the server's greeting, ASCII `NBDMAGIC` (section "Newstyle negotiation").
pub const MAGIC_INIT: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the greeting and magic of every option, ASCII `IHAVEOPT` (section "Newstyle negotiation").
pub const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
/// Magic of the reply to an option (section "Fixed newstyle negotiation").
pub const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request (section "Request message").
pub const MAGIC_REQUEST: u32 = 0x2560_9513;
/// Magic of a simple reply (section "Simple reply message").
pub const MAGIC_SIMPLE_REPLY: u32 = 0x6744_6698;
/// Magic of a chunk of a structured reply (section "Structured reply chunk message").
pub const MAGIC_STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Bytes of the client's flags (section "Newstyle negotiation").
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an option before its data (section "Newstyle negotiation").
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request before its payload (section "Request message").
pub const REQUEST_HEADER_BYTES: usize = 28;
/// Zeros after the reply to EXPORT_NAME, unless negotiated away (section "Newstyle negotiation").
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Longest string, in bytes: export names and messages (section "Conventions").
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest option data accepted, in bytes. The document sets no limit; this is ours.
pub const OPTION_DATA_BYTES_MAX: usize = 64 << 10;
/// Longest payload that a session can be configured for, in bytes. The document calls no shorter one an
/// attack (section "Size constraints").
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Most exports named in one answer to LIST. The document sets no limit; this is ours.
pub const EXPORTS_LISTED_MAX: usize = 10_000;
/// Most descriptors in one answer to BLOCK_STATUS. The document advises at most 2^20 (section
/// "Request types"); fewer keep one answer small, and a client asks again for the rest.
pub const DESCRIPTORS_MAX: usize = 16 << 10;
/// Largest minimum block size, in bytes (section "Size constraints").
pub const BLOCK_BYTES_MIN_MAX: u32 = 64 << 10;
/// Smallest preferred block size, in bytes (section "Size constraints").
pub const BLOCK_BYTES_PREFERRED_MIN: u32 = 512;

/// Name of the only metadata context (section "Metadata querying").
pub const CONTEXT_BASE_ALLOCATION: &str = "base:allocation";
/// Query that lists every context of the `base` namespace (section "The `base:` metadata namespace").
pub const CONTEXT_BASE_WILDCARD: &str = "base:";
/// The id under which this server announces `base:allocation`; any non-repeating number will do.
pub const CONTEXT_BASE_ALLOCATION_ID: u32 = 1;

/// Handshake flags, sent by the server (section "Handshake flags").
pub mod handshake_flag {
    /// The server speaks fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The server can leave out the padding after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Client flags, the answer to the handshake flags (section "Client flags").
pub mod client_flag {
    /// The client speaks fixed newstyle.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// The client wants no padding after EXPORT_NAME.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Options (section "Option types").
pub mod option {
    /// Choose an export and enter transmission; cannot report an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use 64-bit lengths (an extension).
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of the replies to options (section "Option reply types").
pub mod option_reply {
    /// Success, and the last reply.
    pub const ACK: u32 = 1;
    /// One export's name.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option is known and refused.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option is malformed or out of place.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The option needs TLS.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is going down.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The client has to ask for the block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
    /// The option or its answer is too large.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Types of information on an export (section "Option reply types", NBD_REP_INFO).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its name as the server knows it.
    pub const NAME: u16 = 1;
    /// Block sizes and the largest payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export (section "Transmission flags").
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA command flag is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and its NO_HOLE flag are understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag of READ is understood.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA hold across connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The FAST_ZERO flag of WRITE_ZEROES is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types (section "Request types").
pub mod command {
    /// Read data.
    pub const READ: u16 = 0;
    /// Write data.
    pub const WRITE: u16 = 1;
    /// End the session.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Forget data.
    pub const TRIM: u16 = 4;
    /// Prefetch data.
    pub const CACHE: u16 = 5;
    /// Write zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask which parts are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests (section "Command flags").
pub mod command_flag {
    /// Reply only when the data is durable.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must leave the range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ must be answered in one content chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS wants one descriptor.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES must be faster than writing or fail.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Flag of the last chunk of a structured reply (section "Structured reply flags").
pub const REPLY_FLAG_DONE: u16 = 1 << 0;

/// Types of chunks (section "Structured reply types").
pub mod chunk {
    /// Nothing: the request succeeded.
    pub const NONE: u16 = 0;
    /// Data and its offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Descriptors of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error with a message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Flags of a `base:allocation` descriptor (section "`base:allocation` metadata context").
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}
