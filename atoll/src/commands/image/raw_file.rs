//! Exports to raw files, which can be resumed after an interruption.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use atoll_files::Access;
use serde::{Deserialize, Serialize};

use super::ImageAccess;
use super::export::{for_each_data, identity, open, partial_path};
use super::target::NOTED_EVERY;

/// How far an export is, beside its file.
#[derive(Serialize, Deserialize)]
struct Note {
    /// The exported snapshot.
    source: String,
    /// Bytes from the beginning that are in the file, durably.
    done_bytes: u64,
}

/// Exports an image to a sparse file; returns how many bytes with data were copied.
pub fn export(access: &ImageAccess, source: &str, path: &Path, resumes: bool) -> anyhow::Result<u64> {
    let (mut partial, note_path) = (path.with_added_extension("partial"), note_path(path));
    let mut note = Note { source: identity(access, source, resumes)?, done_bytes: 0 };
    if resumes && partial.exists() {
        note.done_bytes = done_before(&note_path, &note.source)?;
    } else {
        partial = partial_path(path)?;
    }
    let open_partial = if note.done_bytes == 0 { atoll_files::make_anew } else { atoll_files::open_or_make };
    let file = open_partial(&partial, Access::Owner);
    let file = file.with_context(|| format!("cannot write {}", partial.display()))?;
    let image = open(access, source, "exporting")?;
    file.set_len(image.size_bytes())?;
    let mut noted = Instant::now();
    let copied = for_each_data(access, &image, note.done_bytes, |offset, data| {
        file.write_all_at(data, offset)?;
        if noted.elapsed() > NOTED_EVERY {
            file.sync_data()?;
            note.done_bytes = offset + data.len() as u64;
            write_note(&note_path, &note)?;
            noted = Instant::now();
        }
        Ok(())
    });
    access.admin_call(|_, _| image.close())?;
    let bytes = copied.with_context(|| format!("{} is not whole", partial.display()))?;
    file.sync_all()?;
    atoll_files::rename(&partial, path)?;
    forget(path)?;
    Ok(bytes)
}

fn note_path(path: &Path) -> PathBuf {
    path.with_added_extension("partial.json")
}

/// Returns the progress of an earlier export of this source; 0 if it ended before its first note.
fn done_before(note_path: &Path, source: &str) -> anyhow::Result<u64> {
    let text = match std::fs::read(note_path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        text => text.with_context(|| format!("cannot read {}", note_path.display()))?,
    };
    let note: Note = serde_json::from_slice(&text)
        .with_context(|| format!("{} is damaged; leave --resume out to start over", note_path.display()))?;
    ensure!(
        note.source == source,
        "{} is of another export: {}, and not {source}; remove it, or export to another file",
        note_path.display(),
        note.source
    );
    Ok(note.done_bytes)
}

fn write_note(path: &Path, note: &Note) -> anyhow::Result<()> {
    Ok(atoll_files::replace(path, &serde_json::to_vec(note)?, Access::Everybody)?)
}

/// Removes the notes of an export to this file, if there are any.
pub fn forget(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(note_path(path)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
