//! Secrets that unlock an OSD's devices: chosen when they are made, remembered as `osd-N/at-rest.json`, and looked
//! up by the OSD when it starts. Passphrases themselves are never remembered.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_keys::{KeyFile, KeyRing, TransitSettings};
use atoll_osd::DeviceKey;
use atoll_types::OsdId;
use atoll_types::records::RECORD_FORMAT;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::json_files::{read_json, write_json};

/// Most bytes of a key file or passphrase, as with `cryptsetup`.
const KEY_BYTES_MAX: u64 = 8 << 20;

/// Where the passphrase of LUKS2 volumes comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnlockWith {
    /// The first line of this file, without the line feed (byte 10) that ends it. `cryptsetup` takes the same
    /// bytes from a terminal or from standard input.
    PassphraseFile(PathBuf),
    /// All bytes of this file, a line feed at its end included, as `cryptsetup --key-file` has it.
    KeyFile(PathBuf),
    /// The cluster's key service, with the wrapped secret in the header of each device.
    Kms,
}

/// `at-rest.json`.
#[derive(Serialize, Deserialize)]
struct AtRestFile {
    format: u32,
    unlock_with: UnlockWith,
}

impl UnlockWith {
    /// The same with absolute paths, which hold wherever the OSD is started from.
    pub(crate) fn with_absolute_paths(self) -> Result<Self, NodeError> {
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(NodeError::file(path));
        Ok(match self {
            UnlockWith::PassphraseFile(path) => UnlockWith::PassphraseFile(absolute(path)?),
            UnlockWith::KeyFile(path) => UnlockWith::KeyFile(absolute(path)?),
            UnlockWith::Kms => UnlockWith::Kms,
        })
    }

    /// Reads the file, or opens the key service.
    pub fn device_key(&self, directory: &DataDir) -> Result<DeviceKey, NodeError> {
        let (path, mut bytes) = match self {
            UnlockWith::Kms => {
                let service = KeyRing::open(&directory.key_service_file())?;
                return Ok(DeviceKey::KeyService(Arc::new(service)));
            }
            UnlockWith::KeyFile(path) => (path, read_secret(path)?),
            UnlockWith::PassphraseFile(path) => {
                let mut bytes = read_secret(path)?;
                let line_bytes = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
                bytes.truncate(line_bytes);
                (path, bytes)
            }
        };
        if bytes.is_empty() {
            return Err(NodeError::Invalid(format!("{} holds no passphrase; it is empty", path.display())));
        }
        Ok(DeviceKey::Passphrase(std::mem::take(&mut bytes)))
    }
}

fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, NodeError> {
    let mut file = File::open(path).map_err(NodeError::file(path))?;
    let too_long = || {
        NodeError::Invalid(format!(
            "{} has more than {KEY_BYTES_MAX} bytes; is it the right file?",
            path.display()
        ))
    };
    // Room for all of it at once: a vector that grows leaves copies behind that are not wiped.
    let file_bytes = file.metadata().map_err(NodeError::file(path))?.len();
    if file_bytes > KEY_BYTES_MAX {
        return Err(too_long());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(file_bytes as usize + 1));
    (&mut file).take(KEY_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(NodeError::file(path))?;
    if bytes.len() as u64 > KEY_BYTES_MAX { Err(too_long()) } else { Ok(bytes) }
}

/// The OSD whose device this is: by its name, `osd-N/device` in a data directory, or because this data directory has a
/// link to it.
pub fn osd_of_device(device: &Path, directory: &DataDir) -> Option<(DataDir, OsdId)> {
    let by_name = || {
        let absolute = std::path::absolute(device).ok()?;
        let folder = absolute.parent().filter(|_| absolute.ends_with("device"))?;
        let number = folder.file_name()?.to_str()?.strip_prefix("osd-")?.parse().ok()?;
        Some((DataDir::new(folder.parent()?), OsdId(number)))
    };
    let by_link = || {
        let target = fs::canonicalize(device).ok()?;
        let is_same = |osd: &OsdId| fs::canonicalize(directory.device(*osd)).is_ok_and(|found| found == target);
        let osd = directory.prepared_osds().into_iter().find(is_same)?;
        Some((directory.clone(), osd))
    };
    by_name().or_else(by_link)
}

impl DataDir {
    pub(crate) fn at_rest_file(&self, osd: OsdId) -> PathBuf {
        self.osd(osd).join("at-rest.json")
    }

    /// Returns the secret that unlocks an OSD's devices; none if they are not encrypted.
    pub fn unlock_with(&self, osd: OsdId) -> Result<Option<UnlockWith>, NodeError> {
        let path = self.at_rest_file(osd);
        if !path.exists() {
            return Ok(None);
        }
        let file: AtRestFile = read_json(&path)?;
        if file.format != RECORD_FORMAT {
            let detail = format!("format {} is newer than this release knows", file.format);
            return Err(NodeError::Malformed { path, detail });
        }
        Ok(Some(file.unlock_with))
    }

    /// Remembers the secret that unlocks an OSD's devices, or that none is needed.
    pub(crate) fn remember_unlock(&self, osd: OsdId, choice: Option<&UnlockWith>) -> Result<(), NodeError> {
        let path = self.at_rest_file(osd);
        match choice {
            Some(choice) => write_json(&path, &AtRestFile { format: RECORD_FORMAT, unlock_with: choice.clone() }),
            None if path.exists() => fs::remove_file(&path).map_err(NodeError::file(path)),
            None => Ok(()),
        }
    }

    /// Makes the key service's file of a cluster that is being made: of a Transit service, or with a local key. One
    /// that is there already stays.
    pub(crate) fn make_key_service(&self, transit: Option<&TransitSettings>) -> Result<(), NodeError> {
        let path = self.key_service_file();
        if path.exists() {
            return self.check_transit(transit);
        }
        let file = transit.map_or_else(KeyFile::local, |wanted| KeyFile::transit(wanted.clone()));
        Ok(file.create(&path)?)
    }

    /// Refuses another Transit service than the one that the key service's file names.
    pub(crate) fn check_transit(&self, transit: Option<&TransitSettings>) -> Result<(), NodeError> {
        let path = self.key_service_file();
        let Some(wanted) = transit.filter(|_| path.exists()) else { return Ok(()) };
        if KeyFile::read(&path)?.transit.as_ref() == Some(wanted) {
            return Ok(());
        }
        Err(NodeError::Invalid(format!(
            "{} says otherwise where keys are; leave the --kms options out, or change it with 'atoll key use-transit'",
            path.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passphrases_are_first_lines_and_key_files_are_whole() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(temporary.path());
        let path = temporary.path().join("secret");
        let read = |choice: UnlockWith| match choice.device_key(&directory)? {
            DeviceKey::Passphrase(bytes) => Ok::<_, NodeError>(bytes.to_vec()),
            DeviceKey::KeyService(_) => panic!("it is a file"),
        };
        let cases: [(&[u8], &[u8]); 4] =
            [(b"one", b"one"), (b"one\n", b"one"), (b"one\r\ntwo\n", b"one\r"), (b" \xff \n\n", b" \xff ")];
        for (content, passphrase) in cases {
            fs::write(&path, content).unwrap();
            assert_eq!(read(UnlockWith::PassphraseFile(path.clone())).unwrap(), passphrase);
            assert_eq!(read(UnlockWith::KeyFile(path.clone())).unwrap(), content);
        }
        fs::write(&path, b"\n").unwrap();
        assert!(read(UnlockWith::PassphraseFile(path.clone())).unwrap_err().to_string().contains("no passphrase"));
        File::options().write(true).open(&path).unwrap().set_len(KEY_BYTES_MAX + 1).unwrap();
        assert!(read(UnlockWith::KeyFile(path)).unwrap_err().to_string().contains("more than"));
        assert!(read(UnlockWith::KeyFile("/dev/zero".into())).unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn choices_are_remembered_and_forgotten() {
        let temporary = tempfile::tempdir().unwrap();
        let (directory, osd) = (DataDir::new(temporary.path()), OsdId(3));
        directory.create_osd(osd).unwrap();
        assert_eq!(directory.unlock_with(osd).unwrap(), None);
        for choice in [UnlockWith::Kms, UnlockWith::KeyFile("/a/b".into())] {
            directory.remember_unlock(osd, Some(&choice)).unwrap();
            assert_eq!(directory.unlock_with(osd).unwrap(), Some(choice));
        }
        let text = fs::read_to_string(directory.at_rest_file(osd)).unwrap();
        assert!(text.contains(r#""key_file": "/a/b""#), "what operators edit is as documented: {text}");
        directory.remember_unlock(osd, None).unwrap();
        assert_eq!(directory.unlock_with(osd).unwrap(), None);
    }

    #[test]
    fn a_device_is_known_by_its_name_and_by_a_link_to_it() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(&temporary.path().join("data"));
        directory.create_osd(OsdId(3)).unwrap();
        let device = temporary.path().join("disk");
        fs::write(&device, "").unwrap();
        let other = DataDir::new(&temporary.path().join("other"));
        assert!(osd_of_device(&device, &directory).is_none());
        std::os::unix::fs::symlink(&device, directory.device(OsdId(3))).unwrap();
        let found = |path: &Path, directory: &DataDir| {
            osd_of_device(path, directory).map(|(directory, osd)| (directory.root().to_owned(), osd))
        };
        let expected = Some((directory.root().to_owned(), OsdId(3)));
        assert_eq!(found(&device, &directory), expected);
        assert_eq!(found(&directory.device(OsdId(3)), &other), expected);
        assert_eq!(found(&device, &other), None);
    }
}
