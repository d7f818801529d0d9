//! The kernel in plain Rust, for every processor: the reference that the others must equal.
//!
//! A sum of products is computed bit by bit of the coefficients, highest first (Horner): double the sum, then add
//! the sources whose coefficient has the bit. Doubling and adding are a few instructions on vectors of bytes,
//! which the compiler finds by itself; there are no tables, and the seven doublings are shared by all sources.

use crate::field::REDUCTION;
use crate::kernel::Work;

/// As much as stays in the vector registers of the smallest processor that matters (8 of SSE2's 16).
const BLOCK_BYTES: usize = 128;

type Block = [u8; BLOCK_BYTES];

/// Does `work`, but for the first `start` bytes of every shard.
pub(crate) fn run(work: &mut Work<'_, '_>, start: usize) {
    let Work { coefficients, sources, outputs, add } = work;
    let length = sources[0].len();
    for at in (start..length).step_by(BLOCK_BYTES) {
        for (coefficients, output) in coefficients.chunks_exact(sources.len()).zip(outputs.iter_mut()) {
            let output = &mut output[at..];
            if let Some(block) = output.first_chunk_mut::<BLOCK_BYTES>() {
                let sum = sum_of_products(coefficients, |source| whole(sources[source], at));
                put(block, &sum, *add);
            } else {
                let sum = sum_of_products(coefficients, |source| padded(sources[source], at));
                put(output, &sum[..length - at], *add);
            }
        }
    }
}

#[inline(always)]
fn sum_of_products(coefficients: &[u8], source: impl Fn(usize) -> Block) -> Block {
    let mut sum = [0; BLOCK_BYTES];
    // Bits above the highest that is set would only double zero: coefficients of 1 are plain XOR.
    let used = coefficients.iter().fold(0, |bits, coefficient| bits | coefficient);
    for bit in (0..u8::BITS - used.leading_zeros()).rev() {
        double(&mut sum);
        for (index, coefficient) in coefficients.iter().enumerate() {
            if coefficient >> bit & 1 == 1 {
                put(&mut sum, &source(index), true);
            }
        }
    }
    sum
}

#[inline(always)]
fn double(block: &mut Block) {
    for byte in block {
        // As a comparison, since vectors have one for signed bytes and no shift of bytes.
        let carried = if byte.cast_signed() < 0 { REDUCTION } else { 0 };
        *byte = (*byte << 1) ^ carried;
    }
}

#[inline(always)]
fn put(target: &mut [u8], source: &[u8], add: bool) {
    if add {
        target.iter_mut().zip(source).for_each(|(target, source)| *target ^= source);
    } else {
        target.copy_from_slice(source);
    }
}

#[inline(always)]
fn whole(source: &[u8], at: usize) -> Block {
    *source[at..].first_chunk().expect("sources are as long as the output")
}

/// The last bytes of a source, and zeros.
fn padded(source: &[u8], at: usize) -> Block {
    let mut block = [0; BLOCK_BYTES];
    block[..source.len() - at].copy_from_slice(&source[at..]);
    block
}
