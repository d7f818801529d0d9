//! Fuzzing in small of forms and of their policies; see [`crate::fuzz`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::StreamExt;
use futures::executor::block_on;
use proptest::prelude::*;

use super::*;
use crate::fuzz::{config, mutated};

const FORM: &str = "--bound\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na/${filename}\r\n\
    --bound\r\nContent-Disposition: form-data; name=\"tagging\"\r\n\r\n\
    <Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>\r\n\
    --bound\r\nContent-Disposition: form-data; name=\"x-amz-meta-a\"\r\n\r\nb\r\n\
    --bound\r\nContent-Disposition: form-data; name=\"x-amz-credential\"\r\n\r\nk/20261124/us-east-1/s3/aws4_request\r\n\
    --bound\r\nContent-Disposition: form-data; name=\"expires\"\r\n\r\nTue, 24 Nov 2026 08:09:10 GMT\r\n\
    --bound\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\n\
    the file\r\n--bound\r\nContent-Disposition: form-data; name=\"submit\"\r\n\r\n\r\n--bound--\r\n";
const FORM_WORDS: &[&str] = &[
    "\r\n",
    "--bound",
    "\r\n--bound\r\n",
    "--",
    "\"",
    ";",
    "; name=\"acl\"",
    "; filename*=utf-8''x",
    "\\",
    "%0a",
    "ü",
    "${filename}",
    "x-amz-",
];

const POLICY: &str = r#"{"expiration":"2100-01-01T00:00:00.000Z","conditions":[{"bucket":"b"},["starts-with","$key","a/"],["eq","$x-amz-meta-a","b"],["content-length-range",0,1000],["starts-with","$Content-Type","image/"]]}"#;
const POLICY_WORDS: &[&str] =
    &["\"", "{", "[", "}", "]", ",", "$", "-1", "1e400", "99999999999999999999", "null", "\\ud800", "ü", "\"eq\""];

/// All that happens to a form without a gateway; the bytes of its file, if it is good.
fn take(bytes: Vec<u8>, content_type: &str) -> S3Result<usize> {
    let mut form = Form::new(Body::from(bytes::Bytes::from(bytes)), Parser::new(content_type)?);
    let (fields, file_name) = block_on(form.read_fields())?;
    let key = expanded(fields.required("key")?, file_name.as_deref());
    drop(Proof::find(&fields));
    let headers = put_request::headers(&fields, &HeaderMap::new())?;
    let mut file = form.into_file(LengthRange::ANY);
    block_on(file.length(None))?;
    let mut body = put_request::input("b", &key, &headers, StreamingBlob::new(file))?.body;
    let mut bytes = 0;
    while let Some(piece) = body.as_mut().and_then(|body| block_on(body.next())) {
        bytes += piece.map_err(crate::ops::body_error)?.len();
    }
    Ok(bytes)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn forms_are_taken_or_refused(bytes in mutated(vec![FORM.into()], FORM_WORDS)) {
        drop(take(bytes, "multipart/form-data; boundary=bound"));
    }

    #[test]
    fn content_types_are_understood_or_refused(
        bytes in mutated(vec![b"multipart/form-data; charset=utf-8; boundary=\"bound\"".to_vec()], FORM_WORDS),
    ) {
        drop(take(FORM.into(), &String::from_utf8_lossy(&bytes)));
    }

    #[test]
    fn policies_of_forms_are_parsed_or_refused(bytes in mutated(vec![POLICY.into()], POLICY_WORDS)) {
        drop(Policy::parse(&String::from_utf8_lossy(&bytes)));
        if let Ok(policy) = Policy::parse(&BASE64.encode(&bytes)) {
            let mut fields = Fields::default();
            fields.set("key", "a/b".to_owned());
            fields.set("content-type", "image/png, image/gif".to_owned());
            drop(policy.check(&fields, SystemTime::now()));
        }
    }
}

#[test]
fn the_samples_are_good() {
    assert_eq!(take(FORM.into(), "multipart/form-data; boundary=bound").unwrap(), "the file".len());
    assert!(Policy::parse(&BASE64.encode(POLICY)).is_ok());
}
