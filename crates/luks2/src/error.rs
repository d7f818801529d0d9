//! Errors of a LUKS2 header.

/// Why a LUKS2 header cannot be made, read or unlocked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Luks2Error {
    /// Neither copy of the binary header has LUKS's magic bytes.
    #[error("there is no LUKS2 header: the device is not encrypted, or its first megabytes were overwritten")]
    NotLuks2,
    /// Both copies of the header are there in part, but neither can be trusted.
    #[error("the LUKS2 header is damaged: {detail}; restore a backup with `cryptsetup luksHeaderRestore`")]
    Damaged {
        /// The damage of the newest copy.
        detail: String,
    },
    /// The header is sound, but it asks for something that is not implemented here.
    #[error("the LUKS2 header uses {what}, which Atoll does not support")]
    Unsupported {
        /// The unsupported feature.
        what: String,
    },
    /// No keyslot that could be tried opens with this passphrase.
    #[error(
        "the passphrase opens none of the {tried} keyslots that were tried{}; name that of one of the keyslots which \
         `cryptsetup luksDump` lists",
        skipped_slots(.skipped)
    )]
    WrongPassphrase {
        /// How many keyslots were tried.
        tried: usize,
        /// Keyslots that could not be tried, each with its reason.
        skipped: Vec<String>,
    },
    /// The key derivation has parameters out of bounds, or not enough memory.
    #[error("the key derivation of a keyslot cannot run: {detail}")]
    KeyDerivation {
        /// The reason.
        detail: String,
    },
    /// The two halves of an XTS key are equal, which IEEE 1619-2018 forbids.
    #[error("the volume key is not a valid AES-XTS key: its two halves are equal")]
    WeakKey,
}

impl Luks2Error {
    pub(crate) fn damaged(detail: impl Into<String>) -> Self {
        Luks2Error::Damaged { detail: detail.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Luks2Error::Unsupported { what: what.into() }
    }
}

fn skipped_slots(skipped: &[String]) -> String {
    if skipped.is_empty() { String::new() } else { format!("; not tried: {}", skipped.join(", ")) }
}
