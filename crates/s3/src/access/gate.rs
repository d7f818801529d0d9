//! Admits requests: those that the gateway knows, from permitted callers. Decisions that depend on the object, or
//! on the body, are left to the operation, with a [`Permit`] in the request's extensions.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_iam::Caller;
use atoll_keys::DEFAULT_KEY;
use http::{HeaderMap, Method, Uri};
use s3s::access::{S3Access, S3AccessContext};
use s3s::path::S3Path;
use s3s::{S3Result, s3_error};

use super::conditions::{KEY_ID, NamedKey, signed_region};
use super::{Asked, Asking, Permit, Rule, Target, access_denied, extra_rules, rule_of};
use crate::arrival::Arrival;
use crate::authentication::Authentication;
use crate::known_requests::Known;
use crate::observed::Observed;
use crate::ops::{Service, parse_key_id};
use crate::query::{parameter, parameters};
use crate::shell::Document;
use crate::trailers::is_aws_chunked;

/// The session token of temporary credentials.
fn session_token(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let of_header = headers.get("x-amz-security-token").and_then(|value| value.to_str().ok());
    of_header.map(str::to_owned).or_else(|| parameter(uri, "X-Amz-Security-Token").map(Cow::into_owned))
}

/// The bucket of a copy's source.
fn source_bucket(headers: &HeaderMap) -> Option<String> {
    let source = headers.get("x-amz-copy-source")?.to_str().ok()?;
    let bucket = source.trim_start_matches('/').split('/').next()?;
    Some(bucket.to_owned())
}

/// The operation that uploads by form are.
pub(crate) const FORM: &str = "PostObject";

/// An upload by form, as far as it matters who may do it.
pub(crate) struct FormRequest<'a> {
    /// The access key that signed the form's policy, if it has one.
    pub access_key: Option<&'a str>,
    pub authentication: Authentication,
    pub bucket: &'a str,
    pub key: &'a str,
    /// Those of a PutObject that the fields mean.
    pub headers: &'a HeaderMap,
    pub uri: &'a Uri,
    pub arrival: Option<Arrival>,
}

/// The check that s3s makes before it calls an operation.
pub(crate) struct Gate(pub Arc<Service>);

