//! Values of condition keys, which the asker of a question provides.

use std::borrow::Cow;

/// Values of condition keys. The engine itself answers those about the caller (`aws:username`,
/// `aws:userid`, `aws:PrincipalArn`, `aws:PrincipalAccount`, `aws:PrincipalType`, `aws:PrincipalTag/...`).
pub trait ConditionValues {
    /// Returns the values of a key in lower case, such as `aws:sourceip` or `s3:prefix`; the part behind a slash,
    /// as in `s3:existingobjecttag/Owner`, keeps its case. Empty if the request has no such key.
    fn values(&self, key: &str) -> Vec<Cow<'_, str>>;
}
