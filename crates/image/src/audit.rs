//! Lines in the audit log of the process that opens an image (docs/reference/audit.md).

use atoll_audit::note_change;
use serde::Serialize;

use crate::ImageError;

const SOURCE: &str = "images";

#[derive(Serialize)]
struct Record<'a> {
    /// `IMAGE` or `IMAGE@SNAPSHOT`.
    image: &'a str,
    /// `read` or `write`.
    access: &'a str,
    purpose: &'a str,
    error: Option<String>,
}

fn access(is_written: bool) -> &'static str {
    if is_written { "write" } else { "read" }
}

/// This process has opened an image, or could not.
pub(crate) fn opened<T>(image: &str, is_written: bool, purpose: &str, outcome: &Result<T, ImageError>) {
    let error = outcome.as_ref().err().map(ToString::to_string);
    note_change(SOURCE, "OpenImage", &Record { image, access: access(is_written), purpose, error });
}

/// This process has given an image back.
pub(crate) fn closed(image: &str, is_written: bool, purpose: &str) {
    note_change(SOURCE, "CloseImage", &Record { image, access: access(is_written), purpose, error: None });
}
