//! The PutObject that a form means: its fields as the headers of one, so that the same checks and the
//! same operation do the rest.

use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::dto::{
    ETagCondition, Metadata, ObjectLockLegalHoldStatus, ObjectLockMode, PutObjectInput, StreamingBlob, Tagging,
    Timestamp, TimestampFormat,
};
use s3s::xml::{Deserialize, Deserializer};
use s3s::{S3Error, S3Result, s3_error};

use super::fields::Fields;

/// Fields that are headers of a PUT with the same name, beside those that begin with `x-amz-`.
const HEADER_FIELDS: &[&str] = &[
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
    "if-match",
    "if-none-match",
];
/// Fields of the signature.
const SIGNATURE_FIELDS: &[&str] = &["x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"];
/// Headers of a PUT that say how its body is framed, or change how it is signed: a form is framed and
/// signed otherwise.
const FRAMING_FIELDS: &[&str] = &["x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer"];
const METADATA_PREFIX: &str = "x-amz-meta-";

/// The headers that a PUT would have in place of the fields, and those of the form's own request that policies ask for.
pub(super) fn headers(fields: &Fields, of_request: &HeaderMap) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for name in [USER_AGENT, REFERER] {
        for value in of_request.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    for (field, value) in fields.iter() {
        let (name, value) = match field {
            "acl" => ("x-amz-acl", value.to_owned()),
            "tagging" => ("x-amz-tagging", tags(value)?),
            _ if SIGNATURE_FIELDS.contains(&field) => continue,
            _ if FRAMING_FIELDS.contains(&field) => {
                return Err(s3_error!(NotImplemented, "The field '{field}' of a form is not supported"));
            }
            _ if HEADER_FIELDS.contains(&field) || field.starts_with("x-amz-") => (field, value.to_owned()),
            _ => continue,
        };
        let value = HeaderValue::from_str(value.trim()).map_err(|_| invalid(field))?;
        let name = HeaderName::try_from(name).map_err(|_| invalid(field))?;
        if headers.insert(name, value).is_some() {
            return Err(s3_error!(InvalidArgument, "The fields of the form say the same thing twice: '{field}'"));
        }
    }
    Ok(headers)
}

fn invalid(field: &str) -> S3Error {
    s3_error!(InvalidArgument, "The value of the form's field '{field}' is not valid")
}

/// Tags as a PUT has them, from the XML of a form.
fn tags(xml: &str) -> S3Result<String> {
    let mut deserializer = Deserializer::new(xml.as_bytes());
    let tagging =
        Tagging::deserialize(&mut deserializer).and_then(|tags| deserializer.expect_eof().map(|()| tags));
    let tagging =
        tagging.map_err(|error| s3_error!(MalformedXML, "The tags of the form cannot be read: {error}"))?;
    let mut encoded = form_urlencoded::Serializer::new(String::new());
    for tag in tagging.tag_set {
        encoded.append_pair(&tag.key.unwrap_or_default(), &tag.value.unwrap_or_default());
    }
    Ok(encoded.finish())
}

/// Headers, each of which may be empty or absent.
struct Reader<'a>(&'a HeaderMap);

impl Reader<'_> {
    fn text(&self, name: &str) -> S3Result<Option<String>> {
        let Some(value) = self.0.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        value.to_str().map(|text| Some(text.to_owned())).map_err(|_| invalid(name))
    }

    fn parsed<T, E>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> S3Result<Option<T>> {
        self.text(name)?.map(|text| parse(&text).map_err(|_| invalid(name))).transpose()
    }

    fn condition(&self, name: &str) -> S3Result<Option<ETagCondition>> {
        self.parsed(name, |text| ETagCondition::parse_http_header(text.as_bytes()))
    }

    fn time(&self, name: &str, format: TimestampFormat) -> S3Result<Option<Timestamp>> {
        self.parsed(name, |text| Timestamp::parse(format, text))
    }

    /// User metadata, which need not be ASCII.
    fn metadata(&self) -> S3Result<Option<Metadata>> {
        let mut metadata = Metadata::default();
        for (name, value) in self.0 {
            let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
            let text = std::str::from_utf8(value.as_bytes()).ok().filter(|_| !key.is_empty());
            metadata.insert(key.to_owned(), text.ok_or_else(|| invalid(name.as_str()))?.to_owned());
        }
        Ok((!metadata.is_empty()).then_some(metadata))
    }
}

