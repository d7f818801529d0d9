//! Log pages (NVM Express Base Specification 1.4, section 5.14).

use bytes::{BufMut, Bytes, BytesMut};

use super::command::{SubmissionEntry, admin, nvm};
use super::controller::{Controller, Subject};
use super::discovery::put_discovery;
use super::identify::ANA_GROUP;
use super::status::Status;
use super::types::NAMESPACE_ID;

const ERRORS: u8 = 0x01;
const HEALTH: u8 = 0x02;
const FIRMWARE: u8 = 0x03;
pub(super) const CHANGED_NAMESPACES: u8 = 0x04;
const EFFECTS: u8 = 0x05;
pub(super) const ANA: u8 = 0x0C;
pub(super) const DISCOVERY: u8 = 0x70;

/// The state of a group of namespaces.
mod ana_state {
    pub const OPTIMIZED: u8 = 0x01;
    pub const INACCESSIBLE: u8 = 0x03;
}

/// Answers Get Log Page.
pub(super) fn get(controller: &mut Controller, command: &SubmissionEntry) -> Result<Bytes, Status> {
    let dword = command.dword(10);
    let (page, specific, keeps_event) = ((dword & 0xFF) as u8, (dword >> 8) & 0x7F, dword & 1 << 15 != 0);
    // A UUID index and log specific identifiers select among things that are not here.
    if command.dword(14) != 0 || command.dword(11) >> 16 != 0 {
        return Err(Status::InvalidField);
    }
    let dwords = u64::from(dword >> 16 | (command.dword(11) & 0xFFFF) << 16) + 1;
    let (offset, length) = (command.dwords(12), dwords * 4);
    if length > controller.config.queues.transfer_bytes_max as u64 || !offset.is_multiple_of(4) {
        return Err(Status::InvalidField);
    }
    if specific != 0 && (page, specific) != (ANA, 1) {
        return Err(Status::InvalidField);
    }
    let whole = write(controller, page, specific == 1)?;
    let offset =
        usize::try_from(offset).ok().filter(|offset| *offset <= whole.len()).ok_or(Status::InvalidField)?;
    if !keeps_event {
        controller.note_read(page);
        if page == CHANGED_NAMESPACES {
            controller.namespace_has_changed = false;
        }
    }
    let there = &whole[offset..whole.len().min(offset + length as usize)];
    let mut part = BytesMut::with_capacity(length as usize);
    part.put_slice(there);
    // Behind a page that changes its size there are zeros.
    part.resize(length as usize, 0);
    Ok(part.freeze())
}

fn write(controller: &Controller, page: u8, groups_only: bool) -> Result<Bytes, Status> {
    let mut bytes = BytesMut::new();
    match (page, &controller.config.subject) {
        (DISCOVERY, Subject::Discovery(entries)) => {
            put_discovery(&mut bytes, controller.discovery_generation, entries);
        }
        (ERRORS, _) => bytes.resize(64, 0),
        (HEALTH, Subject::Namespace { .. }) => put_health(&mut bytes),
        (FIRMWARE, Subject::Namespace { .. }) => {
            bytes.resize(512, 0);
            bytes[0] = 1;
            let firmware = controller.config.firmware.as_bytes();
            bytes[8..16].fill(b' ');
            bytes[8..8 + firmware.len().min(8)].copy_from_slice(&firmware[..firmware.len().min(8)]);
        }
        (CHANGED_NAMESPACES, Subject::Namespace { .. }) => {
            bytes.put_u32_le(if controller.namespace_has_changed { NAMESPACE_ID } else { 0 });
            bytes.resize(4096, 0);
        }
        (EFFECTS, Subject::Namespace { .. }) => put_effects(&mut bytes),
        (ANA, Subject::Namespace { namespace, .. }) => {
            bytes.put_u64_le(controller.ana_changes);
            bytes.put_u16_le(1);
            bytes.resize(16, 0);
            bytes.put_u32_le(ANA_GROUP);
            let lists_it = !groups_only && !namespace.is_gone;
            bytes.put_u32_le(u32::from(lists_it));
            bytes.put_u64_le(controller.ana_changes);
            bytes.put_u8(if namespace.is_accessible { ana_state::OPTIMIZED } else { ana_state::INACCESSIBLE });
            bytes.resize(48, 0);
            if lists_it {
                bytes.put_u32_le(NAMESPACE_ID);
            }
        }
        _ => return Err(Status::InvalidLogPage),
    }
    Ok(bytes.freeze())
}

/// There is no device: it is never hot or worn.
fn put_health(bytes: &mut BytesMut) {
    bytes.put_u8(0);
    // Kelvin.
    bytes.put_u16_le(300);
    bytes.put_u8(100);
    bytes.put_u8(10);
    bytes.resize(512, 0);
}

fn put_effects(bytes: &mut BytesMut) {
    /// It is supported.
    const SUPPORTED: u32 = 1;
    /// It changes blocks.
    const CHANGES: u32 = 1 << 1;
    const TABLE_BYTES: usize = 1024;
    bytes.resize(4096, 0);
    let mut put = |table: usize, opcode: u8, effects: u32| {
        let at = table * TABLE_BYTES + usize::from(opcode) * 4;
        bytes[at..at + 4].copy_from_slice(&effects.to_le_bytes());
    };
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
    ] {
        put(0, opcode, SUPPORTED);
    }
    for opcode in [nvm::FLUSH, nvm::READ, nvm::COMPARE] {
        put(1, opcode, SUPPORTED);
    }
    for opcode in [nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT] {
        put(1, opcode, SUPPORTED | CHANGES);
    }
}
