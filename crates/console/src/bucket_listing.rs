//! Objects of a bucket, by a signed request to this host's gateway: the gateway decides what there is and who may see
//! it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Certificate, Client, StatusCode};
use rusty_s3::actions::{ListObjectsV2, ListObjectsV2Response};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use serde_json::{Value, json};

use crate::api::Refusal;
use crate::server::Shared;

const SIGNED_FOR: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const REGION: &str = "us-east-1";

/// A page of a bucket.
pub(crate) struct Asked {
    pub bucket: String,
    pub prefix: String,
    pub delimiter: Option<String>,
    pub continuation: Option<String>,
    pub limit: usize,
}

pub(crate) async fn list(shared: &Arc<Shared>, asked: &Asked) -> Result<Value, Refusal> {
    let credentials = shared.directory.credentials().map_err(|error| {
        Refusal::unavailable(format!("This host has no gateway, by which objects are listed: {error}."))
    })?;
    // Over TLS if there is nothing else.
    let client = client(credentials.ca_file.as_deref())?;
    let malformed =
        |error: &dyn std::fmt::Display| Refusal::unavailable(format!("The gateway's address: {error}."));
    let endpoint = credentials.endpoint.parse().map_err(|error| malformed(&error))?;
    let bucket = Bucket::new(endpoint, UrlStyle::Path, asked.bucket.clone(), REGION);
    let bucket = bucket.map_err(|_| Refusal::not_found(no_bucket(asked), NO_BUCKET_ACTION))?;
    let signer = Credentials::new(&credentials.access_key, &credentials.secret_key);
    let mut action = ListObjectsV2::new(&bucket, Some(&signer));
    action.with_max_keys(asked.limit.min(1_000));
    action.with_prefix(asked.prefix.clone());
    if let Some(delimiter) = &asked.delimiter {
        action.with_delimiter(delimiter.clone());
    }
    if let Some(continuation) = &asked.continuation {
        action.with_continuation_token(continuation.clone());
    }
    let unreachable =
        |error: reqwest::Error| Refusal::unavailable(format!("The gateway does not answer: {error}."));
    let response = client.get(action.sign(SIGNED_FOR)).send().await.map_err(unreachable)?;
    let status = response.status();
    let text = response.text().await.map_err(unreachable)?;
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(Refusal::not_found(no_bucket(asked), NO_BUCKET_ACTION)),
        StatusCode::FORBIDDEN => {
            let message =
                format!("The first account may not list '{}', which belongs to another one.", asked.bucket);
            return Err(Refusal::not_found(message, "List it with a key of its account."));
        }
        status => return Err(Refusal::unavailable(format!("The gateway answers with status {status}."))),
    }
    let listed = ListObjectsV2::parse_response(&text)
        .map_err(|error| Refusal::internal(format!("the gateway's list cannot be read: {error}")))?;
    Ok(told(asked, &listed))
}

const NO_BUCKET_ACTION: &str = "Look at the list of buckets.";

fn no_bucket(asked: &Asked) -> String {
    format!("There is no bucket '{}'.", asked.bucket)
}

fn client(ca_file: Option<&std::path::Path>) -> Result<Client, Refusal> {
    let mut builder = Client::builder().timeout(ANSWER_LIMIT).no_proxy();
    if let Some(file) = ca_file {
        let pem =
            std::fs::read(file).map_err(|error| Refusal::internal(format!("{}: {error}", file.display())))?;
        let authority = Certificate::from_pem(&pem).map_err(|error| Refusal::internal(error.to_string()))?;
        builder = builder.tls_certs_merge([authority]);
    }
    builder.build().map_err(|error| Refusal::internal(error.to_string()))
}

fn told(asked: &Asked, listed: &ListObjectsV2Response) -> Value {
    let object = |content: &rusty_s3::actions::list_objects_v2::ListObjectsContent| {
        let modified_unix_ms =
            content.last_modified.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond);
        json!({
            "key": content.key, "size_bytes": content.size, "modified_unix_ms": modified_unix_ms,
            "etag": content.etag.trim_matches('"'),
        })
    };
    json!({
        "bucket": asked.bucket, "prefix": asked.prefix, "delimiter": asked.delimiter,
        "objects": listed.contents.iter().map(object).collect::<Vec<_>>(),
        "common_prefixes": listed.common_prefixes.iter().map(|one| &one.prefix).collect::<Vec<_>>(),
        "next_continuation": listed.next_continuation_token,
    })
}
