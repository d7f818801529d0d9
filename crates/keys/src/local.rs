//! The keys of a file that only its owner may read. Old versions stay in it, so that the secrets that they wrapped
//! still open.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::key_file::{KeyFile, LocalVersion};
use crate::service::malformed;
use crate::stamp::Stamp;
use crate::{
    DEFAULT_KEY, KeyDescription, KeyError, KeyService, KeyVersion, SecretKey, is_key_name, unwrap_key, wrap_key,
};

const SERVICE: &str = "local";

/// A key-management service in a file.
pub struct LocalKeys {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: KeyFile,
    read_at: Stamp,
}

impl LocalKeys {
    /// Makes a key file with one fresh key. An existing file is an error, never overwritten.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        KeyFile::local().create(path)?;
        Self::open(path)
    }

    /// Reads a key file.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let read_at = Stamp::of(path);
        let state = State { file: KeyFile::read(path)?, read_at };
        Ok(LocalKeys { path: path.into(), state: Mutex::new(state) })
    }

    /// The keys as the file has them now: a version that was added or destroyed by another process is
    /// noticed at once. If the file can no longer be read, the keys last read stay in use.
    fn current(&self) -> MutexGuard<'_, State> {
        // The state is replaced whole, so a panic elsewhere does not spoil it.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Stamp::of(&self.path);
        if now.is_there() && now != state.read_at {
            match KeyFile::read(&self.path) {
                Ok(file) => *state = State { file, read_at: now },
                Err(error) => tracing::warn!("the key file was changed and cannot be used: {error}"),
            }
        }
        state
    }

    /// Which key has wrapped this.
    pub(crate) fn key_name_of(&self, wrapped: &str) -> Result<String, KeyError> {
        let id = wrapped.split(':').nth(1).unwrap_or_default();
        let state = self.current();
        let found = state.file.keys.iter().find(|(_, versions)| versions.iter().any(|one| one.id == id));
        found.map(|(name, _)| name.clone()).ok_or_else(|| no_such_key(id))
    }

    /// Changes the file.
    fn change<T>(&self, change: impl FnOnce(&mut KeyFile) -> Result<T, KeyError>) -> Result<T, KeyError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the change: one by another process that follows it must be noticed.
        let read_at = Stamp::of(&self.path);
        let (file, result) = KeyFile::change(&self.path, change)?;
        *state = State { file, read_at };
        Ok(result)
    }
}

fn no_such_key(key_name: &str) -> KeyError {
    KeyError::NoSuchKey { key_id: key_name.into() }
}

fn versions<'a>(file: &'a KeyFile, key_name: &str) -> Result<&'a Vec<LocalVersion>, KeyError> {
    file.keys.get(key_name).ok_or_else(|| no_such_key(key_name))
}

fn newest(versions: &[LocalVersion]) -> &LocalVersion {
    versions.last().expect("a key has a version: the file is refused otherwise")
}

fn describe(name: &str, versions: &[LocalVersion]) -> KeyDescription {
    let version =
        |version: &LocalVersion| KeyVersion { id: version.id.clone(), created_unix_ms: version.created_unix_ms };
    KeyDescription { service: SERVICE, name: name.into(), versions: versions.iter().map(version).collect() }
}

fn wrapped_text(version: &LocalVersion, context: &str, secret: &SecretKey) -> String {
    format!("{SERVICE}:{}:{}", version.id, hex::encode(wrap_key(&version.key, context, secret)))
}

#[async_trait]
impl KeyService for LocalKeys {
    async fn wrap_with(
        &self,
        key_name: Option<&str>,
        context: &str,
        secret: &SecretKey,
    ) -> Result<String, KeyError> {
        let state = self.current();
        let versions = versions(&state.file, key_name.unwrap_or(DEFAULT_KEY))?;
        Ok(wrapped_text(newest(versions), context, secret))
    }

    async fn unwrap(&self, context: &str, wrapped: &str) -> Result<SecretKey, KeyError> {
        let rest =
            wrapped.strip_prefix("local:").ok_or_else(|| malformed(context, "it does not begin with 'local:'"))?;
        let (id, text) = rest.split_once(':').ok_or_else(|| malformed(context, "it names no key"))?;
        let bytes = hex::decode(text).map_err(|_| malformed(context, "it is not hexadecimal"))?;
        let state = self.current();
        let mut all = state.file.keys.values().flatten();
        let version = all.find(|version| version.id == id).ok_or_else(|| no_such_key(id))?;
        unwrap_key(&version.key, context, &bytes)
    }

    async fn rewrap(&self, context: &str, wrapped: &str) -> Result<Option<String>, KeyError> {
        let secret = self.unwrap(context, wrapped).await?;
        let key_name = self.key_name_of(wrapped)?;
        let state = self.current();
        let newest = newest(versions(&state.file, &key_name)?);
        let is_newest = wrapped.split(':').nth(1) == Some(&newest.id);
        Ok((!is_newest).then(|| wrapped_text(newest, context, &secret)))
    }

    async fn list(&self) -> Result<Vec<KeyDescription>, KeyError> {
        Ok(self.current().file.keys.iter().map(|(name, versions)| describe(name, versions)).collect())
    }

