//! A host that writes PDUs by the specification, and a shell without I/O.

use atoll_codec::crc32c;
use bytes::{BufMut, Bytes, BytesMut};

use crate::protocol::pdu::{Digests, pdu_flag, pdu_type};
use crate::protocol::*;

pub const SUBSYSTEM: &str = "nqn.2026-11.test:disk";
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";

/// A PDU of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub kind: u8,
    pub flags: u8,
    /// Without the common header and digests.
    pub fields: Vec<u8>,
    pub data: Vec<u8>,
}

impl Received {
    pub fn status(&self) -> u16 {
        assert_eq!(self.kind, pdu_type::CAPSULE_RESP);
        u16::from_le_bytes([self.fields[14], self.fields[15]]) >> 1 & 0x7FF
    }

    pub fn result(&self) -> u64 {
        u64::from_le_bytes(self.fields[..8].try_into().unwrap())
    }

    pub fn command_id(&self) -> u16 {
        let at = if self.kind == pdu_type::CAPSULE_RESP { 12 } else { 0 };
        u16::from_le_bytes([self.fields[at], self.fields[at + 1]])
    }

    pub fn field_u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.fields[at..at + 4].try_into().unwrap())
    }
}

/// A command to be sent.
#[derive(Clone, Debug)]
pub struct Command {
    pub sqe: [u8; 64],
    pub capsule: Vec<u8>,
}

impl Command {
    pub fn new(opcode: u8, id: u16) -> Self {
        let mut sqe = [0; 64];
        (sqe[0], sqe[1], sqe[39]) = (opcode, 0x40, 0x5A);
        sqe[2..4].copy_from_slice(&id.to_le_bytes());
        Command { sqe, capsule: Vec::new() }
    }

