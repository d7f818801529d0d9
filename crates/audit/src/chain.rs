//! Proof that no line of a log was changed or removed: each has a digest of itself and of the line before it, and
//! some lines have a signature of the latest digest. A process has a key of its own for that, which is in its
//! memory only, so its lines cannot be signed after its end.

use std::fmt::Write;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::rand;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::Serialize;

/// The first line of a chain.
pub(crate) const BEGINS: &str = "ChainBegins";
/// A line with a signature.
pub(crate) const HEAD: &str = "ChainHead";
/// Purpose of a signature, so that it is valid for nothing else.
const PURPOSE: &[u8] = b"atoll audit head 1";
/// Lines after which there is a signature, however little time has passed.
const HEAD_LINES_MAX: u64 = 4_096;

/// Bytes that a place adds to a line, and some more.
const PLACE_BYTES_MAX: usize = 160;

pub(crate) type Digest = [u8; 32];

/// The key of a process.
pub(crate) struct ChainKey(Ed25519KeyPair);

impl ChainKey {
    pub fn random() -> std::io::Result<Arc<Self>> {
        let key =
            Ed25519KeyPair::generate().map_err(|_| std::io::Error::other("the system gives no random key"))?;
        Ok(Arc::new(ChainKey(key)))
    }

    /// Hexadecimal, as lines have it.
    pub fn public(&self) -> String {
        hex::encode(self.0.public_key().as_ref())
    }
}

/// The chain of one file, or of the lines for one collector.
pub(crate) struct Chain {
    key: Arc<ChainKey>,
    source: &'static str,
    /// Distinguishes it from others in the same file.
    run: String,
    place: Place,
}

/// How far a chain is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    next: u64,
    latest: Digest,
    unsigned: u64,
}

/// The latest line of a chain that has a signature. A copy of it elsewhere proves all lines up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The name of the file, or the log's name at a collector.
    pub log: String,
    /// The run of the process.
    pub run: String,
    /// Its public key, in hexadecimal.
    pub key: String,
    /// The number of the line.
    pub number: u64,
    /// The digest of the line, in hexadecimal.
    pub digest: String,
}

#[derive(Serialize)]
struct Begins<'a> {
    source: &'a str,
    time_unix_ms: u64,
    operation: &'a str,
    key: String,
}

#[derive(Serialize)]
struct HeadRecord<'a> {
    source: &'a str,
    time_unix_ms: u64,
    operation: &'a str,
    key: String,
    head_number: u64,
    head: String,
    signature: String,
}

/// The digest of a line, without its own digest.
pub(crate) fn digest_of(before: &Digest, base: &str) -> Digest {
    let mut context = Context::new(&SHA256);
    context.update(before);
    context.update(base.as_bytes());
    context.finish().as_ref().try_into().expect("SHA-256 digests have 32 bytes")
}

fn signed_bytes(run: &str, number: u64, latest: &Digest) -> Vec<u8> {
    [PURPOSE, &(run.len() as u64).to_be_bytes(), run.as_bytes(), &number.to_be_bytes(), latest].concat()
}

/// Returns true if a signature of a head is right.
pub(crate) fn is_signed(key: &[u8], run: &str, number: u64, latest: &Digest, signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(&signed_bytes(run, number, latest), signature).is_ok()
}

impl Chain {
    /// A chain without a line.
    pub fn new(key: &Arc<ChainKey>, source: &'static str) -> std::io::Result<Self> {
        let mut run = [0; 8];
        rand::fill(&mut run).map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
        let place = Place { next: 0, latest: [0; 32], unsigned: 0 };
        Ok(Chain { key: Arc::clone(key), source, run: hex::encode(run), place })
    }

    /// A chain that says that it is another's run.
    #[cfg(test)]
    pub fn of_run(key: &Arc<ChainKey>, run: &str) -> Self {
        let place = Place { next: 0, latest: [0; 32], unsigned: 0 };
        Chain { key: Arc::clone(key), source: "test", run: run.to_owned(), place }
    }

