//! One connection of a host, which is one queue of a controller.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use bytes::{Bytes, BytesMut};

use super::authentication::{MESSAGE_BYTES_MAX, SECURITY_PROTOCOL, SECURITY_SPECIFIC};
use super::command::{Completion, DataPointer, Direction, SubmissionEntry, fabrics};
use super::connect::{CONNECT_DATA_BYTES, read_connect};
use super::fused::Fusing;
use super::io::{IoCommand, IoOperation, ranges_of};
use super::pdu::{
    Digests, FatalError, HeaderProgress, HostHeader, HostPdu, InitializeRequest, PduWriter, read_header,
};
use super::status::Status;
use super::transfers::{Received, Transfers};
use super::types::{
    ADMIN_CAPSULE_DATA_BYTES_MAX, Action, CloseReason, CommandId, ConnectRefusal, IoKind, Namespace, QueueConfig,
    Response,
};

/// Actions that wait for the shell beyond which nothing more is read.
const ACTIONS_QUEUED_MAX: usize = 1024;
/// Largest alignment of data that a host may ask for, in bytes.
const DATA_ALIGNMENT_BYTES_MAX: usize = 128;
/// In the result of a connect: the host must prove itself (ATR).
const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
/// Head of a queue without flow control.
const NO_QUEUE_HEAD: u16 = 0xFFFF;

/// The controller's end of one connection. See the module for how a shell drives it.
pub struct QueueSession {
    config: QueueConfig,
    phase: Phase,
    writer: PduWriter,
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    transfers: Transfers,
    fusing: Fusing,
    entries: u16,
    head: Option<u16>,
    actions: VecDeque<Action>,
    needed_bytes: usize,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Initialize,
    Connect,
    Connecting(CommandId),
    /// Connected, and nothing is served before the host has proved itself.
    Authenticating,
    Admin,
    Io(Namespace),
}

/// A command in flight.
struct Slot {
    command: SubmissionEntry,
    /// A command of the NVM command set.
    io: Option<IoCommand>,
    /// How much data the host takes.
    to_host_bytes: usize,
    /// Its status once all its data has come.
    refusal: Option<Status>,
}

impl QueueSession {
    /// A connection that was just accepted.
    pub fn new(config: QueueConfig) -> Self {
        QueueSession {
            config,
            phase: Phase::Initialize,
            writer: PduWriter { digests: Digests::default(), data_alignment_bytes: 4 },
            slots: Vec::new(),
            free: Vec::new(),
            transfers: Transfers::new(config.granted_bytes_max),
            fusing: Fusing::default(),
            entries: 1,
            head: Some(0),
            actions: VecDeque::new(),
            needed_bytes: 0,
            closed: false,
        }
    }

    /// Takes every whole PDU out of `buffer` and queues the resulting actions. An unfinished one stays. Data is
    /// split off without a copy.
    pub fn receive(&mut self, buffer: &mut BytesMut) {
        while !self.is_saturated() {
            match self.step(buffer) {
                Ok(0) => {}
                Ok(needed_bytes) => {
                    self.needed_bytes = needed_bytes - buffer.len();
                    return;
                }
                Err(error) => {
                    self.actions.push_back(Action::Send(PduWriter::terminate(error, buffer)));
                    self.close(error.into());
                }
            }
        }
        self.needed_bytes = 0;
    }

    /// How many bytes beyond those in the buffer are needed before the next [`QueueSession::receive`] can do
    /// anything. Zero means that the last call stopped at a limit.
    pub fn needed_bytes(&self) -> usize {
        self.needed_bytes
    }

    /// Returns true if [`QueueSession::receive`] would do nothing now.
    pub fn is_saturated(&self) -> bool {
        self.closed || self.actions.len() >= ACTIONS_QUEUED_MAX || matches!(self.phase, Phase::Connecting(_))
    }

