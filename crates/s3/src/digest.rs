//! MD5 and the S3 checksums of a body, computed in the pass that also writes it, and compared with the client's
//! values.

use std::collections::BTreeSet;

use atoll_md5::Md5;
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use http::{HeaderMap, StatusCode};
use md5::Digest;
use s3s::{S3Error, S3Result, s3_error};

use crate::error::custom_error;
use crate::record::Checksums;
use crate::trailers::Trailers;

/// A checksum algorithm of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

const HEADER_PREFIX: &str = "x-amz-checksum-";

impl Algorithm {
    pub(crate) const ALL: [Algorithm; 5] =
        [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme, Algorithm::Sha1, Algorithm::Sha256];

    /// S3's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Crc64Nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    /// The algorithm with S3's name.
    pub(crate) fn parse(name: &str) -> S3Result<Self> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm '{name}' is not supported"))
    }

    /// The header or trailer that carries it.
    fn header(self) -> String {
        format!("{HEADER_PREFIX}{}", self.name().to_ascii_lowercase())
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 | Algorithm::Sha256 => None,
        }
    }

    /// Length of a checksum in bytes.
    fn bytes(self) -> usize {
        match self {
            Algorithm::Crc32 | Algorithm::Crc32c => 4,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
        }
    }

    fn encode_crc(self, crc: u64) -> String {
        BASE64.encode(&crc.to_be_bytes()[8 - self.bytes()..])
    }

    fn decode(self, text: &str) -> Option<Vec<u8>> {
        BASE64.decode(text).ok().filter(|bytes| bytes.len() == self.bytes())
    }

    /// The checksum of the parts' checksums, as S3 writes it.
    pub(crate) fn composite<'a>(self, parts: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
        let count = parts.len();
        let mut hasher = Hasher::new(self);
        for part in parts {
            hasher.update(&self.decode(part)?);
        }
        Some(format!("{}-{count}", hasher.finish(self)))
    }

    /// The checksum of the whole object from those of its parts and their lengths: only CRCs have it.
    pub(crate) fn combined<'a>(self, parts: impl Iterator<Item = (&'a str, u64)>) -> Option<String> {
        let crc = self.crc()?;
        let mut total = None;
        for (text, bytes) in parts {
            let part = self.decode(text)?.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
            total = Some(match total {
                None => part,
                Some(before) => crc_fast::checksum_combine(crc, before, part, bytes),
            });
        }
        Some(self.encode_crc(total?))
    }
}

enum Hasher {
    Crc(Box<crc_fast::Digest>),
    Sha(Context),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm.crc() {
            Some(crc) => Hasher::Crc(Box::new(crc_fast::Digest::new(crc))),
            None if algorithm == Algorithm::Sha1 => Hasher::Sha(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            None => Hasher::Sha(Context::new(&SHA256)),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Crc(digest) => digest.update(bytes),
            Hasher::Sha(context) => context.update(bytes),
        }
    }

    fn finish(self, algorithm: Algorithm) -> String {
        match self {
            Hasher::Crc(digest) => algorithm.encode_crc(digest.finalize()),
            Hasher::Sha(context) => BASE64.encode(context.finish()),
        }
    }
}

/// A client's values for a body, from before or after it.
#[derive(Clone, Default)]
pub(crate) struct Expected {
    md5: Option<[u8; 16]>,
    checksums: Checksums,
    algorithms: BTreeSet<Algorithm>,
    trailers: Vec<Algorithm>,
}

impl Expected {
    /// Reads Content-MD5 alone.
    pub(crate) fn md5_of(headers: &HeaderMap) -> S3Result<Self> {
        let Some(value) = headers.get("content-md5") else { return Ok(Expected::default()) };
        let digest = BASE64.decode(value).ok().and_then(|bytes| bytes.try_into().ok());
        let digest = digest.ok_or_else(|| s3_error!(InvalidDigest, "The Content-MD5 you specified is not valid"));
        Ok(Expected { md5: Some(digest?), ..Expected::default() })
    }

