//! Stored digests of users' passwords.

use std::num::NonZeroU32;

use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::{pbkdf2, rand};
use serde::{Deserialize, Serialize};
use tonic::Status;

/// Hexadecimal digits from which a password counts as random, and cannot be guessed: one pass is enough, and hosts
/// that log in cost nothing.
const RANDOM_DIGITS: usize = 32;
const PASSES_FOR_CHOSEN: u32 = 100_000;
const PASSES_FOR_RANDOM: u32 = 0;

/// A salted digest of a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PasswordDigest {
    salt: String,
    /// Passes of PBKDF2 with HMAC-SHA-256; 0 means SHA-256 of salt and password.
    passes: u32,
    digest: String,
}

impl PasswordDigest {
    /// Takes some tens of milliseconds for a password that a human has chosen.
    pub fn of(password: &str) -> Result<PasswordDigest, Status> {
        let mut salt = [0; 16];
        rand::fill(&mut salt).map_err(|_| Status::internal("the system gives no random bytes"))?;
        let salt = hex::encode(salt);
        let is_random = is_random(password);
        let passes = if is_random { PASSES_FOR_RANDOM } else { PASSES_FOR_CHOSEN };
        let digest = derive(&salt, passes, password);
        Ok(PasswordDigest { salt, passes, digest })
    }

    /// Returns true if this is the password. Takes as long as [`Self::of`].
    pub fn is_of(&self, password: &str) -> bool {
        same(derive(&self.salt, self.passes, password).as_bytes(), self.digest.as_bytes())
    }

    /// Returns true if comparing takes long enough to leave the threads of the runtime.
    pub fn is_slow(&self) -> bool {
        self.passes > 0
    }
}

/// Returns true if a password was drawn at random, as those of hosts are.
pub fn is_random(password: &str) -> bool {
    password.len() >= RANDOM_DIGITS && password.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn derive(salt: &str, passes: u32, password: &str) -> String {
    let Some(passes) = NonZeroU32::new(passes) else {
        let mut digest = Context::new(&SHA256);
        digest.update(salt.as_bytes());
        digest.update(password.as_bytes());
        return hex::encode(digest.finish());
    };
    let mut derived = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, passes, salt.as_bytes(), password.as_bytes(), &mut derived);
    hex::encode(derived)
}

/// Takes as long for a near miss as for a far one.
pub(super) fn same(given: &[u8], known: &[u8]) -> bool {
    let difference = given.iter().zip(known).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == known.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_the_password() {
        for password in ["secret", "", &"0f".repeat(32)] {
            let digest = PasswordDigest::of(password).unwrap();
            assert!(digest.is_of(password));
            assert!(!digest.is_of("Secret") && !digest.is_of(&"0e".repeat(32)));
            assert_eq!(digest.is_slow(), password.len() < RANDOM_DIGITS);
            assert_ne!(PasswordDigest::of(password).unwrap(), digest, "the salt is another");
        }
    }
}