    async fn create(&self, key_name: &str) -> Result<(), KeyError> {
        if !is_key_name(key_name) {
            return Err(KeyError::BadKeyName { name: key_name.into() });
        }
        self.change(|file| {
            file.keys.entry(key_name.into()).or_insert_with(|| vec![LocalVersion::random()]);
            Ok(())
        })
    }

    async fn rotate(&self, key_name: &str) -> Result<KeyDescription, KeyError> {
        self.change(|file| {
            let versions = file.keys.get_mut(key_name).ok_or_else(|| no_such_key(key_name))?;
            versions.push(LocalVersion::random());
            Ok(describe(key_name, versions))
        })
    }

    async fn destroy(&self, key_name: &str) -> Result<(), KeyError> {
        self.change(|file| file.keys.remove(key_name).map(drop).ok_or_else(|| no_such_key(key_name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_files::previous_path;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn ready<T>(future: impl Future<Output = T>) -> T {
        match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("local keys never wait"),
        }
    }

    #[test]
    fn a_key_file_reopens_and_keeps_its_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kms.json");
        let secret = SecretKey::random();
        let wrapped = ready(LocalKeys::create(&path).unwrap().wrap("image 1", &secret)).unwrap();
        assert!(LocalKeys::create(&path).is_err(), "an existing key file must not be overwritten");

        let reopened = LocalKeys::open(&path).unwrap();
        assert_eq!(ready(reopened.unwrap("image 1", &wrapped)).unwrap(), secret);
        assert!(ready(reopened.unwrap("image 2", &wrapped)).is_err());
        assert!(ready(reopened.unwrap("image 1", "vault:x:y")).is_err());

        let other = LocalKeys::create(&directory.path().join("other.json")).unwrap();
        assert!(matches!(ready(other.unwrap("image 1", &wrapped)), Err(KeyError::NoSuchKey { .. })));
    }

    #[test]
    fn rotation_keeps_wrapped_keys_and_destruction_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kms.json");
        let (one, other) = (LocalKeys::create(&path).unwrap(), LocalKeys::open(&path).unwrap());
        let secret = SecretKey::random();
        ready(one.create("project")).unwrap();
        let old = ready(one.wrap_with(Some("project"), "bucket 1", &secret)).unwrap();
        assert_eq!(ready(one.rewrap("bucket 1", &old)).unwrap(), None);
        assert_eq!(ready(one.rotate("project")).unwrap().versions.len(), 2);

        // The other process sees what was changed.
        let new = ready(other.rewrap("bucket 1", &old)).unwrap().expect("an older version wrapped it");
        for wrapped in [&old, &new] {
            assert_eq!(ready(other.unwrap("bucket 1", wrapped)).unwrap(), secret);
        }
        ready(one.destroy("project")).unwrap();
        for wrapped in [&old, &new] {
            assert!(matches!(ready(other.unwrap("bucket 1", wrapped)), Err(KeyError::NoSuchKey { .. })));
        }
        assert!(ready(one.create("no/slash")).is_err());
        assert_eq!(ready(other.list()).unwrap().len(), 1);
    }

    #[test]
    fn of_many_changes_at_once_no_key_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kms.json");
        LocalKeys::create(&path).unwrap();
        // Each has the file open before any changes it, as processes that start together.
        let openers: Vec<LocalKeys> = (0..6).map(|_| LocalKeys::open(&path).unwrap()).collect();
        std::thread::scope(|scope| {
            for (number, keys) in openers.iter().enumerate() {
                scope.spawn(move || {
                    ready(keys.create("shared")).unwrap();
                    let wrapped = ready(keys.wrap_with(Some("shared"), "image 1", &SecretKey::random())).unwrap();
                    for count in 0..10 {
                        ready(keys.create(&format!("key{number}.{count}"))).unwrap();
                        ready(keys.rotate(DEFAULT_KEY)).unwrap();
                    }
                    ready(keys.unwrap("image 1", &wrapped)).unwrap();
                });
            }
        });
        let all = ready(LocalKeys::open(&path).unwrap().list()).unwrap();
        assert_eq!(all.len(), 2 + 6 * 10);
        let default = all.iter().find(|key| key.name == DEFAULT_KEY).unwrap();
        assert_eq!(default.versions.len(), 1 + 6 * 10);
        assert!(openers.iter().all(|keys| ready(keys.list()).unwrap().len() == all.len()));
    }

    #[test]
    fn the_file_before_stays_unless_a_key_is_destroyed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kms.json");
        let keys = LocalKeys::create(&path).unwrap();
        ready(keys.create("project")).unwrap();
        ready(keys.rotate("project")).unwrap();
        let before = previous_path(&path);
        assert_eq!(KeyFile::read(&before).unwrap().local_ids().count(), 2);
        std::fs::write(&path, "{").unwrap();
        let error = ready(keys.create("other")).unwrap_err().to_string();
        assert!(error.contains("kms.json.before"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{", "what cannot be read is not written over");

        std::fs::rename(&before, &path).unwrap();
        ready(keys.rotate("project")).unwrap();
        ready(keys.destroy("project")).unwrap();
        assert!(!before.exists());
    }
}
