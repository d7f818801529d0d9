//! A controller: its properties, features and events, as its admin queue shows them (NVM Express Base Specification
//! 1.4, sections 3 and 5).

use std::collections::VecDeque;

use bytes::Bytes;

use super::command::{SubmissionEntry, admin, fabrics};
use super::discovery::DiscoveryEntry;
use super::identify;
use super::log_pages;
use super::status::Status;
use super::types::{CommandId, Namespace, Nqn, QueueConfig, Response};

/// I/O queues of a controller.
pub const IO_QUEUES_MAX: u16 = 16;
/// Asynchronous event requests that may wait.
pub const ASYNC_EVENTS_MAX: usize = 4;
/// Keep-alive times are counted in these units, in milliseconds.
pub const KEEP_ALIVE_UNIT_MS: u32 = 1000;

/// Offsets of properties.
mod property {
    pub const CAPABILITIES: u32 = 0x00;
    pub const VERSION: u32 = 0x08;
    pub const CONFIGURATION: u32 = 0x14;
    pub const STATUS: u32 = 0x1C;
}

/// Version 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// Fields of the property CC.
mod configuration {
    pub const ENABLE: u32 = 1;
    /// CSS, MPS and AMS: the NVM command set, pages of 4 KiB, round robin.
    pub const KIND: u32 = 0x3FF0;
    pub const SHUTDOWN: u32 = 3 << 14;
    pub const ENTRY_SIZES: u32 = 0xFF << 16;
    /// 64 and 16 bytes.
    pub const ENTRY_SIZES_OF_NVM: u32 = 6 << 16 | 4 << 20;
    pub const KNOWN: u32 = ENABLE | KIND | SHUTDOWN | ENTRY_SIZES;
}

/// Fields of the property CSTS.
mod controller_status {
    pub const READY: u32 = 1;
    pub const FATAL: u32 = 1 << 1;
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
}

/// Features.
mod feature {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const WRITE_ATOMICITY: u8 = 0x0A;
    pub const ASYNC_EVENTS: u8 = 0x0B;
    pub const KEEP_ALIVE: u8 = 0x0F;
    pub const HOST_ID: u8 = 0x81;
}

/// Events that hosts may want to hear of, by their bit in the feature.
pub mod async_event {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const NAMESPACE: u32 = 1 << 8;
    pub const ANA: u32 = 1 << 11;
    pub const DISCOVERY: u32 = 1 << 31;
}

/// Content of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An image.
    Namespace {
        /// The same for every path.
        namespace: Namespace,
        /// Names the namespace for good, the same on every path.
        id: [u8; 16],
    },
    /// The subsystems of this gateway.
    Discovery(Vec<DiscoveryEntry>),
}

/// Properties of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Its number, unique in the subsystem.
    pub controller_id: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// 20 characters, the same on every path.
    pub serial: String,
    /// 8 characters: the version of the program.
    pub firmware: String,
    /// The host.
    pub host: Nqn,
    /// The host's id.
    pub host_id: [u8; 16],
    /// From its connect.
    pub keep_alive_ms: u32,
    /// Limits of its queues.
    pub queues: QueueConfig,
    /// Content of the controller.
    pub subject: Subject,
}

/// Actions of the shell beside answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// An asynchronous event request is answered.
    Complete(CommandId, Response),
    /// The I/O queues are gone: the host has reset the controller or shut it down.
    EndIoQueues,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    mask: u32,
    result: u64,
    /// The log page with the details; reading it lets the event come again.
    pub log_page: u8,
}

const NOTICES: [Notice; 3] = [
    Notice { mask: async_event::NAMESPACE, result: 0x04_00_02, log_page: log_pages::CHANGED_NAMESPACES },
    Notice { mask: async_event::ANA, result: 0x0C_03_02, log_page: log_pages::ANA },
    Notice { mask: async_event::DISCOVERY, result: 0x70_F0_02, log_page: log_pages::DISCOVERY },
];

/// The state of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Telling {
    #[default]
    Nothing,
    /// It has happened, and no request was there.
    Due,
    /// The host was informed and has not looked yet.
    Done,
}

