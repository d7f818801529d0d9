//! The Connect command (NVMe over Fabrics 1.1, section 3.3).

use atoll_types::nvme_hosts::NQN_BYTES_MAX;

use super::command::SubmissionEntry;
use super::pdu::u16_at;
use super::status::Status;
use super::types::{ConnectRefusal, ConnectRequest, Nqn, connect_field};

/// Its data.
pub(super) const CONNECT_DATA_BYTES: usize = 1024;
const NQN_FIELD_BYTES: usize = 256;

/// Attribute: the queue has no flow control.
const ATTRIBUTE_NO_FLOW_CONTROL: u8 = 1 << 2;
/// Attributes that a host may give: the priority of the queue beside, which has no meaning without weighted arbitration.
const ATTRIBUTES: u8 = ATTRIBUTE_NO_FLOW_CONTROL | 3;

/// A connect that is as it should be.
pub(super) struct Connect {
    pub request: ConnectRequest,
    pub is_flow_control_off: bool,
}

/// Reads the command with its data.
pub(super) fn read_connect(
    command: &SubmissionEntry,
    data: &[u8],
    entries_max: u16,
) -> Result<Connect, ConnectRefusal> {
    assert_eq!(data.len(), CONNECT_DATA_BYTES, "the length was checked when the command came");
    if command.field_u16(40) != 0 {
        return Err(ConnectRefusal::new(Status::ConnectIncompatibleFormat));
    }
    // The size is one less than the number of entries, of which a queue has two at least.
    let size = command.field_u16(44);
    if size == 0 || size >= entries_max {
        return Err(ConnectRefusal::in_command(connect_field::QUEUE_SIZE));
    }
    let attributes = command.byte(46);
    if attributes & !ATTRIBUTES != 0 {
        return Err(ConnectRefusal::in_command(connect_field::ATTRIBUTES));
    }
    let mut host_id = [0; 16];
    host_id.copy_from_slice(&data[..16]);
    let name = |at: u16| nqn_at(data, at.into()).ok_or(ConnectRefusal::in_data(at));
    let request = ConnectRequest {
        queue_id: command.field_u16(42),
        entries: size + 1,
        keep_alive_ms: command.dword(12),
        controller_id: u16_at(data, connect_field::DATA_CONTROLLER_ID.into()),
        host_id,
        host: name(connect_field::DATA_HOST)?,
        subsystem: name(connect_field::DATA_SUBSYSTEM)?,
    };
    Ok(Connect { request, is_flow_control_off: attributes & ATTRIBUTE_NO_FLOW_CONTROL != 0 })
}

/// A name of at most [`NQN_BYTES_MAX`] bytes that ends with a zero.
fn nqn_at(data: &[u8], at: usize) -> Option<Nqn> {
    let field = &data[at..at + NQN_FIELD_BYTES];
    let end = field.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&field[..end]).ok()?;
    let is_name = (1..=NQN_BYTES_MAX).contains(&name.len()) && name.starts_with("nqn.");
    (is_name && name.chars().all(|character| !character.is_control())).then(|| name.to_owned())
}
