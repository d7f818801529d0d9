//! The kernel of processors with vector shuffles. A product is the sum of the products of the byte's
//! two halves; each half has 16 values, so a coefficient has two tables of 16 bytes, and one shuffle
//! looks up as many bytes as a vector has (Plank, Greenan, Miller, "Screaming Fast Galois Field
//! Arithmetic Using Intel SIMD Instructions", FAST 2013).

use bytemuck::Pod;
use pulp::x86::{V3, V4};
use pulp::{NullaryFnOnce, Simd};
use std::arch::x86_64::{__m128i, __m256i, __m512i};

use crate::field::multiply;
use crate::kernel::Work;

/// Sums that are kept in registers: more outputs than these are computed in several passes.
const ROWS_AT_ONCE: usize = 4;

/// The products of a coefficient and the 16 values of a byte's lower half, and of its upper half.
#[derive(Clone, Copy)]
struct Tables {
    low: [u8; 16],
    high: [u8; 16],
}

static TABLES: [Tables; 256] = tables();

const fn tables() -> [Tables; 256] {
    let mut tables = [Tables { low: [0; 16], high: [0; 16] }; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut half = 0;
        while half < 16 {
            tables[coefficient].low[half] = multiply(coefficient as u8, half as u8);
            tables[coefficient].high[half] = multiply(coefficient as u8, (half as u8) << 4);
            half += 1;
        }
        coefficient += 1;
    }
    tables
}

/// Features of a processor that the kernel needs.
pub(crate) trait Shuffle: Simd {
    type Vector: Pod;

    fn zero(self) -> Self::Vector;
    /// A table in each 16 bytes of a vector.
    fn repeat(self, table: &[u8; 16]) -> Self::Vector;
    fn lower_halves(self, bytes: Self::Vector) -> Self::Vector;
    fn upper_halves(self, bytes: Self::Vector) -> Self::Vector;
    fn look_up(self, table: Self::Vector, halves: Self::Vector) -> Self::Vector;
    fn sum(self, one: Self::Vector, two: Self::Vector, three: Self::Vector) -> Self::Vector;
}

impl Shuffle for V3 {
    type Vector = __m256i;

    #[inline(always)]
    fn zero(self) -> __m256i {
        self.avx._mm256_setzero_si256()
    }

    #[inline(always)]
    fn repeat(self, table: &[u8; 16]) -> __m256i {
        self.avx2._mm256_broadcastsi128_si256(bytemuck::cast(*table))
    }

    #[inline(always)]
    fn lower_halves(self, bytes: __m256i) -> __m256i {
        self.avx2._mm256_and_si256(bytes, self.avx._mm256_set1_epi8(0x0f))
    }

    #[inline(always)]
    fn upper_halves(self, bytes: __m256i) -> __m256i {
        self.lower_halves(self.avx2._mm256_srli_epi16::<4>(bytes))
    }

    #[inline(always)]
    fn look_up(self, table: __m256i, halves: __m256i) -> __m256i {
        self.avx2._mm256_shuffle_epi8(table, halves)
    }

    #[inline(always)]
    fn sum(self, one: __m256i, two: __m256i, three: __m256i) -> __m256i {
        self.avx2._mm256_xor_si256(one, self.avx2._mm256_xor_si256(two, three))
    }
}

impl Shuffle for V4 {
    type Vector = __m512i;

    #[inline(always)]
    fn zero(self) -> __m512i {
        self.avx512f._mm512_setzero_si512()
    }

    #[inline(always)]
    fn repeat(self, table: &[u8; 16]) -> __m512i {
        self.avx512f._mm512_broadcast_i32x4(bytemuck::cast::<[u8; 16], __m128i>(*table))
    }

    #[inline(always)]
    fn lower_halves(self, bytes: __m512i) -> __m512i {
        self.avx512f._mm512_and_si512(bytes, self.avx512f._mm512_set1_epi8(0x0f))
    }

