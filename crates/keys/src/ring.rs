//! All key services of a cluster behind one: a wrapped secret names the one that opens it.

use std::path::Path;

use async_trait::async_trait;

use crate::metrics::{measured, register_all};
use crate::uses::{key_of, note};
use crate::{DEFAULT_KEY, KeyDescription, KeyError, KeyFile, KeyService, LocalKeys, SecretKey, Transit};

/// The services that a key file names. New secrets are wrapped by the Transit service if there is one; the secrets
/// of local keys open as long as the keys are in the file.
pub struct KeyRing {
    local: Option<LocalKeys>,
    transit: Option<Transit>,
}

impl KeyRing {
    /// The services of a key file. Nothing is asked of them yet.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        register_all();
        let file = KeyFile::read(path)?;
        let local = file.has_local_keys().then(|| LocalKeys::open(path)).transpose()?;
        Ok(KeyRing { local, transit: file.transit.map(Transit::new).transpose()? })
    }

    /// Makes the key for secrets that name no other, where the service does not make it by itself. An existing key
    /// stays.
    pub async fn make_default_key(&self) -> Result<(), KeyError> {
        match &self.transit {
            Some(transit) => transit.make_default_key().await,
            None => Ok(()),
        }
    }

    /// Returns the service that wraps.
    fn current(&self) -> &dyn KeyService {
        match (&self.transit, &self.local) {
            (Some(transit), _) => transit,
            (None, Some(local)) => local,
            (None, None) => unreachable!("a key file without a key or a service is refused"),
        }
    }

    /// Returns the service that opens a wrapped secret.
    fn service_of(&self, wrapped: &str) -> Result<&dyn KeyService, KeyError> {
        let service = wrapped.split(':').next().unwrap_or_default();
        match service {
            "local" => self.local.as_ref().map(|local| local as &dyn KeyService),
            "transit" => self.transit.as_ref().map(|transit| transit as &dyn KeyService),
            _ => None,
        }
        .ok_or_else(|| KeyError::NoSuchKey { key_id: wrapped.chars().take(40).collect() })
    }

    async fn rewrapped(&self, context: &str, wrapped: &str) -> Result<Option<String>, KeyError> {
        if let (Some(transit), Some(local)) = (&self.transit, &self.local)
            && wrapped.starts_with("local:")
        {
            let secret = local.unwrap(context, wrapped).await?;
            // A named key stays one, or destroying it would no longer destroy what it protects.
            let key_name = Some(local.key_name_of(wrapped)?).filter(|name| name != DEFAULT_KEY);
            if let Some(name) = &key_name {
                transit.create(name).await?;
            }
            return measured("wrap", transit.wrap_with(key_name.as_deref(), context, &secret)).await.map(Some);
        }
        measured("rewrap", self.service_of(wrapped)?.rewrap(context, wrapped)).await
    }
}

#[async_trait]
impl KeyService for KeyRing {
    async fn wrap_with(
        &self,
        key_name: Option<&str>,
        context: &str,
        secret: &SecretKey,
    ) -> Result<String, KeyError> {
        let outcome = measured("wrap", self.current().wrap_with(key_name, context, secret)).await;
        let key = match &outcome {
            Ok(wrapped) => key_of(wrapped),
            Err(_) => key_name.unwrap_or(DEFAULT_KEY).to_owned(),
        };
        note("wrap", key, context, &outcome);
        outcome
    }

    async fn unwrap(&self, context: &str, wrapped: &str) -> Result<SecretKey, KeyError> {
        let outcome = match self.service_of(wrapped) {
            Ok(service) => measured("unwrap", service.unwrap(context, wrapped)).await,
            Err(error) => Err(error),
        };
        note("unwrap", key_of(wrapped), context, &outcome);
        outcome
    }

    async fn rewrap(&self, context: &str, wrapped: &str) -> Result<Option<String>, KeyError> {
        let outcome = self.rewrapped(context, wrapped).await;
        note("rewrap", key_of(wrapped), context, &outcome);
        outcome
    }

    async fn list(&self) -> Result<Vec<KeyDescription>, KeyError> {
        let mut keys = Vec::new();
        if let Some(transit) = &self.transit {
            keys.append(&mut transit.list().await?);
        }
        if let Some(local) = &self.local {
            keys.append(&mut local.list().await?);
        }
        Ok(keys)
    }

    async fn create(&self, key_name: &str) -> Result<(), KeyError> {
        let outcome = measured("create", self.current().create(key_name)).await;
        note("create", key_name.to_owned(), "", &outcome);
        outcome
    }

    async fn rotate(&self, key_name: &str) -> Result<KeyDescription, KeyError> {
        let outcome = measured("rotate", self.current().rotate(key_name)).await;
        note("rotate", key_name.to_owned(), "", &outcome);
        outcome
    }

    async fn destroy(&self, key_name: &str) -> Result<(), KeyError> {
        let of_current = measured("destroy", self.current().destroy(key_name)).await;
        let outcome = match (&of_current, &self.local) {
            (Err(KeyError::NoSuchKey { .. }), Some(local)) if self.transit.is_some() => {
                local.destroy(key_name).await
            }
            _ => of_current,
        };
        note("destroy", key_name.to_owned(), "", &outcome);
        outcome
    }

    async fn maintain(&self) -> Result<(), KeyError> {
        measured("maintain", self.current().maintain()).await
    }
}
