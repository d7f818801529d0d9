//! LUKS2 at rest: a header is made on a device or one is unlocked. From then on the file encrypts
//! and decrypts by itself, and its offset 0 is the first byte of data behind the header.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_keys::{KeyError, KeyService, SecretKey, fill_random};
use atoll_luks2::{HEADER_BYTES, KeyDerivation, KmsToken, Luks2Error, Luks2Header, VolumeCipher, VolumeKey};
use atoll_reactor::{DirectFile, SectorCipher};
use zeroize::Zeroizing;

use super::DeviceError;

/// The magic bytes of a store's devices that are not encrypted, and where they are. Clients decide
/// about some bytes further on, so these are looked at first: no client can make a plain device
/// look like a LUKS2 volume.
const PLAIN_MARKS: [(usize, &[u8]); 3] = [(0, b"ATOLSTOR"), (BLOCK_BYTES, b"ATOLSTOR"), (0, b"ATOLWAL2")];

/// Secret that opens the LUKS2 headers of an OSD's devices.
#[derive(Clone)]
pub enum DeviceKey {
    /// A passphrase, or the content of a key file.
    Passphrase(Zeroizing<Vec<u8>>),
    /// Each device has a random passphrase, which its header has wrapped by this service.
    KeyService(Arc<dyn KeyService>),
}

impl DeviceKey {
    /// Returns a random passphrase that is never stored: for measurements on a device whose content is worthless
    /// afterwards.
    pub fn ephemeral() -> Self {
        DeviceKey::Passphrase(Zeroizing::new(SecretKey::random().expose().to_vec()))
    }
}

/// Why a device was not encrypted or unlocked.
#[derive(Debug, thiserror::Error)]
pub enum AtRestError {
    /// It cannot be taken, read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its header is not as it must be, or the passphrase is wrong.
    #[error("cannot unlock {}: {reason}", path.display())]
    Header {
        /// The device.
        path: PathBuf,
        /// Why.
        reason: Luks2Error,
    },
    /// It is encrypted, and no secret is named that unlocks it.
    #[error(
        "{} is encrypted (LUKS2 volume {uuid}) and no secret is named that unlocks it; name one in at-rest.json \
         beside the OSD's device (docs/guide/devices.md), or for once with --passphrase-file, --key-file or \
         --kms of 'atoll osd run'",
        path.display()
    )]
    NoKey {
        /// The device.
        path: PathBuf,
        /// The volume's UUID.
        uuid: String,
    },
    /// It is not encrypted although it should be.
    #[error(
        "{} is not encrypted, or its LUKS2 header was overwritten, but something to unlock it was named; is this the \
         right device? A header that is lost comes back with `cryptsetup luksHeaderRestore`; if the device is meant to \
         be plain, remove at-rest.json beside the OSD's device",
        path.display()
    )]
    NotEncrypted {
        /// The device.
        path: PathBuf,
    },
    /// The key service is to unlock it but its header has nothing for the service.
    #[error(
        "the LUKS2 header of {} has no token 'atoll-kms', so the key service cannot unlock it; name the passphrase with \
         --passphrase-file or --key-file, or in at-rest.json beside the OSD's device",
        path.display()
    )]
    NoToken {
        /// The device.
        path: PathBuf,
    },
    /// The key service did not wrap or unwrap its passphrase.
    #[error("the key service has no passphrase for {}: {reason}", path.display())]
    KeyService {
        /// The device.
        path: PathBuf,
        /// Why.
        reason: KeyError,
    },
}

struct LuksCipher(VolumeCipher);

impl SectorCipher for LuksCipher {
    fn encrypt_into(&mut self, offset: u64, plain: &[u8], sealed: &mut [u8]) {
        self.0.encrypt_into(offset, plain, sealed);
    }

    fn decrypt(&mut self, offset: u64, bytes: &mut [u8]) {
        self.0.decrypt(offset, bytes);
    }
}

