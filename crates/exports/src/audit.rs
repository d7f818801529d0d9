//! Lines in the audit log about clients of images (docs/reference/audit.md).

use std::net::IpAddr;

use atoll_audit::{Bounded, PATH_BYTES_MAX, cut_fields, note_change, note_like_others, note_refusal};
use atoll_connection_limits::network_of;
use atoll_reactor::PeerAddress;
use serde::Serialize;

use crate::clients::Client;
use crate::open_error::OpenError;

const SOURCE: &str = "images";
const ATTACH: &str = "AttachImage";

#[derive(Serialize)]
struct Record<'a> {
    /// `IMAGE` or `IMAGE@SNAPSHOT`.
    image: Bounded<'a>,
    /// `read` or `write`; absent if it was refused before that was known.
    access: Option<&'a str>,
    /// The address of a host, or the number of a process of this host.
    client: String,
    /// The names in the certificate that it has shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    certificate: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvme_host: Option<&'a str>,
    error: Option<String>,
    /// Names of fields that were cut.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cut: Vec<&'static str>,
}

impl<'a> Record<'a> {
    fn new(image: &'a str, is_written: Option<bool>, client: &'a Client, error: Option<&str>) -> Self {
        // A client may name an image that there is not, and errors repeat names.
        let (image, error) = (Bounded::new(image, PATH_BYTES_MAX), error.unwrap_or_default());
        let error = Bounded::new(error, PATH_BYTES_MAX);
        Record {
            image,
            access: is_written.map(|is_written| if is_written { "write" } else { "read" }),
            client: client.address.to_string(),
            certificate: client.certificate_names(),
            nvme_host: client.nvme_host.as_deref(),
            error: (!error.text().is_empty()).then(|| error.text().to_owned()),
            cut: cut_fields(&[("image", image), ("error", error)]),
        }
    }
}

fn address(client: &Client) -> Option<IpAddr> {
    match client.address {
        PeerAddress::Host(address) => Some(address),
        _ => None,
    }
}

/// A connection of a client has an image.
pub(crate) fn attached(image: &str, is_written: bool, client: &Client) {
    note(image, is_written, client, ATTACH);
}

/// A connection of a client has not got an image.
pub(crate) fn refused(image: &str, client: &Client, error: &OpenError) {
    note_refusal(SOURCE, ATTACH, address(client), &Record::new(image, None, client, Some(&error.message)));
}

/// A connection of a client that had an image is over.
pub(crate) fn detached(image: &str, is_written: bool, client: &Client) {
    note(image, is_written, client, "DetachImage");
}

fn note(image: &str, is_written: bool, client: &Client, operation: &'static str) {
    let record = Record::new(image, Some(is_written), client, None);
    // Processes of this host are one caller: each of a loop has a number of its own.
    let caller = address(client).map_or_else(|| "local".into(), |address| network_of(address).to_string());
    let proved = (&record.certificate, record.nvme_host);
    let name = format!("{image} {} {caller} {proved:?}", record.access.unwrap_or_default());
    note_like_others(SOURCE, operation, &name, &record);
}

/// A connection of a client loses an image, because its right was taken away.
pub(crate) fn revoked(image: &str, client: &Client, why: &str) {
    note_change(SOURCE, "RevokeImage", &Record::new(image, None, client, Some(why)));
}
