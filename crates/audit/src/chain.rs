//! What shows that no line of a log was changed or taken out: each has a digest of itself and of the line before it, and
//! now and then a line has a signature of the latest digest. A process has a key of its own for that, which is in its memory
//! only, so nobody can sign for it when it has ended.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::rand;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::Serialize;

/// The first line of a chain.
pub(crate) const BEGINS: &str = "ChainBegins";
/// A line with a signature.
pub(crate) const HEAD: &str = "ChainHead";
/// What a signature is for, so that it is one of nothing else.
const PURPOSE: &[u8] = b"atoll audit head 1";
/// Lines after which there is a signature, however little time has passed.
const HEAD_LINES_MAX: u64 = 4_096;

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

/// The chain of one file, or of what goes to one collector.
pub(crate) struct Chain {
    key: Arc<ChainKey>,
    source: &'static str,
    /// Tells it from others in the same file.
    run: String,
    next: u64,
    latest: Digest,
    unsigned: u64,
}

#[derive(Serialize)]
struct Begins<'a> {
    source: &'a str,
    time_unix_ms: u64,
    operation: &'a str,
    key: String,
}

#[derive(Serialize)]
struct Head<'a> {
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

/// Whether a signature of a head is right.
pub(crate) fn is_signed(key: &[u8], run: &str, number: u64, latest: &Digest, signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(&signed_bytes(run, number, latest), signature).is_ok()
}

impl Chain {
    /// Begins a chain; returns its first line, too.
    pub fn begin(key: &Arc<ChainKey>, source: &'static str, time_unix_ms: u64) -> std::io::Result<(Self, String)> {
        let mut run = [0; 8];
        rand::fill(&mut run).map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
        let mut chain =
            Chain { key: Arc::clone(key), source, run: hex::encode(run), next: 0, latest: [0; 32], unsigned: 0 };
        let begins = Begins { source, time_unix_ms, operation: BEGINS, key: key.public() };
        let line = chain.link(&crate::line_of(&begins));
        Ok((chain, line))
    }

    /// A line with its place in the chain.
    pub fn link(&mut self, line: &str) -> String {
        let object = line.strip_suffix("}\n").expect("records are objects with fields");
        let base = format!(r#"{object},"run":"{}","number":{}"#, self.run, self.next);
        self.latest = digest_of(&self.latest, &base);
        self.next += 1;
        self.unsigned += 1;
        format!("{base},\"chain\":\"{}\"}}\n", hex::encode(self.latest))
    }

    /// Whether so many lines have no signature that one is due.
    pub fn is_head_due(&self) -> bool {
        self.unsigned >= HEAD_LINES_MAX
    }

    /// A line with a signature of the lines so far, unless all have one.
    pub fn head(&mut self, time_unix_ms: u64) -> Option<String> {
        if self.unsigned == 0 {
            return None;
        }
        let number = self.next - 1;
        let signature = self.key.0.sign(&signed_bytes(&self.run, number, &self.latest));
        let head = Head {
            source: self.source,
            time_unix_ms,
            operation: HEAD,
            key: self.key.public(),
            head_number: number,
            head: hex::encode(self.latest),
            signature: hex::encode(signature.as_ref()),
        };
        let line = self.link(&crate::line_of(&head));
        // A signature need not be signed.
        self.unsigned = 0;
        Some(line)
    }
}