/// Makes `file` a new LUKS2 volume with a random volume key, and gives it back as the plain data behind the
/// header. The device's former content is lost. `path` is for messages. Not for async tasks: it may wait for the
/// key service.
pub fn encrypt_device(path: &Path, file: DirectFile, key: &DeviceKey) -> Result<DirectFile, AtRestError> {
    if file.size_bytes() <= HEADER_BYTES as u64 {
        let text = format!("it has {} bytes; a LUKS2 header alone takes {HEADER_BYTES}", file.size_bytes());
        return Err(device_error(path, io::Error::new(io::ErrorKind::InvalidInput, text)).into());
    }
    let uuid = random_uuid();
    let (passphrase, token) = match key {
        DeviceKey::Passphrase(passphrase) => (passphrase.clone(), None),
        DeviceKey::KeyService(service) => {
            let passphrase = SecretKey::random();
            let context = wrap_context(&Luks2Header::uuid_text(uuid));
            let wrapped_passphrase = ask(path, service.wrap(&context, &passphrase))?;
            (Zeroizing::new(passphrase.expose().to_vec()), Some(KmsToken { wrapped_passphrase }))
        }
    };
    let header_error = |reason| AtRestError::Header { path: path.to_owned(), reason };
    let (bytes, volume_key) =
        Luks2Header::create(KeyDerivation::MODEST, &passphrase, uuid, token.as_ref(), fill_random)
            .map_err(header_error)?;
    let write = || {
        file.write_at(0, BlockBuffer::from_bytes(&bytes).as_slice())?;
        file.sync()
    };
    write().map_err(|reason| device_error(path, reason))?;
    let header = Luks2Header::read(&bytes).map_err(header_error)?;
    volume(file, &header, &volume_key).map_err(header_error)
}

/// The plain data of a device. One with a LUKS2 header needs the key, one without must have none.
pub(super) fn unlock(path: &Path, file: DirectFile, key: Option<&DeviceKey>) -> Result<DirectFile, AtRestError> {
    let front_bytes = file.size_bytes().min(HEADER_BYTES as u64) as usize;
    let front = file.read_at(0, front_bytes / BLOCK_BYTES).map_err(|reason| device_error(path, reason))?;
    let front = front.as_slice();
    let is_plain =
        PLAIN_MARKS.iter().any(|(at, mark)| front.get(*at..).is_some_and(|rest| rest.starts_with(mark)));
    let header = if is_plain { Err(Luks2Error::NotLuks2) } else { Luks2Header::read(front) };
    let header_error = |reason| AtRestError::Header { path: path.to_owned(), reason };
    match (header, key) {
        (Err(Luks2Error::NotLuks2), None) => Ok(file),
        (Err(Luks2Error::NotLuks2), Some(_)) => Err(AtRestError::NotEncrypted { path: path.to_owned() }),
        (Err(reason), _) => Err(header_error(reason)),
        (Ok(header), None) => Err(AtRestError::NoKey { path: path.to_owned(), uuid: header.uuid().to_owned() }),
        (Ok(header), Some(key)) => {
            if header.is_degraded() {
                tracing::warn!(
                    "one of the two copies of the LUKS2 header of {} is damaged; the other one is used. Stop the OSD and \
                     repair it with `cryptsetup repair`",
                    path.display()
                );
            }
            let passphrase = passphrase(path, &header, key)?;
            let volume_key = header.unlock(&passphrase).map_err(header_error)?;
            volume(file, &header, &volume_key).map_err(header_error)
        }
    }
}

fn passphrase(path: &Path, header: &Luks2Header, key: &DeviceKey) -> Result<Zeroizing<Vec<u8>>, AtRestError> {
    match key {
        DeviceKey::Passphrase(passphrase) => Ok(passphrase.clone()),
        DeviceKey::KeyService(service) => {
            let no_token = || AtRestError::NoToken { path: path.to_owned() };
            let token = header.kms_token().ok_or_else(no_token)?;
            let context = wrap_context(header.uuid());
            let passphrase = ask(path, service.unwrap(&context, &token.wrapped_passphrase))?;
            Ok(Zeroizing::new(passphrase.expose().to_vec()))
        }
    }
}

/// Returns the context of the wrapped passphrase of a volume, so that it serves no other purpose.
fn wrap_context(uuid: &str) -> String {
    format!("luks2 {uuid}")
}

/// Waits for the key service, which is needed before there is an event loop.
fn ask<T>(path: &Path, answer: impl Future<Output = Result<T, KeyError>>) -> Result<T, AtRestError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|reason| device_error(path, reason))?;
    runtime.block_on(answer).map_err(|reason| AtRestError::KeyService { path: path.to_owned(), reason })
}

fn volume(file: DirectFile, header: &Luks2Header, key: &VolumeKey) -> Result<DirectFile, Luks2Error> {
    if header.segment_bytes().is_some() {
        // A store uses the whole device; beyond the segment its data would be lost to cryptsetup.
        return Err(Luks2Error::Unsupported { what: "a data segment that does not reach to the end".into() });
    }
    let cipher = LuksCipher(header.volume_cipher(key));
    Ok(file.with_cipher(Box::new(cipher), header.data_offset_bytes()))
}

/// A random UUID, version 4 (RFC 9562).
fn random_uuid() -> [u8; 16] {
    let mut uuid: [u8; 16] = atoll_keys::random_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn device_error(path: &Path, reason: io::Error) -> DeviceError {
    DeviceError { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests;
