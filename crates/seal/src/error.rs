//! Errors of sealed data.

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SealError {
    /// An authentication tag does not match: the data, its place or the key has changed.
    #[error("{what} does not authenticate: it was changed, moved, or sealed with another key")]
    NotAuthentic {
        /// The data being opened.
        what: String,
    },
    /// A seal does not have the form that it must have.
    #[error("{what} is malformed: {detail}")]
    Malformed {
        /// The data being read.
        what: String,
        /// The reason.
        detail: String,
    },
    /// The list of attachments is older than the seal.
    #[error("image block {block_number} was sealed by attachment {index}, which the image header does not have")]
    UnknownAttachment {
        /// The block.
        block_number: u64,
        /// Which attachment.
        index: u32,
    },
    /// All nonces of a key are used up; a new attachment gets a new key.
    #[error("the nonces of this attachment are used up; detach and attach again")]
    NoncesExhausted,
}
