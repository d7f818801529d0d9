//! The keys of TLS that a configured key gives, and their identities (NVMe/TCP Transport Specification 1.0, section 3.6.1;
//! version 1 of identities: 1.1, the same section).
//!
//! ```text
//! retained key = HKDF-Expand-Label(HKDF-Extract(0, configured key), "HostNQN", host, L)
//! identity     = NVMe0R01 host subsystem, or NVMe1R01 host subsystem digest
//! TLS key      = HKDF-Expand-Label(HKDF-Extract(0, retained key), "nvme-tls-psk", context, L)
//! ```
//!
//! The context is the identity in version 0, and "01 digest" in version 1, whose digest is of the retained key and both
//! names. 01 is for SHA-256, 02 for SHA-384.

use atoll_credentials::nvme::{HashFunction, TlsKey};
use atoll_types::nvme_hosts::NQN_BYTES_MAX;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac::Tag;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

const DIGEST_LABEL: &[u8] = b" NVMe-over-Fabrics";
/// Longest context of a label (RFC 8446, section 7.1).
const CONTEXT_BYTES_MAX: usize = 255;

/// How a label goes into HKDF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelForm {
    /// As in RFC 8446, section 7.1.
    Standard,
    /// As libnvme has it up to version 1.15, and later with `--compat`: the length has the order of bytes of the host,
    /// which is little-endian on all that matter, and label and context come without theirs.
    OldLibnvme,
}

impl LabelForm {
    pub const ALL: [LabelForm; 2] = [LabelForm::Standard, LabelForm::OldLibnvme];
}

/// A host's name of a key of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity<'a> {
    text: &'a str,
    version: IdentityVersion,
    hash: HashFunction,
    pub host: &'a str,
    pub subsystem: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentityVersion {
    /// Identity with both names.
    Zero,
    /// Identity with a digest, which also distinguishes successive keys of a host.
    One,
}

impl<'a> Identity<'a> {
    /// Reads an identity of a key that was configured. Those of keys that an authentication has generated (`G`) are none.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        let (version, hash) = match words.next()? {
            "NVMe0R01" => (IdentityVersion::Zero, HashFunction::Sha256),
            "NVMe0R02" => (IdentityVersion::Zero, HashFunction::Sha384),
            "NVMe1R01" => (IdentityVersion::One, HashFunction::Sha256),
            "NVMe1R02" => (IdentityVersion::One, HashFunction::Sha384),
            _ => return None,
        };
        let (host, subsystem) = (words.next()?, words.next()?);
        let is_whole = match version {
            IdentityVersion::Zero => words.next().is_none(),
            IdentityVersion::One => words.next().is_some() && words.next().is_none(),
        };
        let is_name = |name: &str| (1..=NQN_BYTES_MAX).contains(&name.len()) && name.starts_with("nqn.");
        let is_fine = is_whole && is_name(host) && is_name(subsystem) && !text.contains(char::is_control);
        is_fine.then_some(Identity { text, version, hash, host, subsystem })
    }
}

/// A key of TLS for one host and one subsystem.
#[derive(Clone)]
pub(crate) struct TlsPsk {
    pub identity: String,
    pub hash: HashFunction,
    secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for TlsPsk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TlsPsk({:?}, ..)", self.identity)
    }
}

impl TlsPsk {
    /// Derives the keys from a configured key. None if the names are too long for the form.
    pub fn derive(
        key: &TlsKey,
        version: IdentityVersion,
        host: &str,
        subsystem: &str,
        form: LabelForm,
    ) -> Option<Self> {
        let hash = key.suite_hash();
        let retained = match key.hash() {
            None => Zeroizing::new(key.expose().to_vec()),
            Some(_) => expand_label(hash, &extract(hash, key.expose()), b"HostNQN", host.as_bytes(), form)?,
        };
        let (name, number) = (format!("{host} {subsystem}"), hash as u8);
        let (identity, context) = match version {
            IdentityVersion::Zero => {
                let identity = format!("NVMe0R{number:02} {name}");
                (identity.clone(), identity)
            }
            IdentityVersion::One => {
                let digest = STANDARD.encode(hash.hmac(&retained, &[name.as_bytes(), DIGEST_LABEL]));
                (format!("NVMe1R{number:02} {name} {digest}"), format!("{number:02} {digest}"))
            }
        };
        let secret = expand_label(hash, &extract(hash, &retained), b"nvme-tls-psk", context.as_bytes(), form)?;
        Some(TlsPsk { identity, hash, secret })
    }

    /// Returns the key that a host offers by an identity, if the binder proves that it has the key: the binder
    /// covers `bound` of its message (RFC 8446, section 4.2.11.2).
    pub fn of_offer(key: &TlsKey, identity: &Identity<'_>, binder: &[u8], bound: &[u8]) -> Option<Self> {
        let derived = LabelForm::ALL
            .into_iter()
            .filter_map(|form| TlsPsk::derive(key, identity.version, identity.host, identity.subsystem, form));
        let mut named = derived.filter(|psk| psk.identity == identity.text && psk.hash == identity.hash);
        named
            .find(|psk| psk.binder(bound).is_some_and(|own| verify_slices_are_equal(own.as_ref(), binder).is_ok()))
    }

    /// Its bytes.
    pub fn expose(&self) -> &[u8] {
        &self.secret
    }

    /// Returns the proof of having the key (RFC 8446, sections 4.2.11.2 and 7.1).
    fn binder(&self, bound: &[u8]) -> Option<Tag> {
        let hash = self.hash;
        let expand = |secret: &[u8], label: &[u8], context: &[u8]| {
            expand_label(hash, secret, label, context, LabelForm::Standard)
        };
        let early_secret = extract(hash, &self.secret);
        let binder_key = expand(&early_secret, b"ext binder", hash.digest(b"").as_ref())?;
        let finished_key = expand(&binder_key, b"finished", b"")?;
        Some(hash.hmac(&finished_key, &[hash.digest(bound).as_ref()]))
    }
}

/// HKDF-Extract without a salt (RFC 5869, section 2.2).
fn extract(hash: HashFunction, secret: &[u8]) -> Zeroizing<Vec<u8>> {
    let zeros = [0; 64];
    Zeroizing::new(hash.hmac(&zeros[..hash.output_bytes()], &[secret]).as_ref().to_vec())
}

/// HKDF-Expand-Label of as many bytes as the hash function gives (RFC 5869, section 2.3, which is one round then).
fn expand_label(
    hash: HashFunction,
    secret: &[u8],
    label: &[u8],
    context: &[u8],
    form: LabelForm,
) -> Option<Zeroizing<Vec<u8>>> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = hash.output_bytes() as u16;
    let expanded = match form {
        LabelForm::Standard if context.len() > CONTEXT_BYTES_MAX => return None,
        LabelForm::Standard => {
            let (label_bytes, context_bytes) = ((PREFIX.len() + label.len()) as u8, context.len() as u8);
            let length = length.to_be_bytes();
            let parts = [&length[..], &[label_bytes], PREFIX, label, &[context_bytes], context, &[1]];
            hash.hmac(secret, &parts)
        }
        LabelForm::OldLibnvme => hash.hmac(secret, &[&length.to_le_bytes(), PREFIX, label, context, &[1]]),
    };
    Some(Zeroizing::new(expanded.as_ref().to_vec()))
}
