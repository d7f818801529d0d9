//! Key-management services: whoever holds the root of the key hierarchy. For now that is a local
//! key file; Vault and OpenBao Transit come behind the same trait.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::key::{SecretKey, unwrap_key, wrap_key};
use crate::{CryptoError, random_bytes};

/// Wraps and unwraps keys with a key that it does not give away.
#[async_trait]
pub trait KeyService: Send + Sync {
    /// Wraps `secret`, bound to `context` (what the key is for, such as `image 0123`).
    async fn wrap(&self, context: &str, secret: &SecretKey) -> Result<String, CryptoError>;

    /// Opens what [`KeyService::wrap`] made with the same context.
    async fn unwrap(&self, context: &str, wrapped: &str) -> Result<SecretKey, CryptoError>;
}

#[derive(Serialize, Deserialize)]
struct KeyFileContent {
    format: u32,
    current_key_id: String,
    keys: BTreeMap<String, String>,
}

/// A key-management service in a file that only its owner may read. Old keys stay in the file
/// so that what they wrapped can still be opened.
pub struct LocalKeyFile {
    current_key_id: String,
    keys: BTreeMap<String, SecretKey>,
}

impl LocalKeyFile {
    /// Makes a key file with one fresh key. An existing file is an error, never overwritten.
    pub fn create(path: &Path) -> Result<Self, CryptoError> {
        let (key_id, key) = (hex::encode(random_bytes::<8>()), SecretKey::random());
        let content = KeyFileContent {
            format: 1,
            current_key_id: key_id.clone(),
            keys: BTreeMap::from([(key_id.clone(), hex::encode(key.expose()))]),
        };
        let text = serde_json::to_string_pretty(&content).expect("a key file is plain JSON");
        // Written whole under another name first: a start that is cut short leaves no half a file.
        let unfinished = path.with_extension("new");
        let write = || {
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::hard_link(&unfinished, path)?;
            fs::remove_file(&unfinished)?;
            fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|source| CryptoError::KeyFile { path: path.into(), source })?;
        Ok(LocalKeyFile { current_key_id: key_id.clone(), keys: BTreeMap::from([(key_id, key)]) })
    }

    /// Reads a key file.
    pub fn open(path: &Path) -> Result<Self, CryptoError> {
        let text =
            fs::read_to_string(path).map_err(|source| CryptoError::KeyFile { path: path.into(), source })?;
        let malformed = |detail: String| CryptoError::Malformed { what: path.display().to_string(), detail };
        let content: KeyFileContent = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if content.format != 1 {
            return Err(malformed(format!("format {} is newer than this release knows", content.format)));
        }
        let mut keys = BTreeMap::new();
        for (key_id, text) in content.keys {
            let mut bytes = [0; 32];
            hex::decode_to_slice(&text, &mut bytes)
                .map_err(|error| malformed(format!("key {key_id}: {error}")))?;
            keys.insert(key_id, SecretKey::from_bytes(bytes));
        }
        if !keys.contains_key(&content.current_key_id) {
            return Err(malformed("its current key is not in it".into()));
        }
        Ok(LocalKeyFile { current_key_id: content.current_key_id, keys })
    }
}

#[async_trait]
impl KeyService for LocalKeyFile {
    async fn wrap(&self, context: &str, secret: &SecretKey) -> Result<String, CryptoError> {
        let wrapped = wrap_key(&self.keys[&self.current_key_id], context, secret);
        Ok(format!("local:{}:{}", self.current_key_id, hex::encode(wrapped)))
    }

    async fn unwrap(&self, context: &str, wrapped: &str) -> Result<SecretKey, CryptoError> {
        let malformed = |detail: &str| CryptoError::Malformed {
            what: format!("the wrapped key of {context}"),
            detail: detail.into(),
        };
        let rest = wrapped.strip_prefix("local:").ok_or_else(|| malformed("it does not begin with 'local:'"))?;
        let (key_id, text) = rest.split_once(':').ok_or_else(|| malformed("it names no key"))?;
        let key = self.keys.get(key_id).ok_or_else(|| CryptoError::NoSuchKey { key_id: key_id.into() })?;
        let bytes = hex::decode(text).map_err(|_| malformed("it is not hexadecimal"))?;
        unwrap_key(key, context, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn ready<T>(future: impl Future<Output = T>) -> T {
        match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the local key file never waits"),
        }
    }

    #[test]
    fn a_key_file_reopens_and_keeps_its_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kms.json");
        let secret = SecretKey::random();
        let wrapped = ready(LocalKeyFile::create(&path).unwrap().wrap("image 1", &secret)).unwrap();
        assert!(LocalKeyFile::create(&path).is_err(), "an existing key file must not be overwritten");

        let reopened = LocalKeyFile::open(&path).unwrap();
        assert_eq!(ready(reopened.unwrap("image 1", &wrapped)).unwrap(), secret);
        assert!(ready(reopened.unwrap("image 2", &wrapped)).is_err());
        assert!(ready(reopened.unwrap("image 1", "vault:x:y")).is_err());

        let other = LocalKeyFile::create(&directory.path().join("other.json")).unwrap();
        assert!(matches!(ready(other.unwrap("image 1", &wrapped)), Err(CryptoError::NoSuchKey { .. })));
    }
}