/// A controller of one host.
pub struct Controller {
    pub(super) config: ControllerConfig,
    configuration: u32,
    is_shut_down: bool,
    is_fatal: bool,
    io_queues: u16,
    async_config: u32,
    async_requests: VecDeque<CommandId>,
    told: [Telling; NOTICES.len()],
    pub(super) namespace_has_changed: bool,
    pub(super) ana_changes: u64,
    pub(super) discovery_generation: u64,
    keep_alive_ms: u32,
    alive_at_ms: u64,
    events: VecDeque<ControllerEvent>,
}

impl Controller {
    /// A controller whose host has just connected.
    pub fn new(config: ControllerConfig, now_ms: u64) -> Self {
        let keep_alive_ms = rounded_up(config.keep_alive_ms);
        Controller {
            config,
            configuration: 0,
            is_shut_down: false,
            is_fatal: false,
            io_queues: 0,
            async_config: 0,
            async_requests: VecDeque::new(),
            told: [Telling::Nothing; NOTICES.len()],
            namespace_has_changed: false,
            ana_changes: 1,
            discovery_generation: 1,
            keep_alive_ms,
            alive_at_ms: now_ms,
            events: VecDeque::new(),
        }
    }

    /// Returns the controller's properties.
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// The namespace, unless this is a discovery controller.
    pub fn namespace(&self) -> Option<&Namespace> {
        match &self.config.subject {
            Subject::Namespace { namespace, .. } => Some(namespace),
            Subject::Discovery(_) => None,
        }
    }

    /// Returns true if the host may use I/O queues.
    pub fn is_ready(&self) -> bool {
        self.configuration & configuration::ENABLE != 0 && !self.is_fatal && !self.is_shut_down
    }

    /// Returns true if it has an I/O queue of this number.
    pub fn has_io_queue(&self, queue_id: u16) -> bool {
        self.is_ready() && (1..=self.io_queues).contains(&queue_id)
    }

    /// The host was heard.
    pub fn heard(&mut self, now_ms: u64) {
        self.alive_at_ms = now_ms;
    }

    /// When the host counts as gone unless it is heard before; `None` for never. The host may restart its timer
    /// with every command, and the last of them just before, so it is twice the agreed time.
    pub fn deadline_ms(&self) -> Option<u64> {
        (self.keep_alive_ms > 0).then(|| self.alive_at_ms + 2 * u64::from(self.keep_alive_ms))
    }

    /// Returns the next action beside answers.
    pub fn next_event(&mut self) -> Option<ControllerEvent> {
        self.events.pop_front()
    }

    /// The namespace is larger, or accessible by another path.
    pub fn set_namespace(&mut self, changed: Namespace) {
        let Subject::Namespace { namespace, .. } = &mut self.config.subject else { return };
        let before = std::mem::replace(namespace, changed);
        if before.is_accessible != changed.is_accessible {
            self.ana_changes += 1;
            self.notify(async_event::ANA);
        }
        let attributes = |namespace: Namespace| (namespace.size_bytes, namespace.is_read_only, namespace.is_gone);
        if attributes(before) != attributes(changed) {
            self.namespace_has_changed = true;
            self.notify(async_event::NAMESPACE);
        }
    }

    /// The subsystems of this gateway are these now.
    pub fn set_discovery(&mut self, changed: Vec<DiscoveryEntry>) {
        let Subject::Discovery(entries) = &mut self.config.subject else { return };
        if *entries != changed {
            *entries = changed;
            self.discovery_generation += 1;
            self.notify(async_event::DISCOVERY);
        }
    }

    fn notify(&mut self, mask: u32) {
        for (notice, told) in NOTICES.iter().zip(&mut self.told) {
            if notice.mask == mask && self.async_config & mask != 0 && *told == Telling::Nothing {
                *told = Telling::Due;
            }
        }
        self.tell();
    }

    fn tell(&mut self) {
        for (notice, told) in NOTICES.iter().zip(&mut self.told) {
            if *told == Telling::Due
                && let Some(id) = self.async_requests.pop_front()
            {
                *told = Telling::Done;
                self.events.push_back(ControllerEvent::Complete(id, Response::result(notice.result)));
            }
        }
    }