impl Gate {
    fn check_region(&self, headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
        let expected = &self.0.region;
        match signed_region(headers, uri) {
            Some(region) if region != *expected => Err(s3_error!(
                AuthorizationHeaderMalformed,
                "The authorization header is malformed; the region '{region}' is wrong; expecting '{expected}'"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the signer with this key; the signature has been verified.
    async fn signed(&self, access_key: &str, token: Option<&str>) -> S3Result<Arc<Caller>> {
        let caller = self.0.users.caller(access_key, token).await?;
        self.0.users.note_use(access_key, "s3", &self.0.region);
        Ok(caller)
    }

    /// Returns the signer; `None` for an unsigned request.
    async fn caller(&self, context: &S3AccessContext<'_>) -> S3Result<Option<Arc<Caller>>> {
        let token = session_token(context.headers(), context.uri());
        match context.credentials() {
            Some(credentials) => self.signed(&credentials.access_key, token.as_deref()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Checks an upload by form before its fields are read. The fields contain the signature and the request.
    pub(crate) fn check_form(&self, headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
        // What is signed with version 2 is refused with the other parameters.
        let is_presigned = parameters(uri).any(|one| one.name.eq_ignore_ascii_case("x-amz-signature"));
        if is_presigned || headers.contains_key(http::header::AUTHORIZATION) {
            return Err(s3_error!(InvalidRequest, "A form is signed in its fields, not in a header or its URL"));
        }
        if is_aws_chunked(headers) {
            return Err(s3_error!(NotImplemented, "Forms in aws-chunked framing are not supported"));
        }
        let Some(known) = Known::find(FORM) else { return Ok(()) };
        known.check_headers(headers)?;
        known.check_query(&Method::POST, uri)
    }

    /// Lets an upload by form in, whose fields are these headers of a PutObject.
    pub(crate) async fn let_form_in(&self, form: &FormRequest<'_>) -> S3Result<Permit> {
        if let Some(known) = Known::find("PutObject") {
            known.check_headers(form.headers)?;
        }
        self.check_owner(form.headers, "x-amz-expected-bucket-owner", form.bucket).await?;
        let token = session_token(form.headers, form.uri);
        let caller = match form.access_key {
            Some(access_key) => Some(self.signed(access_key, token.as_deref()).await?),
            None => None,
        };
        let named_key = self.named_key(form.headers, caller.as_deref());
        let (authentication, pending, region) = (form.authentication, Vec::new(), self.0.region.clone());
        let permit = Permit { caller, authentication, operation: FORM, pending, named_key, region };
        let asking = Asking::new(&permit, form.headers, form.uri, form.arrival);
        let bucket = self.0.buckets.get(form.bucket).await?;
        let mut pending = Vec::new();
        for rule in rule_of(FORM).into_iter().chain(extra_rules(FORM, form.headers)) {
            if !asking.check_early(rule, &Asked::key(&bucket, form.key, None))? {
                pending.push(rule);
            }
        }
        Ok(Permit { pending, ..permit })
    }

    /// The key of the key service that a header names. One that is malformed is refused where it is used.
    fn named_key(&self, headers: &HeaderMap, caller: Option<&Caller>) -> Option<NamedKey> {
        let text = headers.get(KEY_ID)?.to_str().ok()?;
        let name = parse_key_id(text).ok()?.unwrap_or_else(|| DEFAULT_KEY.into());
        let identities = self.0.directory.identities();
        let owner = identities.kms_key(&name).map(|entry| entry.record.account.clone());
        let caller_account = caller.map(|caller| caller.account.id.clone());
        Some(NamedKey { name, owner, caller_account, region: self.0.region.clone() })
    }

    /// An owner may be named by the account's number, as in AWS, or by its canonical id.
    async fn check_owner(&self, headers: &HeaderMap, header: &str, bucket: &str) -> S3Result<()> {
        let Some(expected) = headers.get(header) else { return Ok(()) };
        let bucket = self.0.buckets.get(bucket).await?;
        let account = bucket.owner_account.as_deref().unwrap_or_default();
        if [bucket.record.owner.as_bytes(), account.as_bytes()].contains(&expected.as_bytes()) {
            return Ok(());
        }
        // As for who has no right: the answer confirms no guess of an owner.
        Err(access_denied())
    }

    async fn check_owners(&self, context: &S3AccessContext<'_>) -> S3Result<()> {
        let is_there = context.s3_op().name() != "CreateBucket";
        if let (S3Path::Bucket { bucket } | S3Path::Object { bucket, .. }, true) = (context.s3_path(), is_there) {
            self.check_owner(context.headers(), "x-amz-expected-bucket-owner", bucket).await?;
        }
        if let Some(source) = source_bucket(context.headers()) {
            self.check_owner(context.headers(), "x-amz-source-expected-bucket-owner", &source).await?;
        }
        Ok(())
    }

    /// Returns the rules left to the operation; an error if one forbids it.
    async fn check_rules(
        &self,
        permit: &Permit,
        rules: &[Rule],
        context: &S3AccessContext<'_>,
        arrival: Option<Arrival>,
    ) -> S3Result<Vec<Rule>> {
        let asking = Asking::new(permit, context.headers(), context.uri(), arrival);
        let version_id = parameter(context.uri(), "versionId");
        let mut pending = Vec::new();
        for rule in rules {
            match (context.s3_path(), rule.target) {
                (_, Target::Entries) => {}
                (S3Path::Root, _) => asking.check_account(rule.action, "arn:aws:s3:::*")?,
                (S3Path::Bucket { .. }, Target::NewBucket) if asking.depends_on_location() => pending.push(*rule),
                (S3Path::Bucket { bucket }, Target::NewBucket) => {
                    asking.check_account(rule.action, &format!("arn:aws:s3:::{bucket}"))?;
                }
                (S3Path::Bucket { bucket }, _) => {
                    let bucket = self.0.buckets.get(bucket).await?;
                    asking.check(*rule, &Asked::bucket(&bucket))?;
                }
                (S3Path::Object { bucket, key }, _) => {
                    let bucket = self.0.buckets.get(bucket).await?;
                    if !asking.check_early(*rule, &Asked::key(&bucket, key, version_id.as_deref()))? {
                        pending.push(*rule);
                    }
                }
            }
        }
        Ok(pending)
    }
}

/// Refuses headers of an answer that an unsigned request chooses: a link to a public object could make a browser take
/// it for something else.
fn check_anonymous(uri: &Uri) -> S3Result<()> {
    match parameters(uri).any(|one| one.name.to_ascii_lowercase().starts_with("response-")) {
        true => Err(s3_error!(
            InvalidRequest,
            "Request specific response headers cannot be used for anonymous GET requests."
        )),
        false => Ok(()),
    }
}

/// How a request is signed. The headers were judged by that, so it must equal the signature that s3s has verified.
fn authentication_of(context: &mut S3AccessContext<'_>) -> S3Result<Authentication> {
    let authentication = context.extensions_mut().get::<Authentication>().copied().unwrap_or_default();
    if authentication.is_signed() != context.credentials().is_some() || authentication.is_of_other_service {
        return Err(access_denied());
    }
    Ok(authentication)
}

#[async_trait]
impl S3Access for Gate {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let authentication = authentication_of(context)?;
        let caller = self.caller(context).await?;
        if caller.is_some() {
            self.check_region(context.headers(), context.uri())?;
        }
        let observed = context.extensions_mut().get::<Arc<Observed>>().cloned();
        if let (Some(observed), Some(caller)) = (&observed, &caller) {
            observed.set_caller(caller);
        }
        let operation = context.s3_op().name();
        let (Some(known), Some(rule)) = (Known::find(operation), rule_of(operation)) else {
            // s3s refuses the operations that are not here.
            return if caller.is_some() { Ok(()) } else { Err(access_denied()) };
        };
        if let Some(observed) = &observed {
            observed.set_operation(known.operation);
        }
        known.check_headers(context.headers())?;
        known.check_query(context.method(), context.uri())?;
        if caller.is_none() {
            check_anonymous(context.uri())?;
        }
        self.check_owners(context).await?;
        let named_key = self.named_key(context.headers(), caller.as_deref());
        let (operation, region) = (known.operation, self.0.region.clone());
        let mut permit = Permit { caller, authentication, operation, pending: Vec::new(), named_key, region };
        let mut rules = vec![rule];
        rules.extend(extra_rules(operation, context.headers()));
        let arrival = context.extensions_mut().get::<Arrival>().copied();
        permit.pending = self.check_rules(&permit, &rules, context, arrival).await?;
        let named = match context.s3_path() {
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(&**bucket),
            S3Path::Root => None,
        };
        if let (Some(observed), Some(bucket)) = (observed, named) {
            observed.set_bucket(bucket);
            // What is pending is noted where it is decided.
            if rule.is_change_of_bucket() && permit.pending.is_empty() {
                observed.note_allowed_change();
            }
        }
        if let Some(document) = context.extensions_mut().get::<Document>().cloned() {
            document.set_operation(known.operation, context.headers())?;
        }
        context.extensions_mut().insert(permit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_region_of_a_signature_is_found() {
        let header = "AWS4-HMAC-SHA256 Credential=a/b/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host";
        let signed = HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static(header))]);
        assert_eq!(signed_region(&signed, &Uri::from_static("/")).as_deref(), Some("eu-west-1"));
        let presigned =
            Uri::from_static("/b/k?X-Amz-Credential=key%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&x=1");
        assert_eq!(signed_region(&HeaderMap::new(), &presigned).as_deref(), Some("us-east-1"));
        assert_eq!(signed_region(&HeaderMap::new(), &Uri::from_static("/b/k?a=b")), None);
    }

    #[test]
    fn tokens_are_found_in_headers_and_urls() {
        let none = Uri::from_static("/b/k");
        let signed = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-amz-security-token"),
            HeaderValue::from_static("a+b"),
        )]);
        assert_eq!(session_token(&signed, &none).as_deref(), Some("a+b"));
        let presigned = Uri::from_static("/b/k?X-Amz-Security-Token=a%2Bb%3D&x=1");
        assert_eq!(session_token(&HeaderMap::new(), &presigned).as_deref(), Some("a+b="));
        assert_eq!(session_token(&HeaderMap::new(), &none), None);
    }
}
