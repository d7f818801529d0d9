//! Taking in a request's body: counted, hashed, sealed and written in one pass.

use atoll_keys::random_bytes;
use futures::StreamExt;
use http::{HeaderMap, StatusCode};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3Result, StdError, s3_error};

use super::Service;
use crate::data::{Budget, DataWriter, Unfinished};
use crate::digest::{BodyDigest, Digests, Expected};
use crate::encryption::{Encryption, WrappingKey};
use crate::error::{GatewayError, custom_error};
use crate::index::Index;
use crate::record::{Piece, Place};
use crate::sightings::renewal_interval;
use crate::trailers::{Trailers, is_aws_chunked};

/// Largest object of one PUT, and largest part.
pub(crate) const BODY_BYTES_MAX: u64 = 5 << 30;

/// A body that is stored but not yet visible.
pub(super) struct StoredBody {
    /// None if the body is empty.
    pub piece: Option<Piece>,
    pub data: Unfinished,
    pub digests: Digests,
    pub bytes: u64,
}

impl StoredBody {
    /// Ends the writing and the hashing of a body whose `bytes` all went there.
    pub(super) async fn new(
        mut writer: DataWriter,
        mut digest: BodyDigest,
        bytes: u64,
    ) -> Result<Self, GatewayError> {
        writer.write_rest().await?;
        // While the data is on its way, its hash waits for those of other bodies: together they cost less.
        digest.end().await;
        let (piece, data) = writer.finish().await?;
        Ok(StoredBody { piece, data, digests: digest.finish().await, bytes })
    }

    /// The entity tag of an object that is this body.
    pub(super) fn etag(&self, encryption: &Encryption) -> String {
        if encryption.has_md5_etag() { self.digests.etag() } else { hex::encode(random_bytes::<16>()) }
    }
}

/// Use of a body.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// An object; if it is small, it is in the index or beside it.
    Object,
    /// A part of a multipart upload. Parts are in chunks: their pieces are put together in one entry.
    Part,
}

/// Where a body goes.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub index: &'a Index,
    /// The S3 key of the object.
    pub object_key: &'a str,
    pub key: &'a WrappingKey,
    pub budget: &'a Budget,
    pub purpose: Purpose,
}

impl Target<'_> {
    /// Returns the writer of a body of at most `bytes_max`.
    pub(super) fn writer(&self, service: &Service, bytes_max: u64) -> DataWriter {
        let place = match self.purpose {
            Purpose::Object => Place::of_object(bytes_max, self.index.is_data_with_index()),
            Purpose::Part => Place::Chunks,
        };
        let interval = renewal_interval(service.abandoned_after);
        DataWriter::new(self.index, self.object_key, self.budget.clone(), self.key, place, bytes_max, interval)
    }
}

/// How long a body will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Exactly(u64),
    /// It ends where it ends, but not behind this.
    AtMost(u64),
}

/// A body and its sender's values for it.
pub(super) struct Upload {
    pub body: Option<StreamingBlob>,
    /// None if the request does not say.
    pub length: Option<BodyLength>,
    pub expected: Expected,
    pub trailers: Option<Trailers>,
}

/// Length of a body without its framing. boto3 over TLS sends aws-chunked bodies in HTTP chunks,
/// that is, without a Content-Length.
pub(super) fn body_length(headers: &HeaderMap, content_length: Option<i64>) -> Option<BodyLength> {
    let decoded = headers.get("x-amz-decoded-content-length").filter(|_| is_aws_chunked(headers));
    let length = match decoded {
        Some(value) => value.to_str().ok()?.parse().ok(),
        None => u64::try_from(content_length?).ok(),
    };
    length.map(BodyLength::Exactly)
}

impl Service {
    /// Stores a body and verifies its length, digests and checksums. On an error nothing remains.
    pub(super) async fn store_body(&self, target: Target<'_>, upload: Upload) -> S3Result<StoredBody> {
        let Some(length) = upload.length else {
            return Err(s3_error!(MissingContentLength, "You must provide the Content-Length HTTP header"));
        };
        let (BodyLength::Exactly(most) | BodyLength::AtMost(most)) = length;
        if most > BODY_BYTES_MAX {
            return Err(s3_error!(
                EntityTooLarge,
                "Your proposed upload of {most} bytes exceeds the maximum of {BODY_BYTES_MAX}; use a multipart upload"
            ));
        }
        let mut digest = upload.expected.hashers();
        let mut writer = target.writer(self, most);
        let mut bytes = 0;
        if let Some(mut body) = upload.body {
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(body_error)?;
                bytes += piece.len() as u64;
                if bytes > most {
                    return Err(s3_error!(InvalidRequest, "The body is longer than its Content-Length"));
                }
                digest.update(piece.clone()).await;
                writer.push(&piece).await?;
            }
        }
        // s3s takes an aws-chunked body that ends between two chunks for a whole one.
        if bytes != most && length == BodyLength::Exactly(most) {
            return Err(s3_error!(
                IncompleteBody,
                "You did not provide the number of bytes specified by the Content-Length HTTP header: {bytes} of {most}"
            ));
        }
        let body = StoredBody::new(writer, digest, bytes).await?;
        upload.expected.check(&body.digests, upload.trailers.as_ref())?;
        Ok(body)
    }
}

/// Returns the answer for an error of a body. The error types of s3s are private; their texts name the variant.
/// Our own errors may be answers already.
pub(crate) fn body_error(error: StdError) -> S3Error {
    let error = match error.downcast::<S3Error>() {
        Ok(answer) => return *answer,
        Err(error) => error,
    };
    let text = error.to_string();
    let has = |word: &str| text.contains(word);
    if has("Sha256Mismatch") {
        custom_error(
            "XAmzContentSHA256Mismatch",
            StatusCode::BAD_REQUEST,
            "The provided 'x-amz-content-sha256' header does not match what was computed",
        )
    } else if has("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch, "A chunk of the body is not signed as it must be")
    } else if has(crate::shell::CHUNK_TOO_LARGE) {
        s3_error!(InvalidRequest, "{text}")
    } else if has(crate::shell::BODY_STALLED) {
        s3_error!(RequestTimeout, "Your socket connection to the server was not read from or written to in time")
    } else if has("ncomplete") || has("LengthMismatch") || has("closed before") {
        s3_error!(IncompleteBody, "The request body ended too early: {text}")
    } else {
        s3_error!(InvalidRequest, "The request body cannot be read: {text}")
    }
}
