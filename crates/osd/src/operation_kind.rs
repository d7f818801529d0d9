//! Kinds of clients' operations.

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Read,
    Write,
}

impl OperationKind {
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Write => "write",
        }
    }
}
