//! The work on shards, and the kernels that can do it. All give the same bytes; the processor decides
//! which is used.

use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

use crate::portable;
#[cfg(target_arch = "x86_64")]
use crate::shuffle;

/// outputs = matrix * sources. All sources and outputs have one length, and there is a source.
pub(crate) struct Work<'a, 'b> {
    /// The matrix, row by row: one row for each output, one column for each source.
    pub(crate) coefficients: &'a [u8],
    pub(crate) sources: &'a [&'a [u8]],
    pub(crate) outputs: &'a mut [&'b mut [u8]],
    /// True if the products are added to the content of the outputs.
    pub(crate) add: bool,
}

impl Work<'_, '_> {
    /// Does the work with the best kernel of this processor.
    pub(crate) fn run(mut self) {
        let length = self.sources[0].len();
        assert!(self.sources.iter().all(|source| source.len() == length), "shards of one length");
        assert!(self.outputs.iter().all(|output| output.len() == length), "shards of one length");
        assert_eq!(self.coefficients.len(), self.sources.len() * self.outputs.len(), "a matrix that fits");
        BEST.run(&mut self);
    }
}

static BEST: LazyLock<Kernel> = LazyLock::new(|| *Kernel::all().last().expect("there is the portable kernel"));

/// The kernel that [`Work::run`] uses.
pub(crate) fn best() -> Kernel {
    *BEST
}

/// A way to do the work; where one has instructions of a processor in it, this processor has them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(V3),
    #[cfg(target_arch = "x86_64")]
    Avx512(V4),
}

impl Kernel {
    /// The kernels that run on this processor, the fastest last.
    fn all() -> Vec<Kernel> {
        let kernels = vec![Kernel::Portable];
        #[cfg(target_arch = "x86_64")]
        let kernels = {
            let vectors = [V3::try_new().map(Kernel::Avx2), V4::try_new().map(Kernel::Avx512)];
            kernels.into_iter().chain(vectors.into_iter().flatten()).collect()
        };
        kernels
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(_) => "avx512",
        }
    }

    fn run(self, work: &mut Work<'_, '_>) {
        // The vector kernels do whole blocks and say how far they came.
        let done = match self {
            Kernel::Portable => 0,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(instructions) => shuffle::run_blocks(instructions, work),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(instructions) => shuffle::run_blocks(instructions, work),
        };
        portable::run(work, done);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every kernel that this processor has, on the same work.
    fn results(coefficients: &[u8], sources: &[Vec<u8>], outputs: &[Vec<u8>], add: bool) -> Vec<Vec<Vec<u8>>> {
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        let run = |kernel: Kernel| {
            let mut outputs = outputs.to_vec();
            let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            kernel.run(&mut Work { coefficients, sources: &sources, outputs: &mut slices, add });
            outputs
        };
        Kernel::all().into_iter().map(run).collect()
    }

    #[test]
    fn every_product_is_that_of_the_field() {
        // One byte more than a block of any kernel, so that vectors and the rest are both seen.
        let source: Vec<u8> = (0..=255).chain([0x5a]).collect();
        for coefficient in 0..=255 {
            let expected: Vec<u8> = source.iter().map(|byte| crate::field::multiply(coefficient, *byte)).collect();
            for result in
                results(&[coefficient], std::slice::from_ref(&source), &[vec![0xee; source.len()]], false)
            {
                assert!(result == [expected.clone()], "{coefficient}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn all_kernels_give_the_same_bytes(
            (coefficients, sources, outputs) in
                (1..=16_usize, 1..=20_usize, prop_oneof![0..600_usize, 0..10_000_usize]).prop_flat_map(
                    |(k, rows, length)| {
                        let shard = || proptest::collection::vec(any::<u8>(), length);
                        let shards = |count| proptest::collection::vec(shard(), count);
                        (proptest::collection::vec(any::<u8>(), k * rows), shards(k), shards(rows))
                    }
                ),
            add in any::<bool>(),
        ) {
            let results = results(&coefficients, &sources, &outputs, add);
            for (kernel, result) in Kernel::all().iter().zip(&results) {
                prop_assert!(*result == results[0], "{} differs", kernel.name());
            }
        }
    }
}
