//! Known answers. Parity is stored: if one of these tests fails, the code cannot read existing devices, and the
//! test is right. The answers were not made by this crate, but by its definition in a few lines of another
//! language (schoolbook multiplication, inverses by trying).

use atoll_ec::Code;

const DATA: [&[u8]; 4] = [b"\x00\x01\x02\x80\xff", b"Atoll", b"seals", b"\x10\x20\x40\x80\xfe"];

fn parity<const M: usize>(data_shards: usize) -> [Vec<u8>; M] {
    let code = Code::new(data_shards, M).expect("a code that exists");
    let mut parity = std::array::from_fn(|_| vec![0; DATA[0].len()]);
    code.encode(&DATA[..data_shards], &mut parity.each_mut().map(Vec::as_mut_slice));
    parity
}

/// Coefficients 8e f4 and f4 8e.
#[test]
fn parity_of_2_and_2() {
    assert_eq!(parity(2), [[0x3f, 0xa2, 0x24, 0x64, 0xd5], [0xae, 0xce, 0x4c, 0xbd, 0x63]]);
}

/// Coefficients 47 a7 7a ba and a7 47 ba 7a.
#[test]
fn parity_of_4_and_2() {
    assert_eq!(parity(4), [[0x17, 0xe9, 0xad, 0x71, 0xca], [0x67, 0x56, 0xaf, 0xbd, 0x35]]);
}

/// Plain XOR.
#[test]
fn parity_of_3_and_1() {
    assert_eq!(parity(3), [[0x32, 0x10, 0x0c, 0x80, 0xe0]]);
}