    /// Reads Content-MD5, the checksum headers, and the trailers that were announced.
    pub(crate) fn from_headers(headers: &HeaderMap) -> S3Result<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut expected = Expected::md5_of(headers)?;
        for algorithm in Algorithm::ALL {
            if let Some(value) = text(&algorithm.header()) {
                if algorithm.decode(value).is_none() {
                    return Err(invalid_checksum(algorithm));
                }
                expected.checksums.insert(algorithm.name().into(), value.into());
                expected.algorithms.insert(algorithm);
            }
        }
        if let Some(name) = text("x-amz-checksum-algorithm") {
            expected.algorithms.insert(Algorithm::parse(name)?);
        }
        for trailer in text("x-amz-trailer").unwrap_or_default().split(',') {
            let name = trailer.trim().to_ascii_lowercase();
            if let Some(name) = name.strip_prefix(HEADER_PREFIX) {
                let algorithm = Algorithm::parse(name)?;
                expected.algorithms.insert(algorithm);
                expected.trailers.push(algorithm);
            }
        }
        Ok(expected)
    }

    /// Also computes this algorithm, so that it can be stored.
    pub(crate) fn add_algorithm(&mut self, algorithm: Algorithm) {
        self.algorithms.insert(algorithm);
    }

    /// The hashers that the body must go through.
    pub(crate) fn hashers(&self) -> BodyDigest {
        BodyDigest {
            md5: Md5::new(),
            hashers: self.algorithms.iter().map(|&algorithm| (algorithm, Hasher::new(algorithm))).collect(),
        }
    }

    /// Compares with a short body, which has no trailers.
    pub(crate) fn check_document(&self, document: &[u8]) -> S3Result<()> {
        let checksum = |algorithm: &Algorithm| {
            let mut hasher = Hasher::new(*algorithm);
            hasher.update(document);
            (algorithm.name().into(), hasher.finish(*algorithm))
        };
        let checksums = self.algorithms.iter().map(checksum).collect();
        self.clone().check(&Digests { md5: md5::Md5::digest(document).into(), checksums }, None)
    }

    /// Compares; call it after the whole body was read, since only then the trailers are there.
    pub(crate) fn check(mut self, found: &Digests, trailers: Option<&Trailers>) -> S3Result<()> {
        if self.md5.is_some_and(|md5| md5 != found.md5) {
            return Err(s3_error!(BadDigest, "The Content-MD5 you specified did not match what was received"));
        }
        for algorithm in std::mem::take(&mut self.trailers) {
            let value = trailers.and_then(|trailers| trailers.get(&algorithm.header())).ok_or_else(|| {
                let message = format!("The trailer {} was announced but not sent", algorithm.header());
                custom_error("MalformedTrailerError", StatusCode::BAD_REQUEST, message)
            })?;
            if algorithm.decode(&value).is_none() {
                return Err(invalid_checksum(algorithm));
            }
            self.checksums.insert(algorithm.name().into(), value);
        }
        for (name, value) in &self.checksums {
            if found.checksums.get(name) != Some(value) {
                return Err(s3_error!(BadDigest, "The {name} you specified did not match what was received"));
            }
        }
        Ok(())
    }
}

fn invalid_checksum(algorithm: Algorithm) -> S3Error {
    s3_error!(InvalidRequest, "Value for {} header is invalid.", algorithm.header())
}

/// Hashers at work.
pub(crate) struct BodyDigest {
    md5: Md5,
    hashers: Vec<(Algorithm, Hasher)>,
}

impl BodyDigest {
    pub(crate) async fn update(&mut self, piece: Bytes) {
        for (_, hasher) in &mut self.hashers {
            hasher.update(&piece);
        }
        self.md5.update(piece).await;
    }

