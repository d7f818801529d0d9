//! The JSON of a header (LUKS2 On-Disk Format Specification 1.1, chapter 3), as it is stored.
//!
//! The entry under each number is read only when it is needed: a keyslot of an unknown kind must not keep the
//! others from being used.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{KeyDerivation, Luks2Error, Luks2Hash};

/// The only cipher there is here, for segments and keyslot areas.
pub(crate) const ENCRYPTION: &str = "aes-xts-plain64";

/// Objects by their number, which JSON has as text.
pub(crate) type Numbered = BTreeMap<String, Value>;

#[derive(Serialize, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) keyslots: Numbered,
    #[serde(default)]
    pub(crate) tokens: Numbered,
    pub(crate) segments: Numbered,
    pub(crate) digests: Numbered,
    pub(crate) config: Config,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) json_size: DecimalText,
    pub(crate) keyslots_size: DecimalText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requirements: Option<Requirements>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Requirements {
    #[serde(default)]
    pub(crate) mandatory: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Segment {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) offset: DecimalText,
    pub(crate) size: SegmentSize,
    pub(crate) iv_tweak: DecimalText,
    pub(crate) encryption: String,
    pub(crate) sector_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) integrity: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) flags: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Digest {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) keyslots: Vec<String>,
    pub(crate) segments: Vec<String>,
    pub(crate) hash: Luks2Hash,
    pub(crate) iterations: u32,
    pub(crate) salt: Base64,
    pub(crate) digest: Base64,
}

/// The part of a digest that every kind has.
#[derive(Deserialize)]
pub(crate) struct DigestUse {
    pub(crate) segments: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Keyslot {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) key_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<u8>,
    pub(crate) af: AntiForensic,
    pub(crate) area: Area,
    pub(crate) kdf: Kdf,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct AntiForensic {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) stripes: usize,
    pub(crate) hash: Luks2Hash,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Area {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) offset: DecimalText,
    pub(crate) size: DecimalText,
    pub(crate) encryption: String,
    pub(crate) key_size: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Kdf {
    #[serde(flatten)]
    pub(crate) derivation: KeyDerivation,
    pub(crate) salt: Base64,
}

/// Reads `value`, which is `what`.
pub(crate) fn parse<T: DeserializeOwned>(what: &str, value: &Value) -> Result<T, Luks2Error> {
    T::deserialize(value).map_err(|error| Luks2Error::damaged(format!("{what}: {error}")))
}

/// 64 bits, which LUKS2 has as decimal text because JSON's numbers are too short in many programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecimalText(pub(crate) u64);

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
pub(crate) enum SegmentSize {
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
pub(crate) struct Base64(pub(crate) Vec<u8>);

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
