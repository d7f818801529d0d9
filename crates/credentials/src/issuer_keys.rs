//! The keys of an issuer of identity tokens, as it publishes them.

use std::sync::Arc;

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use serde::Deserialize;

const KEYS_MAX: usize = 100;

/// Public keys of an issuer.
#[derive(Clone, Debug)]
pub struct IssuerKeys(Arc<[Jwk]>);

impl IssuerKeys {
    /// Reads a set of keys (RFC 7517). A key of an unknown kind does not spoil the others.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct KeySet {
            keys: Vec<serde_json::Value>,
        }
        let set: KeySet = serde_json::from_slice(json)?;
        let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let keys = keys.filter(|key| matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature)));
        Ok(IssuerKeys(keys.take(KEYS_MAX).collect()))
    }

    /// Returns whether there is a key of this id.
    pub fn has(&self, id: Option<&str>) -> bool {
        self.find(id).is_some()
    }

    /// The key of this id. A token may leave the id out if there is only one.
    pub fn find(&self, id: Option<&str>) -> Option<&Jwk> {
        match (id, &*self.0) {
            (Some(id), keys) => keys.iter().find(|key| key.common.key_id.as_deref() == Some(id)),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_id() {
        let key = |id: &str| serde_json::json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": id });
        let parse = |keys: serde_json::Value| {
            IssuerKeys::parse(serde_json::json!({ "keys": keys }).to_string().as_bytes()).unwrap()
        };
        let odd = serde_json::json!({ "kty": "unheard of", "kid": "odd" });
        let both = parse(serde_json::json!([odd, key("a"), key("b")]));
        assert_eq!(both.find(Some("b")).and_then(|found| found.common.key_id.as_deref()), Some("b"));
        assert!(!both.has(Some("c")) && !both.has(None));
        assert!(parse(serde_json::json!([key("a")])).has(None), "it is the only one");
        assert!(IssuerKeys::parse(b"[]").is_err());
    }
}
