//! Texts of secrets, in a file or on standard input.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use zeroize::Zeroizing;

/// File argument that names standard input.
pub const STANDARD_INPUT: &str = "-";

/// Reads at most `bytes_max` bytes. Errors call it `what`, such as "a password".
pub fn read_secret_text(file: &Path, what: &str, bytes_max: u64) -> anyhow::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    let read = match file.as_os_str() == STANDARD_INPUT {
        true => std::io::stdin().lock().take(bytes_max).read_to_string(&mut text),
        false => File::open(file).and_then(|file| file.take(bytes_max).read_to_string(&mut text)),
    };
    read.with_context(|| format!("cannot read {what} from {}", file.display()))?;
    Ok(text)
}

/// Writes a secret to a file that is not there yet, readable by its owner only.
pub fn write_new_secret(file: &Path, text: &str) -> anyhow::Result<()> {
    atoll_files::create(file, format!("{text}\n").as_bytes(), atoll_files::Access::Owner)
        .with_context(|| format!("cannot make {}", file.display()))
}