    /// Notes that the host has read a log page, whose events may be reported again.
    pub(super) fn note_read(&mut self, log_page: u8) {
        for (notice, told) in NOTICES.iter().zip(&mut self.told) {
            if notice.log_page == log_page && *told == Telling::Done {
                *told = Telling::Nothing;
            }
        }
    }

    // ---- commands ---------------------------------------------------------------------------

    /// Carries out a command of the admin queue; `None` if it is answered by an event later.
    pub fn execute(&mut self, id: CommandId, command: &SubmissionEntry) -> Option<Response> {
        let done = match command.opcode() {
            fabrics::OPCODE => match command.fabrics_type() {
                fabrics::PROPERTY_GET => self.get_property(command),
                fabrics::PROPERTY_SET => self.set_property(command),
                fabrics::CONNECT => Err(Status::CommandSequence),
                _ => Err(Status::InvalidOpcode),
            },
            admin::KEEP_ALIVE => Ok(Response::of(Status::Success)),
            _ if !self.is_ready() => Err(Status::CommandSequence),
            admin::IDENTIFY => identify::identify(self, command).map(Response::data),
            admin::GET_LOG_PAGE => log_pages::get(self, command).map(Response::data),
            admin::GET_FEATURES => self.get_feature(command),
            admin::SET_FEATURES => self.set_feature(command),
            admin::ASYNC_EVENT_REQUEST if self.async_requests.len() >= ASYNC_EVENTS_MAX => {
                Err(Status::AsyncEventLimit)
            }
            admin::ASYNC_EVENT_REQUEST => {
                self.async_requests.push_back(id);
                self.tell();
                return None;
            }
            // Nothing is ever held so long that it could be taken back.
            admin::ABORT if self.namespace().is_some() => Ok(Response::result(1)),
            _ => Err(Status::InvalidOpcode),
        };
        Some(done.unwrap_or_else(Response::of))
    }

    fn get_property(&self, command: &SubmissionEntry) -> Result<Response, Status> {
        let is_wide = match command.byte(40) {
            0 => false,
            1 => true,
            _ => return Err(Status::InvalidField),
        };
        let value = match (command.dword(11), is_wide) {
            (property::CAPABILITIES, true) => self.capabilities(),
            (property::VERSION, false) => VERSION.into(),
            (property::CONFIGURATION, false) => self.configuration.into(),
            (property::STATUS, false) => self.status().into(),
            _ => return Err(Status::InvalidField),
        };
        Ok(Response::result(value))
    }

    fn capabilities(&self) -> u64 {
        let queue_entries = u64::from(self.config.queues.entries_max) - 1;
        let contiguous = 1 << 16;
        // In units of 500 ms: nothing here takes longer.
        let timeout = 30 << 24;
        let nvm_command_set = 1 << 37;
        queue_entries | contiguous | timeout | nvm_command_set
    }

    fn status(&self) -> u32 {
        let is_enabled = self.configuration & configuration::ENABLE != 0;
        let ready = if is_enabled && !self.is_fatal { controller_status::READY } else { 0 };
        let fatal = if self.is_fatal { controller_status::FATAL } else { 0 };
        let shut_down = if self.is_shut_down { controller_status::SHUTDOWN_COMPLETE } else { 0 };
        ready | fatal | shut_down
    }

    fn set_property(&mut self, command: &SubmissionEntry) -> Result<Response, Status> {
        let value = u32::try_from(command.dwords(12)).map_err(|_| Status::InvalidField)?;
        if command.byte(40) != 0
            || command.dword(11) != property::CONFIGURATION
            || value & !configuration::KNOWN != 0
        {
            return Err(Status::InvalidField);
        }
        let was_enabled = self.configuration & configuration::ENABLE != 0;
        let is_enabled = value & configuration::ENABLE != 0;
        self.configuration = value;
        if was_enabled && !is_enabled {
            self.reset();
        }
        if !was_enabled && is_enabled {
            self.is_fatal = value & configuration::KIND != 0
                || value & configuration::ENTRY_SIZES != configuration::ENTRY_SIZES_OF_NVM;
        }
        if value & configuration::SHUTDOWN != 0 && !self.is_shut_down {
            self.is_shut_down = true;
            self.events.push_back(ControllerEvent::EndIoQueues);
        }
        Ok(Response::of(Status::Success))
    }

