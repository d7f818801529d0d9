//! Stored data: cut into chunk objects, or small enough for one object beside the index, or for the index itself;
//! sealed segment by segment.
//!
//! This module knows chunks, segments and data keys; it does not know keys of objects, entries or HTTP.

mod budget;
mod hold;
mod inline;
mod intent;
mod publication;
mod reader;
mod removal;
mod writer;

pub(crate) use budget::{Budget, Caller, Share};
pub(crate) use hold::Hold;
pub(crate) use intent::{Intent, IntentHead, suspect_piece, suspect_record};
pub(crate) use reader::{DataReader, plan_reads};
pub(crate) use removal::{inline_removals, remove_objects_of};
pub(crate) use writer::{DataWriter, Unfinished};

use atoll_seal::{SEGMENT_BYTES, SEGMENT_SEAL_BYTES};

/// Plaintext (and ciphertext) in one chunk object.
pub(crate) const CHUNK_BYTES: u64 = atoll_types::limits::OBJECT_BYTES_MAX;
const SEGMENTS_PER_CHUNK: u64 = CHUNK_BYTES / SEGMENT_BYTES as u64;
const SEAL_UNIT_BYTES: u32 = SEGMENT_BYTES as u32;
const SEAL_BYTES: u16 = SEGMENT_SEAL_BYTES as u16;
