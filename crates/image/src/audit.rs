//! Lines in the audit log of the process that opens an image (docs/reference/audit.md).

use atoll_audit::note_like_others;
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
    note(&Record { image, access: access(is_written), purpose, error }, "OpenImage");
}

/// This process has given an image back.
pub(crate) fn closed(image: &str, is_written: bool, purpose: &str) {
    note(&Record { image, access: access(is_written), purpose, error: None }, "CloseImage");
}

/// A client that comes and goes in a loop has the image opened each time.
fn note(record: &Record<'_>, operation: &'static str) {
    let outcome = if record.error.is_some() { "refused" } else { "done" };
    let name = format!("{} {} {} {outcome}", record.image, record.access, record.purpose);
    note_like_others(SOURCE, operation, &name, record);
}
