//! Errors between a process and its cluster state.

use std::error::Error;

/// A failed operation on cluster state.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The options make no sense.
    #[error("cluster state at {endpoints}: {cause}; give endpoints as http://HOST:PORT or https://HOST:PORT")]
    Options {
        /// As given.
        endpoints: String,
        /// The reason.
        cause: String,
    },
    /// No answer, and nothing was changed.
    #[error(
        "cluster state at {endpoints} does not answer ({operation}: {cause}); check that etcd or `atoll up` runs there and can be reached"
    )]
    Unreachable {
        /// All that were tried.
        endpoints: String,
        /// The request.
        operation: String,
        /// The last failure.
        cause: String,
    },
    /// A server answers, but not in a way that can be trusted or understood.
    #[error("cluster state at {endpoints}: {advice} ({cause})")]
    Tls {
        /// All that were tried.
        endpoints: String,
        /// Errors of the layers below.
        cause: String,
        /// Most likely cause.
        advice: &'static str,
    },
    /// The connection broke while a write was under way.
    #[error(
        "cluster state at {endpoints} broke off during {operation} ({cause}): it may or may not have happened; read the keys again and decide"
    )]
    Unclear {
        /// All that were tried.
        endpoints: String,
        /// The request.
        operation: String,
        /// The failure.
        cause: String,
    },
    /// Wrong or missing user, password or permission.
    #[error("cluster state at {endpoints} refuses the user {user:?} ({cause}); check user and password")]
    Authentication {
        /// All that were tried.
        endpoints: String,
        /// The user, if one was given.
        user: Option<String>,
        /// The server's error.
        cause: String,
    },
    /// The user has no right to do this.
    #[error(
        "cluster state at {endpoints} refuses {operation} to the user {user:?}, who has no right to it; do it on \
         a host that has the right ('atoll host ls' shows each host's role)"
    )]
    Forbidden {
        /// All that were tried.
        endpoints: String,
        /// The request.
        operation: String,
        /// The user.
        user: Option<String>,
    },
    /// The server understood and said no.
    #[error("cluster state at {endpoints} refused {operation}: {cause}")]
    Refused {
        /// All that were tried.
        endpoints: String,
        /// The request.
        operation: String,
        /// The server's error.
        cause: String,
    },
    /// A key that was to be made is there.
    #[error("{key} exists already in cluster state; choose another name or change the existing one")]
    AlreadyExists {
        /// The key.
        key: String,
    },
    /// Someone else changed a key first.
    #[error(
        "{key} changed in cluster state (revision {expected} expected, {found} found): read it again and retry"
    )]
    Conflict {
        /// The first key that differs.
        key: String,
        /// The modification revision it should have; 0 means absent.
        expected: i64,
        /// The one it has.
        found: i64,
    },
    /// This release cannot read a value.
    #[error(
        "the value of {key} in cluster state cannot be read: {cause}; was it written by a later release or by hand?"
    )]
    Decode {
        /// The key.
        key: String,
        /// The reason.
        cause: String,
    },
    /// A record was not written by a holder of the key service.
    #[error(
        "{key} in cluster state has no valid signature of this cluster ({cause}), so it is refused: it was written without \
         the key service; 'atoll cluster sign' shows it, and signs it if it is right"
    )]
    Untrusted {
        /// The key.
        key: String,
        /// The reason.
        cause: String,
    },
    /// The keys that sign records are not available now.
    #[error("signed records of cluster state cannot be verified: {cause}")]
    KeyService {
        /// The key service's error.
        cause: String,
    },
    /// A record must be signed, and this process cannot.
    #[error(
        "{key} is signed in this cluster, and there is no key service here to sign with: do this on a host that has \
         keys/kms.json"
    )]
    NoAuthority {
        /// The key.
        key: String,
    },
    /// A value cannot be written as JSON.
    #[error("the value for {key} cannot be written as JSON: {source}")]
    Encode {
        /// The key.
        key: String,
        /// The reason.
        source: serde_json::Error,
    },
}

/// A failure's meaning for the request's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It never left this host.
    NotSent,
    /// It may or may not have been carried out.
    Unknown,
    /// The server said no.
    Refused,
    /// The server does not believe who we are.
    Unauthenticated,
    /// The server knows us, and we may not do this.
    Forbidden,
}

/// Judges an error of the etcd client.
pub(super) fn fate(error: &etcd_client::Error) -> Fate {
    use tonic::Code;
    let etcd_client::Error::GRpcStatus(status) = error else {
        return match error {
            etcd_client::Error::TransportError(_) | etcd_client::Error::IoError(_) => {
                if never_connected(error) {
                    Fate::NotSent
                } else {
                    Fate::Unknown
                }
            }
            _ => Fate::Refused,
        };
    };
    match status.code() {
        Code::Unauthenticated => Fate::Unauthenticated,
        Code::PermissionDenied => Fate::Forbidden,
        Code::InvalidArgument
            if status.message().contains("authentication failed")
                || status.message().contains("user name is empty") =>
        {
            Fate::Unauthenticated
        }
        // Several versions of the layers below report a lost connection in different ways.
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal => {
            if never_connected(status) {
                Fate::NotSent
            } else {
                Fate::Unknown
            }
        }
        _ => Fate::Refused,
    }
}

fn never_connected(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && matches!(
                io.kind(),
                std::io::ErrorKind::ConnectionRefused
                    | std::io::ErrorKind::HostUnreachable
                    | std::io::ErrorKind::NetworkUnreachable
                    | std::io::ErrorKind::AddrNotAvailable
            )
        {
            return true;
        }
        cause = error.source();
    }
    false
}
