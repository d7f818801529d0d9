//! Backups that only who has a passphrase or an age identity can open. The format is age's,
//! <https://age-encryption.org/v1>, so other programs open them, too.

use std::path::Path;

use age::secrecy::SecretString;
use age::{Encryptor, Recipient, scrypt, x25519};
use zeroize::Zeroizing;

use crate::error::NodeError;

/// How an encrypted file begins.
const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// The cost of a passphrase that is accepted of a file: four seconds and 1 GiB of memory at most.
const WORK_MAX_LOG2: u8 = 20;
const PASSPHRASE_CHARS_MIN: usize = 12;

/// How a backup is protected.
pub enum BackupSeal {
    /// Without encryption: the holder of the file has all secrets in it.
    Clear,
    /// By a passphrase.
    Passphrase(Zeroizing<String>),
    /// For the holder of an identity of one of these age recipients, `age1...`.
    Recipients(Vec<String>),
}

/// Secrets that open a backup.
#[derive(Default)]
pub struct BackupOpener {
    /// The passphrase that it was made with.
    pub passphrase: Option<Zeroizing<String>>,
    /// The text of a file with age identities, `AGE-SECRET-KEY-1...`.
    pub identities: Option<Zeroizing<String>>,
}

fn invalid(text: String) -> NodeError {
    NodeError::Invalid(text)
}

/// Returns a line without surrounding characters: a file ends with a line feed, and a passphrase does not.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

pub(crate) fn seal(text: &[u8], seal: &BackupSeal) -> Result<Vec<u8>, NodeError> {
    let failed = |error: age::EncryptError| invalid(format!("the backup cannot be encrypted: {error}"));
    match seal {
        BackupSeal::Clear => Ok(text.to_vec()),
        BackupSeal::Passphrase(passphrase) => {
            let passphrase = first_line(passphrase);
            if passphrase.chars().count() < PASSPHRASE_CHARS_MIN {
                let text = format!("a passphrase of a backup has at least {PASSPHRASE_CHARS_MIN} characters");
                return Err(invalid(text));
            }
            age::encrypt(&scrypt::Recipient::new(SecretString::from(passphrase.to_owned())), text).map_err(failed)
        }
        BackupSeal::Recipients(names) => {
            let parse = |name: &String| {
                name.parse::<x25519::Recipient>().map_err(|error| {
                    invalid(format!("'{name}' is no age recipient ({error}); 'age-keygen' prints one: age1..."))
                })
            };
            let recipients = names.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
            let encryptor = Encryptor::with_recipients(recipients.iter().map(|one| one as &dyn Recipient));
            let encryptor = encryptor.map_err(failed)?;
            let mut sealed = Vec::with_capacity(text.len() + 4_096);
            let written = encryptor.wrap_output(&mut sealed).and_then(|mut writer| {
                std::io::Write::write_all(&mut writer, text)?;
                writer.finish().map(drop)
            });
            written.map_err(|error| invalid(format!("the backup cannot be encrypted: {error}")))?;
            Ok(sealed)
        }
    }
}

/// Returns the content of a backup, encrypted or not.
pub(crate) fn open(path: &Path, bytes: Vec<u8>, opener: &BackupOpener) -> Result<Zeroizing<Vec<u8>>, NodeError> {
    if !bytes.starts_with(MAGIC) {
        return Ok(Zeroizing::new(bytes));
    }
    let failed = |error: age::DecryptError| {
        invalid(format!("{} does not open with the given secret: {error}", path.display()))
    };
    if let Some(passphrase) = &opener.passphrase {
        let mut identity = scrypt::Identity::new(SecretString::from(first_line(passphrase).to_owned()));
        identity.set_max_work_factor(WORK_MAX_LOG2);
        return age::decrypt(&identity, &bytes).map(Zeroizing::new).map_err(failed);
    }
    let Some(identities) = &opener.identities else {
        let text = format!("{} is encrypted: give --passphrase-file FILE or --identity FILE", path.display());
        return Err(invalid(text));
    };
    let lines = identities.lines().map(str::trim).filter(|line| line.starts_with("AGE-SECRET-KEY-"));
    let mut last = invalid("there is no line AGE-SECRET-KEY-1... in the file of --identity".into());
    for line in lines {
        let identity: x25519::Identity = line
            .parse()
            .map_err(|error| invalid(format!("the file of --identity has no age identity: {error}")))?;
        match age::decrypt(&identity, &bytes) {
            Ok(text) => return Ok(Zeroizing::new(text)),
            Err(error) => last = failed(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::secrecy::ExposeSecret;

    const SECRET: &[u8] = b"root key of everything";

    fn opened(sealed: &[u8], opener: &BackupOpener) -> Result<Zeroizing<Vec<u8>>, NodeError> {
        open(Path::new("b"), sealed.to_vec(), opener)
    }

    fn text(words: &str) -> Option<Zeroizing<String>> {
        Some(Zeroizing::new(words.into()))
    }

    #[test]
    fn a_backup_opens_with_its_passphrase_only() {
        let passphrase = Zeroizing::new("correct horse battery\n".to_owned());
        let sealed = seal(SECRET, &BackupSeal::Passphrase(passphrase)).unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"root"));
        let right = BackupOpener { passphrase: text("correct horse battery"), identities: None };
        assert_eq!(&**opened(&sealed, &right).unwrap(), SECRET);
        let wrong = BackupOpener { passphrase: text("correct horse batterz"), identities: None };
        assert!(opened(&sealed, &wrong).unwrap_err().to_string().contains("does not open"));
        assert!(opened(&sealed, &BackupOpener::default()).unwrap_err().to_string().contains("--passphrase-file"));
        assert!(seal(SECRET, &BackupSeal::Passphrase(Zeroizing::new("short".into()))).is_err());
    }

    #[test]
    fn a_backup_opens_with_the_identity_of_each_recipient() {
        let owners = [x25519::Identity::generate(), x25519::Identity::generate()];
        let names = owners.iter().map(|owner| owner.to_public().to_string()).collect();
        let sealed = seal(SECRET, &BackupSeal::Recipients(names)).unwrap();
        let with = |identity: &x25519::Identity| BackupOpener {
            passphrase: None,
            identities: text(&format!("# a comment\n{}\n", identity.to_string().expose_secret())),
        };
        for owner in &owners {
            assert_eq!(&**opened(&sealed, &with(owner)).unwrap(), SECRET);
        }
        assert!(opened(&sealed, &with(&x25519::Identity::generate())).is_err());
        let mut changed = sealed.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(opened(&changed, &with(&owners[0])).is_err());
        assert!(seal(SECRET, &BackupSeal::Recipients(vec!["age1nobody".into()])).is_err());
    }

    #[test]
    fn a_backup_in_clear_is_what_it_was() {
        let sealed = seal(SECRET, &BackupSeal::Clear).unwrap();
        assert_eq!(&**opened(&sealed, &BackupOpener::default()).unwrap(), SECRET);
    }
}
