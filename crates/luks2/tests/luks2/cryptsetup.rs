//! The program `cryptsetup` and a file that it takes for a device.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use atoll_luks2::{HEADER_BYTES, Luks2Error, Luks2Header};

/// The device's size: the header, and a little data.
pub const DEVICE_BYTES: u64 = HEADER_BYTES as u64 + (4 << 20);

/// Makes `cryptsetup`'s own key derivations quick.
pub const QUICK_ARGON2ID: &[&str] =
    &["--pbkdf=argon2id", "--pbkdf-memory=64", "--pbkdf-force-iterations=4", "--pbkdf-parallel=1"];

/// A device in a temporary file.
pub struct Device {
    directory: tempfile::TempDir,
}

impl Device {
    /// An empty one of `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let device = Device { directory };
        fs::File::create(device.path()).unwrap().set_len(bytes).unwrap();
        device
    }

    /// One that begins with `header`.
    pub fn with_header(header: &[u8]) -> Self {
        let device = Device::new(DEVICE_BYTES);
        device.write(0, header);
        device
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("device")
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        fs::OpenOptions::new().write(true).open(self.path()).unwrap().write_all_at(bytes, offset).unwrap();
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fs::File::open(self.path()).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    /// The header as our code reads it.
    pub fn header(&self) -> Result<Luks2Header, Luks2Error> {
        Luks2Header::read(&self.read(0, HEADER_BYTES))
    }

    /// A file with a passphrase, for options that want one.
    pub fn key_file(&self, passphrase: &str) -> PathBuf {
        let path = self.directory.path().join(format!("key-{passphrase}"));
        fs::write(&path, passphrase).unwrap();
        path
    }

    /// Runs `cryptsetup` with these arguments, then the device, then `more`; `stdin` is where it reads the
    /// existing passphrase. It must succeed; returns its output.
    pub fn cryptsetup(&self, arguments: &[&str], more: &[&Path], stdin: &str) -> String {
        let output = self.try_cryptsetup(arguments, more, stdin);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cryptsetup {arguments:?}: {}\n{text}{errors}", output.status);
        text
    }

    /// Returns true if `passphrase` opens a keyslot in `cryptsetup`.
    pub fn cryptsetup_opens(&self, passphrase: &str) -> bool {
        let output = self.try_cryptsetup(&["open", "--test-passphrase", "--key-file=-"], &[], passphrase);
        match output.status.code() {
            Some(0) => true,
            Some(2) => false, // "no permission (bad passphrase)"
            _ => panic!("cryptsetup open: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)),
        }
    }

    fn try_cryptsetup(&self, arguments: &[&str], more: &[&Path], stdin: &str) -> Output {
        let device = self.path();
        let paths = std::iter::once(device.as_path()).chain(more.iter().copied()).map(Path::as_os_str);
        let mut child = Command::new(program())
            .args(["--batch-mode", "--disable-locks"].map(OsStr::new))
            .args(arguments)
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cryptsetup runs; `make test-packages` installs it");
        // A program that wants no passphrase may be gone already.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }
}

/// Debian has it where the path of ordinary users does not lead.
fn program() -> &'static str {
    if Path::new("/usr/sbin/cryptsetup").exists() { "/usr/sbin/cryptsetup" } else { "cryptsetup" }
}
