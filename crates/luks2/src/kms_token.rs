//! A token of our own in the header (LUKS2 On-Disk Format Specification 1.1, section 3.6): the passphrase of a
//! keyslot, wrapped by a key-management service. `cryptsetup` shows and keeps it without knowing its meaning.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Luks2Error;
use crate::metadata::Numbered;

/// Its type in the JSON.
const KIND: &str = "atoll-kms";
/// Most bytes of a wrapped passphrase, so that the JSON fits in a header of the default size. Key
/// services make a few hundred.
const MAX_WRAPPED_BYTES: usize = 4096;

/// A wrapped passphrase. It is no secret: only the key-management service can open it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KmsToken {
    /// The passphrase as the key service wrapped it.
    pub wrapped_passphrase: String,
}

/// The token as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(rename = "type")]
    kind: String,
    /// The keyslots that the passphrase opens. `cryptsetup` keeps it current when keyslots go.
    keyslots: Vec<String>,
    wrapped_passphrase: String,
}

impl KmsToken {
    /// The token for keyslot 0. A wrapped passphrase of more than 4096 bytes is an error.
    pub(crate) fn to_json(&self) -> Result<Value, Luks2Error> {
        if self.wrapped_passphrase.len() > MAX_WRAPPED_BYTES {
            let what = format!("a wrapped passphrase of {} bytes", self.wrapped_passphrase.len());
            return Err(Luks2Error::unsupported(what));
        }
        let stored = Stored {
            kind: KIND.into(),
            keyslots: vec!["0".into()],
            wrapped_passphrase: self.wrapped_passphrase.clone(),
        };
        Ok(serde_json::to_value(&stored).expect("a token is plain JSON"))
    }

    /// The first token of this kind. Tokens of other kinds, and those of this kind that are not as
    /// they should be, are left to their makers.
    pub(crate) fn find(tokens: &Numbered) -> Option<Self> {
        let stored = tokens.values().filter_map(|token| Stored::deserialize(token).ok());
        let token = stored.into_iter().find(|token| token.kind == KIND)?;
        Some(KmsToken { wrapped_passphrase: token.wrapped_passphrase })
    }
}
