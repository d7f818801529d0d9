//! Refusals of requests, and those of them that are security events.

use atoll_security_log::SecurityEvent;
use s3s::{S3Error, S3ErrorCode};

/// Reasons for refusing a request.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It cannot be read, or requests an unsupported feature.
    Malformed(S3Error),
    /// It has headers that count and that its signature does not cover: their names.
    Unsigned(Vec<String>),
}

impl From<S3Error> for Refused {
    fn from(error: S3Error) -> Self {
        Refused::Malformed(error)
    }
}

/// Security event of a refusal, as an extension of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspicion {
    pub event: SecurityEvent,
    pub detail: &'static str,
}

impl Suspicion {
    pub(super) const UNSIGNED_HEADERS: Suspicion = Suspicion {
        event: SecurityEvent::BadSignature,
        detail: "a request has headers that its signature does not cover",
    };

    /// Returns the event of an error with this code, if it is one.
    pub(crate) fn of_code(code: &str) -> Option<Self> {
        if code == S3ErrorCode::SignatureDoesNotMatch.as_str() {
            let detail = "a request is signed with another secret than that of its access key";
            return Some(Suspicion { event: SecurityEvent::BadSignature, detail });
        }
        let is_unknown = code == S3ErrorCode::InvalidAccessKeyId.as_str();
        let detail = "there is no such access key";
        is_unknown.then_some(Suspicion { event: SecurityEvent::UnknownAccessKey, detail })
    }

    /// Returns the event of an answer of s3s, which hands out its errors as documents only.
    pub(super) fn of_document(document: &[u8]) -> Option<Self> {
        const CODE: &[u8] = b"<Code>";
        let code = &document[memchr::memmem::find(document, CODE)? + CODE.len()..];
        let code = code.split(|byte| *byte == b'<').next()?;
        Self::of_code(std::str::from_utf8(code).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use s3s::s3_error;

    use super::*;

    #[test]
    fn refused_credentials_are_recognised_by_code_and_in_documents_of_s3s() {
        let event = |error: S3Error| {
            let by_code = Suspicion::of_code(error.code().as_str()).map(|suspicion| suspicion.event);
            let response = error.to_http_response().unwrap();
            let by_document = Suspicion::of_document(&response.body().bytes().unwrap());
            assert_eq!(by_document.map(|suspicion| suspicion.event), by_code);
            by_code
        };
        assert_eq!(event(s3_error!(SignatureDoesNotMatch)), Some(SecurityEvent::BadSignature));
        assert_eq!(event(s3_error!(InvalidAccessKeyId, "<Code>")), Some(SecurityEvent::UnknownAccessKey));
        assert_eq!(
            event(s3_error!(AccessDenied, "<Code>InvalidAccessKeyId</Code>")),
            None,
            "a message says anything"
        );
    }
}
