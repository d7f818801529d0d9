//! Why an operation on identities was not done, by AWS's codes.

/// Why an operation on identities was not done. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IamError {
    /// There is no such user, group, role, policy, key or version.
    #[error("{0}")]
    NoSuchEntity(String),
    /// The name is taken.
    #[error("{0}")]
    EntityAlreadyExists(String),
    /// Another record depends on the one to delete.
    #[error("{0}")]
    DeleteConflict(String),
    /// There may be no more of it.
    #[error("Cannot exceed quota for {quota}: {limit}")]
    LimitExceeded {
        /// AWS's name of the limit.
        quota: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A policy that is none.
    #[error("{0}")]
    MalformedPolicyDocument(String),
    /// A parameter that is missing, malformed or not known.
    #[error("{0}")]
    ValidationError(String),
    /// Parameters that make no sense together or here.
    #[error("{0}")]
    InvalidInput(String),
    /// The caller may not do it.
    #[error("{0}")]
    AccessDenied(String),
    /// There is no such action.
    #[error("Could not find operation {0} for version 2010-05-08")]
    InvalidAction(String),
}

impl IamError {
    /// AWS's code.
    pub fn code(&self) -> &'static str {
        match self {
            IamError::NoSuchEntity(_) => "NoSuchEntity",
            IamError::EntityAlreadyExists(_) => "EntityAlreadyExists",
            IamError::DeleteConflict(_) => "DeleteConflict",
            IamError::LimitExceeded { .. } => "LimitExceeded",
            IamError::MalformedPolicyDocument(_) => "MalformedPolicyDocument",
            IamError::ValidationError(_) => "ValidationError",
            IamError::InvalidInput(_) => "InvalidInput",
            IamError::AccessDenied(_) => "AccessDenied",
            IamError::InvalidAction(_) => "InvalidAction",
        }
    }

    /// The HTTP status that AWS gives it.
    pub fn status(&self) -> u16 {
        match self {
            IamError::AccessDenied(_) => 403,
            IamError::NoSuchEntity(_) => 404,
            IamError::EntityAlreadyExists(_) | IamError::DeleteConflict(_) | IamError::LimitExceeded { .. } => 409,
            IamError::MalformedPolicyDocument(_)
            | IamError::ValidationError(_)
            | IamError::InvalidInput(_)
            | IamError::InvalidAction(_) => 400,
        }
    }

    pub(crate) fn invalid<T>(text: impl Into<String>) -> Result<T, IamError> {
        Err(IamError::ValidationError(text.into()))
    }

    pub(crate) fn missing(what: &str, name: &str) -> IamError {
        IamError::NoSuchEntity(format!("The {what} with name {name} cannot be found."))
    }
}
