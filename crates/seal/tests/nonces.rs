//! No key meets a nonce twice, through all events of the sealed data. A process of its own, because every seal in
//! it is remembered.
#![allow(clippy::unwrap_used)]

use atoll_keys::{SecretKey, random_bytes, watch_nonces, watched_nonces};
use atoll_seal::{
    AttachId, BLOCK_SEAL_BYTES, BlockOpener, BlockSealer, SEALED_BLOCK_BYTES, SEGMENT_BYTES, SEGMENT_SEAL_BYTES,
    SegmentCipher,
};
use proptest::prelude::*;

type Block = [u8; SEALED_BLOCK_BYTES];

#[test]
#[should_panic(expected = "twice")]
fn a_nonce_that_comes_again_is_noticed() {
    watch_nonces();
    let (key, attach_id) = (SecretKey::random(), random_bytes());
    // Two attachments with one id, as after a restart that continued an attachment.
    for _ in 0..2 {
        BlockSealer::new(&key, 1, 0, &attach_id).seal(0, &mut [0; SEALED_BLOCK_BYTES]).unwrap();
    }
}

/// Events of an image, or a copy of it, as the image crate causes them.
#[derive(Clone, Debug)]
enum Step {
    Attach,
    Write {
        block: u64,
        byte: u8,
    },
    /// A write whose answer was lost is sent again as it is, or sealed again.
    Retry {
        seals_anew: bool,
    },
    /// The whole image, opened and sealed into another one with a key of its own.
    Copy,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => Just(Step::Attach),
        12 => (0u64..20, any::<u8>()).prop_map(|(block, byte)| Step::Write { block, byte }),
        3 => any::<bool>().prop_map(|seals_anew| Step::Retry { seals_anew }),
        1 => Just(Step::Copy),
    ];
    proptest::collection::vec(step, 1..400)
}

struct Image {
    key: SecretKey,
    id: u64,
    attach_ids: Vec<AttachId>,
    sealer: BlockSealer,
    sealed: Vec<Option<([u8; BLOCK_SEAL_BYTES], Block)>>,
    plain: Vec<u8>,
    last: Option<(u64, u8)>,
}

impl Image {
    fn new(id: u64) -> Image {
        let (key, attach_id) = (SecretKey::random(), random_bytes());
        let sealer = BlockSealer::new(&key, id, 0, &attach_id);
        Image {
            key,
            id,
            attach_ids: vec![attach_id],
            sealer,
            sealed: vec![None; 20],
            plain: vec![0; 20],
            last: None,
        }
    }

    fn attach(&mut self) {
        self.attach_ids.push(random_bytes());
        let index = self.attach_ids.len() - 1;
        self.sealer = BlockSealer::new(&self.key, self.id, index as u32, &self.attach_ids[index]);
    }

    fn write(&mut self, block: u64, byte: u8) {
        let mut bytes = [byte; SEALED_BLOCK_BYTES];
        let seal = self.sealer.seal(block, &mut bytes).unwrap();
        self.sealed[block as usize] = Some((seal, bytes));
        self.plain[block as usize] = byte;
        self.last = Some((block, byte));
    }

    fn read_all(&self) -> Vec<u8> {
        let mut opener = BlockOpener::new(self.key.clone(), self.id, self.attach_ids.clone());
        let blocks = self.sealed.iter().enumerate().map(|(number, sealed)| {
            let Some((seal, bytes)) = sealed else { return 0 };
            let mut plain = [0; SEALED_BLOCK_BYTES];
            opener.open(number as u64, seal, bytes, &mut plain).unwrap();
            assert!(plain.iter().all(|byte| *byte == plain[0]));
            plain[0]
        });
        blocks.collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    #[test]
    fn long_histories_of_images_use_no_nonce_twice(steps in steps()) {
        watch_nonces();
        let before = watched_nonces().unwrap();
        let mut image = Image::new(1);
        let mut written = 0;
        for step in steps {
            match step {
                Step::Attach => image.attach(),
                Step::Write { block, byte } => {
                    image.write(block, byte);
                    written += 1;
                }
                Step::Retry { seals_anew } => {
                    if let Some((block, byte)) = image.last.filter(|_| seals_anew) {
                        image.write(block, byte);
                        written += 1;
                    }
                }
                Step::Copy => {
                    let plain = image.read_all();
                    let mut copy = Image::new(image.id + 1);
                    for (block, byte) in plain.iter().enumerate() {
                        copy.write(block as u64, *byte);
                        written += 1;
                    }
                    prop_assert_eq!(&copy.read_all(), &plain);
                    image = copy;
                }
            }
            prop_assert_eq!(&image.read_all(), &image.plain);
        }
        // The watch panics if a nonce comes again; that it saw all of them shows that it watched.
        prop_assert!(watched_nonces().unwrap() >= before + written);
    }

    /// Attempts at the same part, copies of the same bytes, overwrites under the same name: each has a
    /// key and an id of its own.
    #[test]
    fn attempts_at_s3_data_use_no_nonce_twice(lengths in proptest::collection::vec(1usize..3 * SEGMENT_BYTES, 1..4), attempts in 1u32..4) {
        watch_nonces();
        for length in lengths {
            for _ in 0..attempts {
                let cipher = SegmentCipher::new(&SecretKey::random(), &random_bytes());
                let mut bytes = vec![7; length];
                let count = length.div_ceil(SEGMENT_BYTES);
                let mut seals: Vec<[u8; SEGMENT_SEAL_BYTES]> = Vec::new();
                for (number, segment) in bytes.chunks_mut(SEGMENT_BYTES).enumerate() {
                    seals.push(cipher.seal(number as u64, number + 1 == count, segment));
                }
                for (number, (segment, seal)) in bytes.chunks(SEGMENT_BYTES).zip(&seals).enumerate() {
                    let mut plain = vec![0; segment.len()];
                    cipher.open(number as u64, number + 1 == count, seal, segment, &mut plain).unwrap();
                    prop_assert!(plain.iter().all(|byte| *byte == 7));
                }
            }
        }
    }
}
