//! Formatting files: a refused one is unchanged, and a formatted one opens.

use super::*;

const SIZE_BYTES: u64 = DEVICE_BYTES_MIN;

struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Files { directory: tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make(&self, name: &str, size_bytes: u64) -> PathBuf {
        make_file(&self.path(name), size_bytes).unwrap();
        self.path(name)
    }
}

fn format(device: &Path, log_device: Option<&Path>, wipe: bool) -> Result<Formatted, FormatError> {
    format_device(&FormatRequest {
        device,
        log_device,
        wal_bytes: None,
        store_id: [0xcd; 16],
        wipe,
        encrypt: None,
    })
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn read_at(path: &Path, offset: u64) -> [u8; 8] {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 8];
    fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn an_empty_file_is_formatted_once_and_then_only_with_wipe() {
    let files = Files::new();
    let device = files.make("device", SIZE_BYTES);
    assert_eq!(format(&device, None, false).unwrap().device_bytes, SIZE_BYTES);
    let error = format(&device, None, false).unwrap_err().to_string();
    assert!(error.contains(&format!("the Atoll store {}", "cd".repeat(16))), "{error}");
    assert!(error.contains("--wipe"), "{error}");
    format(&device, None, true).unwrap();
    let mut opened = BlockingDevice::open(&device, None).unwrap();
    Store::open(&mut opened, 1).unwrap();
    assert!(make_file(&device, SIZE_BYTES).is_err(), "a file that exists is not made anew");
}

#[test]
fn a_device_that_is_refused_is_not_written_and_neither_is_the_other() {
    let files = Files::new();
    let (device, log) = (files.make("device", SIZE_BYTES), files.make("log", LOG_DEVICE_BYTES_MIN));
    write_at(&log, 0, b"precious");
    let error = format(&device, Some(&log), false).unwrap_err();
    assert!(matches!(&error, FormatError::Occupied { path, .. } if *path == log), "{error}");
    assert_eq!((read_at(&device, 0), &read_at(&log, 0)), ([0; 8], b"precious"));

    let small = files.make("small", LOG_DEVICE_BYTES_MIN - 1);
    let error = format(&device, Some(&small), true).unwrap_err();
    assert!(matches!(error, FormatError::TooSmall { .. }), "{error}");
    assert_eq!(read_at(&device, 0), [0; 8]);
}

#[test]
fn wiping_clears_both_ends_and_copies_of_superblocks() {
    let files = Files::new();
    let (device, log) = (files.make("device", SIZE_BYTES), files.make("log", LOG_DEVICE_BYTES_MIN));
    for offset in [64 << 20, SIZE_BYTES - 512] {
        write_at(&device, offset, b"precious");
    }
    write_at(&log, LOG_DEVICE_BYTES_MIN - 8, b"precious");
    let formatted = format(&device, Some(&log), true).unwrap();
    assert_eq!(formatted.log_device_bytes, Some(LOG_DEVICE_BYTES_MIN));
    assert_eq!((read_at(&device, 64 << 20), read_at(&device, SIZE_BYTES - 512)), ([0; 8], [0; 8]));
    assert_eq!(read_at(&log, LOG_DEVICE_BYTES_MIN - 8), [0; 8]);
}

#[test]
fn data_and_log_on_one_device_and_a_device_in_use_are_refused() {
    let files = Files::new();
    let device = files.make("device", SIZE_BYTES);
    let other_name = files.path("other-name");
    std::os::unix::fs::symlink(&device, &other_name).unwrap();
    let error = format(&device, Some(&other_name), true).unwrap_err();
    assert!(matches!(error, FormatError::SameDevice(..)), "{error}");
    let _taken = BlockingDevice::open(&device, None).unwrap();
    let error = format(&device, None, true).unwrap_err();
    assert!(error.to_string().contains("another process uses this device"), "{error}");
    let error = format(&files.path("none"), None, true).unwrap_err().to_string();
    assert!(error.contains("none") && error.contains("No such file"), "{error}");
}
