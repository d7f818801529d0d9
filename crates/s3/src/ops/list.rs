//! ListObjects and ListObjectsV2.

use atoll_iam::Identities;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as TOKEN_BASE64;
use bytes::Bytes;
use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, EncodingType, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
    ListObjectsV2Output, Object,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{checksum_type, class_name, etag, owner, size, timestamp, url_encode};
use crate::listing::{Item, Page, Query, common_prefix, list};
use crate::names::{ENTRY_PREFIX, prefix_end};
use crate::record::{EntryHead, decode_head};

const KEYS_MAX: i32 = 1_000;

/// How keys are written into an answer.
pub(super) struct Encoder(bool);

impl Encoder {
    pub(super) fn new(encoding: Option<&EncodingType>) -> S3Result<Self> {
        match encoding.map(EncodingType::as_str) {
            None => Ok(Encoder(false)),
            Some(EncodingType::URL) => Ok(Encoder(true)),
            Some(_) => Err(s3_error!(InvalidArgument, "Invalid Encoding Method specified in Request")),
        }
    }

    pub(super) fn text(&self, text: &str) -> String {
        if self.0 { url_encode(text) } else { text.to_owned() }
    }

    pub(super) fn key(&self, key: &[u8]) -> String {
        self.text(&String::from_utf8_lossy(key))
    }
}

/// Returns `max-keys` and the like: at most S3's limit, not negative.
pub(super) fn checked_limit(asked: Option<i32>) -> S3Result<i32> {
    match asked {
        Some(limit) if limit < 0 => Err(s3_error!(InvalidArgument, "The limit must not be negative")),
        Some(limit) => Ok(limit.min(KEYS_MAX)),
        None => Ok(KEYS_MAX),
    }
}

/// Returns the begin of a listing that shows only keys after `key`. A key that is itself a common prefix was shown
/// as such, so all that folds into it is behind us.
pub(super) fn start_after(key: &str, prefix: &str, delimiter: &str) -> Vec<u8> {
    let key = key.as_bytes();
    if key.is_empty() {
        return Vec::new();
    }
    let folded = common_prefix(key, prefix.as_bytes(), delimiter.as_bytes());
    if folded.is_some_and(|folded| folded == key)
        && let Some(end) = prefix_end(key)
    {
        return end;
    }
    [key, b"\0"].concat()
}

struct Lines {
    contents: Vec<Object>,
    common_prefixes: Vec<CommonPrefix>,
}

/// `owners` names the owner of the bucket, where owners are wanted.
fn lines(page: &Page, encoder: &Encoder, owners: Option<(&Identities, &str)>) -> S3Result<Lines> {
    let mut lines = Lines { contents: Vec::new(), common_prefixes: Vec::new() };
    for item in &page.items {
        match item {
            Item::CommonPrefix(prefix) => {
                lines.common_prefixes.push(CommonPrefix { prefix: Some(encoder.key(prefix)) });
            }
            Item::Record(key, value) => {
                let head: EntryHead = decode_head(value)?;
                let algorithms: Vec<_> =
                    head.checksums.keys().map(|name| ChecksumAlgorithm::from(name.clone())).collect();
                lines.contents.push(Object {
                    checksum_type: (!algorithms.is_empty()).then(|| checksum_type(head.checksum_is_composite)),
                    checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
                    e_tag: Some(etag(&head.etag)),
                    key: Some(encoder.key(key)),
                    last_modified: Some(timestamp(head.modified_ms)),
                    owner: owners.map(|(identities, bucket_owner)| {
                        owner(identities, head.owner.as_deref().unwrap_or(bucket_owner))
                    }),
                    size: Some(size(head.size)),
                    storage_class: Some(class_name(head.storage_class.as_ref()).into()),
                    ..Default::default()
                });
            }
        }
    }
    Ok(lines)
}

impl Service {
    async fn list_page(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
        from: Vec<u8>,
        limit: i32,
    ) -> S3Result<(Page, String)> {
        let index = self.note(bucket, self.index(bucket).await)?;
        let query = Query {
            namespace: Bytes::from_static(ENTRY_PREFIX),
            prefix: prefix.as_bytes().to_vec(),
            delimiter: delimiter.as_bytes().to_vec(),
            from,
            limit: usize::try_from(limit).unwrap_or(0),
            key_end: None,
        };
        let page = self.note(bucket, list(&index, &query).await)?;
        Ok((page, index.bucket.record.owner.clone()))
    }

    pub(super) async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        let encoder = Encoder::new(input.encoding_type.as_ref())?;
        let limit = checked_limit(input.max_keys)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let from = match &input.continuation_token {
            Some(token) => TOKEN_BASE64
                .decode(token)
                .map_err(|_| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
            None => start_after(input.start_after.as_deref().unwrap_or_default(), &prefix, &delimiter),
        };
        let identities = self.directory.identities();
        let (page, owner) = self.list_page(&input.bucket, &prefix, &delimiter, from, limit).await?;
        let lines = lines(&page, &encoder, input.fetch_owner.unwrap_or(false).then_some((&*identities, &*owner)))?;
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoder.text(&prefix)),
            max_keys: Some(limit),
            key_count: i32::try_from(page.items.len()).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.map(|next| TOKEN_BASE64.encode(next)),
            contents: Some(lines.contents),
            common_prefixes: Some(lines.common_prefixes),
            delimiter: (!delimiter.is_empty()).then(|| encoder.text(&delimiter)),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|key| encoder.text(&key)),
            ..Default::default()
        }))
    }

    pub(super) async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = request.input;
        let encoder = Encoder::new(input.encoding_type.as_ref())?;
        let limit = checked_limit(input.max_keys)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let marker = input.marker.clone().unwrap_or_default();
        let from = start_after(&marker, &prefix, &delimiter);
        let identities = self.directory.identities();
        let (page, owner) = self.list_page(&input.bucket, &prefix, &delimiter, from, limit).await?;
        let passed_over = page.passed_over.as_deref().map(|key| encoder.key(key));
        let last = page.items.last().map(|item| match item {
            Item::Record(key, _) => encoder.key(key),
            Item::CommonPrefix(prefix) => encoder.key(prefix),
        });
        let lines = lines(&page, &encoder, Some((&*identities, &*owner)))?;
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoder.text(&prefix)),
            marker: Some(encoder.text(&marker)),
            max_keys: Some(limit),
            is_truncated: Some(page.next.is_some()),
            contents: Some(lines.contents),
            common_prefixes: Some(lines.common_prefixes),
            // S3 sends it only with a delimiter; without one the last key serves, if there is one.
            next_marker: passed_over.or(last.filter(|_| page.next.is_some() && !delimiter.is_empty())),
            delimiter: (!delimiter.is_empty()).then(|| encoder.text(&delimiter)),
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_that_are_common_prefixes_skip_them() {
        assert_eq!(start_after("a/", "", "/"), b"a0");
        assert_eq!(start_after("a/b", "", "/"), b"a/b\0");
        assert_eq!(start_after("a/", "", ""), b"a/\0");
        assert_eq!(start_after("", "", "/"), b"");
    }
}
