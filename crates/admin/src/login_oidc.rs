//! Log-ins by OpenID Connect: the provider, the console as its client, and the roles of its groups.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{GcmKey, KeyService, SecretKey, random_bytes};
use atoll_outgoing::{Certificate, Chooser, Rules, Url};
use atoll_types::login_oidc::{OIDC_SKEW_SECONDS_DEFAULT, OIDC_SKEW_SECONDS_MAX, OidcRecord, WrappedClientSecret};
use atoll_types::operators::OperatorRoles;
use atoll_types::records::RECORD_FORMAT;

use crate::error::{AdminError, retried};
use crate::sessions;

const SCOPES_DEFAULT: &str = "openid profile email groups";
const NAME_CLAIM_DEFAULT: &str = "preferred_username";
const GROUPS_CLAIM_DEFAULT: &str = "groups";
const TEXT_BYTES_MAX: usize = 256;
const URL_BYTES_MAX: usize = 1_000;
const SECRET_BYTES_MAX: usize = 4_096;
const PEM_BYTES_MAX: usize = 64 << 10;
const GROUPS_MAX: usize = 256;
const CONSOLES_MAX: usize = 16;
/// Each key of a secret seals once.
const NONCE: [u8; 12] = [0; 12];
const TAG_BYTES: usize = 16;

/// Context in which the key of a client's secret is wrapped.
pub fn context(id: &str) -> String {
    format!("OpenID Connect client secret {id}")
}

/// Change of the client's secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SecretChange {
    /// It stays, as long as issuer and client stay.
    #[default]
    Keep,
    /// The client is public: PKCE alone protects its log-ins.
    Public,
    /// This one.
    New(String),
}

/// A change of the provider. Fields that are `None` stay, or have their default.
#[derive(Clone, Debug, Default)]
pub struct OidcChange {
    /// [`OidcRecord::issuer`].
    pub issuer: Option<String>,
    /// [`OidcRecord::client_id`].
    pub client_id: Option<String>,
    /// [`OidcRecord::secret`].
    pub secret: SecretChange,
    /// [`OidcRecord::scopes`].
    pub scopes: Option<String>,
    /// [`OidcRecord::name_claim`].
    pub name_claim: Option<String>,
    /// [`OidcRecord::groups_claim`].
    pub groups_claim: Option<String>,
    /// [`OidcRecord::roles`], all of them.
    pub roles: Option<BTreeMap<String, OperatorRoles>>,
    /// [`OidcRecord::console_urls`], all of them.
    pub console_urls: Option<Vec<String>>,
    /// [`OidcRecord::skew_seconds`].
    pub skew_seconds: Option<u64>,
    /// [`OidcRecord::authorities_pem`].
    pub authorities_pem: Option<String>,
}

/// The provider, and the revision of its record. A host with OSDs only may not read it, and has none.
pub async fn find(client: &ClusterClient) -> Result<Option<(OidcRecord, i64)>, ClusterError> {
    match client.get::<OidcRecord>(keys::LOGIN_OIDC).await {
        Err(ClusterError::Forbidden { .. }) => Ok(None),
        found => found,
    }
}

/// Sets the provider. Sessions by OpenID Connect end with the next call.
pub async fn set(
    client: &ClusterClient,
    service: &dyn KeyService,
    change: &OidcChange,
) -> Result<OidcRecord, AdminError> {
    let networks = crate::settings::read(client).await?.settings.outgoing_networks;
    let attempt = async || {
        let (before, revision) = match find(client).await? {
            Some((record, revision)) => (Some(record), revision),
            None => (None, 0),
        };
        let record = changed(before.as_ref(), service, change).await?;
        check(&record, &networks)?;
        let transaction = Transaction::new().check(keys::LOGIN_OIDC, revision).put(keys::LOGIN_OIDC, &record)?;
        client.transact(&transaction).await?;
        Ok::<_, AdminError>(record)
    };
    retried(attempt).await
}

