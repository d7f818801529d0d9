//! Files that are opened to be written. Their modes are set by fchmod, for any umask, and a symbolic link in the
//! place of a file is an error.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::Access;

const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits() as i32;

fn with_mode(options: &mut OpenOptions, path: &Path, access: Access) -> io::Result<File> {
    // Nobody may open it between its making and fchmod.
    let file = options.mode(access.mode() & 0o600).custom_flags(NO_FOLLOW).open(path)?;
    set_mode(&file, access)?;
    Ok(file)
}

/// Sets the mode of a file that is this user's, or that root may change. One of another user is left as it is.
fn set_mode(file: &File, access: Access) -> io::Result<()> {
    let metadata = file.metadata()?;
    let own_user = rustix::process::geteuid();
    if metadata.mode() & 0o7777 == access.mode() || !(own_user.is_root() || metadata.uid() == own_user.as_raw()) {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(access.mode()))
}

/// Makes a file to be written and read. One that is there is an error, and stays.
pub fn make(path: &Path, access: Access) -> io::Result<File> {
    with_mode(OpenOptions::new().read(true).write(true).create_new(true), path, access)
}

/// Makes a file to be written and read, in the place of one that is there.
pub fn make_anew(path: &Path, access: Access) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make(path, access)
}

/// Opens a file to be written and read, or makes it; its content stays.
pub fn open_or_make(path: &Path, access: Access) -> io::Result<File> {
    with_mode(OpenOptions::new().read(true).write(true).create(true).truncate(false), path, access)
}

/// Opens a file at whose end is written, or makes it.
pub fn append(path: &Path, access: Access) -> io::Result<File> {
    with_mode(OpenOptions::new().append(true).create(true), path, access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        // Of this process, and the tests beside set theirs explicitly as well.
        let before = rustix::process::umask(rustix::fs::Mode::empty());
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        drop(make(&path("made"), Access::Owner).unwrap());
        drop(append(&path("log"), Access::Owner).unwrap());
        drop(open_or_make(&path("lock"), Access::Owner).unwrap());
        crate::replace(&path("replaced"), b"", Access::Owner).unwrap();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        drop(make(&path("public"), Access::Everybody).unwrap());
        crate::create(&path("created"), b"", Access::Everybody).unwrap();
        rustix::process::umask(before);
        for name in ["made", "log", "lock", "replaced"] {
            assert_eq!(mode(&path(name)), 0o600, "{name}");
        }
        for name in ["public", "created"] {
            assert_eq!(mode(&path(name)), 0o644, "{name}");
        }
    }

    #[test]
    fn a_file_of_an_earlier_release_is_shut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        append(&path, Access::Owner).unwrap().write_all(b"after\n").unwrap();
        assert_eq!((mode(&path), std::fs::read_to_string(&path).unwrap().as_str()), (0o600, "before\nafter\n"));
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, path) = (directory.path().join("victim"), directory.path().join("file"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(make(&path, Access::Owner).is_err());
        assert!(append(&path, Access::Owner).is_err());
        assert!(open_or_make(&path, Access::Owner).is_err());
        make_anew(&path, Access::Owner).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }
}