    fn reset(&mut self) {
        self.is_shut_down = false;
        self.is_fatal = false;
        self.io_queues = 0;
        self.async_config = 0;
        self.told = Default::default();
        self.events.push_back(ControllerEvent::EndIoQueues);
    }

    fn get_feature(&self, command: &SubmissionEntry) -> Result<Response, Status> {
        let (id, rest) = ((command.dword(10) & 0xFF) as u8, command.dword(10) & !0xFF);
        if rest != 0 {
            return Err(Status::InvalidField);
        }
        if id == feature::HOST_ID {
            let is_extended = command.dword(11) == 1;
            return if is_extended {
                Ok(Response::data(Bytes::copy_from_slice(&self.config.host_id)))
            } else {
                Err(Status::InvalidField)
            };
        }
        let is_io = self.namespace().is_some();
        let value = match id {
            feature::ARBITRATION | feature::POWER_MANAGEMENT | feature::ERROR_RECOVERY if is_io => 0,
            // Normal write atomicity is what the namespace says.
            feature::WRITE_ATOMICITY if is_io => 0,
            feature::TEMPERATURE_THRESHOLD if is_io => 0xFFFF,
            feature::NUMBER_OF_QUEUES if is_io => {
                let count = u32::from(self.io_queues.max(1)) - 1;
                count << 16 | count
            }
            feature::ASYNC_EVENTS => self.async_config,
            feature::KEEP_ALIVE => self.keep_alive_ms,
            _ => return Err(Status::InvalidField),
        };
        Ok(Response::result(value.into()))
    }

    fn set_feature(&mut self, command: &SubmissionEntry) -> Result<Response, Status> {
        let (id, rest) = ((command.dword(10) & 0xFF) as u8, command.dword(10) & !0xFF);
        if rest != 0 {
            // To be saved, which nothing here is.
            return Err(if rest == 1 << 31 { Status::FeatureNotSaveable } else { Status::InvalidField });
        }
        let value = command.dword(11);
        match id {
            feature::NUMBER_OF_QUEUES if self.namespace().is_some() => {
                let (submission, completion) = (value & 0xFFFF, value >> 16);
                if submission == 0xFFFF || completion == 0xFFFF {
                    return Err(Status::InvalidField);
                }
                self.io_queues = (submission.min(completion) as u16).saturating_add(1).min(IO_QUEUES_MAX);
                let count = u32::from(self.io_queues) - 1;
                Ok(Response::result((count << 16 | count).into()))
            }
            feature::ASYNC_EVENTS => {
                if value & !self.known_async_events() != 0 {
                    return Err(Status::InvalidField);
                }
                self.async_config = value;
                Ok(Response::of(Status::Success))
            }
            feature::KEEP_ALIVE => {
                self.keep_alive_ms = rounded_up(value);
                Ok(Response::of(Status::Success))
            }
            feature::ARBITRATION
            | feature::POWER_MANAGEMENT
            | feature::TEMPERATURE_THRESHOLD
            | feature::ERROR_RECOVERY
            | feature::WRITE_ATOMICITY
            | feature::HOST_ID => Err(Status::FeatureNotChangeable),
            _ => Err(Status::InvalidField),
        }
    }

    /// Events that this controller has.
    pub(super) fn known_async_events(&self) -> u32 {
        match self.config.subject {
            Subject::Namespace { .. } => async_event::NAMESPACE | async_event::ANA,
            Subject::Discovery(_) => async_event::DISCOVERY,
        }
    }
}

fn rounded_up(milliseconds: u32) -> u32 {
    milliseconds.div_ceil(KEEP_ALIVE_UNIT_MS).saturating_mul(KEEP_ALIVE_UNIT_MS)
}
