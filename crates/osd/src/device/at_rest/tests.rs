//! LUKS2 volumes on files: a formatted one opens with its key only, and nothing on it is plain.

use std::fs;
use std::os::unix::fs::FileExt;

use atoll_keys::LocalKeys;
use atoll_store::{DEVICE_BYTES_MIN, OpenError, Store};

use super::*;
use crate::device::{BlockingDevice, FormatError, FormatRequest, LOG_DEVICE_BYTES_MIN, format_device, make_file};

const HEADER: u64 = HEADER_BYTES as u64;

struct Files {
    directory: tempfile::TempDir,
    data: PathBuf,
    log: PathBuf,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (data, log) = (directory.path().join("data"), directory.path().join("log"));
        make_file(&data, DEVICE_BYTES_MIN + HEADER).unwrap();
        make_file(&log, LOG_DEVICE_BYTES_MIN + HEADER).unwrap();
        Files { directory, data, log }
    }

    fn format(&self, encrypt: Option<&DeviceKey>, wipe: bool) -> Result<(), FormatError> {
        let (device, log_device) = (&self.data, Some(self.log.as_path()));
        let request =
            FormatRequest { device, log_device, wal_bytes: None, store_id: *b"store-id-in-full", wipe, encrypt };
        let formatted = format_device(&request)?;
        let header_bytes = if encrypt.is_some() { 0 } else { HEADER };
        assert_eq!(formatted.device_bytes, DEVICE_BYTES_MIN + header_bytes);
        assert_eq!(formatted.log_device_bytes, Some(LOG_DEVICE_BYTES_MIN + header_bytes));
        Ok(())
    }

    fn unlock(&self, key: Option<&DeviceKey>) -> Result<BlockingDevice, AtRestError> {
        BlockingDevice::open(&self.data, Some(&self.log))?.unlock(key)
    }

    fn open(&self, key: Option<&DeviceKey>) -> Result<(), OpenError> {
        Store::open(&mut self.unlock(key).unwrap(), 1).map(|_| ())
    }

    fn key_service(&self, name: &str) -> DeviceKey {
        DeviceKey::KeyService(Arc::new(LocalKeys::create(&self.directory.path().join(name)).unwrap()))
    }
}

fn passphrase(text: &str) -> DeviceKey {
    DeviceKey::Passphrase(Zeroizing::new(text.into()))
}

fn refusal(result: Result<BlockingDevice, AtRestError>) -> AtRestError {
    result.err().unwrap()
}

fn contains(path: &Path, needle: &[u8]) -> bool {
    fs::read(path).unwrap().windows(needle.len()).any(|window| window == needle)
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_store_in_volumes_opens_with_its_passphrase_only() {
    let files = Files::new();
    let right = passphrase("right");
    files.format(Some(&right), false).unwrap();
    files.open(Some(&right)).unwrap();
    assert!(!contains(&files.data, b"store-id-in-full") && !contains(&files.log, b"store-id-in-full"));

    let wrong = refusal(files.unlock(Some(&passphrase("wrong"))));
    assert!(matches!(wrong, AtRestError::Header { reason: Luks2Error::WrongPassphrase { .. }, .. }), "{wrong}");
    let none = refusal(files.unlock(None)).to_string();
    assert!(none.contains("is encrypted") && none.contains("--passphrase-file"), "{none}");
    let service = refusal(files.unlock(Some(&files.key_service("kms"))));
    assert!(matches!(service, AtRestError::NoToken { .. }), "{service}");

    let front = |path: &Path| Luks2Header::read(&fs::read(path).unwrap()[..HEADER_BYTES]).unwrap();
    let volume_key = |path: &Path| front(path).unlock(b"right").unwrap();
    assert!(volume_key(&files.data) != volume_key(&files.log), "each device has a volume key of its own");
}

#[test]
fn the_key_service_unlocks_what_it_has_wrapped() {
    let files = Files::new();
    let service = files.key_service("kms");
    files.format(Some(&service), false).unwrap();
    files.open(Some(&service)).unwrap();
    let error = refusal(files.unlock(Some(&files.key_service("other"))));
    assert!(matches!(error, AtRestError::KeyService { .. }), "{error}");
}

#[test]
fn a_plain_device_is_not_taken_for_an_encrypted_one_nor_the_other_way_around() {
    let files = Files::new();
    files.format(None, false).unwrap();
    assert!(contains(&files.data, b"store-id-in-full"), "the search finds what is plain");
    let error = refusal(files.unlock(Some(&passphrase("x"))));
    assert!(matches!(error, AtRestError::NotEncrypted { .. }), "{error}");
    // The log begins near here, and clients decide what is in it.
    overwrite(&files.data, 16 << 10, b"SKUL\xba\xbe\0\x02");
    files.unlock(None).unwrap();
}

#[test]
fn one_damaged_copy_of_a_header_is_survived_and_two_are_named() {
    let files = Files::new();
    let key = passphrase("right");
    files.format(Some(&key), false).unwrap();
    overwrite(&files.data, 5000, &[0xff; 8]);
    files.open(Some(&key)).unwrap();
    overwrite(&files.data, (16 << 10) + 5000, &[0xff; 8]);
    let error = refusal(files.unlock(Some(&key)));
    assert!(matches!(error, AtRestError::Header { reason: Luks2Error::Damaged { .. }, .. }), "{error}");
}

#[test]
fn a_volume_is_not_overwritten_without_wipe_and_both_copies_of_its_header_are_with_it() {
    let files = Files::new();
    files.format(Some(&passphrase("old")), false).unwrap();
    for encrypt in [None, Some(&passphrase("new"))] {
        let error = files.format(encrypt, false).unwrap_err().to_string();
        assert!(error.contains("a LUKS2 volume") && error.contains("--wipe"), "{error}");
    }
    files.format(None, true).unwrap();
    for path in [&files.data, &files.log] {
        let bytes = fs::read(path).unwrap();
        assert!(!bytes.starts_with(b"LUKS") && bytes[16 << 10..][..6] != *b"SKUL\xba\xbe");
    }
    files.open(None).unwrap();
    files.format(Some(&passphrase("new")), true).unwrap();
    files.open(Some(&passphrase("new"))).unwrap();
    refusal(files.unlock(Some(&passphrase("old"))));
}

#[test]
fn a_volume_with_something_else_inside_has_no_store() {
    let files = Files::new();
    let key = DeviceKey::ephemeral();
    for path in [&files.data, &files.log] {
        encrypt_device(path, DirectFile::open(path).unwrap(), &key).unwrap();
    }
    assert!(matches!(files.open(Some(&key)), Err(OpenError::NotAStore)));
    let small = files.directory.path().join("small");
    make_file(&small, HEADER).unwrap();
    let error = encrypt_device(&small, DirectFile::open(&small).unwrap(), &key).err().unwrap();
    assert!(error.to_string().contains("a LUKS2 header alone takes"), "{error}");
}
