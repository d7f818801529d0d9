//! The data of a volume, encrypted by one side and decrypted by the other. `cryptsetup reencrypt`
//! has an implementation of dm-crypt's sectors of its own, which works on plain files.

use super::fill_random;
use atoll_luks2::{HEADER_BYTES, KeyDerivation, Luks2Header};

use crate::cryptsetup::Device;

const DATA_BYTES: usize = 3 << 20;

fn some_data() -> Vec<u8> {
    let mut data = vec![0; DATA_BYTES];
    fill_random(&mut data);
    data
}

#[test]
fn we_decrypt_data_of_cryptsetup() {
    // To encrypt in place, cryptsetup wants twice the header's size free at the device's end.
    let device = Device::new((2 * HEADER_BYTES + DATA_BYTES) as u64);
    let data = some_data();
    device.write(0, &data);
    let encrypt = ["reencrypt", "--encrypt", "--type=luks2", "--sector-size=4096", "--reduce-device-size=32M"];
    let quick = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--key-size=512", "--key-file=-"];
    device.cryptsetup(&[&encrypt[..], &quick[..]].concat(), &[], "theirs");

    let header = device.header().unwrap();
    let mut cipher = header.volume_cipher(&header.unlock(b"theirs").unwrap());
    let mut found = device.read(header.data_offset_bytes(), DATA_BYTES);
    assert_ne!(found, data);
    cipher.decrypt(0, &mut found);
    assert!(found == data, "our plaintext is what was there before");
}

#[test]
fn cryptsetup_decrypts_our_data() {
    let (header, key) =
        Luks2Header::create(KeyDerivation::FAST_FOR_TESTS, b"ours", [7; 16], None, fill_random).unwrap();
    let device = Device::new((HEADER_BYTES + DATA_BYTES) as u64);
    device.write(0, &header);
    let data = some_data();
    let mut ciphertext = vec![0; DATA_BYTES];
    let mut cipher = Luks2Header::read(&header).unwrap().volume_cipher(&key);
    cipher.encrypt_into(0, &data, &mut ciphertext);
    device.write(HEADER_BYTES as u64, &ciphertext);

    // The data moves to the device's front, and the header, as long as it is needed, to a file.
    let exported = format!("--header={}", device.path().with_extension("header").display());
    let decrypt = ["reencrypt", "--decrypt", "--force-offline-reencrypt", &exported, "--key-file=-"];
    device.cryptsetup(&decrypt, &[], "ours");
    assert!(device.read(0, DATA_BYTES) == data, "cryptsetup's plaintext is what was encrypted");
}