    #[inline(always)]
    fn upper_halves(self, bytes: __m512i) -> __m512i {
        self.lower_halves(self.avx512bw._mm512_srli_epi16::<4>(bytes))
    }

    #[inline(always)]
    fn look_up(self, table: __m512i, halves: __m512i) -> __m512i {
        self.avx512bw._mm512_shuffle_epi8(table, halves)
    }

    #[inline(always)]
    fn sum(self, one: __m512i, two: __m512i, three: __m512i) -> __m512i {
        const XOR_OF_THREE: i32 = 0x96;
        self.avx512f._mm512_ternarylogic_epi64::<XOR_OF_THREE>(one, two, three)
    }
}

/// Does `work` for all whole blocks, and returns how many bytes of every shard these are.
pub(crate) fn run_blocks<S: Shuffle>(instructions: S, work: &mut Work<'_, '_>) -> usize {
    let Work { coefficients, sources, outputs, add } = work;
    let rows = coefficients.chunks(ROWS_AT_ONCE * sources.len());
    for (coefficients, outputs) in rows.zip(outputs.chunks_mut(ROWS_AT_ONCE)) {
        let work = Work { coefficients, sources, outputs, add: *add };
        match work.outputs.len() {
            1 => instructions.vectorize(Rows::<S, 1> { instructions, work }),
            2 => instructions.vectorize(Rows::<S, 2> { instructions, work }),
            3 => instructions.vectorize(Rows::<S, 3> { instructions, work }),
            _ => instructions.vectorize(Rows::<S, ROWS_AT_ONCE> { instructions, work }),
        }
    }
    sources[0].len() / block_bytes::<S>() * block_bytes::<S>()
}

/// Two vectors, for which each table is fetched once.
type Block<S> = [<S as Shuffle>::Vector; 2];

const fn block_bytes<S: Shuffle>() -> usize {
    size_of::<Block<S>>()
}

/// Work with `ROWS` outputs.
struct Rows<'a, 'b, S, const ROWS: usize> {
    instructions: S,
    work: Work<'a, 'b>,
}

impl<S: Shuffle, const ROWS: usize> NullaryFnOnce for Rows<'_, '_, S, ROWS> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Rows { instructions, work: Work { coefficients, sources, outputs, add } } = self;
        // As an array, so that the loops over it are unrolled and the sums stay in registers.
        let outputs: &mut [&mut [u8]; ROWS] = outputs.try_into().expect("chosen by how many outputs there are");
        let whole_blocks = sources[0].len() / block_bytes::<S>();
        for at in (0..whole_blocks).map(|block| block * block_bytes::<S>()) {
            let mut sums = [[instructions.zero(); 2]; ROWS];
            if add {
                sums = outputs.each_ref().map(|output| read(output, at));
            }
            for (column, source) in sources.iter().enumerate() {
                let block: Block<S> = read(source, at);
                let lower = block.map(|bytes| instructions.lower_halves(bytes));
                let upper = block.map(|bytes| instructions.upper_halves(bytes));
                for (row, sum) in sums.iter_mut().enumerate() {
                    let tables = &TABLES[usize::from(coefficients[row * sources.len() + column])];
                    let (low, high) = (instructions.repeat(&tables.low), instructions.repeat(&tables.high));
                    for half in 0..2 {
                        let of_lower = instructions.look_up(low, lower[half]);
                        let of_upper = instructions.look_up(high, upper[half]);
                        sum[half] = instructions.sum(sum[half], of_lower, of_upper);
                    }
                }
            }
            for row in 0..ROWS {
                write(outputs[row], at, sums[row]);
            }
        }
    }
}

#[inline(always)]
fn read<T: Pod>(bytes: &[u8], at: usize) -> T {
    bytemuck::pod_read_unaligned(&bytes[at..][..size_of::<T>()])
}

#[inline(always)]
fn write<T: Pod>(bytes: &mut [u8], at: usize, value: T) {
    bytes[at..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
}
