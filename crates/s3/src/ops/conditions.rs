//! Conditional requests: RFC 9110 section 13 for reads, S3's subset of it for writes.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use s3s::dto::{ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use super::answers::unix_seconds;
use crate::clock::system_time;
use crate::record::EntryHead;

/// Conditions of a read, or of the source of a copy.
#[derive(Default)]
pub(super) struct ReadConditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<Timestamp>,
    pub if_unmodified_since: Option<Timestamp>,
}

fn matches(condition: &ETagCondition, etag: &str) -> bool {
    condition.as_etag().is_none_or(|wanted| wanted.value() == etag)
}

pub(super) fn precondition_failed() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the preconditions you specified did not hold")
}

impl ReadConditions {
    /// 412 or 304 if a condition does not hold. HTTP dates have whole seconds.
    pub(super) fn check(&self, head: &EntryHead) -> S3Result<()> {
        let seconds = head.modified_ms / 1_000 * 1_000;
        let modified = Timestamp::from(system_time(seconds));
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !matches(condition, &head.etag) => return Err(precondition_failed()),
            (None, Some(since)) if modified > *since => return Err(precondition_failed()),
            _ => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) if matches(condition, &head.etag) => Err(not_modified(head, &modified)),
            (None, Some(since)) if modified <= *since => Err(not_modified(head, &modified)),
            _ => Ok(()),
        }
    }

    /// As [`ReadConditions::check`], but a copy has no 304.
    pub(super) fn check_copy_source(&self, head: &EntryHead) -> S3Result<()> {
        self.check(head).map_err(|_| precondition_failed())
    }
}

fn not_modified(head: &EntryHead, modified: &Timestamp) -> S3Error {
    let mut headers = HeaderMap::new();
    if let Ok(etag) = HeaderValue::from_str(&format!("\"{}\"", head.etag)) {
        headers.insert(header::ETAG, etag);
    }
    let mut date = Vec::new();
    if modified.format(TimestampFormat::HttpDate, &mut date).is_ok()
        && let Ok(date) = HeaderValue::from_bytes(&date)
    {
        headers.insert(header::LAST_MODIFIED, date);
    }
    let mut error = S3Error::new(S3ErrorCode::Custom("NotModified".into()));
    error.set_status_code(StatusCode::NOT_MODIFIED);
    error.set_headers(headers);
    error
}

/// Conditions of a write or a deletion.
#[derive(Clone, Default)]
pub(super) struct WriteConditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    /// The object's size, in bytes.
    pub size: Option<i64>,
    /// When the object was written, to the second.
    pub last_modified: Option<Timestamp>,
}

impl WriteConditions {
    /// Reads `If-Match` and `If-None-Match` for operations whose headers s3s does not read.
    pub(super) fn from_headers(headers: &HeaderMap) -> S3Result<Self> {
        let read = |name: header::HeaderName| {
            let parse = |value: &HeaderValue| {
                ETagCondition::parse_http_header(value.as_bytes())
                    .map_err(|_| s3_error!(InvalidArgument, "The value of {name} is no ETag"))
            };
            headers.get(&name).map(parse).transpose()
        };
        let (if_match, if_none_match) = (read(header::IF_MATCH)?, read(header::IF_NONE_MATCH)?);
        Ok(WriteConditions { if_match, if_none_match, ..Default::default() })
    }

    /// Returns true if the present object is the one that the writer expects.
    fn describes(&self, head: &EntryHead) -> bool {
        let modified_s = i64::try_from(head.modified_ms / 1_000).unwrap_or(i64::MAX);
        self.if_match.as_ref().is_none_or(|condition| matches(condition, &head.etag))
            && self.size.is_none_or(|size| u64::try_from(size) == Ok(head.size))
            && self.last_modified.as_ref().is_none_or(|time| unix_seconds(time.clone()) == modified_s)
    }

    /// Returns true if there are none.
    pub(super) fn are_none(&self) -> bool {
        !self.want_object() && self.if_none_match.is_none()
    }

    fn want_object(&self) -> bool {
        self.if_match.is_some() || self.size.is_some() || self.last_modified.is_some()
    }

    /// Checks a write of an object against the newest version of its key.
    pub(super) fn check_write(&self, newest: Option<&EntryHead>) -> S3Result<()> {
        let object = newest.filter(|head| !head.is_delete_marker);
        let is_unwanted =
            |head: &EntryHead| self.if_none_match.as_ref().is_some_and(|condition| matches(condition, &head.etag));
        match object {
            _ if self.want_object() && self.if_none_match.is_some() => {
                Err(s3_error!(NotImplemented, "If-Match and If-None-Match cannot be used together"))
            }
            None if self.want_object() => Err(s3_error!(NoSuchKey, "The specified key does not exist")),
            Some(head) if is_unwanted(head) || !self.describes(head) => Err(precondition_failed()),
            _ => Ok(()),
        }
    }

    /// Checks the deletion of a version, or of the newest one. An absent version needs no deletion; a delete
    /// marker is there, but no object.
    pub(super) fn check_deletion(&self, version: Option<&EntryHead>) -> S3Result<()> {
        match version {
            Some(head) if !self.describes(head) => Err(precondition_failed()),
            Some(head) if head.is_delete_marker && self.size.is_some() => Err(precondition_failed()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etag(value: &str) -> Option<ETagCondition> {
        Some(ETagCondition::parse_http_header(value.as_bytes()).unwrap())
    }

    #[test]
    fn etag_conditions_go_before_dates() {
        let head = EntryHead { etag: "abc".into(), modified_ms: 10_500, ..Default::default() };
        let at = |seconds: u64| Some(Timestamp::from(system_time(seconds * 1_000)));
        let status = |conditions: ReadConditions| match conditions.check(&head) {
            Ok(()) => 200,
            Err(error) => error.status_code().unwrap().as_u16(),
        };
        let none = ReadConditions::default;
        assert_eq!(status(none()), 200);
        assert_eq!(status(ReadConditions { if_match: etag("\"abc\""), ..none() }), 200);
        assert_eq!(status(ReadConditions { if_match: etag("*"), ..none() }), 200);
        assert_eq!(status(ReadConditions { if_match: etag("\"x\""), ..none() }), 412);
        assert_eq!(status(ReadConditions { if_none_match: etag("\"abc\""), ..none() }), 304);
        assert_eq!(
            status(ReadConditions { if_none_match: etag("\"x\""), if_modified_since: at(99), ..none() }),
            200
        );
        assert_eq!(
            status(ReadConditions { if_match: etag("\"abc\""), if_unmodified_since: at(1), ..none() }),
            200
        );
        assert_eq!(status(ReadConditions { if_modified_since: at(10), ..none() }), 304);
        assert_eq!(status(ReadConditions { if_modified_since: at(9), ..none() }), 200);
        assert_eq!(status(ReadConditions { if_unmodified_since: at(10), ..none() }), 200);
        assert_eq!(status(ReadConditions { if_unmodified_since: at(9), ..none() }), 412);
    }
}
