//! The interface of key services: each holds the root of the key hierarchy. A wrapped secret names the service and
//! the key that wrapped it, so several services can be in use at once, as when a cluster moves from one to
//! another.

use async_trait::async_trait;

use crate::{KeyError, SecretKey};

/// The key for secrets that name no other.
pub const DEFAULT_KEY: &str = "atoll";

/// Wraps and unwraps keys with keys that it does not give away.
#[async_trait]
pub trait KeyService: Send + Sync {
    /// Wraps `secret` with the newest version of the key of this name, bound to `context` (the purpose of the
    /// secret, such as `image 0123`). Without a name it is the service's own choice of key.
    async fn wrap_with(
        &self,
        key_name: Option<&str>,
        context: &str,
        secret: &SecretKey,
    ) -> Result<String, KeyError>;

    /// Opens a result of [`KeyService::wrap_with`] with the same context.
    async fn unwrap(&self, context: &str, wrapped: &str) -> Result<SecretKey, KeyError>;

    /// The same secret wrapped by the newest version of the key that new secrets are wrapped with, or
    /// of the same named key; `None` if it is wrapped so already.
    async fn rewrap(&self, context: &str, wrapped: &str) -> Result<Option<String>, KeyError>;

    /// All keys, by name.
    async fn list(&self) -> Result<Vec<KeyDescription>, KeyError>;

    /// Makes a key. One that exists stays as it is.
    async fn create(&self, key_name: &str) -> Result<(), KeyError>;

    /// Gives a key a new version, with which everything is wrapped from now on.
    async fn rotate(&self, key_name: &str) -> Result<KeyDescription, KeyError>;

    /// Destroys a key with all its versions. Its wrapped secrets never open again.
    async fn destroy(&self, key_name: &str) -> Result<(), KeyError>;

    /// Keeps access alive; to be called once a minute by processes that run for long.
    async fn maintain(&self) -> Result<(), KeyError> {
        Ok(())
    }

    /// Wraps with the service's own choice of key.
    async fn wrap(&self, context: &str, secret: &SecretKey) -> Result<String, KeyError> {
        self.wrap_with(None, context, secret).await
    }
}

/// A key as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// `local` or `transit`.
    pub service: &'static str,
    /// The key's name.
    pub name: String,
    /// Versions that can open the secrets that they wrapped, oldest first; the last one wraps.
    pub versions: Vec<KeyVersion>,
}

/// A version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersion {
    /// How wrapped secrets name it, within its service.
    pub id: String,
    /// Unix time of its creation, in milliseconds; 0 if it is not known.
    pub created_unix_ms: u64,
}

/// Which service, key and version wrapped a secret. For [`LocalKeys`](crate::LocalKeys) the version says it all, and the
/// name is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedBy {
    /// `local` or `transit`.
    pub service: String,
    /// The key's name, if the wrapped secret has it.
    pub key_name: String,
    /// [`KeyVersion::id`].
    pub version: String,
}

impl WrappedBy {
    /// Reads it off a wrapped secret.
    pub fn parse(wrapped: &str) -> Option<WrappedBy> {
        let mut parts = wrapped.split(':');
        match parts.next()? {
            "local" => {
                let version = parts.next()?.to_owned();
                Some(WrappedBy { service: "local".into(), key_name: String::new(), version })
            }
            "transit" => {
                let (key_name, vault, version) = (parts.next()?, parts.next()?, parts.next()?);
                let (key_name, version) = (key_name.to_owned(), version.to_owned());
                (vault == "vault").then(|| WrappedBy { service: "transit".into(), key_name, version })
            }
            _ => None,
        }
    }
}

/// Returns true for a name of a key: 1 to 64 letters, digits, `-`, `_` and `.`, not beginning with `.`.
pub fn is_key_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_allowed)
}

/// The error of a wrapped key that does not have its form.
pub(crate) fn malformed(context: &str, detail: impl ToString) -> KeyError {
    KeyError::Malformed { what: format!("the wrapped key of {context}"), detail: detail.to_string() }
}