    /// Returns true if [`Action::Close`] is or was the last action.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns true if the host is connected to a controller.
    pub fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Admin | Phase::Io(_))
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Commands that wait for [`QueueSession::complete`], or for data of the host.
    pub fn commands_in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the bytes of room that the shell must add with [`QueueSession::add_room`] before the host may send
    /// the data of the next write; 0 if no write waits for that.
    pub fn needed_room_bytes(&self) -> usize {
        self.transfers.needed_room_bytes()
    }

    /// Returns the bytes of all requested data that has arrived, for any outcome of its commands: [`Action::Io`]
    /// takes their room, or it is free.
    pub fn finished_bytes(&self) -> u64 {
        self.transfers.finished_bytes()
    }

    /// Adds room for `bytes` more bytes of requested data.
    pub fn add_room(&mut self, bytes: usize) {
        self.transfers.add_room(bytes);
        if !self.closed {
            self.grant();
        }
    }

    /// The namespace has changed.
    pub fn set_namespace(&mut self, namespace: Namespace) {
        if let Phase::Io(current) = &mut self.phase {
            *current = namespace;
        }
    }

    /// Answers [`Action::Connect`]: the controller's id, and the namespace for an I/O queue. Panics if there was
    /// none.
    pub fn connected(&mut self, connected: Result<(u16, Option<Namespace>), ConnectRefusal>) {
        let Phase::Connecting(id) = self.phase else { panic!("bug in the shell: no connect is pending") };
        match connected {
            Ok((controller_id, namespace)) => {
                self.phase = namespace.map_or(Phase::Admin, Phase::Io);
                self.complete(id, Response::result(controller_id.into()));
            }
            Err(refusal) => self.refuse_connect(id, refusal),
        }
    }

    /// Answers [`Action::Connect`]: the controller's id; the host must prove itself before anything else
    /// ([`QueueSession::authenticated`]). Panics if there was none.
    pub fn require_authentication(&mut self, controller_id: u16) {
        let Phase::Connecting(id) = self.phase else { panic!("bug in the shell: no connect is pending") };
        self.phase = Phase::Authenticating;
        self.complete(id, Response::result(u64::from(controller_id) | AUTHENTICATION_REQUIRED));
    }

    /// The host has proved itself; with the namespace of an I/O queue. To be called before the command is completed that
    /// has ended the authentication. Panics if none was under way.
    pub fn authenticated(&mut self, namespace: Option<Namespace>) {
        assert!(self.phase == Phase::Authenticating, "bug in the shell: no authentication is pending");
        self.phase = namespace.map_or(Phase::Admin, Phase::Io);
    }

    /// Closes the session, once sent bytes have gone out.
    pub fn give_up(&mut self, reason: CloseReason) {
        self.close(reason);
    }

    fn refuse_connect(&mut self, id: CommandId, refusal: ConnectRefusal) {
        let response = Response { result: refusal.parameter.into(), ..Response::of(refusal.status) };
        self.complete(id, response);
        self.close(CloseReason::ConnectRefused(refusal.status));
    }

    /// Answers [`Action::Admin`] and [`Action::Io`], in any order. Panics if the command is not in flight.
    pub fn complete(&mut self, id: CommandId, response: Response) {
        let slot = self.slots[usize::from(id.0)].take().expect("bug in the shell: the command is not in flight");
        self.free.push(id.0);
        if self.closed {
            return;
        }
        let Response { mut status, result, data } = response;
        if data.len() > slot.to_host_bytes {
            status = Status::DataLengthInvalid;
        }
        let queue_head = self.head.unwrap_or(NO_QUEUE_HEAD);
        let completion = Completion { result, queue_head, command_id: slot.command.command_id(), status };
        if data.is_empty() || !status.is_success() {
            self.actions.push_back(Action::Send(self.writer.response(&completion)));
            return;
        }
        // Without flow control nobody needs the queue's head, and success needs no words unless it has a result.
        let needs_response = self.head.is_some() || result != 0;
        let (before, after) =
            self.writer.data(completion.command_id, &data, needs_response.then_some(&completion));
        let parts = [before, data, after].into_iter().filter(|part| !part.is_empty());
        self.actions.extend(parts.map(Action::Send));
    }

    /// Takes one PDU. Returns how many bytes must be there for that, or 0 if it was done.
    fn step(&mut self, buffer: &mut BytesMut) -> Result<usize, FatalError> {
        let capsule_data_bytes_max = match self.phase {
            Phase::Io(_) => self.config.capsule_data_bytes_max,
            _ => ADMIN_CAPSULE_DATA_BYTES_MAX,
        };
        let limits = (capsule_data_bytes_max, self.config.transfer_bytes_max);
        let header = match read_header(buffer, self.writer.digests, limits.0, limits.1)? {
            HeaderProgress::Needs(bytes) => return Ok(bytes),
            HeaderProgress::Whole(header) => header,
        };
        let is_first = matches!(header.pdu, HostPdu::Initialize(_));
        let is_allowed =
            is_first == (self.phase == Phase::Initialize) || matches!(header.pdu, HostPdu::Terminate { .. });
        if !is_allowed {
            return Err(FatalError::Sequence);
        }
        if let HostPdu::Data { command_id, transfer_tag, offset, is_last } = header.pdu {
            let slot = self.slots.get(usize::from(transfer_tag)).and_then(Option::as_ref);
            if slot.is_none_or(|slot| slot.command.command_id() != command_id) {
                return Err(FatalError::InvalidHeaderField(10));
            }
            self.transfers.check(transfer_tag, offset, header.data_bytes, is_last)?;
        }
        if buffer.len() < header.total_bytes() {
            return Ok(header.total_bytes());
        }
        self.take(&header, buffer)?;
        Ok(0)
    }

    fn take(&mut self, header: &HostHeader, buffer: &mut BytesMut) -> Result<(), FatalError> {
        match header.pdu {
            HostPdu::Initialize(request) => {
                self.initialize(request)?;
                header.take(buffer);
            }
            HostPdu::Terminate { status, information } => {
                header.take(buffer);
                self.close(CloseReason::Terminated { status, information });
            }
            HostPdu::Command(command) => {
                if self.commands_in_flight() >= usize::from(self.entries) {
                    return Err(FatalError::DataLimit);
                }
                let payload = header.take(buffer);
                self.command(command, payload.data, payload.is_sound);
            }
            HostPdu::Data { transfer_tag, .. } => {
                let payload = header.take(buffer);
                if let Some(received) = self.transfers.receive(transfer_tag, payload) {
                    self.data_is_there(CommandId(transfer_tag), received);
                }
                self.grant();
            }
        }
        Ok(())
    }

    fn initialize(&mut self, request: InitializeRequest) -> Result<(), FatalError> {
        if request.format != 0 {
            return Err(FatalError::UnsupportedParameter(8));
        }
        if request.data_alignment_bytes > DATA_ALIGNMENT_BYTES_MAX {
            return Err(FatalError::InvalidHeaderField(10));
        }
        let digests = Digests::from_bits(request.digest_bits).ok_or(FatalError::InvalidHeaderField(11))?;
        let response = PduWriter { digests, data_alignment_bytes: request.data_alignment_bytes };
        self.actions.push_back(Action::Send(response.initialize_response(self.config.transfer_bytes_max as u32)));
        self.writer = response;
        self.phase = Phase::Connect;
        Ok(())
    }

    // ---- commands ---------------------------------------------------------------------------

    /// A command capsule has come.
    fn command(&mut self, command: SubmissionEntry, capsule: Bytes, is_sound: bool) {
        if let Some(head) = &mut self.head {
            *head = (*head + 1) % self.entries;
        }
        let is_known = |slot: &Option<Slot>| {
            slot.as_ref().is_some_and(|slot| slot.command.command_id() == command.command_id())
        };
        let is_conflict = self.slots.iter().any(is_known);
        let id = self.occupy(Slot { command, io: None, to_host_bytes: 0, refusal: None });
        let begun = match is_conflict {
            true => Err(Status::CommandIdConflict),
            false if !is_sound => Err(Status::TransientTransport),
            false => self.begin(id, &command, capsule),
        };
        let abandoned = self.fusing.follow(id, &command, begun.is_ok());
        if let Some(first) = abandoned {
            self.refuse_when_there(
                first,
                if command.fuse() == 2 { Status::FailedFused } else { Status::MissingFused },
            );
        }
        match begun {
            Err(status) => self.refuse(id, status),
            Ok(Some(data)) => self.data_is_there(id, Received { data, is_sound: true }),
            Ok(None) => self.grant(),
        }
    }

    fn occupy(&mut self, slot: Slot) -> CommandId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u16
        });
        self.slots[usize::from(index)] = Some(slot);
        CommandId(index)
    }

    fn slot(&mut self, id: CommandId) -> &mut Slot {
        self.slots[usize::from(id.0)].as_mut().expect("the command is in flight")
    }

    fn refuse(&mut self, id: CommandId, status: Status) {
        if matches!(self.phase, Phase::Connect) {
            return self.refuse_connect(id, ConnectRefusal::new(status));
        }
        self.complete(id, Response::of(status));
    }

    /// Refuses a command whose data may still be on its way.
    fn refuse_when_there(&mut self, id: CommandId, status: Status) {
        if self.transfers.is_awaited(id.0) {
            self.slot(id).refusal = Some(status);
        } else {
            self.refuse(id, status);
        }
    }

    /// Checks a command. Returns its data if that is there, and sees to it that it comes if not.
    fn begin(
        &mut self,
        id: CommandId,
        command: &SubmissionEntry,
        capsule: Bytes,
    ) -> Result<Option<Bytes>, Status> {
        let direction = command.direction();
        if !command.has_sgl() || command.fuse() != 0 && !matches!(self.phase, Phase::Io(_)) {
            return Err(Status::InvalidField);
        }
        let wanted_bytes = match self.phase {
            Phase::Connect => {
                if (command.opcode(), command.fabrics_type()) != (fabrics::OPCODE, fabrics::CONNECT) {
                    return Err(Status::CommandSequence);
                }
                Some(CONNECT_DATA_BYTES..=CONNECT_DATA_BYTES)
            }
            Phase::Authenticating => Some(check_authentication(command)?),
            Phase::Io(namespace) if command.opcode() != fabrics::OPCODE => {
                let io = IoCommand::read(command, &namespace, self.config.transfer_bytes_max)?;
                self.fusing.check(command, &io)?;
                self.slot(id).io = Some(io);
                Some(io.data_bytes())
            }
            // Of fabrics commands an I/O queue has only Connect.
            Phase::Io(_) => return Err(Status::InvalidOpcode),
            _ => None,
        };
        match direction {
            Direction::None => Ok(Some(Bytes::new())),
            Direction::Both => Err(Status::InvalidOpcode),
            Direction::ToHost => match command.data_pointer() {
                DataPointer::Transport { length }
                    if wanted_bytes.is_none_or(|wanted| wanted.contains(&(length as usize))) =>
                {
                    self.slot(id).to_host_bytes = length as usize;
                    Ok(Some(Bytes::new()))
                }
                DataPointer::Transport { .. } => Err(Status::DataLengthInvalid),
                _ => Err(Status::SglTypeInvalid),
            },
            Direction::FromHost => self.data_from_host(id, command, capsule, wanted_bytes),
        }
    }

    fn data_from_host(
        &mut self,
        id: CommandId,
        command: &SubmissionEntry,
        capsule: Bytes,
        wanted_bytes: Option<RangeInclusive<usize>>,
    ) -> Result<Option<Bytes>, Status> {
        let (length, data) = match command.data_pointer() {
            DataPointer::InCapsule { offset, length } => {
                let end = offset.checked_add(length.into()).filter(|end| *end <= capsule.len() as u64);
                let end = end.ok_or(Status::SglOffsetInvalid)?;
                (length as usize, Some(capsule.slice(offset as usize..end as usize)))
            }
            DataPointer::Transport { length } => (length as usize, None),
            DataPointer::Other => return Err(Status::SglTypeInvalid),
        };
        let wanted_bytes = wanted_bytes.unwrap_or(0..=ADMIN_CAPSULE_DATA_BYTES_MAX);
        if !wanted_bytes.contains(&length) {
            return Err(Status::DataLengthInvalid);
        }
        if data.is_none() && length > 0 {
            self.transfers.expect(id.0, length);
            return Ok(None);
        }
        Ok(Some(data.unwrap_or_default()))
    }

    /// Requests data from the host as far as there is room.
    fn grant(&mut self) {
        while let Some((tag, length)) = self.transfers.grant() {
            let command_id = self.slot(CommandId(tag)).command.command_id();
            self.actions.push_back(Action::Send(self.writer.ready_to_transfer(command_id, tag, 0, length as u32)));
        }
    }

    /// All data of a command has come, or it has none.
    fn data_is_there(&mut self, id: CommandId, received: Received) {
        let Slot { command, io, refusal, .. } = self.slot(id);
        let (command, io, refusal) = (*command, *io, *refusal);
        let refusal = refusal.or((!received.is_sound).then_some(Status::TransientTransport));
        if let Some(status) = refusal {
            if let Some(partner) = self.fusing.give_up(id) {
                self.refuse_when_there(partner, Status::FailedFused);
            }
            return self.refuse(id, status);
        }
        let data = received.data;
        match (self.phase, io) {
            (Phase::Connect, _) => match read_connect(&command, &data, self.config.entries_max) {
                Ok(connect) => {
                    self.phase = Phase::Connecting(id);
                    self.entries = connect.request.entries;
                    self.head = (!connect.is_flow_control_off).then_some(1 % self.entries);
                    self.actions.push_back(Action::Connect(connect.request));
                }
                Err(refusal) => self.refuse_connect(id, refusal),
            },
            (Phase::Io(namespace), Some(io)) => self.begin_io(id, io, data, &namespace),
            (Phase::Authenticating, _) if command.fabrics_type() == fabrics::AUTHENTICATION_SEND => {
                self.actions.push_back(Action::AuthenticationSend { id, message: data });
            }
            (Phase::Authenticating, _) => {
                let length_bytes = self.slot(id).to_host_bytes;
                self.actions.push_back(Action::AuthenticationReceive { id, length_bytes });
            }
            _ => self.actions.push_back(Action::Admin { id, command }),
        }
    }

    fn begin_io(&mut self, id: CommandId, io: IoCommand, data: Bytes, namespace: &Namespace) {
        if self.fusing.is_fused(id) {
            if let Some((first, kind)) = self.fusing.data_is_there(id, io.range.offset, data) {
                self.actions.push_back(Action::Io { id: first, kind });
            }
            return;
        }
        let kind = match io.operation {
            IoOperation::Read => IoKind::Read(io.range),
            IoOperation::Write => IoKind::Write { offset: io.range.offset, data },
            IoOperation::Compare => IoKind::Compare { offset: io.range.offset, expected: data },
            IoOperation::WriteZeroes => IoKind::WriteZeroes(io.range),
            IoOperation::Flush => IoKind::Flush,
            IoOperation::Trim { deallocates, ranges } => match ranges_of(&data, ranges, namespace) {
                Err(status) => return self.refuse(id, status),
                // Hints about how data will be used may be left alone.
                Ok(_) if !deallocates => return self.refuse(id, Status::Success),
                Ok(ranges) => IoKind::Trim(ranges),
            },
        };
        self.actions.push_back(Action::Io { id, kind });
    }

    fn close(&mut self, reason: CloseReason) {
        if !self.closed {
            self.closed = true;
            self.actions.push_back(Action::Close(reason));
        }
    }
}

/// Authentication Send or Receive (NVM Express Base Specification 2.0, sections 6.2 and 6.3), and how much data it may have.
fn check_authentication(command: &SubmissionEntry) -> Result<RangeInclusive<usize>, Status> {
    let is_one = command.opcode() == fabrics::OPCODE
        && matches!(command.fabrics_type(), fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE);
    if !is_one {
        return Err(Status::AuthenticationRequired);
    }
    if [command.byte(41), command.byte(42)] != SECURITY_SPECIFIC || command.byte(43) != SECURITY_PROTOCOL {
        return Err(Status::InvalidField);
    }
    // The length is in the command, too.
    let length = command.dword(11) as usize;
    if (1..=MESSAGE_BYTES_MAX).contains(&length) { Ok(length..=length) } else { Err(Status::InvalidField) }
}
