//! The kernel in plain Rust, for every processor: the reference that other kernels must equal.
//!
//! A sum of products is taken bit by bit of the coefficients, highest first (Horner): double what
//! there is, then add the sources whose coefficient has the bit. Doubling and adding are a few
//! instructions on vectors of bytes, which the compiler finds by itself; there are no tables, and the
//! seven doublings are shared by all sources.

use crate::field::REDUCTION;
use crate::matrix::Matrix;

/// As much as stays in the vector registers of the smallest processor that matters (8 of SSE2's 16).
const BLOCK_BYTES: usize = 128;

type Block = [u8; BLOCK_BYTES];

/// outputs = matrix * sources: one row for each output, one column for each source, all of one length.
pub(crate) fn combine(matrix: &Matrix, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    let length = sources.first().map_or(0, |source| source.len());
    for at in (0..length).step_by(BLOCK_BYTES) {
        for (row, output) in outputs.iter_mut().enumerate() {
            let coefficients = matrix.row(row);
            match output[at..].first_chunk_mut() {
                Some(block) => *block = sum_of_products(coefficients, |source| whole(sources[source], at)),
                None => {
                    let block = sum_of_products(coefficients, |source| padded(sources[source], at));
                    output[at..].copy_from_slice(&block[..length - at]);
                }
            }
        }
    }
}

/// target ^= coefficient * source.
pub(crate) fn accumulate(coefficient: u8, source: &[u8], target: &mut [u8]) {
    let length = source.len();
    for at in (0..length).step_by(BLOCK_BYTES) {
        match target[at..].first_chunk_mut() {
            Some(block) => add(block, &sum_of_products(&[coefficient], |_| whole(source, at))),
            None => {
                let product = sum_of_products(&[coefficient], |_| padded(source, at));
                target[at..].iter_mut().zip(product).for_each(|(target, product)| *target ^= product);
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
                add(&mut sum, &source(index));
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
fn add(target: &mut Block, source: &Block) {
    for (target, source) in target.iter_mut().zip(source) {
        *target ^= source;
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
