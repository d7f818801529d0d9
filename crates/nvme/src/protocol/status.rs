//! Status of completions (NVM Express Base Specification 1.4, section 4.6.1.2; NVMe over Fabrics 1.1, section 3.3).

/// How a command went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It was done.
    Success,
    /// The opcode is unknown, or not supported.
    InvalidOpcode,
    /// A field has a value that is not supported.
    InvalidField,
    /// Another command of the queue has this id.
    CommandIdConflict,
    /// It failed here.
    InternalError,
    /// One half of a fused command failed, or was missing.
    FailedFused,
    /// The other half of a fused command is missing.
    MissingFused,
    /// There is no such namespace.
    InvalidNamespace,
    /// Not in this state.
    CommandSequence,
    /// The data is not as long as the command says.
    DataLengthInvalid,
    /// An SGL descriptor that NVMe/TCP does not have.
    SglTypeInvalid,
    /// More than is done at once.
    AtomicWriteUnitExceeded,
    /// Data in the capsule is not where the SGL says.
    SglOffsetInvalid,
    /// The data came damaged.
    TransientTransport,
    /// It may only be read.
    WriteProtected,
    /// Beyond the end.
    LbaOutOfRange,
    /// The cluster is full.
    CapacityExceeded,
    /// Too many asynchronous event requests.
    AsyncEventLimit,
    /// There is no such log page.
    InvalidLogPage,
    /// A feature cannot be saved.
    FeatureNotSaveable,
    /// A feature cannot be changed.
    FeatureNotChangeable,
    /// A connect with another format of data.
    ConnectIncompatibleFormat,
    /// The subsystem is in use by others.
    ConnectControllerBusy,
    /// A connect with a parameter that does not fit.
    ConnectInvalidParameters,
    /// This host may not use the subsystem.
    ConnectInvalidHost,
    /// The host must prove itself before.
    AuthenticationRequired,
    /// The compared data is different.
    CompareFailure,
    /// This gateway does not hold the image now: another path may.
    AnaInaccessible,
    /// This gateway cannot reach the data now: another path may.
    InternalPathError,
}

/// Do not try the command again as it is.
const DO_NOT_RETRY: u16 = 1 << 14;

impl Status {
    /// The status field without the phase: status code, its type, and whether to try again.
    pub fn bits(self) -> u16 {
        let (kind, code, may_retry) = self.codes();
        kind << 8 | code | if may_retry { 0 } else { DO_NOT_RETRY }
    }

    /// The status code type, the code, and whether the same command may succeed later.
    fn codes(self) -> (u16, u16, bool) {
        match self {
            Status::Success => (0, 0x00, true),
            Status::InvalidOpcode => (0, 0x01, false),
            Status::InvalidField => (0, 0x02, false),
            Status::CommandIdConflict => (0, 0x03, false),
            Status::InternalError => (0, 0x06, true),
            Status::FailedFused => (0, 0x09, true),
            Status::MissingFused => (0, 0x0A, false),
            Status::InvalidNamespace => (0, 0x0B, false),
            Status::CommandSequence => (0, 0x0C, false),
            Status::DataLengthInvalid => (0, 0x0F, false),
            Status::SglTypeInvalid => (0, 0x11, false),
            Status::AtomicWriteUnitExceeded => (0, 0x14, false),
            Status::SglOffsetInvalid => (0, 0x16, false),
            Status::WriteProtected => (0, 0x20, false),
            Status::TransientTransport => (0, 0x22, true),
            Status::LbaOutOfRange => (0, 0x80, false),
            Status::CapacityExceeded => (0, 0x81, true),
            Status::AsyncEventLimit => (1, 0x05, false),
            Status::InvalidLogPage => (1, 0x09, false),
            Status::FeatureNotSaveable => (1, 0x0D, false),
            Status::FeatureNotChangeable => (1, 0x0E, false),
            Status::ConnectIncompatibleFormat => (1, 0x80, false),
            Status::ConnectControllerBusy => (1, 0x81, true),
            Status::ConnectInvalidParameters => (1, 0x82, false),
            Status::ConnectInvalidHost => (1, 0x84, false),
            Status::AuthenticationRequired => (1, 0x91, false),
            Status::CompareFailure => (2, 0x85, false),
            Status::InternalPathError => (3, 0x00, true),
            Status::AnaInaccessible => (3, 0x02, true),
        }
    }

    /// Returns true for success.
    pub fn is_success(self) -> bool {
        self == Status::Success
    }
}