async fn changed(
    before: Option<&OidcRecord>,
    service: &dyn KeyService,
    change: &OidcChange,
) -> Result<OidcRecord, AdminError> {
    let text = |given: &Option<String>, old: Option<&String>, otherwise: &str| {
        given.as_ref().or(old).cloned().unwrap_or_else(|| otherwise.to_owned())
    };
    let issuer = text(&change.issuer, before.map(|before| &before.issuer), "");
    let client_id = text(&change.client_id, before.map(|before| &before.client_id), "");
    let console_urls = match &change.console_urls {
        Some(urls) => urls.iter().map(|url| origin(url)).collect::<Result<BTreeSet<_>, _>>()?,
        None => before.map(|before| before.console_urls.clone()).unwrap_or_default(),
    };
    let roles = change.roles.clone().or_else(|| before.map(|before| before.roles.clone())).unwrap_or_default();
    let old_skew = before.map_or(OIDC_SKEW_SECONDS_DEFAULT, |before| before.skew_seconds);
    let secret = match &change.secret {
        SecretChange::Public => None,
        SecretChange::New(secret) => Some(seal(service, &issuer, &client_id, secret).await?),
        SecretChange::Keep => match before {
            // It is for nobody else's eyes.
            Some(before) if (&before.issuer, &before.client_id) == (&issuer, &client_id) => before.secret.clone(),
            _ => {
                return AdminError::refused(
                    "give the secret of the client at the issuer with --client-secret-file, or --public for a client \
                     without one",
                );
            }
        },
    };
    Ok(OidcRecord {
        format: RECORD_FORMAT,
        id: hex::encode(random_bytes::<16>()),
        scopes: text(&change.scopes, before.map(|before| &before.scopes), SCOPES_DEFAULT),
        name_claim: text(&change.name_claim, before.map(|before| &before.name_claim), NAME_CLAIM_DEFAULT),
        groups_claim: text(&change.groups_claim, before.map(|before| &before.groups_claim), GROUPS_CLAIM_DEFAULT),
        authorities_pem: text(&change.authorities_pem, before.map(|before| &before.authorities_pem), ""),
        skew_seconds: change.skew_seconds.unwrap_or(old_skew),
        changed_unix_ms: unix_ms(),
        issuer,
        client_id,
        secret,
        roles,
        console_urls,
    })
}

fn check(record: &OidcRecord, networks: &str) -> Result<(), AdminError> {
    check_issuer(&record.issuer, networks)?;
    for (name, text) in [
        ("--client-id", &record.client_id),
        ("--name-claim", &record.name_claim),
        ("--groups-claim", &record.groups_claim),
        ("--scope", &record.scopes),
    ] {
        let is_fit = |c: char| c == ' ' || c.is_ascii_graphic();
        if text.is_empty() || text.len() > TEXT_BYTES_MAX || !text.chars().all(is_fit) {
            return AdminError::refused(format!("{name} needs 1 to {TEXT_BYTES_MAX} printable characters"));
        }
    }
    if !record.scopes.split(' ').any(|scope| scope == "openid") {
        return AdminError::refused("the scopes need 'openid': without it the provider gives no identity token");
    }
    if record.roles.is_empty() || record.roles.len() > GROUPS_MAX {
        return AdminError::refused(format!(
            "give 1 to {GROUPS_MAX} groups with their roles, as --group GROUP=ROLE: only their members can log in"
        ));
    }
    if let Some(group) = record.roles.keys().find(|group| group.is_empty() || group.len() > TEXT_BYTES_MAX) {
        return AdminError::refused(format!("'{group}' is no group: its name has 1 to {TEXT_BYTES_MAX} bytes"));
    }
    if record.console_urls.is_empty() || record.console_urls.len() > CONSOLES_MAX {
        return AdminError::refused(format!("give 1 to {CONSOLES_MAX} addresses of consoles with --console-url"));
    }
    if record.skew_seconds > OIDC_SKEW_SECONDS_MAX {
        return AdminError::refused(format!("clocks may differ by at most {OIDC_SKEW_SECONDS_MAX} s"));
    }
    authorities(record).map(drop)
}

/// Calls go over TLS only, whatever networks are named: the answers decide about log-ins.
fn check_issuer(issuer: &str, networks: &str) -> Result<(), AdminError> {
    let url = Url::parse(issuer).ok().filter(|url| {
        let is_bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        url.scheme() == "https" && is_bare && url.password().is_none() && issuer.len() <= URL_BYTES_MAX
    });
    let Some(url) = url else {
        return AdminError::refused(format!(
            "'{issuer}' is no issuer: give its https:// address with --issuer, as the provider itself writes it, without a \
             query"
        ));
    };
    let named = networks.parse().or_else(AdminError::refused)?;
    let rules = Rules { chooser: Chooser::Operator, named };
    rules.check_url(&url).or_else(|refusal| AdminError::refused(refusal.to_string()))
}

/// Returns the origin of a console's address; browsers return there after a log-in.
fn origin(text: &str) -> Result<String, AdminError> {
    let url = Url::parse(text).ok().filter(|url| {
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        url.scheme() == "https" && is_bare && url.username().is_empty() && url.password().is_none()
    });
    match url {
        Some(url) => Ok(url.origin().ascii_serialization()),
        None => AdminError::refused(format!(
            "'{text}' is no address of a console: give one such as https://console.example:8443, without a path"
        )),
    }
}

