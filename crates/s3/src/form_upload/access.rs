//! Who may upload by form. This is the one place where that is decided.

use s3s::{S3Result, s3_error};

use crate::ops::Service;

/// An upload that was asked for and whose policy, if it has one, allows it.
pub(super) struct Asked<'a> {
    /// The access key that signed the policy; none if there is none.
    pub caller: Option<&'a str>,
    pub bucket: &'a str,
    pub key: &'a str,
}

/// Refuses whoever may not upload this. All users may upload everything, and nobody else anything.
pub(super) async fn authorise(_service: &Service, asked: &Asked<'_>) -> S3Result<()> {
    let Asked { caller, bucket, key } = asked;
    match caller {
        Some(caller) => {
            tracing::trace!(caller, bucket, key, "upload by form");
            Ok(())
        }
        None => Err(s3_error!(AccessDenied, "Signature is required")),
    }
}
