//! The note about changes of PGs that were refused.

use atoll_cluster::RefusedChange;
use atoll_types::coordination::RefusedChangesNote;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Adds refused changes of PGs to the note about earlier ones, which is kept until there was a day without.
pub(crate) fn note(
    before: Option<&RefusedChangesNote>,
    refused: &[RefusedChange],
    now_unix_ms: u64,
) -> Option<RefusedChangesNote> {
    let before = before.filter(|note| now_unix_ms.saturating_sub(note.last_unix_ms) < DAY_MS);
    let Some(last) = refused.last() else { return before.cloned() };
    Some(RefusedChangesNote {
        count: before.map_or(0, |note| note.count) + refused.len() as u64,
        last_unix_ms: now_unix_ms,
        last: format!("{}: {}", last.key, last.cause),
    })
}
