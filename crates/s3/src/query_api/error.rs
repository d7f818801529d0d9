//! Why an action was not done, by the codes of AWS's IAM and STS.

use atoll_iam::operations::IamError;
use atoll_keys::KeyError;
use http::StatusCode;

use crate::directory::{ChangeError, DirectoryError};
use crate::error::GatewayError;
use crate::users::CallerError;

/// Largest form, in bytes. AWS takes less.
pub(super) const BODY_BYTES_MAX: usize = 256 << 10;

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    #[error(transparent)]
    Iam(#[from] IamError),
    #[error("Could not find operation {action} for version {version}")]
    InvalidAction { action: String, version: String },
    #[error("Request is missing Authentication Token")]
    MissingAuthenticationToken,
    #[error("{0}")]
    IncompleteSignature(String),
    #[error("{0}")]
    SignatureDoesNotMatch(String),
    #[error("The security token included in the request is invalid.")]
    InvalidClientTokenId,
    #[error("The security token included in the request is expired")]
    ExpiredToken,
    /// The policies of a session do not fit into its token.
    #[error("The policies of the session are too large: a policy of at most 2048 characters and 10 ARNs fit")]
    PackedPolicyTooLarge,
    #[error("{0}")]
    InvalidIdentityToken(String),
    #[error("Token expired: the web identity token is over")]
    ExpiredIdentityToken,
    /// The text is the same for any cause, which is in the log: the caller is a stranger.
    #[error("The issuer of the token cannot be asked for its keys")]
    IdpCommunication,
    #[error("The request is larger than {} bytes", BODY_BYTES_MAX)]
    RequestTooLarge,
    #[error("The body of the request did not arrive: {0}")]
    BrokenBody(String),
    #[error("{0}; retry later")]
    Unavailable(String),
    /// Details are in the log.
    #[error("The request processing has failed because of an unknown error")]
    Internal(String),
}

impl QueryError {
    pub(super) fn denied(text: impl Into<String>) -> Self {
        QueryError::Iam(IamError::AccessDenied(text.into()))
    }

    pub(super) fn code(&self) -> &'static str {
        match self {
            QueryError::Iam(error) => error.code(),
            QueryError::InvalidAction { .. } => "InvalidAction",
            QueryError::MissingAuthenticationToken => "MissingAuthenticationToken",
            QueryError::IncompleteSignature(_) => "IncompleteSignature",
            QueryError::SignatureDoesNotMatch(_) => "SignatureDoesNotMatch",
            QueryError::InvalidClientTokenId => "InvalidClientTokenId",
            QueryError::ExpiredToken => "ExpiredToken",
            QueryError::PackedPolicyTooLarge => "PackedPolicyTooLarge",
            QueryError::InvalidIdentityToken(_) => "InvalidIdentityToken",
            QueryError::ExpiredIdentityToken => "ExpiredTokenException",
            QueryError::IdpCommunication => "IDPCommunicationError",
            QueryError::RequestTooLarge => "RequestEntityTooLarge",
            QueryError::BrokenBody(_) => "RequestTimeout",
            QueryError::Unavailable(_) => "ServiceUnavailable",
            QueryError::Internal(_) => "InternalFailure",
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            QueryError::Iam(error) => {
                StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            QueryError::MissingAuthenticationToken
            | QueryError::SignatureDoesNotMatch(_)
            | QueryError::InvalidClientTokenId
            | QueryError::ExpiredToken => StatusCode::FORBIDDEN,
            QueryError::InvalidAction { .. }
            | QueryError::IncompleteSignature(_)
            | QueryError::PackedPolicyTooLarge
            | QueryError::InvalidIdentityToken(_)
            | QueryError::ExpiredIdentityToken
            | QueryError::IdpCommunication
            | QueryError::BrokenBody(_) => StatusCode::BAD_REQUEST,
            QueryError::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            QueryError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            QueryError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the side at fault, in AWS's words.
    pub(super) fn fault(&self) -> &'static str {
        if self.status().is_server_error() { "Receiver" } else { "Sender" }
    }
}

impl From<DirectoryError> for QueryError {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Unavailable(_) => QueryError::Unavailable(error.to_string()),
            DirectoryError::Malformed { .. } | DirectoryError::Gone(_) => QueryError::Internal(error.to_string()),
            // The cause is in the log, with the security event.
            DirectoryError::Refused { .. } => {
                QueryError::denied("Access denied: a record that this needs is refused")
            }
        }
    }
}

impl From<ChangeError> for QueryError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(error) => error.into(),
            ChangeError::Directory(error) => error.into(),
        }
    }
}

impl From<KeyError> for QueryError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::ServiceUnavailable { .. } => {
                QueryError::Unavailable("The key service does not answer".into())
            }
            other => QueryError::Internal(other.to_string()),
        }
    }
}

impl From<GatewayError> for QueryError {
    fn from(error: GatewayError) -> Self {
        match error {
            GatewayError::Key(error) => error.into(),
            GatewayError::Directory(error) => error.into(),
            other => QueryError::Internal(other.to_string()),
        }
    }
}

impl From<CallerError> for QueryError {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::UnknownKey | CallerError::InvalidToken => QueryError::InvalidClientTokenId,
            CallerError::ExpiredToken => QueryError::ExpiredToken,
            CallerError::Gateway(error) => error.into(),
        }
    }
}
