//! Metrics of any server that speaks TLS.

use std::sync::LazyLock;

use crate::{Counter, Family, Gauge, register};

struct Registered {
    handshakes: Family<1, Counter>,
    expiry: Family<1, Gauge>,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    handshakes: register(
        "atoll_tls_handshakes",
        "TLS handshakes of clients, by how they ended",
        Family::default(),
    ),
    expiry: register(
        "atoll_tls_certificate_expiry_timestamp_seconds",
        "When a certificate of this server ends, Unix time",
        Family::default(),
    ),
});

/// A handshake with a client has ended.
pub fn handshake(is_ok: bool) {
    let result = if is_ok { "ok" } else { "failed" };
    REGISTERED.handshakes.get_or_create(&[("result", result.to_owned())]).inc();
}

/// These are the certificates in use: their files, and when each ends, in seconds of Unix time.
pub fn set_certificates(certificates: &[(String, i64)]) {
    // A certificate that is not used any more must not be warned of.
    REGISTERED.expiry.clear();
    for (file, ends_unix_seconds) in certificates {
        REGISTERED.expiry.get_or_create(&[("file", file.clone())]).set(*ends_unix_seconds);
    }
}