    /// The first line, unless there is one.
    pub fn beginning(&mut self, time_unix_ms: u64) -> Option<String> {
        if self.place.next > 0 {
            return None;
        }
        let begins = Begins { source: self.source, time_unix_ms, operation: BEGINS, key: self.key.public() };
        Some(self.link(&crate::line_of(&begins)))
    }

    /// How far it is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes back all lines since: they were not written.
    pub fn go_back(&mut self, place: Place) {
        self.place = place;
    }

    /// The latest line, if it is signed.
    pub fn signed_head(&self, log: &str) -> Option<Head> {
        let Place { next, latest, unsigned } = self.place;
        let number = next.checked_sub(1).filter(|_| unsigned == 0)?;
        let (log, run, key) = (log.to_owned(), self.run.clone(), self.key.public());
        Some(Head { log, run, key, number, digest: hex::encode(latest) })
    }

    /// A line with its place in the chain.
    pub fn link(&mut self, line: &str) -> String {
        let mut linked = String::new();
        self.link_into(line, &mut linked);
        linked
    }

    /// Adds a line with its place in the chain to a text.
    pub fn link_into(&mut self, line: &str, text: &mut String) {
        let object = line.strip_suffix("}\n").expect("records are objects with fields");
        let begin = text.len();
        text.reserve(line.len() + PLACE_BYTES_MAX);
        text.push_str(object);
        text.push_str(",\"run\":\"");
        text.push_str(&self.run);
        write!(text, "\",\"number\":{}", self.place.next).expect("a String takes everything");
        self.place.latest = digest_of(&self.place.latest, &text[begin..]);
        self.place.next += 1;
        self.place.unsigned += 1;
        let mut digits = [0; 2 * size_of::<Digest>()];
        hex::encode_to_slice(self.place.latest, &mut digits).expect("two digits for each byte");
        text.push_str(",\"chain\":\"");
        text.push_str(std::str::from_utf8(&digits).expect("digits are ASCII"));
        text.push_str("\"}\n");
    }

    /// Returns true if enough lines have no signature for one to be due.
    pub fn is_head_due(&self) -> bool {
        self.place.unsigned >= HEAD_LINES_MAX
    }

    /// A line with a signature of the lines so far, unless there is none, or all have one and no other is wanted.
    pub fn head(&mut self, time_unix_ms: u64, is_wanted: bool) -> Option<String> {
        if self.place.next == 0 || self.place.unsigned == 0 && !is_wanted {
            return None;
        }
        let (number, latest) = (self.place.next - 1, self.place.latest);
        let signature = self.key.0.sign(&signed_bytes(&self.run, number, &latest));
        let head = HeadRecord {
            source: self.source,
            time_unix_ms,
            operation: HEAD,
            key: self.key.public(),
            head_number: number,
            head: hex::encode(latest),
            signature: hex::encode(signature.as_ref()),
        };
        let line = self.link(&crate::line_of(&head));
        // A signature need not be signed.
        self.place.unsigned = 0;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format as it is documented, made in the plain way.
    #[test]
    fn a_line_has_its_place_byte_for_byte() {
        let mut chain = Chain::of_run(&ChainKey::random().unwrap(), "00112233aabbccdd");
        let (mut latest, mut text, mut expected) = ([0; 32], String::from("before\n"), String::from("before\n"));
        for number in 0..2_000 {
            let object =
                serde_json::json!({ "user": format!("a\u{e9}\n\"{number}"), "path": "/".repeat(number % 99) });
            let line = crate::line_of(&object);
            assert_eq!(line, format!("{object}\n"));
            chain.link_into(&line, &mut text);
            let object = object.to_string();
            let base =
                format!("{},\"run\":\"00112233aabbccdd\",\"number\":{number}", object.strip_suffix('}').unwrap());
            latest = digest_of(&latest, &base);
            expected.push_str(&format!("{base},\"chain\":\"{}\"}}\n", hex::encode(latest)));
        }
        assert!(text == expected, "the text differs");
    }
}
