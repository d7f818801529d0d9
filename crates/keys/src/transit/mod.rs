//! The Transit engine of HashiCorp Vault or OpenBao (their HTTP API, "Transit secrets engine"): keys never leave
//! it. The encrypted message is the secret followed by the SHA-256 of its context, which binds the two with every
//! type of key.

mod connection;
mod login;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::service::malformed;
use crate::{
    KeyDescription, KeyError, KeyService, KeyVersion, SecretKey, TransitSettings, WrappedBy, is_key_name, sha256,
};
use connection::{Connection, Failure};

const SERVICE: &str = "transit";
/// The secret and the digest of its context.
const PLAINTEXT_BYTES: usize = 64;

/// A Transit service.
pub struct Transit {
    connection: Connection,
    settings: TransitSettings,
}

impl Transit {
    /// Nothing is asked yet. Fails if the settings cannot be used.
    pub fn new(settings: TransitSettings) -> Result<Self, KeyError> {
        check_key_name(&settings.key)?;
        Ok(Transit { connection: Connection::new(&settings)?, settings })
    }

    /// Makes the key for secrets that name no other, unless it exists.
    pub async fn make_default_key(&self) -> Result<(), KeyError> {
        self.create(&self.settings.key).await
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, Failure> {
        self.connection
            .call(atoll_outgoing::Method::POST, &format!("{}/{path}", self.settings.mount), Some(body))
            .await
    }

    async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.connection.call(atoll_outgoing::Method::GET, &format!("{}/{path}", self.settings.mount), None).await
    }

    fn explain(&self, key_name: &str, failure: Failure) -> KeyError {
        match failure {
            Failure::Missing => KeyError::NoSuchKey { key_id: key_name.into() },
            // Transit answers a decryption under a missing key with "bad request".
            Failure::Refused(detail) if detail.contains("encryption key not found") => {
                KeyError::NoSuchKey { key_id: key_name.into() }
            }
            Failure::Denied(detail) | Failure::Refused(detail) => {
                KeyError::ServiceRefused { service: self.settings.address.clone(), detail }
            }
            Failure::Unavailable(detail) => {
                KeyError::ServiceUnavailable { service: self.settings.address.clone(), detail }
            }
        }
    }

    /// Returns the error for an answer without a required field: another service than Transit answers there.
    fn strange(&self, what: &str) -> KeyError {
        let detail = format!("its answer has no {what}; is there a Transit engine at '{}'?", self.settings.mount);
        KeyError::ServiceUnavailable { service: self.settings.address.clone(), detail }
    }

    fn ciphertext(&self, key_name: &str, answer: &Value) -> Result<String, KeyError> {
        let text = answer["data"]["ciphertext"].as_str().ok_or_else(|| self.strange("ciphertext"))?;
        Ok(format!("{SERVICE}:{key_name}:{text}"))
    }

    async fn describe(&self, key_name: &str) -> Result<KeyDescription, KeyError> {
        let answer = self.get(&format!("keys/{key_name}")).await.map_err(|error| self.explain(key_name, error))?;
        let data = &answer["data"];
        let versions = data["keys"].as_object().ok_or_else(|| self.strange("keys"))?;
        let oldest = data["min_decryption_version"].as_u64().unwrap_or(1);
        let mut numbered: Vec<(u64, u64)> = versions
            .iter()
            .filter_map(|(number, created)| Some((number.parse().ok()?, created.as_u64().unwrap_or(0) * 1_000)))
            .filter(|(number, _)| *number >= oldest)
            .collect();
        numbered.sort_unstable();
        let version = |(number, created_unix_ms)| KeyVersion { id: format!("v{number}"), created_unix_ms };
        let versions = numbered.into_iter().map(version).collect();
        Ok(KeyDescription { service: SERVICE, name: key_name.into(), versions })
    }
}

fn check_key_name(name: &str) -> Result<(), KeyError> {
    is_key_name(name).then_some(()).ok_or_else(|| KeyError::BadKeyName { name: name.into() })
}

/// Splits a secret wrapped by [`Transit`] into key name and ciphertext.
fn parse<'a>(context: &str, wrapped: &'a str) -> Result<(&'a str, &'a str), KeyError> {
    let rest =
        wrapped.strip_prefix("transit:").ok_or_else(|| malformed(context, "it does not begin with 'transit:'"))?;
    let (key_name, ciphertext) = rest.split_once(':').ok_or_else(|| malformed(context, "it names no key"))?;
    check_key_name(key_name)?;
    Ok((key_name, ciphertext))
}

