//! Writing, before a run, the blocks that it will read or overwrite: reads of unwritten blocks, and first writes,
//! have other costs than later ones.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::BlockTarget;
use super::operations::Verifier;
use crate::error::BenchError;
use crate::load::Random;

const WRITE_BYTES: u64 = 1 << 20;
const DEPTH: usize = 8;

/// Data to write before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Prefill {
    /// Parts that were never written.
    Holes,
    /// Everything.
    All,
    /// Nothing.
    Nothing,
}

/// Writes the working set, in order, before a run. `progress` gets the written bytes and the number of all.
pub async fn prefill(
    target: &impl BlockTarget,
    working_set_bytes: u64,
    what: Prefill,
    verifier: Option<&Verifier>,
    progress: &dyn Fn(u64, u64),
) -> Result<(), BenchError> {
    let mut random = Random::new(7);
    let mut position = 0;
    while position < working_set_bytes && what != Prefill::Nothing {
        let left = working_set_bytes - position;
        let extents =
            if what == Prefill::All { vec![(left, true)] } else { target.extents(position, left).await? };
        if extents.iter().all(|(length, _)| *length == 0) {
            return Err(BenchError::Invalid(format!("the target reports nothing about the range at {position}")));
        }
        for (length, is_hole) in extents {
            let end = (position + length).min(working_set_bytes);
            while is_hole && position < end {
                position += fill(target, position, end, verifier, &mut random).await?;
                progress(position, working_set_bytes);
            }
            position = end;
            progress(position, working_set_bytes);
        }
    }
    Ok(())
}

/// Writes some of a range; returns how many bytes.
async fn fill(
    target: &impl BlockTarget,
    start: u64,
    end: u64,
    verifier: Option<&Verifier>,
    random: &mut Random,
) -> Result<u64, BenchError> {
    let mut position = start;
    let mut writes = Vec::new();
    while position < end && writes.len() < DEPTH {
        let bytes = WRITE_BYTES.min(end - position);
        let mut data = random.fill(bytes as usize);
        if let Some(verifier) = verifier {
            verifier.stamp_prefill(&mut data, position);
        }
        writes.push(target.write(position, Bytes::from(data)));
        position += bytes;
    }
    futures::future::try_join_all(writes).await?;
    Ok(position - start)
}
