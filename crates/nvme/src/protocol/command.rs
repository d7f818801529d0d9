//! Commands and completions as bytes (NVM Express Base Specification 1.4, section 4; NVMe over Fabrics 1.1, section
//! 2 and 3).

use bytes::{BufMut, BytesMut};

use super::pdu::{u16_at, u32_at, u64_at};
use super::status::Status;

/// A submission queue entry.
pub const SQE_BYTES: usize = 64;

/// Opcodes of the admin queue.
pub mod admin {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0A;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of the NVM command set.
pub mod nvm {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// The opcode of all fabrics commands, and their types.
pub mod fabrics {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const OPCODE: u8 = 0x7F;
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
}

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// There is none.
    None,
    /// From the host.
    FromHost,
    /// To the host.
    ToHost,
    /// Both, which no command of ours has.
    Both,
}

/// Where a command's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// In the capsule, from an offset on.
    InCapsule {
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u32,
    },
    /// The transport moves it.
    Transport {
        /// In bytes.
        length: u32,
    },
    /// Something that NVMe/TCP does not have.
    Other,
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SubmissionEntry([u8; SQE_BYTES]);

impl std::fmt::Debug for SubmissionEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "command {:#04x}/{:#04x} id {}", self.opcode(), self.0[4], self.command_id())
    }
}

impl SubmissionEntry {
    /// The first 64 bytes. The caller has checked that they are there.
    pub fn read(bytes: &[u8]) -> Self {
        let mut entry = [0; SQE_BYTES];
        entry.copy_from_slice(&bytes[..SQE_BYTES]);
        SubmissionEntry(entry)
    }

    /// Returns the operation code.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Returns its part of a fused pair: 1 for the first, 2 for the second, 0 for none.
    pub fn fuse(&self) -> u8 {
        self.0[1] & 3
    }

    /// Returns true if an SGL describes the data, as it must, and nothing unknown is set beside it.
    pub fn has_sgl(&self) -> bool {
        self.0[1] & !3 == 0x40
    }

    /// Returns the host's id of the command.
    pub fn command_id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// The type of a fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// The namespace.
    pub fn namespace_id(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// Command dword 10 to 15.
    pub fn dword(&self, number: usize) -> u32 {
        u32_at(&self.0, number * 4)
    }

    /// Command dword `number`, and the one behind it as the upper half.
    pub fn dwords(&self, number: usize) -> u64 {
        u64_at(&self.0, number * 4)
    }

    /// A byte.
    pub fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// A 16-bit field.
    pub fn field_u16(&self, at: usize) -> u16 {
        u16_at(&self.0, at)
    }

    /// Which way its data goes.
    pub fn direction(&self) -> Direction {
        let code = if self.opcode() == fabrics::OPCODE { self.fabrics_type() } else { self.opcode() };
        match code & 3 {
            0 => Direction::None,
            1 => Direction::FromHost,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }

    /// Its SGL descriptor.
    pub fn data_pointer(&self) -> DataPointer {
        let length = u32_at(&self.0, 32);
        match self.0[39] {
            0x01 => DataPointer::InCapsule { offset: u64_at(&self.0, 24), length },
            0x5A => DataPointer::Transport { length },
            _ => DataPointer::Other,
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Result of the command beside data.
    pub result: u64,
    /// How far the controller has come in the submission queue.
    pub queue_head: u16,
    /// The command.
    pub command_id: u16,
    /// How it went.
    pub status: Status,
}

impl Completion {
    /// Appends the entry.
    pub fn write(&self, bytes: &mut BytesMut) {
        bytes.put_u64_le(self.result);
        bytes.put_u16_le(self.queue_head);
        // The queue is that of the connection; NVMe over Fabrics has the field reserved.
        bytes.put_u16_le(0);
        bytes.put_u16_le(self.command_id);
        bytes.put_u16_le(self.status.bits() << 1);
    }
}
