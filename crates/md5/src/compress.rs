//! MD5's compression function (RFC 1321, section 3.4), for one stream or for as many side by side as the
//! processor's vectors have lanes, which is found out at run time.

use pulp::{Arch, Simd, WithSimd};

pub(crate) const BLOCK_BYTES: usize = 64;
/// Most streams side by side.
pub(crate) const LANES_MAX: usize = 16;

/// The four words of one stream.
#[derive(Clone, Copy)]
pub(crate) struct State(pub [u32; 4]);

impl Default for State {
    fn default() -> Self {
        State([0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476])
    }
}

/// The integer part of 2^32 times the absolute value of the sine of 1 to 64.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// The same operation on all lanes.
#[derive(Clone, Copy)]
struct Lanes<S: Simd>(S);

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn sum(self, a: S::u32s, b: S::u32s) -> S::u32s {
        self.0.add_u32s(a, b)
    }

    #[inline(always)]
    fn rotate_left<const BITS: u32>(self, a: S::u32s) -> S::u32s {
        let (left, right) = (self.0.splat_u32s(BITS), self.0.splat_u32s(32 - BITS));
        self.0.or_u32s(self.0.wrapping_dyn_shl_u32s(a, left), self.0.wrapping_dyn_shr_u32s(a, right))
    }

    /// The bits of `ones` where `mask` has ones, of `zeros` elsewhere.
    #[inline(always)]
    fn choose(self, mask: S::u32s, ones: S::u32s, zeros: S::u32s) -> S::u32s {
        self.0.xor_u32s(zeros, self.0.and_u32s(mask, self.0.xor_u32s(ones, zeros)))
    }

    /// The functions F, G, H and I of the RFC.
    #[inline(always)]
    fn mix<const ROUND: usize>(self, b: S::u32s, c: S::u32s, d: S::u32s) -> S::u32s {
        match ROUND {
            0 => self.choose(b, c, d),
            1 => self.choose(d, b, c),
            2 => self.0.xor_u32s(self.0.xor_u32s(b, c), d),
            _ => self.0.xor_u32s(c, self.0.or_u32s(b, self.0.not_u32s(d))),
        }
    }

    #[inline(always)]
    fn step<const ROUND: usize, const BITS: u32>(
        self,
        [a, b, c, d]: [S::u32s; 4],
        word: S::u32s,
        sine: u32,
    ) -> S::u32s {
        let constant = self.sum(word, self.0.splat_u32s(sine));
        let sum = self.sum(self.sum(a, constant), self.mix::<ROUND>(b, c, d));
        self.sum(self.rotate_left::<BITS>(sum), b)
    }

    /// Sixteen steps; step `i` takes word `(first + stride * i) % 16`.
    #[inline(always)]
    fn round<const ROUND: usize, const S0: u32, const S1: u32, const S2: u32, const S3: u32>(
        self,
        [mut a, mut b, mut c, mut d]: [S::u32s; 4],
        words: &[S::u32s; 16],
        (first, stride): (usize, usize),
    ) -> [S::u32s; 4] {
        for at in [0, 4, 8, 12] {
            let word = first + stride * at;
            let sine = 16 * ROUND + at;
            a = self.step::<ROUND, S0>([a, b, c, d], words[word % 16], SINES[sine]);
            d = self.step::<ROUND, S1>([d, a, b, c], words[(word + stride) % 16], SINES[sine + 1]);
            c = self.step::<ROUND, S2>([c, d, a, b], words[(word + 2 * stride) % 16], SINES[sine + 2]);
            b = self.step::<ROUND, S3>([b, c, d, a], words[(word + 3 * stride) % 16], SINES[sine + 3]);
        }
        [a, b, c, d]
    }

    #[inline(always)]
    fn block(self, before: [S::u32s; 4], words: &[S::u32s; 16]) -> [S::u32s; 4] {
        let state = self.round::<0, 7, 12, 17, 22>(before, words, (0, 1));
        let state = self.round::<1, 5, 9, 14, 20>(state, words, (1, 5));
        let state = self.round::<2, 4, 11, 16, 23>(state, words, (5, 3));
        let state = self.round::<3, 6, 10, 15, 21>(state, words, (0, 7));
        [
            self.sum(state[0], before[0]),
            self.sum(state[1], before[1]),
            self.sum(state[2], before[2]),
            self.sum(state[3], before[3]),
        ]
    }
}

struct Compress<'a> {
    states: &'a mut [State],
    blocks: &'a [&'a [u8]],
}

impl WithSimd for Compress<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (states, blocks) in self.states.chunks_mut(S::U32_LANES).zip(self.blocks.chunks(S::U32_LANES)) {
            compress_group(simd, states, blocks);
        }
    }
}

type Columns = [[u32; LANES_MAX]; 16];

/// Each word of the next block, of all streams side by side.
fn turn_into_columns(blocks: &[&[u8]], block: usize, columns: &mut Columns) {
    for (lane, bytes) in blocks.iter().enumerate() {
        let bytes = &bytes[block * BLOCK_BYTES..][..BLOCK_BYTES];
        for (column, bytes) in columns.iter_mut().zip(bytes.as_chunks::<4>().0) {
            column[lane] = u32::from_le_bytes(*bytes);
        }
    }
}

/// Advances streams that fit into one vector; lanes that are left over do nothing useful. Work on vectors is in
/// plain loops: closures would not be compiled for the processor's vector unit.
#[inline(always)]
fn compress_group<S: Simd>(simd: S, states: &mut [State], blocks: &[&[u8]]) {
    assert!(states.len() <= S::U32_LANES && S::U32_LANES <= LANES_MAX, "streams fit into lanes");
    let lanes = Lanes(simd);
    let mut columns: Columns = [[0; LANES_MAX]; 16];
    let mut state = [simd.splat_u32s(0); 4];
    for word in 0..4 {
        for (lane, stream) in states.iter().enumerate() {
            columns[word][lane] = stream.0[word];
        }
        state[word] = S::as_simd_u32s(&columns[word]).0[0];
    }
    for block in 0..blocks[0].len() / BLOCK_BYTES {
        turn_into_columns(blocks, block, &mut columns);
        let mut words = [simd.splat_u32s(0); 16];
        for word in 0..16 {
            words[word] = S::as_simd_u32s(&columns[word]).0[0];
        }
        state = lanes.block(state, &words);
    }
    for word in 0..4 {
        S::as_mut_simd_u32s(&mut columns[word]).0[0] = state[word];
        for (lane, stream) in states.iter_mut().enumerate() {
            stream.0[word] = columns[word][lane];
        }
    }
}

/// Advances one stream by whole blocks.
pub(crate) fn compress_one(state: &mut State, blocks: &[u8]) {
    md5::block_api::compress(&mut state.0, blocks.as_chunks().0);
}

/// Streams up to this number are faster one after the other than in lanes that are mostly idle.
const STREAMS_ONE_BY_ONE: usize = 2;

/// Advances up to [`LANES_MAX`] streams, each by the same number of whole blocks.
pub(crate) fn compress_all(states: &mut [State], blocks: &[&[u8]]) {
    assert!(states.len() == blocks.len() && states.len() <= LANES_MAX, "each stream has its blocks");
    assert!(blocks.iter().all(|bytes| bytes.len() == blocks[0].len()), "lanes go in step");
    if states.len() <= STREAMS_ONE_BY_ONE {
        states.iter_mut().zip(blocks).for_each(|(state, blocks)| compress_one(state, blocks));
    } else {
        Arch::new().dispatch(Compress { states, blocks });
    }
}
