//! Uploads by HTML form: a POST of multipart/form-data to a bucket, with a signed policy in its fields.
//!
//! Taken before s3s, which would collect the whole form in memory before it looks at the signature. Once a form is
//! understood and allowed, it is a PutObject like any other: fields become its headers, and requests that
//! PutObject refuses are refused here.

mod answer;
mod fields;
mod file;
#[cfg(test)]
mod fuzz;
mod parser;
mod part_head;
mod policy;
mod put_request;
mod signature;

use std::sync::Arc;
use std::time::SystemTime;

use http::request::Parts;
use http::{HeaderMap, Method, Response, header};
use s3s::auth::Credentials;
use s3s::dto::StreamingBlob;
use s3s::{Body, S3Request, S3Result, s3_error};

use answer::{Stored, answer};
use fields::Fields;
use file::Form;
use parser::Parser;
use policy::{LengthRange, Policy};
use signature::Proof;

use crate::access::{FORM, FormRequest, Gate};
use crate::arrival::Arrival;
use crate::authentication::Authentication;
use crate::gateway::Gateway;
use crate::observed::Observed;

/// In a key it stands for the name of the file.
const FILE_NAME: &str = "${filename}";

/// Where a form is sent.
pub(crate) struct Address {
    pub bucket: String,
    /// The path behind the bucket; empty for a form.
    pub key: String,
    /// The URL of the bucket, up to where keys begin.
    pub url: String,
}

/// Returns true if s3s would take a request for a form.
pub(crate) fn is_form(method: &Method, headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes()).unwrap_or_default();
    let begin = b"multipart/form-data";
    method == Method::POST
        && content_type
            .trim_ascii_start()
            .get(..begin.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(begin))
}

/// Stores the file of a form. On an error no data of it remains.
pub(crate) async fn upload(
    gateway: &Gateway,
    parts: Parts,
    address: Option<Address>,
    body: Body,
) -> S3Result<Response<Body>> {
    let gate = Gate(gateway.service.clone());
    let Some(Address { bucket, key: path_key, url }) = address else { return Err(s3_error!(InvalidBucketName)) };
    if !path_key.is_empty() {
        return Err(s3_error!(NotImplemented, "Forms are sent to a bucket; the key is one of the form's fields"));
    }
    let observed = parts.extensions.get::<Arc<Observed>>().cloned();
    if let Some(observed) = &observed {
        observed.set_operation(FORM);
    }
    gate.check_form(&parts.headers, &parts.uri)?;
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mut form = Form::new(body, Parser::new(content_type.unwrap_or_default())?);
    let (mut fields, file_name) = form.read_fields().await?;

    let named_bucket = fields.get("bucket").map(str::to_owned);
    let key = expanded(fields.required("key")?, file_name.as_deref());
    fields.set("key", key.clone());
    fields.set("bucket", bucket.clone());
    if let Some(observed) = &observed {
        observed.set_subject(&format!("arn:aws:s3:::{bucket}/{key}"));
    }
    let (caller, authentication, allowed) = check_policy(gateway, &fields).await?;
    if named_bucket.is_some_and(|named| named != bucket) {
        return Err(s3_error!(InvalidArgument, "The form names another bucket than its URL"));
    }
    if key.is_empty() {
        return Err(s3_error!(UserKeyMustBeSpecified, "The bucket POST must contain a key that is not empty"));
    }
    let headers = put_request::headers(&fields, &parts.headers)?;
    let request = FormRequest {
        access_key: caller.as_ref().map(|caller| caller.access_key.as_str()),
        authentication,
        bucket: &bucket,
        key: &key,
        headers: &headers,
        uri: &parts.uri,
        arrival: parts.extensions.get::<Arrival>().copied(),
    };
    let permit = gate.let_form_in(&request).await?;
    if let Some(observed) = observed {
        observed.set_bucket(&bucket);
        if let Some(caller) = &permit.caller {
            observed.set_caller(caller);
        }
    }
    let mut extensions = parts.extensions;
    extensions.insert(permit);

    let mut file = form.into_file(allowed);
    let length = file.length(content_length(&parts.headers)).await?;
    let input = put_request::input(&bucket, &key, &headers, StreamingBlob::new(file))?;
    let request = S3Request {
        input,
        method: parts.method,
        uri: parts.uri,
        headers,
        extensions,
        credentials: caller,
        region: None,
        service: None,
        trailing_headers: None,
    };
    let output = gateway.service.put_object_of(request, Some(length)).await?.output;
    answer(&fields, &Stored { bucket: &bucket, key: &key, url: &url }, output)
}

/// Returns the signer of the form's policy, if it has one, and the allowed length of its file.
async fn check_policy(
    gateway: &Gateway,
    fields: &Fields,
) -> S3Result<(Option<Credentials>, Authentication, LengthRange)> {
    let Some(proof) = Proof::find(fields)? else { return Ok((None, Authentication::default(), LengthRange::ANY)) };
    let authentication = proof.authentication();
    if authentication.is_of_version_2() && !gateway.config.allows_version_2 {
        return Err(s3_error!(
            InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
        ));
    }
    let caller = proof.verify(&gateway.users, &gateway.config.region).await?;
    let policy = Policy::parse(fields.required("policy")?)?;
    Ok((Some(caller), authentication, policy.check(fields, SystemTime::now())?))
}

/// A key with the name of the file in it. Of a path, which some browsers send, only the end counts.
fn expanded(key: &str, file_name: Option<&str>) -> String {
    let name = file_name.unwrap_or_default().rsplit(['/', '\\']).next().unwrap_or_default();
    key.replace(FILE_NAME, name)
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn keys_take_the_name_of_the_file() {
        assert_eq!(expanded("a/${filename}", Some(r"C:\dir\x.txt")), "a/x.txt");
        assert_eq!(expanded("${filename}-${filename}", Some("dir/x")), "x-x");
        assert_eq!(expanded("${filename}", None), "");
        assert_eq!(expanded("$key ${key}", Some("x")), "$key ${key}");
    }

    #[test]
    fn forms_are_told_from_other_requests() {
        let is = |method: Method, content_type: &'static str| {
            let content_type = (header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            is_form(&method, &HeaderMap::from_iter([content_type]))
        };
        assert!(is(Method::POST, "Multipart/Form-Data; boundary=x"));
        assert!(!is(Method::PUT, "multipart/form-data; boundary=x"));
        assert!(!is(Method::POST, "multipart/mixed; boundary=x"));
        assert!(!is_form(&Method::POST, &HeaderMap::new()));
    }
}