/// Returns the input of PutObject, from such headers.
pub(super) fn input(
    bucket: &str,
    key: &str,
    headers: &HeaderMap,
    body: StreamingBlob,
) -> S3Result<PutObjectInput> {
    let from = Reader(headers);
    let is_true = |text: &str| text.to_ascii_lowercase().parse::<bool>();
    Ok(PutObjectInput {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        body: Some(body),
        acl: from.text("x-amz-acl")?.map(Into::into),
        bucket_key_enabled: from.parsed("x-amz-server-side-encryption-bucket-key-enabled", is_true)?,
        cache_control: from.text("cache-control")?,
        checksum_algorithm: from.text("x-amz-checksum-algorithm")?.map(Into::into),
        content_disposition: from.text("content-disposition")?,
        content_encoding: from.text("content-encoding")?,
        content_language: from.text("content-language")?,
        content_type: from.text("content-type")?,
        expires: from.time("expires", TimestampFormat::HttpDate)?,
        if_match: from.condition("if-match")?,
        if_none_match: from.condition("if-none-match")?,
        metadata: from.metadata()?,
        object_lock_legal_hold_status: from
            .text("x-amz-object-lock-legal-hold")?
            .map(ObjectLockLegalHoldStatus::from),
        object_lock_mode: from.text("x-amz-object-lock-mode")?.map(ObjectLockMode::from),
        object_lock_retain_until_date: from
            .time("x-amz-object-lock-retain-until-date", TimestampFormat::DateTime)?,
        sse_customer_algorithm: from.text("x-amz-server-side-encryption-customer-algorithm")?,
        sse_customer_key: from.text("x-amz-server-side-encryption-customer-key")?,
        sse_customer_key_md5: from.text("x-amz-server-side-encryption-customer-key-md5")?,
        ssekms_encryption_context: from.text("x-amz-server-side-encryption-context")?,
        ssekms_key_id: from.text("x-amz-server-side-encryption-aws-kms-key-id")?,
        server_side_encryption: from.text("x-amz-server-side-encryption")?.map(Into::into),
        storage_class: from.text("x-amz-storage-class")?.map(Into::into),
        tagging: from.text("x-amz-tagging")?,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<const COUNT: usize>(fields: [(&str, &str); COUNT]) -> S3Result<PutObjectInput> {
        let body = StreamingBlob::from(s3s::Body::empty());
        input("b", "k", &headers(&fields.into(), &HeaderMap::new())?, body)
    }

    #[test]
    fn fields_become_what_put_takes() {
        let xml = "<Tagging><TagSet><Tag><Key>a b</Key><Value>&amp;=</Value></Tag></TagSet></Tagging>";
        let put = put([
            ("acl", "private"),
            ("tagging", xml),
            ("content-type", " text/plain "),
            ("expires", "Tue, 24 Nov 2026 08:09:10 GMT"),
            ("x-amz-meta-color", "é"),
            ("x-amz-server-side-encryption-bucket-key-enabled", "True"),
            ("x-amz-object-lock-retain-until-date", "2026-11-24T08:09:10Z"),
            ("if-none-match", "*"),
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("success_action_status", "201"),
            ("submit", "Upload"),
        ])
        .unwrap();
        assert_eq!((put.bucket.as_str(), put.key.as_str()), ("b", "k"));
        assert_eq!(put.acl.unwrap().as_str(), "private");
        assert_eq!(put.tagging.unwrap(), "a+b=%26%3D");
        assert_eq!(put.content_type.unwrap(), "text/plain");
        assert_eq!(put.metadata.unwrap()["color"], "é");
        assert_eq!(put.bucket_key_enabled, Some(true));
        assert!(put.if_none_match.unwrap().is_any());
        assert!(put.expires.is_some() && put.object_lock_retain_until_date.is_some());
    }

    #[test]
    fn what_put_cannot_take_is_refused() {
        for (name, value) in [
            ("content-type", "text/\r\nplain"),
            ("content-type", "é"),
            ("expires", "tomorrow"),
            ("tagging", "<Tagging>"),
            ("tagging", "a=b"),
            ("x-amz-meta-", "no name"),
            ("x-amz-meta-a b", "no header"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ("x-amz-server-side-encryption-bucket-key-enabled", "perhaps"),
        ] {
            assert!(put([(name, value)]).is_err(), "{name}: {value}");
        }
        let tags = "<Tagging><TagSet></TagSet></Tagging>";
        assert!(put([("tagging", tags), ("x-amz-tagging", "a=b")]).is_err(), "twice the same");
    }

    #[test]
    fn policies_see_who_sends_a_form_and_from_which_page() {
        let lines = [(USER_AGENT, "browser"), (REFERER, "https://site.example/"), (http::header::COOKIE, "a=b")];
        let of_request = lines.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
        let fields = [("user-agent", "made up"), ("referer", "made up"), ("key", "k")];
        let headers = headers(&fields.into(), &of_request).unwrap();
        assert_eq!((&headers[USER_AGENT], &headers[REFERER]), (&of_request[USER_AGENT], &of_request[REFERER]));
        assert_eq!(headers.len(), 2);
    }
}
