//! Values that pass between the queues and controllers of hosts and their shell.

use bytes::Bytes;

use super::authentication::Failure;
use super::command::SubmissionEntry;
use super::pdu::FatalError;
use super::status::Status;

/// Logical blocks have this size, as disks of virtual machines expect it; an image can so be used over NBD and
/// NVMe/TCP alike.
pub const LBA_BYTES: u64 = 512;
/// Blocks of images: the optimal size of writes, and the atomic one.
pub const IMAGE_BLOCK_BYTES: u64 = 4096;
/// The namespace of every subsystem.
pub const NAMESPACE_ID: u32 = 1;
/// In-capsule data of the admin queue, and of a queue that is not connected yet.
pub const ADMIN_CAPSULE_DATA_BYTES_MAX: usize = 8192;

/// Limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Data in the capsule of an I/O command, in bytes.
    pub capsule_data_bytes_max: usize,
    /// Longest read or write, and longest data PDU of a host, in bytes.
    pub transfer_bytes_max: usize,
    /// Commands of a queue.
    pub entries_max: u16,
    /// Bytes of writes that the host was asked to send and has not. One write may exceed it.
    pub granted_bytes_max: usize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        QueueConfig {
            capsule_data_bytes_max: 32 << 10,
            transfer_bytes_max: 1 << 20,
            entries_max: 128,
            granted_bytes_max: 8 << 20,
        }
    }
}

/// Name of a host or a subsystem.
pub type Nqn = String;

/// A queue that a host wants to connect, from the command and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// 0 for the admin queue.
    pub queue_id: u16,
    /// Entries of the queue.
    pub entries: u16,
    /// Milliseconds after which a silent host counts as gone; 0 for never.
    pub keep_alive_ms: u32,
    /// The controller of an I/O queue; for an admin queue `0xFFFF`: any.
    pub controller_id: u16,
    /// The host's id.
    pub host_id: [u8; 16],
    /// The host.
    pub host: Nqn,
    /// The subsystem.
    pub subsystem: Nqn,
}

/// Why a host is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRefusal {
    /// Status for the host.
    pub status: Status,
    /// The byte that is wrong: in the data if it begins with that bit, else in the command.
    pub parameter: u32,
}

impl ConnectRefusal {
    /// A refusal that is about no parameter.
    pub fn new(status: Status) -> Self {
        ConnectRefusal { status, parameter: 0 }
    }

    /// A parameter in the command.
    pub fn in_command(at: u16) -> Self {
        ConnectRefusal { status: Status::ConnectInvalidParameters, parameter: at.into() }
    }

    /// A parameter in the data.
    pub fn in_data(at: u16) -> Self {
        ConnectRefusal { status: Status::ConnectInvalidParameters, parameter: 1 << 16 | u32::from(at) }
    }
}

/// Places of connect parameters.
pub mod connect_field {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const QUEUE_ID: u16 = 42;
    pub const QUEUE_SIZE: u16 = 44;
    pub const ATTRIBUTES: u16 = 46;
    pub const DATA_CONTROLLER_ID: u16 = 16;
    pub const DATA_SUBSYSTEM: u16 = 256;
    pub const DATA_HOST: u16 = 512;
}

/// A namespace as its queues serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Size in bytes, a multiple of [`LBA_BYTES`].
    pub size_bytes: u64,
    /// True if every change is refused.
    pub is_read_only: bool,
    /// True if this gateway may serve it now.
    pub is_accessible: bool,
    /// The controller has it no more, for good.
    pub is_gone: bool,
}

/// Names a command in flight of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(pub(super) u16);

/// How a command ended, for [`super::QueueSession::complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// How.
    pub status: Status,
    /// Result beside data.
    pub result: u64,
    /// Data, if it was done.
    pub data: Bytes,
}

impl Response {
    /// It was done, or not.
    pub fn of(status: Status) -> Self {
        Response { status, result: 0, data: Bytes::new() }
    }

    /// It was done and returns this.
    pub fn result(result: u64) -> Self {
        Response { result, ..Response::of(Status::Success) }
    }

    /// It was done and returns data.
    pub fn data(data: Bytes) -> Self {
        Response { data, ..Response::of(Status::Success) }
    }
}

/// A range, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Bytes, not zero.
    pub length: u64,
}

/// Operations on a namespace. Ranges are within it, and not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Read; the response has exactly this many bytes.
    Read(ByteRange),
    /// Write.
    Write {
        /// First byte.
        offset: u64,
        /// The data.
        data: Bytes,
    },
    /// Make every acknowledged write durable.
    Flush,
    /// Compare the data with the namespace's.
    Compare {
        /// First byte.
        offset: u64,
        /// Expected data.
        expected: Bytes,
    },
    /// Write if the present data is as expected, without another write in between. Both commands are completed:
    /// this one is the comparison.
    CompareAndWrite {
        /// First byte.
        offset: u64,
        /// Expected data.
        expected: Bytes,
        /// New data.
        data: Bytes,
        /// The command that writes.
        write: CommandId,
    },
    /// The range must read as zeros.
    WriteZeroes(ByteRange),
    /// The ranges are no longer needed.
    Trim(Vec<ByteRange>),
}

/// Next steps of the shell, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes.
    Send(Bytes),
    /// Find the controller and call [`super::QueueSession::connected`].
    Connect(ConnectRequest),
    /// A message of DH-HMAC-CHAP has come, for [`super::Authentication::take`]. To be answered by
    /// [`super::QueueSession::complete`].
    AuthenticationSend {
        /// For the answer.
        id: CommandId,
        /// The message.
        message: Bytes,
    },
    /// The next message of the controller is asked for, from [`super::Authentication::fetch`]. To be answered by
    /// [`super::QueueSession::complete`].
    AuthenticationReceive {
        /// For the answer.
        id: CommandId,
        /// The answer has exactly this many bytes, with zeros behind the message.
        length_bytes: usize,
    },
    /// A command for the controller, of the admin queue. To be answered by [`super::QueueSession::complete`].
    Admin {
        /// For the answer.
        id: CommandId,
        /// The command. None takes data of the host.
        command: SubmissionEntry,
    },
    /// A command for the namespace. To be answered by [`super::QueueSession::complete`].
    Io {
        /// For the answer.
        id: CommandId,
        /// The operation.
        kind: IoKind,
    },
    /// Send the rest and close the connection. The last action.
    Close(CloseReason),
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The host has ended it, saying why.
    #[error("the host ended the connection with status {status}, information {information}")]
    Terminated {
        /// FES.
        status: u16,
        /// FEI.
        information: u32,
    },
    /// The host broke the protocol or a limit.
    #[error("NVMe/TCP violated by the host: {0}")]
    Violated(#[from] FatalError),
    /// The connect of the host was refused, and the host was informed.
    #[error("a connect was refused with {0:?}")]
    ConnectRefused(Status),
    /// The host has failed to authenticate, and was informed.
    #[error("the host has not proved itself: {0}")]
    NotAuthenticated(Failure),
    /// The host has proved itself, and could not be connected all the same.
    #[error("an authenticated host was refused with {0:?}")]
    RefusedAuthenticated(Status),
}
