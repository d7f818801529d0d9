//! The rules of a bucket for scripts of other origins. [`crate::cors`] says which fits a request.

use atoll_types::cors::CorsRule;
use http::{HeaderName, StatusCode};
use s3s::dto::{
    CORSRule, DeleteBucketCorsInput, DeleteBucketCorsOutput, GetBucketCorsInput, GetBucketCorsOutput,
    PutBucketCorsInput, PutBucketCorsOutput,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use crate::error::custom_error;

const RULES_MAX: usize = 100;
const ID_CHARS_MAX: usize = 255;
/// Bytes of all rules of a bucket in its record.
const RULES_BYTES_MAX: usize = 64 << 10;
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

fn check_one_wildcard(what: &str, pattern: &str) -> S3Result<()> {
    match pattern.matches('*').count() {
        0 | 1 => Ok(()),
        _ => Err(s3_error!(InvalidRequest, "{what} \"{pattern}\" can not have more than one wildcard.")),
    }
}

fn check_exposed(name: &str) -> S3Result<()> {
    if name.contains('*') {
        return Err(s3_error!(
            InvalidRequest,
            "ExposeHeader \"{name}\" contains wildcard. We currently do not support wildcard for ExposeHeader."
        ));
    }
    match HeaderName::try_from(name) {
        Ok(_) => Ok(()),
        Err(_) => Err(s3_error!(InvalidRequest, "ExposeHeader \"{name}\" is not the name of a header.")),
    }
}

fn checked(rule: CORSRule) -> S3Result<CorsRule> {
    if let Some(method) = rule.allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
        return Err(s3_error!(
            InvalidRequest,
            "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
        ));
    }
    for origin in &rule.allowed_origins {
        check_one_wildcard("AllowedOrigin", origin)?;
    }
    let allowed_headers = rule.allowed_headers.unwrap_or_default();
    for name in &allowed_headers {
        check_one_wildcard("AllowedHeader", name)?;
    }
    let expose_headers = rule.expose_headers.unwrap_or_default();
    for name in &expose_headers {
        check_exposed(name)?;
    }
    if rule.id.as_ref().is_some_and(|id| id.chars().count() > ID_CHARS_MAX) {
        return Err(s3_error!(InvalidRequest, "The ID of a rule may have {ID_CHARS_MAX} characters"));
    }
    let max_age_seconds = rule.max_age_seconds.map(u32::try_from).transpose();
    let max_age_seconds =
        max_age_seconds.map_err(|_| s3_error!(InvalidRequest, "MaxAgeSeconds must not be negative"))?;
    Ok(CorsRule {
        id: rule.id,
        allowed_origins: rule.allowed_origins,
        allowed_methods: rule.allowed_methods,
        allowed_headers,
        expose_headers,
        max_age_seconds,
    })
}

fn checked_rules(rules: Vec<CORSRule>) -> S3Result<Vec<CorsRule>> {
    if rules.is_empty() {
        return Err(s3_error!(MalformedXML, "A CORS configuration has at least one rule"));
    }
    if rules.len() > RULES_MAX {
        return Err(s3_error!(
            InvalidRequest,
            "The number of CORS rules should not exceed allowed limit of {RULES_MAX} rules."
        ));
    }
    let rules: Vec<CorsRule> = rules.into_iter().map(checked).collect::<S3Result<_>>()?;
    let bytes = serde_json::to_vec(&rules).expect("rules are texts and numbers").len();
    if bytes > RULES_BYTES_MAX {
        return Err(s3_error!(
            MaxMessageLengthExceeded,
            "The CORS rules of a bucket may have {} KiB, and these have more: make them fewer or shorter",
            RULES_BYTES_MAX >> 10
        ));
    }
    Ok(rules)
}

fn told(rule: &CorsRule) -> CORSRule {
    let some = |list: &Vec<String>| Some(list.clone()).filter(|list| !list.is_empty());
    CORSRule {
        id: rule.id.clone(),
        allowed_origins: rule.allowed_origins.clone(),
        allowed_methods: rule.allowed_methods.clone(),
        allowed_headers: some(&rule.allowed_headers),
        expose_headers: some(&rule.expose_headers),
        max_age_seconds: rule.max_age_seconds.and_then(|seconds| i32::try_from(seconds).ok()),
    }
}

impl Service {
    pub(super) async fn put_bucket_cors(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        let rules = checked_rules(request.input.cors_configuration.cors_rules)?;
        self.buckets.change(&request.input.bucket, |record| record.cors = rules.clone()).await?;
        Ok(S3Response::new(PutBucketCorsOutput::default()))
    }

    pub(super) async fn get_bucket_cors(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        if bucket.record.cors.is_empty() {
            return Err(custom_error(
                "NoSuchCORSConfiguration",
                StatusCode::NOT_FOUND,
                "The CORS configuration does not exist",
            ));
        }
        let rules = bucket.record.cors.iter().map(told).collect();
        Ok(S3Response::new(GetBucketCorsOutput { cors_rules: Some(rules) }))
    }

    pub(super) async fn delete_bucket_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        self.buckets.change(&request.input.bucket, |record| record.cors.clear()).await?;
        Ok(S3Response::new(DeleteBucketCorsOutput::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(change: impl FnOnce(&mut CORSRule)) -> CORSRule {
        let mut rule = CORSRule {
            allowed_origins: vec!["https://*.example".into()],
            allowed_methods: METHODS.map(str::to_owned).into(),
            ..Default::default()
        };
        change(&mut rule);
        rule
    }

    #[test]
    fn rules_come_back_as_they_were() {
        let rules = vec![
            rule(|_| ()),
            rule(|rule| {
                rule.id = Some("é".repeat(ID_CHARS_MAX));
                rule.allowed_headers = Some(vec!["X-Amz-*".into(), "*".into()]);
                rule.expose_headers = Some(vec!["ETag".into()]);
                rule.max_age_seconds = Some(i32::MAX);
            }),
        ];
        let kept = checked_rules(rules.clone()).unwrap();
        assert!(kept.iter().map(told).eq(rules));
        assert!(checked_rules(vec![rule(|_| ()); RULES_MAX]).is_ok());
    }

    #[test]
    fn what_s3_does_not_take_is_refused() {
        for wrong in [
            rule(|rule| rule.allowed_methods = vec!["get".into()]),
            rule(|rule| rule.allowed_methods.push("OPTIONS".into())),
            rule(|rule| rule.allowed_origins.push("https://*.*".into())),
            rule(|rule| rule.allowed_headers = Some(vec!["*-*".into()])),
            rule(|rule| rule.expose_headers = Some(vec!["x-amz-*".into()])),
            rule(|rule| rule.expose_headers = Some(vec!["a\r\nb: c".into()])),
            rule(|rule| rule.id = Some("i".repeat(ID_CHARS_MAX + 1))),
            rule(|rule| rule.max_age_seconds = Some(-1)),
            rule(|rule| rule.allowed_origins.push("o".repeat(RULES_BYTES_MAX))),
        ] {
            assert!(checked_rules(vec![rule(|_| ()), wrong.clone()]).is_err(), "{wrong:?}");
        }
        assert!(checked_rules(Vec::new()).is_err());
        assert!(checked_rules(vec![rule(|_| ()); RULES_MAX + 1]).is_err());
    }
}