/// Certificates of the authorities of the provider; `None`: those of the system.
pub fn authorities(record: &OidcRecord) -> Result<Option<Vec<Certificate>>, AdminError> {
    if record.authorities_pem.is_empty() {
        return Ok(None);
    }
    let parsed = Certificate::from_pem_bundle(record.authorities_pem.as_bytes());
    match parsed {
        Ok(all) if !all.is_empty() && record.authorities_pem.len() <= PEM_BYTES_MAX => Ok(Some(all)),
        _ => AdminError::refused(format!(
            "the file of --ca-file has no certificates (PEM, at most {PEM_BYTES_MAX} bytes)"
        )),
    }
}

/// Removes the provider: its sessions end with the next call. Refused while all log-ins depend on it.
pub async fn remove(client: &ClusterClient) -> Result<(), AdminError> {
    let attempt = async || {
        let Some((_, revision)) = client.get::<OidcRecord>(keys::LOGIN_OIDC).await? else {
            return AdminError::refused(
                "there is no provider of OpenID Connect; 'atoll operator oidc set' sets one",
            );
        };
        let (settings, settings_revision) = sessions::settings_and_revision(client).await?;
        if !settings.local_login {
            return AdminError::refused(
                "log-ins to the console depend on it, because operators' passwords are off. First \
                 'atoll settings set local_login true'",
            );
        }
        let transaction = Transaction::new()
            .check(keys::LOGIN_OIDC, revision)
            .check(keys::LOGIN_SETTINGS, settings_revision)
            .delete(keys::LOGIN_OIDC);
        Ok::<_, AdminError>(client.transact(&transaction).await.map(drop)?)
    };
    retried(attempt).await
}

async fn seal(
    service: &dyn KeyService,
    issuer: &str,
    client_id: &str,
    secret: &str,
) -> Result<WrappedClientSecret, AdminError> {
    let is_fit = |c: char| c.is_ascii_graphic();
    if secret.is_empty() || secret.len() > SECRET_BYTES_MAX || !secret.chars().all(is_fit) {
        return AdminError::refused(format!(
            "a client's secret has 1 to {SECRET_BYTES_MAX} printable characters without spaces"
        ));
    }
    let (id, key) = (hex::encode(random_bytes::<16>()), SecretKey::random());
    let mut sealed = secret.as_bytes().to_vec();
    let tag = GcmKey::new(&key).seal(NONCE, bound_to(issuer, client_id).as_bytes(), &mut sealed);
    sealed.extend_from_slice(&tag);
    let wrapped_key = service.wrap(&context(&id), &key).await?;
    Ok(WrappedClientSecret { id, wrapped_key, sealed: hex::encode(sealed), set_unix_ms: unix_ms() })
}

/// A secret opens for its issuer and client only.
fn bound_to(issuer: &str, client_id: &str) -> String {
    format!("{issuer}\n{client_id}")
}

/// The client's secret; `None` for a public client.
pub async fn open_secret(service: &dyn KeyService, record: &OidcRecord) -> Result<Option<String>, AdminError> {
    let Some(secret) = &record.secret else { return Ok(None) };
    let key = service.unwrap(&context(&secret.id), &secret.wrapped_key).await?;
    let broken = || AdminError::Refused("the secret of the OpenID Connect client is damaged; set it again".into());
    let sealed = hex::decode(&secret.sealed).map_err(|_| broken())?;
    let at = sealed.len().checked_sub(TAG_BYTES).ok_or_else(broken)?;
    let (ciphertext, tag) = sealed.split_at(at);
    let mut opened = vec![0; ciphertext.len()];
    let bound = bound_to(&record.issuer, &record.client_id);
    if !GcmKey::new(&key).open(NONCE, bound.as_bytes(), ciphertext, tag, &mut opened) {
        return Err(broken());
    }
    String::from_utf8(opened).map(Some).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_are_reached_over_tls_in_public_or_named_networks() {
        for (issuer, networks, is_fit) in [
            ("https://login.example/realms/a", "", true),
            ("https://login.example/", "", true),
            ("https://10.0.0.1:8443", "10.0.0.0/8", true),
            ("https://10.0.0.1:8443", "", false),
            ("https://127.0.0.1", "", false),
            ("http://127.0.0.1", "127.0.0.1", false),
            ("http://login.example", "10.0.0.0/8", false),
            ("https://user@login.example", "", false),
            ("https://login.example?tenant=a", "", false),
            ("https://login.example#a", "", false),
            ("login.example", "", false),
            ("", "", false),
        ] {
            assert_eq!(check_issuer(issuer, networks).is_ok(), is_fit, "{issuer} {networks}");
        }
    }

    #[test]
    fn people_are_sent_back_to_consoles_over_tls() {
        assert_eq!(origin("https://Console.Example:8443/").unwrap(), "https://console.example:8443");
        assert_eq!(origin("https://console.example:443").unwrap(), "https://console.example");
        for wrong in [
            "http://console.example",
            "https://console.example/path",
            "https://console.example?a",
            "https://a@console.example",
            "console.example:8443",
            "",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }
}