    pub fn dword(mut self, number: usize, value: u32) -> Self {
        self.sqe[number * 4..number * 4 + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub fn fuse(mut self, part: u8) -> Self {
        self.sqe[1] |= part;
        self
    }

    /// Data goes over the transport, in whatever direction.
    pub fn transfer(self, bytes: usize) -> Self {
        self.dword(8, bytes as u32)
    }

    pub fn in_capsule(mut self, data: &[u8]) -> Self {
        self.sqe[39] = 1;
        self.capsule = data.to_vec();
        self.transfer(data.len())
    }

    /// A command on a range of blocks of 512 bytes.
    pub fn io(opcode: u8, id: u16, first: u64, blocks: u32) -> Self {
        Command::new(opcode, id)
            .dword(1, 1)
            .dword(10, first as u32)
            .dword(11, (first >> 32) as u32)
            .dword(12, blocks - 1)
    }

    pub fn connect(id: u16, queue_id: u16, controller_id: u16) -> Self {
        let mut data = vec![0; 1024];
        data[16..18].copy_from_slice(&controller_id.to_le_bytes());
        data[256..256 + SUBSYSTEM.len()].copy_from_slice(SUBSYSTEM.as_bytes());
        data[512..512 + HOST.len()].copy_from_slice(HOST.as_bytes());
        Command::new(0x7F, id)
            .dword(1, 1)
            .dword(10, u32::from(queue_id) << 16)
            .dword(11, 31)
            .dword(12, 5000)
            .in_capsule(&data)
    }
}

pub struct Host {
    pub session: QueueSession,
    pub buffer: BytesMut,
    pub digests: Digests,
    sent: BytesMut,
    pub connects: Vec<ConnectRequest>,
    pub admin: Vec<(CommandId, SubmissionEntry)>,
    pub io: Vec<(CommandId, IoKind)>,
    pub messages: Vec<(CommandId, Bytes)>,
    pub fetches: Vec<(CommandId, usize)>,
    pub closed: Option<CloseReason>,
}

pub const NAMESPACE: Namespace =
    Namespace { size_bytes: 1 << 20, is_read_only: false, is_accessible: true, is_gone: false };

impl Host {
    /// The shell has room for whatever the host may send.
    pub fn new(config: QueueConfig) -> Self {
        let mut host = Host::without_room(config);
        host.session.add_room(usize::MAX);
        host
    }

    pub fn without_room(config: QueueConfig) -> Self {
        Host {
            session: QueueSession::new(config),
            buffer: BytesMut::new(),
            digests: Digests::default(),
            sent: BytesMut::new(),
            connects: Vec::new(),
            admin: Vec::new(),
            io: Vec::new(),
            messages: Vec::new(),
            fetches: Vec::new(),
            closed: None,
        }
    }

    /// A queue that is connected.
    pub fn connected(digest_bits: u8, namespace: Option<Namespace>) -> Self {
        let mut host = Host::new(QueueConfig::default());
        host.send(&initialize(digest_bits));
        let response = host.take();
        assert_eq!((response.len(), response[0].kind), (1, pdu_type::IC_RESP));
        host.digests = Digests::from_bits(digest_bits).unwrap();
        host.command(&Command::connect(0, u16::from(namespace.is_some()), 0xFFFF));
        assert_eq!(host.connects.len(), 1, "{:?}", host.closed);
        host.session.connected(Ok((7, namespace)));
        host.act();
        let response = host.take();
        assert_eq!((response[0].status(), response[0].result()), (0, 7));
        host
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.session.receive(&mut self.buffer);
        self.act();
    }

    pub fn act(&mut self) {
        while let Some(action) = self.session.next_action() {
            assert!(self.closed.is_none(), "{action:?} after the end");
            match action {
                Action::Send(bytes) => self.sent.extend_from_slice(&bytes),
                Action::Connect(request) => self.connects.push(request),
                Action::Admin { id, command } => self.admin.push((id, command)),
                Action::AuthenticationSend { id, message } => self.messages.push((id, message)),
                Action::AuthenticationReceive { id, length_bytes } => self.fetches.push((id, length_bytes)),
                Action::Io { id, kind } => self.io.push((id, kind)),
                Action::Close(reason) => self.closed = Some(reason),
            }
        }
    }

    pub fn command(&mut self, command: &Command) {
        let pdu = self.capsule(command);
        self.send(&pdu);
    }

    pub fn capsule(&self, command: &Command) -> Vec<u8> {
        write_pdu(self.digests, pdu_type::CAPSULE_CMD, 0, &command.sqe, &command.capsule)
    }

    /// Data for an R2T.
    pub fn data(&self, command_id: u16, tag: u16, offset: u32, data: &[u8], is_last: bool) -> Vec<u8> {
        let mut fields = Vec::new();
        fields.put_u16_le(command_id);
        fields.put_u16_le(tag);
        fields.put_u32_le(offset);
        fields.put_u32_le(data.len() as u32);
        fields.put_u32_le(0);
        write_pdu(self.digests, pdu_type::H2C_DATA, if is_last { pdu_flag::LAST_PDU } else { 0 }, &fields, data)
    }

    pub fn complete(&mut self, id: CommandId, response: Response) {
        self.session.complete(id, response);
        self.act();
    }

    /// Returns the PDUs sent since the last call, checked.
    pub fn take(&mut self) -> Vec<Received> {
        let mut pdus = Vec::new();
        while !self.sent.is_empty() {
            let (kind, flags, header, offset) =
                (self.sent[0], self.sent[1], usize::from(self.sent[2]), usize::from(self.sent[3]));
            let total = u32::from_le_bytes(self.sent[4..8].try_into().unwrap()) as usize;
            let pdu = self.sent.split_to(total);
            let is_digested = self.digests.header && kind != pdu_type::IC_RESP && kind != pdu_type::C2H_TERM_REQ;
            assert_eq!(flags & pdu_flag::HDGSTF != 0, is_digested);
            let mut header_end = header;
            if is_digested {
                assert_eq!(pdu[header..header + 4], crc32c(&pdu[..header]).to_le_bytes());
                header_end += 4;
            }
            let mut data = Vec::new();
            if kind == pdu_type::C2H_DATA {
                assert!(offset >= header_end);
                let digest_bytes = if self.digests.data { 4 } else { 0 };
                data = pdu[offset..total - digest_bytes].to_vec();
                if self.digests.data {
                    assert_eq!(pdu[total - 4..], crc32c(&data).to_le_bytes());
                }
            } else if kind == pdu_type::C2H_TERM_REQ {
                data = pdu[header..].to_vec();
            }
            pdus.push(Received { kind, flags, fields: pdu[8..header].to_vec(), data });
        }
        pdus
    }

    /// The only response that was sent since.
    pub fn response(&mut self) -> Received {
        let mut pdus = self.take();
        assert_eq!(pdus.len(), 1, "{pdus:?} {:?}", self.closed);
        pdus.remove(0)
    }
}

pub fn initialize(digest_bits: u8) -> Vec<u8> {
    let mut pdu = vec![pdu_type::IC_REQ, 0, 128, 0];
    pdu.put_u32_le(128);
    pdu.resize(128, 0);
    pdu[11] = digest_bits;
    pdu
}

pub fn write_pdu(digests: Digests, kind: u8, flags: u8, fields: &[u8], data: &[u8]) -> Vec<u8> {
    let header_bytes = 8 + fields.len();
    let header_end = header_bytes + if digests.header { 4 } else { 0 };
    let digest_bytes = if digests.data && !data.is_empty() { 4 } else { 0 };
    let mut pdu = Vec::new();
    pdu.put_u8(kind);
    pdu.put_u8(flags | u8::from(digests.header) | u8::from(digest_bytes > 0) << 1);
    pdu.put_u8(header_bytes as u8);
    pdu.put_u8(if data.is_empty() { 0 } else { header_end as u8 });
    pdu.put_u32_le((header_end + data.len() + digest_bytes) as u32);
    pdu.put_slice(fields);
    if digests.header {
        pdu.put_u32_le(crc32c(&pdu));
    }
    pdu.put_slice(data);
    if digest_bytes > 0 {
        pdu.put_u32_le(crc32c(data));
    }
    pdu
}
