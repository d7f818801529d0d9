//! The file that says which key services a cluster uses, and holds the keys of the local one. Format
//! in docs/reference/formats.md, "Key file".

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_files::{Access, Held, Previous, previous_path};
use serde::{Deserialize, Serialize};

use crate::{DEFAULT_KEY, KeyError, SecretKey, random_bytes};

const FORMAT: u32 = 2;

/// The content of a key file.
#[derive(Clone, Default)]
pub struct KeyFile {
    /// The local keys by name; of each the versions, oldest first.
    pub(crate) keys: BTreeMap<String, Vec<LocalVersion>>,
    /// The Transit service, which then wraps everything new.
    pub transit: Option<TransitSettings>,
}

/// A version of a local key.
#[derive(Clone)]
pub(crate) struct LocalVersion {
    pub id: String,
    pub key: SecretKey,
    pub created_unix_ms: u64,
}

/// Where a Vault or OpenBao Transit engine is, and how to log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransitSettings {
    /// Such as `https://vault.example:8200`.
    pub address: String,
    /// Path of the Transit engine.
    #[serde(default = "default_mount")]
    pub mount: String,
    /// Name of the key for secrets that name no other.
    #[serde(default = "default_key")]
    pub key: String,
    /// Namespace, if the server has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// File with the certificates of the authorities to trust, in place of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// How to log in.
    pub login: TransitLogin,
    /// How long one call may take, with its retries.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

/// How to log in at a Transit service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitLogin {
    /// A file with a token, such as an agent writes; it is read again when it changes.
    TokenFile(PathBuf),
    /// AppRole.
    AppRole {
        /// Path of the method.
        #[serde(default = "default_approle_mount")]
        mount: String,
        /// The role's id.
        role_id: String,
        /// A file with the secret id.
        secret_id_file: PathBuf,
    },
}

fn default_mount() -> String {
    "transit".into()
}

fn default_key() -> String {
    DEFAULT_KEY.into()
}

fn default_timeout_ms() -> u64 {
    5_000
}

fn default_approle_mount() -> String {
    "approle".into()
}

/// Format 1: one key, whose versions were called keys.
#[derive(Deserialize)]
struct ContentV1 {
    current_key_id: String,
    keys: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct ContentV2 {
    format: u32,
    #[serde(default)]
    keys: BTreeMap<String, Vec<VersionContent>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transit: Option<TransitSettings>,
}

#[derive(Serialize, Deserialize)]
struct VersionContent {
    id: String,
    key: String,
    created_unix_ms: u64,
}

#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

impl LocalVersion {
    pub(crate) fn random() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        LocalVersion {
            id: hex::encode(random_bytes::<8>()),
            key: SecretKey::random(),
            created_unix_ms: now.map_or(0, |elapsed| elapsed.as_millis() as u64),
        }
    }

    fn parse(id: String, text: &str, created_unix_ms: u64) -> Result<Self, String> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|error| format!("key {id}: {error}"))?;
        Ok(LocalVersion { id, key: SecretKey::from_bytes(bytes), created_unix_ms })
    }
}

impl KeyFile {
    /// A file with one fresh local key.
    pub fn local() -> Self {
        KeyFile { keys: BTreeMap::from([(DEFAULT_KEY.into(), vec![LocalVersion::random()])]), transit: None }
    }

    /// A file of a Transit service and no local keys.
    pub fn transit(settings: TransitSettings) -> Self {
        KeyFile { keys: BTreeMap::new(), transit: Some(settings) }
    }

