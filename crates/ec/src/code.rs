//! The code: the coefficients of each parity shard.

use std::sync::Arc;

use crate::field::inverse;
use crate::kernel::Work;
use crate::matrix::{Matrix, unit_row};

/// With one data shard, a copy is the better code.
pub const MIN_DATA_SHARDS: usize = 2;
/// More data shards than this make small writes and repairs expensive, and save little space.
pub const MAX_DATA_SHARDS: usize = 16;
/// Largest number of parity shards, and so of shards that may be lost.
pub const MAX_PARITY_SHARDS: usize = 4;

/// Errors of a code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// No code has this number of data shards.
    #[error("a code has {MIN_DATA_SHARDS} to {MAX_DATA_SHARDS} data shards, not {0}")]
    DataShards(usize),
    /// No code has this number of parity shards.
    #[error("a code has 1 to {MAX_PARITY_SHARDS} parity shards, not {0}")]
    ParityShards(usize),
    /// A shard was named that the code does not have.
    #[error("there is no shard {index} among {shards}")]
    NoSuchShard {
        /// The shard that was named.
        index: usize,
        /// How many the code has.
        shards: usize,
    },
    /// Too much is lost.
    #[error("{needed} shards are needed to compute the others, and only {available} are there")]
    TooFewShards {
        /// How many different shards are there.
        available: usize,
        /// How many must be.
        needed: usize,
    },
}

/// A systematic Reed-Solomon code over GF(2^8) with the polynomial 0x11d: shards 0 to k-1 are the
/// data, and parity j, shard k+j, is the sum of all data shards, each times a coefficient. That of
/// data shard i is the inverse of `(k + j) ^ i` (the Cauchy matrix of ISA-L's `gf_gen_cauchy1_matrix`),
/// so every square part of the matrix has an inverse, and any k shards give all the others. With a
/// single parity shard all coefficients are 1, so that it is the plain XOR of the data.
#[derive(Debug, Clone)]
pub struct Code {
    /// The coefficients: one row for each parity shard, one column for each data shard.
    parity: Arc<Matrix>,
}

impl Code {
    /// The code of `data_shards` (2 to 16) and `parity_shards` (1 to 4).
    ///
    /// ```
    /// use atoll_ec::{Code, CodeError};
    ///
    /// assert_eq!(Code::new(8, 3)?.shards(), 11);
    /// assert_eq!(Code::new(1, 1).unwrap_err(), CodeError::DataShards(1));
    /// # Ok::<(), CodeError>(())
    /// ```
    pub fn new(data_shards: usize, parity_shards: usize) -> Result<Code, CodeError> {
        if !(MIN_DATA_SHARDS..=MAX_DATA_SHARDS).contains(&data_shards) {
            return Err(CodeError::DataShards(data_shards));
        }
        if !(1..=MAX_PARITY_SHARDS).contains(&parity_shards) {
            return Err(CodeError::ParityShards(parity_shards));
        }
        let coefficient = |parity: usize, data: usize| match parity_shards {
            1 => 1,
            _ => inverse(u8::try_from((data_shards + parity) ^ data).expect("shards are few")),
        };
        let rows =
            (0..parity_shards).map(|parity| (0..data_shards).map(|data| coefficient(parity, data)).collect());
        Ok(Code { parity: Arc::new(Matrix::from_rows(data_shards, rows)) })
    }

    /// How many shards are data (k).
    pub fn data_shards(&self) -> usize {
        self.parity.columns()
    }

    /// How many shards are parity, and how many may be lost (m).
    pub fn parity_shards(&self) -> usize {
        self.parity.rows()
    }

    /// How many shards there are in all (k + m).
    pub fn shards(&self) -> usize {
        self.data_shards() + self.parity_shards()
    }

    /// Overwrites the parity shards with those of `data`. All shards have one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.data_shards(), "all data shards are needed");
        assert_eq!(parity.len(), self.parity_shards(), "all parity shards are made");
        Work { coefficients: self.parity.cells(), sources: data, outputs: parity, add: false }.run();
    }

    /// Brings one parity shard (0 to m-1) up to date with a data shard that changed: `delta` is the
    /// XOR of its old and new content, of any part of it for the same part of the parity.
    ///
    /// ```
    /// use atoll_ec::{Code, xor_into};
    ///
    /// let code = Code::new(2, 2)?;
    /// let (old, new, other) = (*b"old!", *b"new!", *b"same");
    /// let mut parity = [[0; 4], [0; 4]];
    /// let [p, q] = &mut parity;
    /// code.encode(&[&old, &other], &mut [p, q]);
    ///
    /// let mut delta = old;
    /// xor_into(&mut delta, &new);
    /// code.update(0, &delta, 1, &mut parity[1]);
    ///
    /// let mut expected = [[0; 4], [0; 4]];
    /// let [p, q] = &mut expected;
    /// code.encode(&[&new, &other], &mut [p, q]);
    /// assert_eq!(parity[1], expected[1]);
    /// # Ok::<(), atoll_ec::CodeError>(())
    /// ```
    pub fn update(&self, data_index: usize, delta: &[u8], parity_index: usize, parity: &mut [u8]) {
        let coefficient = self.parity.row(parity_index)[data_index];
        Work { coefficients: &[coefficient], sources: &[delta], outputs: &mut [parity], add: true }.run();
    }

    /// Overwrites `output` with the shards `wanted` (0 to k+m-1), computed from any k of those that
    /// are `available`. All shards have one length.
    pub fn reconstruct(
        &self,
        available: &[(usize, &[u8])],
        wanted: &[usize],
        output: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        assert_eq!(wanted.len(), output.len(), "one output for each shard that is wanted");
        let named = available.iter().map(|(index, _)| *index).chain(wanted.iter().copied());
        if let Some(index) = named.into_iter().find(|index| *index >= self.shards()) {
            return Err(CodeError::NoSuchShard { index, shards: self.shards() });
        }
        let sources = self.choose(available)?;
        let bytes: Vec<&[u8]> = sources.iter().map(|(_, bytes)| *bytes).collect();
        let encoding = Matrix::from_rows(self.data_shards(), sources.iter().map(|(index, _)| self.row(*index)));
        let decoding = encoding.inverse().expect("any k rows of a Cauchy code are independent");
        let wanted = wanted.iter().map(|index| decoding.times_row(&self.row(*index)));
        let wanted = Matrix::from_rows(self.data_shards(), wanted);
        Work { coefficients: wanted.cells(), sources: &bytes, outputs: output, add: false }.run();
        Ok(())
    }

    /// The k shards to compute from: data before parity, since it costs less to decode.
    fn choose<'a>(&self, available: &[(usize, &'a [u8])]) -> Result<Vec<(usize, &'a [u8])>, CodeError> {
        let mut sources = available.to_vec();
        sources.sort_by_key(|(index, _)| *index);
        sources.dedup_by_key(|(index, _)| *index);
        if sources.len() < self.data_shards() {
            return Err(CodeError::TooFewShards { available: sources.len(), needed: self.data_shards() });
        }
        sources.truncate(self.data_shards());
        Ok(sources)
    }

    /// How a shard is made of the data.
    fn row(&self, index: usize) -> Vec<u8> {
        match index.checked_sub(self.data_shards()) {
            Some(parity) => self.parity.row(parity).to_vec(),
            None => unit_row(self.data_shards(), index),
        }
    }
}
