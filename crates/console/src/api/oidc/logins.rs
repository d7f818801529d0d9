//! State of log-ins by OpenID Connect.

use super::attempt::Attempts;
use super::provider::KnownProvider;
use super::recent::Recent;

/// State that log-ins of this process share.
#[derive(Default)]
pub(crate) struct OidcLogins {
    pub(super) attempts: Attempts,
    pub(super) provider: KnownProvider,
    pub(super) recent: Recent,
}