    /// See [`Md5::end`].
    pub(crate) async fn end(&mut self) {
        self.md5.end().await;
    }

    pub(crate) async fn finish(self) -> Digests {
        let finish =
            |(algorithm, hasher): (Algorithm, Hasher)| (algorithm.name().into(), hasher.finish(algorithm));
        Digests { md5: self.md5.finish().await, checksums: self.hashers.into_iter().map(finish).collect() }
    }
}

/// The computed digests of the body.
pub(crate) struct Digests {
    pub md5: [u8; 16],
    pub checksums: Checksums,
}

impl Digests {
    /// The ETag of an object or part with this body, without quotes.
    pub(crate) fn etag(&self) -> String {
        hex::encode(self.md5)
    }
}

/// The ETag of an object made of parts with these ETags: the MD5 of their MD5s, and their number.
pub(crate) fn multipart_etag<'a>(parts: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let count = parts.len();
    let mut md5 = md5::Md5::new();
    for part in parts {
        md5.update(hex::decode(part).ok()?);
    }
    Some(format!("{}-{count}", hex::encode(md5.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    fn checksum(algorithm: Algorithm, bytes: &[u8]) -> String {
        let mut expected = Expected::default();
        expected.add_algorithm(algorithm);
        let mut digest = expected.hashers();
        block_on(digest.update(Bytes::copy_from_slice(bytes)));
        block_on(digest.finish()).checksums.remove(algorithm.name()).unwrap()
    }

    /// Check values of "123456789": the CRC catalogue's and the SHA standard's.
    #[test]
    fn checksums_have_their_known_values() {
        let hex_of = |algorithm| hex::encode(BASE64.decode(checksum(algorithm, b"123456789")).unwrap());
        assert_eq!(hex_of(Algorithm::Crc32), "cbf43926");
        assert_eq!(hex_of(Algorithm::Crc32c), "e3069283");
        assert_eq!(hex_of(Algorithm::Crc64Nvme), "ae8b14860a799888");
        assert_eq!(hex_of(Algorithm::Sha1), "f7c3bc1d808e04732adf679965ccc34ca7ae3441");
        assert!(hex_of(Algorithm::Sha256).starts_with("15e2b0d3c33891eb"));
    }

    #[test]
    fn crcs_of_parts_combine_to_that_of_the_whole() {
        let (a, b) = (vec![7; 100_000], b"the rest".to_vec());
        let whole = [a.clone(), b.clone()].concat();
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts = [checksum(algorithm, &a), checksum(algorithm, &b)];
            let lengths = [a.len() as u64, b.len() as u64];
            let combined = algorithm.combined(parts.iter().map(String::as_str).zip(lengths));
            assert_eq!(combined.unwrap(), checksum(algorithm, &whole));
        }
        assert_eq!(Algorithm::Sha256.combined(std::iter::empty()), None);
    }

    #[test]
    fn wrong_digests_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==".parse().unwrap());
        let expected = Expected::from_headers(&headers).unwrap();
        let digests = block_on(expected.hashers().finish());
        assert!(expected.check(&digests, None).is_err());

        headers.insert("content-md5", "short".parse().unwrap());
        assert!(Expected::from_headers(&headers).is_err());

        let announced =
            HeaderMap::from_iter([("x-amz-trailer".parse().unwrap(), "x-amz-checksum-crc32".parse().unwrap())]);
        let expected = Expected::from_headers(&announced).unwrap();
        let digests = block_on(expected.hashers().finish());
        assert!(expected.check(&digests, None).is_err(), "the announced trailer never came");
    }

    #[test]
    fn multipart_etags_name_the_number_of_parts() {
        let part = "d41d8cd98f00b204e9800998ecf8427e";
        let etag = multipart_etag([part, part].into_iter()).unwrap();
        assert!(etag.ends_with("-2") && etag.len() == 34);
        assert_eq!(multipart_etag(["zz"].into_iter()), None);
    }
}
