//! The JSON of a header (LUKS2 On-Disk Format Specification 1.1, chapter 3), as it is stored.
//!
//! What stands under each number is read only when it is needed: a keyslot of a kind that is
//! unknown here must not keep the others from being used.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{KeyDerivation, Luks2Error, Luks2Hash};

/// The only cipher there is here, for segments and keyslot areas.
pub(super) const ENCRYPTION: &str = "aes-xts-plain64";

/// Objects by their number, which JSON has as text.
pub(super) type Numbered = BTreeMap<String, Value>;

#[derive(Serialize, Deserialize)]
pub(super) struct Metadata {
    pub(super) keyslots: Numbered,
    #[serde(default)]
    pub(super) tokens: Numbered,
    pub(super) segments: Numbered,
    pub(super) digests: Numbered,
    pub(super) config: Config,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) json_size: DecimalText,
    pub(super) keyslots_size: DecimalText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) requirements: Option<Requirements>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Requirements {
    #[serde(default)]
    pub(super) mandatory: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Segment {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) offset: DecimalText,
    pub(super) size: SegmentSize,
    pub(super) iv_tweak: DecimalText,
    pub(super) encryption: String,
    pub(super) sector_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) integrity: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) flags: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Digest {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) keyslots: Vec<String>,
    pub(super) segments: Vec<String>,
    pub(super) hash: Luks2Hash,
    pub(super) iterations: u32,
    pub(super) salt: Base64,
    pub(super) digest: Base64,
}

/// The part of a digest that every kind has.
#[derive(Deserialize)]
pub(super) struct DigestUse {
    pub(super) segments: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Keyslot {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) key_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<u8>,
    pub(super) af: AntiForensic,
    pub(super) area: Area,
    pub(super) kdf: Kdf,
}

#[derive(Serialize, Deserialize)]
pub(super) struct AntiForensic {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) stripes: usize,
    pub(super) hash: Luks2Hash,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Area {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) offset: DecimalText,
    pub(super) size: DecimalText,
    pub(super) encryption: String,
    pub(super) key_size: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Kdf {
    #[serde(flatten)]
    pub(super) derivation: KeyDerivation,
    pub(super) salt: Base64,
}

/// Reads `value`, which is `what`.
pub(super) fn parse<T: DeserializeOwned>(what: &str, value: &Value) -> Result<T, Luks2Error> {
    T::deserialize(value).map_err(|error| Luks2Error::damaged(format!("{what}: {error}")))
}

/// 64 bits, which LUKS2 has as decimal text because JSON's numbers are too short in many programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecimalText(pub(super) u64);

impl Serialize for DecimalText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DecimalText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_decimal);
        number.map(DecimalText).ok_or_else(|| D::Error::custom(format!("'{text}' is not a number of 64 bits")))
    }
}

/// The length of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentSize {
    /// To the end of the device.
    Dynamic,
    Bytes(u64),
}

impl Serialize for SegmentSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SegmentSize::Dynamic => serializer.serialize_str("dynamic"),
            SegmentSize::Bytes(bytes) => DecimalText(*bytes).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for SegmentSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value == "dynamic" {
            return Ok(SegmentSize::Dynamic);
        }
        DecimalText::deserialize(value).map(|bytes| SegmentSize::Bytes(bytes.0)).map_err(D::Error::custom)
    }
}

/// Bytes, as base64.
pub(super) struct Base64(pub(super) Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map(Base64).map_err(D::Error::custom)
    }
}
