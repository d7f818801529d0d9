//! Clients' requests at the primary, in the order of their way: admission, queue, ordering, log,
//! answers.

pub(crate) mod admission;
mod answers;
mod arrivals;
pub(crate) mod conflicts;
pub(crate) mod copy_reads;
pub(crate) mod duplicates;
pub(crate) mod fences;
pub(crate) mod log;
pub(crate) mod ordering;
pub(crate) mod queue;
pub(crate) mod reads;
pub(crate) mod refusals;
