//! Errors below the S3 operations, and their answers to S3 clients.

use atoll_keys::KeyError;
use atoll_objects::ClientError;
use atoll_seal::SealError;
use atoll_types::Refusal;
use http::StatusCode;
use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::DirectoryError;

/// An error of the gateway's own layers: index, data, directory.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The cluster did not execute a request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A key does not open, or its key service does not answer.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A sealed segment does not open.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The bucket's key was destroyed on purpose.
    #[error("the key of bucket '{0}' was destroyed; its objects cannot be read any more")]
    KeyDestroyed(String),
    /// Something would be stored without sealing that must not be.
    #[error("new objects of bucket '{0}' are sealed, unlike when this upload began; start a new upload")]
    SealingRequired(String),
    /// Cluster state did not answer.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A record of the bucket index cannot be read.
    #[error("{what} is damaged: {detail}")]
    Malformed {
        /// Which record.
        what: String,
        /// The reason.
        detail: String,
    },
    /// Data that the index named is gone: it was replaced while it was being read.
    #[error("data {data_id} was removed while it was being read")]
    Vanished {
        /// The data id, in hexadecimal.
        data_id: String,
    },
    /// The bucket's index does not exist.
    #[error("bucket '{0}' does not exist")]
    NoSuchBucket(String),
    /// A writer was idle for so long that its data was given up.
    #[error("the upload stood still for so long that it was given up; retry it")]
    Abandoned,
    /// The bucket is being deleted.
    #[error("bucket '{0}' is being deleted; retry later")]
    BucketBusy(String),
    /// A condition of an index change does not hold.
    #[error("condition {0} of the index change does not hold")]
    ConditionFailed(usize),
}

impl GatewayError {
    /// Returns true if it is certain that the write that failed with this error changed nothing.
    pub(crate) fn is_definite(&self) -> bool {
        match self {
            GatewayError::Client(error) => {
                error.refusal().is_some() || matches!(error, ClientError::NoSuchPool(_))
            }
            _ => true,
        }
    }
}

/// An S3 error that s3s has no name for.
pub(crate) fn custom_error(code: &'static str, status: StatusCode, message: impl Into<String>) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message.into());
    error.set_status_code(status);
    error
}

fn client_error(error: &ClientError) -> S3Error {
    match error {
        ClientError::TimedOut { .. } => s3_error!(SlowDown, "The cluster did not answer in time: {error}"),
        ClientError::OutcomeUnknown { .. } => s3_error!(ServiceUnavailable, "{error}"),
        ClientError::ShutDown => s3_error!(ServiceUnavailable, "The gateway is shutting down"),
        ClientError::Refused { refusal: Refusal::NoSpace { .. }, .. } => {
            custom_error("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, error.to_string())
        }
        ClientError::Refused { refusal, .. } if refusal.is_retryable() => {
            s3_error!(ServiceUnavailable, "{error}")
        }
        ClientError::Refused { .. } | ClientError::NoSuchPool(_) | ClientError::UnexpectedAnswer { .. } => {
            s3_error!(InternalError, "{error}")
        }
    }
}

impl From<GatewayError> for S3Error {
    fn from(error: GatewayError) -> Self {
        match &error {
            GatewayError::Client(error) => client_error(error),
            GatewayError::Directory(DirectoryError::Unavailable(_)) => s3_error!(ServiceUnavailable, "{error}"),
            GatewayError::Directory(DirectoryError::Gone(_)) => s3_error!(OperationAborted, "{error}"),
            // The cause is in the log, with the security event: who asks may be a stranger.
            GatewayError::Directory(DirectoryError::Refused { .. }) => {
                s3_error!(AccessDenied, "Access Denied: a record that this needs is refused")
            }
            GatewayError::NoSuchBucket(_) => s3_error!(NoSuchBucket, "The specified bucket does not exist"),
            GatewayError::Abandoned => s3_error!(ServiceUnavailable, "{error}"),
            GatewayError::BucketBusy(_) => s3_error!(OperationAborted, "{error}"),
            GatewayError::ConditionFailed(_) => {
                s3_error!(PreconditionFailed, "At least one of the preconditions you specified did not hold")
            }
            // Clients try again; the log says which service it is and why.
            GatewayError::Key(KeyError::ServiceUnavailable { .. }) => {
                s3_error!(ServiceUnavailable, "The key service does not answer; retry later")
            }
            GatewayError::Key(KeyError::ServiceRefused { .. }) => {
                s3_error!(ServiceUnavailable, "The key service refuses the gateway; its operator must look")
            }
            GatewayError::Key(KeyError::NoSuchKey { .. }) => {
                custom_error("KMS.DisabledException", StatusCode::BAD_REQUEST, error.to_string())
            }
            GatewayError::KeyDestroyed(_) => s3_error!(AccessDenied, "{error}"),
            GatewayError::SealingRequired(_) => s3_error!(InvalidRequest, "{error}"),
            GatewayError::Key(_)
            | GatewayError::Seal(_)
            | GatewayError::Directory(_)
            | GatewayError::Malformed { .. }
            | GatewayError::Vanished { .. } => s3_error!(InternalError, "{error}"),
        }
    }
}
