//! An error in a part of a policy, before it is known which part.

/// Becomes a [`crate::PolicyError`] with its place.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Fault {
    pub(crate) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Fault {
        Fault { problem: problem.into(), remedy: remedy.into() }
    }
}
