//! Objects of a bucket, by a signed request to this host's gateway. It is signed for the account that owns the
//! bucket, with credentials that end soon and may do nothing but list it: the gateway decides about the list, and
//! logs the caller.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::AdminError;
use atoll_admin::bucket_reader::listing_credentials;
use atoll_keys::KeyRing;
use reqwest::{Certificate, Client, StatusCode};
use rusty_s3::actions::{ListObjectsV2, ListObjectsV2Response};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use serde_json::{Value, json};

use crate::api::Refusal;
use crate::shared::Shared;

const SIGNED_FOR: Duration = Duration::from_secs(60);
const STATE_LIMIT: Duration = Duration::from_secs(10);
/// A gateway that does not know the key of temporary credentials yet, because it was just made, is asked again.
const ASKED_AGAIN: Duration = Duration::from_millis(200);
const ASKED_MAX: usize = 15;
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const REGION: &str = "us-east-1";

/// A page of a bucket.
pub(crate) struct Asked {
    /// The operator.
    pub user: String,
    pub bucket: String,
    pub prefix: String,
    pub delimiter: Option<String>,
    pub continuation: Option<String>,
    pub limit: usize,
}

pub(crate) async fn list(shared: &Arc<Shared>, asked: &Asked) -> Result<Value, Refusal> {
    let credentials = shared.directory.credentials().map_err(|error| {
        Refusal::unavailable(format!("This host has no gateway, which lists objects: {error}."))
    })?;
    // Over TLS if there is nothing else.
    let client = client(credentials.ca_file.as_deref(), &asked.user)?;
    let malformed =
        |error: &dyn std::fmt::Display| Refusal::unavailable(format!("The gateway's address: {error}."));
    let endpoint = credentials.endpoint.parse().map_err(|error| malformed(&error))?;
    let bucket = Bucket::new(endpoint, UrlStyle::Path, asked.bucket.clone(), REGION);
    let bucket = bucket.map_err(|_| Refusal::not_found(no_bucket(&asked.bucket), NO_BUCKET_ACTION))?;
    let signer = signer(shared, &asked.bucket).await?;
    let mut action = ListObjectsV2::new(&bucket, Some(&signer));
    action.with_max_keys(asked.limit.min(1_000));
    action.with_prefix(asked.prefix.clone());
    if let Some(delimiter) = &asked.delimiter {
        action.with_delimiter(delimiter.clone());
    }
    if let Some(continuation) = &asked.continuation {
        action.with_continuation_token(continuation.clone());
    }
    let (status, text) = answer(&client, &action).await?;
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(Refusal::not_found(no_bucket(&asked.bucket), NO_BUCKET_ACTION)),
        StatusCode::FORBIDDEN => {
            let message = format!("A policy of bucket '{}' denies its owner to list it.", asked.bucket);
            return Err(Refusal::conflict(message, "Change the bucket's policy, then try again."));
        }
        status => return Err(Refusal::unavailable(format!("The gateway answers with status {status}."))),
    }
    let listed = ListObjectsV2::parse_response(&text)
        .map_err(|error| Refusal::internal(format!("the gateway's list cannot be read: {error}")))?;
    Ok(told(asked, &listed))
}

/// Signs for the account that owns a bucket.
async fn signer(shared: &Arc<Shared>, bucket: &str) -> Result<Credentials, Refusal> {
    let keys = KeyRing::open(&shared.directory.key_service_file());
    let keys = keys.map_err(|error| Refusal::unavailable(format!("The key service cannot be used: {error}.")))?;
    let made = shared.state.client().await.map_err(|error| no_state(&error))?;
    let made = tokio::time::timeout(STATE_LIMIT, listing_credentials(&made, &keys, bucket, SIGNED_FOR)).await;
    let made = made.map_err(|_| no_state("no answer"))?;
    let made = made.map_err(|error| match error {
        AdminError::NoSuchBucket(_) => Refusal::not_found(no_bucket(bucket), NO_BUCKET_ACTION),
        AdminError::Refused(text) => Refusal::conflict(format!("It cannot be listed: {text}."), NO_BUCKET_ACTION),
        error => Refusal::unavailable(format!("No credentials for the bucket can be made: {error}.")),
    })?;
    Ok(Credentials::new_with_token(made.access_key, made.secret, made.session_token))
}

fn no_state(error: &str) -> Refusal {
    Refusal::unavailable(format!("Cluster state cannot be read: {error}."))
}

async fn answer(client: &Client, action: &ListObjectsV2<'_>) -> Result<(StatusCode, String), Refusal> {
    let unreachable =
        |error: reqwest::Error| Refusal::unavailable(format!("The gateway does not answer: {error}."));
    let mut asked = 0;
    loop {
        asked += 1;
        let response = client.get(action.sign(SIGNED_FOR)).send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        let is_unknown = status == StatusCode::FORBIDDEN && text.contains("InvalidAccessKeyId");
        if !is_unknown || asked >= ASKED_MAX {
            return Ok((status, text));
        }
        tokio::time::sleep(ASKED_AGAIN).await;
    }
}

const NO_BUCKET_ACTION: &str = "Look at the list of buckets.";

fn no_bucket(bucket: &str) -> String {
    format!("There is no bucket '{bucket}'.")
}

/// The gateway's audit log says for whom it asks.
fn client(ca_file: Option<&std::path::Path>, user: &str) -> Result<Client, Refusal> {
    let mut builder =
        Client::builder().timeout(ANSWER_LIMIT).no_proxy().user_agent(format!("atoll-console ({user})"));
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
        let modified = content.last_modified.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let modified_unix_ms = modified.map_or(0, jiff::Timestamp::as_millisecond);
        json!({
            "key": content.key, "size_bytes": content.size, "modified_unix_ms": modified_unix_ms,
            "etag": content.etag.as_deref().unwrap_or_default().trim_matches('"'),
        })
    };
    json!({
        "bucket": asked.bucket, "prefix": asked.prefix, "delimiter": asked.delimiter,
        "objects": listed.contents.iter().map(object).collect::<Vec<_>>(),
        "common_prefixes": listed.common_prefixes.iter().map(|one| &one.prefix).collect::<Vec<_>>(),
        "next_continuation": listed.next_continuation_token,
    })
}
