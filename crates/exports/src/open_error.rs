//! Why an image is not given to a client.

use atoll_image::ImageError;

/// Why an image cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OpenError {
    /// The kind of the refusal.
    pub kind: OpenErrorKind,
    /// The reason, for people at the client.
    pub message: String,
}

/// Kinds of [`OpenError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenErrorKind {
    /// There is no such image.
    Unknown,
    /// The client may not have it.
    NotAllowed,
    /// Another client or another program has it.
    InUse,
    /// It cannot be opened now.
    Unavailable,
    /// Others have changed it since the client had it.
    Changed,
}

impl From<ImageError> for OpenError {
    fn from(error: ImageError) -> Self {
        let kind = match error {
            ImageError::NoSuchImage(_) | ImageError::NoSuchSnapshot { .. } => OpenErrorKind::Unknown,
            ImageError::InUse { .. } => OpenErrorKind::InUse,
            _ if error.is_refused_record() => OpenErrorKind::NotAllowed,
            _ => OpenErrorKind::Unavailable,
        };
        OpenError { kind, message: error.to_string() }
    }
}