#[async_trait]
impl KeyService for Transit {
    async fn wrap_with(
        &self,
        key_name: Option<&str>,
        context: &str,
        secret: &SecretKey,
    ) -> Result<String, KeyError> {
        if let Some(name) = key_name {
            check_key_name(name)?;
            // Transit would make a key for a name that it does not know.
            self.describe(name).await?;
        }
        let key_name = key_name.unwrap_or(&self.settings.key);
        let mut plaintext = Zeroizing::new([0; PLAINTEXT_BYTES]);
        plaintext[..32].copy_from_slice(secret.expose());
        plaintext[32..].copy_from_slice(&sha256(context.as_bytes()));
        let body = json!({ "plaintext": BASE64.encode(plaintext.as_slice()) });
        let answer = self.post(&format!("encrypt/{key_name}"), body).await;
        self.ciphertext(key_name, &answer.map_err(|error| self.explain(key_name, error))?)
    }

    async fn unwrap(&self, context: &str, wrapped: &str) -> Result<SecretKey, KeyError> {
        let (key_name, ciphertext) = parse(context, wrapped)?;
        let answer = self.post(&format!("decrypt/{key_name}"), json!({ "ciphertext": ciphertext })).await;
        let answer = answer.map_err(|error| self.explain(key_name, error))?;
        let text = answer["data"]["plaintext"].as_str().ok_or_else(|| self.strange("plaintext"))?;
        let bytes = Zeroizing::new(BASE64.decode(text).map_err(|error| malformed(context, error))?);
        let bytes: &[u8; PLAINTEXT_BYTES] = bytes[..].try_into().map_err(|_| malformed(context, "its length"))?;
        let (secret, digest) = bytes.split_at(32);
        if digest != sha256(context.as_bytes()) {
            return Err(KeyError::NotAuthentic { what: format!("the wrapped key of {context}") });
        }
        Ok(SecretKey::from_bytes(secret.try_into().expect("half of the plaintext")))
    }

    async fn rewrap(&self, context: &str, wrapped: &str) -> Result<Option<String>, KeyError> {
        let (key_name, ciphertext) = parse(context, wrapped)?;
        let answer = self.post(&format!("rewrap/{key_name}"), json!({ "ciphertext": ciphertext })).await;
        let anew = self.ciphertext(key_name, &answer.map_err(|error| self.explain(key_name, error))?)?;
        let version = |text: &str| WrappedBy::parse(text).map(|by| by.version);
        Ok((version(&anew) != version(wrapped)).then_some(anew))
    }

    async fn list(&self) -> Result<Vec<KeyDescription>, KeyError> {
        let names = match self.get("keys?list=true").await {
            Ok(answer) => answer["data"]["keys"].as_array().cloned().unwrap_or_default(),
            Err(Failure::Missing) => Vec::new(),
            // A policy may allow the use of keys and no list of them: then ours is known.
            Err(Failure::Denied(_)) => vec![Value::from(self.settings.key.clone())],
            Err(error) => return Err(self.explain(&self.settings.key, error)),
        };
        let mut keys = Vec::new();
        for name in names.iter().filter_map(Value::as_str).filter(|name| is_key_name(name)) {
            keys.push(self.describe(name).await?);
        }
        Ok(keys)
    }

    async fn create(&self, key_name: &str) -> Result<(), KeyError> {
        check_key_name(key_name)?;
        match self.describe(key_name).await {
            Err(KeyError::NoSuchKey { .. }) => {}
            other => return other.map(drop),
        }
        let made = self.post(&format!("keys/{key_name}"), json!({ "type": "aes256-gcm96" })).await;
        made.map(drop).map_err(|error| self.explain(key_name, error))
    }

    async fn rotate(&self, key_name: &str) -> Result<KeyDescription, KeyError> {
        check_key_name(key_name)?;
        // Transit answers the rotation of a missing key with "bad request".
        self.describe(key_name).await?;
        let rotated = self.post(&format!("keys/{key_name}/rotate"), json!({})).await;
        rotated.map_err(|error| self.explain(key_name, error))?;
        self.describe(key_name).await
    }

    async fn destroy(&self, key_name: &str) -> Result<(), KeyError> {
        check_key_name(key_name)?;
        self.describe(key_name).await?;
        let allowed = self.post(&format!("keys/{key_name}/config"), json!({ "deletion_allowed": true })).await;
        allowed.map_err(|error| self.explain(key_name, error))?;
        let path = format!("{}/keys/{key_name}", self.settings.mount);
        let removed = self.connection.call(atoll_outgoing::Method::DELETE, &path, None).await;
        removed.map(drop).map_err(|error| self.explain(key_name, error))
    }

    async fn maintain(&self) -> Result<(), KeyError> {
        self.connection.renew().await.map_err(|error| self.explain(&self.settings.key, error))
    }
}
