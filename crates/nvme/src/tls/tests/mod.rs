mod channel;
mod client_hello;
mod derivation;

use atoll_credentials::nvme::{HashFunction, TlsKey};
use atoll_exports::Channel;

use super::TlsPsk;
use super::psk::{IdentityVersion, LabelForm};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:3f1c2d9e-5a70-4c1b-9d0e-2b6f7a8c9d01";
const SUBSYSTEM: &str = "nqn.2026-11.io.atoll:c1:disk";

fn psk_of(key: &TlsKey) -> TlsPsk {
    TlsPsk::derive(key, IdentityVersion::Zero, HOST, SUBSYSTEM, LabelForm::Standard).unwrap()
}

fn random_psk(hash: HashFunction) -> TlsPsk {
    psk_of(&TlsKey::random(hash))
}
