//! Answers when a form's file is stored.

use http::{HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use s3s::dto::{PostResponse, PutObjectOutput};
use s3s::xml::{Serialize, Serializer};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};

use super::fields::Fields;
use crate::ops::url_encode;

/// The stored object, and its address.
pub(super) struct Stored<'a> {
    pub bucket: &'a str,
    pub key: &'a str,
    /// Without the signed query.
    pub url: &'a str,
}

/// The answer that the form asks for.
pub(super) fn answer(fields: &Fields, stored: &Stored<'_>, output: PutObjectOutput) -> S3Result<Response<Body>> {
    let etag = output.e_tag.as_ref().map(|etag| format!("\"{}\"", etag.value())).unwrap_or_default();
    let location = format!("{}{}", stored.url, url_encode(stored.key));
    let redirect = ["success_action_redirect", "redirect"].iter().find_map(|name| fields.get(name));
    let redirect = redirect.and_then(|url| redirect_to(url, stored, &etag));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = match fields.get("success_action_status") {
        _ if redirect.is_some() => StatusCode::SEE_OTHER,
        Some("200") => StatusCode::OK,
        Some("201") => StatusCode::CREATED,
        _ => StatusCode::NO_CONTENT,
    };
    if response.status() == StatusCode::CREATED {
        let post = PostResponse { location: &location, bucket: stored.bucket, key: stored.key, etag: &etag };
        *response.body_mut() = Body::from(xml(&post)?);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    }
    let location = redirect.or_else(|| HeaderValue::from_str(&location).ok());
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    response.headers_mut().extend(HeaderValue::from_str(&etag).ok().map(|etag| (header::ETAG, etag)));
    for (name, value) in put_headers(output) {
        let value = value.and_then(|value| HeaderValue::from_str(&value).ok());
        response.headers_mut().extend(value.map(|value| (HeaderName::from_static(name), value)));
    }
    Ok(response)
}

fn xml(post: &PostResponse<'_>) -> S3Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut serializer = Serializer::new(&mut text);
    let written = serializer.decl().and_then(|()| post.serialize(&mut serializer));
    written.map_err(|error| S3Error::with_source(S3ErrorCode::InternalError, Box::new(error)))?;
    Ok(text)
}

/// The URL with the object's names added; none if it is no URL, which counts as if it were not there.
fn redirect_to(url: &str, stored: &Stored<'_>, etag: &str) -> Option<HeaderValue> {
    let (url, fragment) = url.split_once('#').map_or((url, None), |(url, fragment)| (url, Some(fragment)));
    let parsed: Uri = url.parse().ok()?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none_or(str::is_empty) {
        return None;
    }
    let separator = if parsed.query().is_some() { '&' } else { '?' };
    let [bucket, key, etag] = [stored.bucket, stored.key, etag].map(url_encode);
    let fragment = fragment.map(|fragment| format!("#{fragment}")).unwrap_or_default();
    HeaderValue::from_str(&format!("{url}{separator}bucket={bucket}&key={key}&etag={etag}{fragment}")).ok()
}

/// Other headers that the answer to a PUT has.
fn put_headers(output: PutObjectOutput) -> [(&'static str, Option<String>); 12] {
    [
        ("x-amz-version-id", output.version_id),
        ("x-amz-server-side-encryption", output.server_side_encryption.map(|value| value.as_str().to_owned())),
        ("x-amz-server-side-encryption-aws-kms-key-id", output.ssekms_key_id),
        ("x-amz-server-side-encryption-context", output.ssekms_encryption_context),
        ("x-amz-server-side-encryption-bucket-key-enabled", output.bucket_key_enabled.map(|is| is.to_string())),
        ("x-amz-server-side-encryption-customer-algorithm", output.sse_customer_algorithm),
        ("x-amz-server-side-encryption-customer-key-md5", output.sse_customer_key_md5),
        ("x-amz-checksum-crc32", output.checksum_crc32),
        ("x-amz-checksum-crc32c", output.checksum_crc32c),
        ("x-amz-checksum-crc64nvme", output.checksum_crc64nvme),
        ("x-amz-checksum-sha1", output.checksum_sha1),
        ("x-amz-checksum-sha256", output.checksum_sha256),
    ]
}

#[cfg(test)]
mod tests {
    use s3s::dto::ETag;

    use super::*;

    fn answered<const COUNT: usize>(fields: [(&str, &str); COUNT]) -> (u16, String, String) {
        let stored = Stored { bucket: "b", key: "a/b c+é", url: "http://host/b/" };
        let output = PutObjectOutput { e_tag: Some(ETag::Strong("0f".into())), ..Default::default() };
        let response = answer(&fields.into(), &stored, output).unwrap();
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        assert_eq!(response.headers()["etag"], "\"0f\"");
        let body = response.body().bytes().unwrap();
        (response.status().as_u16(), location, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn the_form_chooses_its_answer() {
        let location = "http://host/b/a/b%20c%2B%C3%A9";
        for (status, code) in [("200", 200), ("204", 204), ("404", 204), ("", 204)] {
            assert_eq!(answered([("success_action_status", status)]), (code, location.into(), String::new()));
        }
        let (code, found, body) = answered([("success_action_status", "201")]);
        assert_eq!((code, found.as_str()), (201, location));
        for part in [
            &format!("<Location>{location}</Location>"),
            "<Bucket>b</Bucket>",
            "<Key>a/b c+é</Key>",
            "<ETag>&quot;0f&quot;</ETag>",
        ] {
            assert!(body.contains(part), "{part} in {body}");
        }
    }

    #[test]
    fn redirects_are_urls() {
        let added = "bucket=b&key=a/b%20c%2B%C3%A9&etag=%220f%22";
        for (url, location) in [
            ("https://page.example", format!("https://page.example?{added}")),
            ("http://page.example/done?a=b#top", format!("http://page.example/done?a=b&{added}#top")),
        ] {
            assert_eq!(answered([("success_action_redirect", url)]), (303, location.clone(), String::new()));
            assert_eq!(answered([("redirect", url), ("success_action_status", "201")]).1, location);
        }
        for wrong in [
            "",
            "/done",
            "javascript:alert(1)",
            "ftp://page.example/",
            "http://a b/",
            "https:///x",
            "http://a/\r\nx:y",
        ] {
            assert_eq!(answered([("success_action_redirect", wrong)]).0, 204, "{wrong}");
        }
        let both = [("redirect", "http://old.example/"), ("success_action_redirect", "http://new.example/")];
        assert!(answered(both).1.starts_with("http://new.example/"));
    }
}
