//! Descriptions of controllers and namespaces (NVM Express Base Specification 1.4, section 5.15).

use bytes::Bytes;

use super::command::{SQE_BYTES, SubmissionEntry};
use super::controller::{ASYNC_EVENTS_MAX, Controller, KEEP_ALIVE_UNIT_MS, Subject, VERSION};
use super::status::Status;
use super::types::{IMAGE_BLOCK_BYTES, LBA_BYTES, NAMESPACE_ID, Namespace};

/// Every data structure has this size.
const IDENTIFY_BYTES: usize = 4096;
/// Highest number that a namespace can have: those from here on mean all of them.
const NAMESPACE_ID_MAX: u32 = 0xFFFF_FFFD;
/// The smallest memory page, in which transfers are measured.
const PAGE_BYTES: usize = 4096;
/// The only group of namespaces that are accessible alike.
pub(super) const ANA_GROUP: u32 = 1;
const MODEL: &str = "Atoll image";

/// A block of zeros to be filled.
struct Page([u8; IDENTIFY_BYTES]);

impl Page {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// Text with spaces behind it.
    fn text(&mut self, at: usize, length: usize, text: &str) {
        let length_used = text.len().min(length);
        self.0[at..at + length].fill(b' ');
        self.put(at, &text.as_bytes()[..length_used]);
    }
}

/// Answers Identify.
pub(super) fn identify(controller: &Controller, command: &SubmissionEntry) -> Result<Bytes, Status> {
    let (structure, rest) = ((command.dword(10) & 0xFF) as u8, command.dword(10) & !0xFF);
    // Controller and NVM set ids, and command set identifiers, select among things that are not here.
    if rest != 0 || command.dword(11) != 0 {
        return Err(Status::InvalidField);
    }
    let mut page = Page([0; IDENTIFY_BYTES]);
    let namespace_id = command.namespace_id();
    match (structure, &controller.config().subject) {
        (0x01, _) => put_controller(&mut page, controller),
        (0x00, Subject::Namespace { namespace, id }) => {
            // Of one that is gone there are zeros.
            if check_namespace_id(namespace_id)? && !namespace.is_gone {
                put_namespace(&mut page, namespace, id);
            }
        }
        (0x02, Subject::Namespace { namespace, .. }) => {
            if namespace_id > NAMESPACE_ID_MAX {
                return Err(Status::InvalidNamespace);
            }
            if namespace_id < NAMESPACE_ID && !namespace.is_gone {
                page.u32(0, NAMESPACE_ID);
            }
        }
        (0x03, Subject::Namespace { namespace, id }) => {
            if !check_namespace_id(namespace_id)? {
                return Err(Status::InvalidField);
            }
            if namespace.is_gone {
                return Err(Status::InvalidNamespace);
            }
            put_descriptors(&mut page, id);
        }
        _ => return Err(Status::InvalidField),
    }
    Ok(Bytes::copy_from_slice(&page.0))
}

/// Returns true for the present namespace; others are empty, or cannot exist.
fn check_namespace_id(namespace_id: u32) -> Result<bool, Status> {
    match namespace_id {
        NAMESPACE_ID => Ok(true),
        _ => Err(Status::InvalidNamespace),
    }
}

fn put_controller(page: &mut Page, controller: &Controller) {
    let config = controller.config();
    let is_io = controller.namespace().is_some();
    page.text(4, 20, &config.serial);
    page.text(24, 40, MODEL);
    page.text(64, 8, &config.firmware);
    // More than one port and controller, and asymmetric access.
    page.0[76] = if is_io { 0b1011 } else { 0b0010 };
    page.0[77] = (config.queues.transfer_bytes_max / PAGE_BYTES).ilog2() as u8;
    page.u16(78, config.controller_id);
    page.u32(80, VERSION);
    page.u32(92, controller.known_async_events());
    // Host ids of 128 bits, and every command keeps the host alive.
    page.u32(96, 1 | 1 << 6);
    page.0[111] = if is_io { 1 } else { 2 };
    // Three commands may be aborted at once, and none ever is.
    page.0[258] = 3;
    page.0[259] = ASYNC_EVENTS_MAX as u8 - 1;
    // One firmware slot, which is read-only.
    page.0[260] = 0b11;
    // The log of effects, and log pages can be read in parts.
    page.0[261] = if is_io { 0b110 } else { 0b100 };
    page.u16(320, (KEEP_ALIVE_UNIT_MS / 100) as u16);
    page.u16(514, config.queues.entries_max);
    page.put(768, config.subsystem.as_bytes());
    // SGLs, also with an offset into the capsule, and data that the transport moves.
    page.u32(536, 1 | 1 << 20 | 1 << 21);
    if is_io {
        put_io_controller(page, config.queues.capsule_data_bytes_max);
    }
}

fn put_io_controller(page: &mut Page, capsule_data_bytes_max: usize) {
    // Seconds that a path may take to change, and that it may be optimized or inaccessible.
    page.0[342] = 10;
    page.0[343] = 0b101;
    page.u32(344, ANA_GROUP);
    page.u32(348, ANA_GROUP);
    page.0[512] = 0x66;
    page.0[513] = 0x44;
    page.u32(516, NAMESPACE_ID);
    // Compare, Dataset Management, Write Zeroes. No reservations.
    page.u16(520, 0b1101);
    // Compare and Write.
    page.u16(522, 1);
    page.u32(540, NAMESPACE_ID);
    page.u32(1792, ((SQE_BYTES + capsule_data_bytes_max) / 16) as u32);
    page.u32(1796, 1);
    // One SGL descriptor.
    page.0[1803] = 1;
}

fn put_namespace(page: &mut Page, namespace: &Namespace, id: &[u8; 16]) {
    let blocks = namespace.size_bytes / LBA_BYTES;
    let image_block = (IMAGE_BLOCK_BYTES / LBA_BYTES - 1) as u16;
    page.u64(0, blocks);
    page.u64(8, blocks);
    page.u64(16, blocks);
    // Atomicity and preferred sizes are given.
    page.0[24] = 1 << 1 | 1 << 4;
    // Several controllers may use it.
    page.0[30] = 1;
    // What is deallocated reads as zeros, and zeroing deallocates.
    page.0[33] = 0b1001;
    // Normal, after power loss, for compare-and-write; all within one block of the image.
    for at in [34, 36, 38, 40, 44] {
        page.u16(at, image_block);
    }
    // Preferred granularity and alignment of writes and of deallocation, and size of writes.
    for at in [64, 66, 68, 70, 72] {
        page.u16(at, image_block);
    }
    page.u32(92, ANA_GROUP);
    page.0[99] = u8::from(namespace.is_read_only);
    page.put(104, id);
    page.0[130] = LBA_BYTES.ilog2() as u8;
}

fn put_descriptors(page: &mut Page, id: &[u8; 16]) {
    // An NGUID, and the same as a UUID.
    for (at, kind) in [(0, 2), (20, 3)] {
        page.put(at, &[kind, id.len() as u8]);
        page.put(at + 4, id);
    }
}