    /// Returns true if there are local keys in it.
    pub fn has_local_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Reads a key file.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        Self::from_bytes(path, &fs::read(path).map_err(|error| KeyError::key_file(path, error))?)
    }

    fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, KeyError> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string());
        text.and_then(Self::parse).map_err(|mut detail| {
            let previous = previous_path(path);
            if previous.exists() {
                detail += &format!("; its content before the last change is in {}", previous.display());
            }
            KeyError::Malformed { what: path.display().to_string(), detail }
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let any: AnyFormat = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match any.format {
            1 => Self::parse_v1(serde_json::from_str(text).map_err(|error| error.to_string())?),
            FORMAT => Self::parse_v2(serde_json::from_str(text).map_err(|error| error.to_string())?),
            format => Err(format!("format {format} is newer than this release knows")),
        }
    }

    fn parse_v1(content: ContentV1) -> Result<Self, String> {
        let mut versions = Vec::new();
        for (id, text) in &content.keys {
            versions.push(LocalVersion::parse(id.clone(), text, 0)?);
        }
        // The last version is the one that wraps.
        versions.sort_by_key(|version| version.id == content.current_key_id);
        match versions.last() {
            Some(last) if last.id == content.current_key_id => {}
            _ => return Err("its current key is not in it".into()),
        }
        Ok(KeyFile { keys: BTreeMap::from([(DEFAULT_KEY.into(), versions)]), transit: None })
    }

    fn parse_v2(content: ContentV2) -> Result<Self, String> {
        let mut keys = BTreeMap::new();
        for (name, versions) in content.keys {
            let parse =
                |version: VersionContent| LocalVersion::parse(version.id, &version.key, version.created_unix_ms);
            let versions = versions.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
            if versions.is_empty() {
                return Err(format!("the key '{name}' has no version"));
            }
            keys.insert(name, versions);
        }
        if keys.is_empty() && content.transit.is_none() {
            return Err("there is no key and no service in it".into());
        }
        Ok(KeyFile { keys, transit: content.transit })
    }

    /// The ids of all versions of the local keys.
    pub fn local_ids(&self) -> impl Iterator<Item = &str> {
        self.keys.values().flatten().map(|version| version.id.as_str())
    }

    /// Names of all that is lost with the file: versions of local keys, and how Transit is reached.
    pub fn holds(&self) -> BTreeSet<String> {
        let transit = self.transit.iter().map(|settings| {
            let TransitSettings { address, mount, key, .. } = settings;
            format!("transit:{address}/{mount}/{key}")
        });
        self.local_ids().map(str::to_owned).chain(transit).collect()
    }

    /// Reads the text of a key file, for messages from that path.
    pub fn from_text(path: &Path, text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(path, text.as_bytes())
    }

    fn text(&self) -> String {
        let version = |version: &LocalVersion| VersionContent {
            id: version.id.clone(),
            key: hex::encode(version.key.expose()),
            created_unix_ms: version.created_unix_ms,
        };
        let content = ContentV2 {
            format: FORMAT,
            keys: self.keys.iter().map(|(name, all)| (name.clone(), all.iter().map(version).collect())).collect(),
            transit: self.transit.clone(),
        };
        serde_json::to_string_pretty(&content).expect("a key file is plain JSON")
    }

    /// Writes a new file. An existing one is an error, never overwritten.
    pub fn create(&self, path: &Path) -> Result<(), KeyError> {
        let created = atoll_files::create(path, self.text().as_bytes(), Access::Owner);
        created.map_err(|error| KeyError::key_file(path, error))
    }

    /// Changes the file as it is now; other processes that change it wait meanwhile. The previous content stays
    /// beside it, unless the change removes a key.
    pub fn change<T>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, KeyError>,
    ) -> Result<(Self, T), KeyError> {
        let in_file = |error| KeyError::key_file(path, error);
        let held = Held::open(path).map_err(in_file)?;
        let before = Self::from_bytes(path, held.bytes().ok_or_else(|| in_file(ErrorKind::NotFound.into()))?)?;
        let mut file = before.clone();
        let result = change(&mut file)?;
        if file.text() != before.text() {
            Self::from_bytes(path, file.text().as_bytes())?;
            let loses_none = before.local_ids().all(|id| file.local_ids().any(|kept| kept == id));
            let previous = if loses_none { Previous::Kept } else { Previous::Destroyed };
            held.replace(file.text().as_bytes(), Access::Owner, previous).map_err(in_file)?;
        }
        Ok((file, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_1_is_read_and_its_current_key_wraps() {
        let (old, current) = ("11".repeat(32), "22".repeat(32));
        let text = format!(r#"{{"format":1,"current_key_id":"aa","keys":{{"aa":"{current}","bb":"{old}"}}}}"#);
        let file = KeyFile::parse(&text).unwrap();
        let ids: Vec<&str> = file.keys[DEFAULT_KEY].iter().map(|version| version.id.as_str()).collect();
        assert_eq!(ids, ["bb", "aa"]);
        assert!(KeyFile::parse(&text.replace("\"current_key_id\":\"aa\"", "\"current_key_id\":\"cc\"")).is_err());
        assert!(KeyFile::parse(&text.replace("\"format\":1", "\"format\":3")).is_err());
    }

    #[test]
    fn settings_come_back() {
        let mut file = KeyFile::local();
        file.transit = Some(TransitSettings {
            address: "https://127.0.0.1:8200".into(),
            mount: default_mount(),
            key: default_key(),
            namespace: Some("team".into()),
            ca_file: None,
            login: TransitLogin::TokenFile("/run/token".into()),
            timeout_ms: 1_000,
        });
        let again = KeyFile::parse(&file.text()).unwrap();
        assert_eq!(again.text(), file.text());
        assert!(KeyFile::parse(r#"{"format":2}"#).is_err());
    }
}
