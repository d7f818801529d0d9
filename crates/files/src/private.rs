//! Privacy of a directory: it is its owner's alone.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Rights of other users in a directory, in its mode.
const OF_OTHERS: u32 = 0o077;

/// Why nothing secret may be in a directory.
#[derive(Debug, thiserror::Error)]
pub enum PrivacyError {
    /// Others may enter, list or change it.
    #[error(
        "{} is open to other users of this machine (mode {mode:04o}), and secrets are in it; run 'chmod 700 {}'",
        path.display(),
        path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is another user's, who could exchange its content.
    #[error(
        "{} is of user {owner}, and this process is of user {user}: run it as that user, or 'chown -R {user} {}'",
        path.display(),
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Owner of the directory.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// It cannot be looked at.
    #[error("{}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// Checks that a directory is this user's, and that no other user may enter it. Root may use those of others.
pub fn check_private(path: &Path) -> Result<(), PrivacyError> {
    let metadata = std::fs::metadata(path).map_err(|source| PrivacyError::Io { path: path.to_owned(), source })?;
    let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
    let user = rustix::process::geteuid();
    if owner != user.as_raw() && !user.is_root() {
        return Err(PrivacyError::Foreign { path: path.to_owned(), owner, user: user.as_raw() });
    }
    match mode & OF_OTHERS {
        0 => Ok(()),
        _ => Err(PrivacyError::Open { path: path.to_owned(), mode }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let with = |mode| std::fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        for mode in [0o755, 0o711, 0o750, 0o770, 0o777, 0o1777, 0o702] {
            with(mode);
            let refused = check_private(directory.path()).unwrap_err().to_string();
            assert!(refused.contains("chmod 700") && refused.contains(&format!("{mode:04o}")), "{refused}");
        }
        with(0o700);
        check_private(directory.path()).unwrap();
    }
}
