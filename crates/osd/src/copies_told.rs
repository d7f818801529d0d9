//! This process' report of its copies of PGs, for an operator who asks why one does not serve.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use atoll_types::pg_copies::PgCopy;

use crate::pgs::Pgs;
use crate::view::StoreView;

/// As they were in the last second, and when that was.
static COPIES: Mutex<Option<(Instant, Vec<PgCopy>)>> = Mutex::new(None);

/// The copies of the OSD that runs in this process; none in any other process.
pub fn copies_told() -> Vec<PgCopy> {
    let copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some((since, mut copies)) = copies else { return Vec::new() };
    copies.iter_mut().for_each(|copy| copy.age_ms = since.elapsed().as_millis() as u64);
    copies
}

/// Stores the present report of all copies.
pub(crate) fn tell_copies(pgs: &Pgs, view: &StoreView<'_>) {
    let copies = pgs.all().map(|pg| pg.copy_told(view)).collect();
    *COPIES.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), copies));
}
