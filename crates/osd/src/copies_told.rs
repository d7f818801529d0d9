//! What this process tells of its copies of PGs to an operator who asks why one does not serve.

use std::sync::{Mutex, PoisonError};

use atoll_types::pg_copies::PgCopy;

use crate::pgs::Pgs;
use crate::view::StoreView;

/// As they were in the last second.
static COPIES: Mutex<Vec<PgCopy>> = Mutex::new(Vec::new());

/// The copies of the OSD that runs in this process; none in any other process.
pub fn copies_told() -> Vec<PgCopy> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Has the copies told as they are now.
pub(crate) fn tell_copies(pgs: &Pgs, view: &StoreView<'_>) {
    let copies = pgs.all().map(|pg| pg.copy_told(view)).collect();
    *COPIES.lock().unwrap_or_else(PoisonError::into_inner) = copies;
}
