//! Small files that are replaced whole. A crash leaves the old file or the new one, and names survive a power cut
//! as well as the content.
//!
//! A file that is read, changed and replaced is [`Held`] meanwhile: each of several processes that change it
//! begins with the result of the one before. One that is only ever written whole needs [`replace`], and one that
//! must not be there yet needs [`create`].

mod durable;
mod held;
mod open;
mod private;

pub use durable::{Access, create, create_directories, rename, replace, sync_directory_of};
pub use held::{Held, Lock, Previous, previous_path};
pub use open::{append, make, make_anew, open_or_make};
pub use private::{PrivacyError, check_private};

/// Returns true for a file that this crate puts beside others: a lock, a previous file, or remains of an
/// interrupted write.
pub fn is_beside(path: &std::path::Path) -> bool {
    let extension = path.extension().and_then(std::ffi::OsStr::to_str);
    matches!(extension, Some("lock" | "before" | "new"))
}
