//! Tags of objects and of buckets.

use std::collections::BTreeMap;

use atoll_iam::operations::is_tag_character;
use s3s::dto::{
    DeleteBucketTaggingInput, DeleteBucketTaggingOutput, DeleteObjectTaggingInput, DeleteObjectTaggingOutput,
    GetBucketTaggingInput, GetBucketTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    PutBucketTaggingInput, PutBucketTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput, Tag, Tagging,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::entries::version_answer;
use crate::access::Asking;
use crate::record::EntryHead;

/// Tags of one object, and of one bucket.
const OBJECT_TAGS_MAX: usize = 10;
const BUCKET_TAGS_MAX: usize = 50;
/// Characters of a tag's key and value.
const KEY_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;

pub(super) type Tags = BTreeMap<String, String>;

fn invalid_tag(message: impl std::fmt::Display) -> S3Error {
    s3_error!(InvalidTag, "{message}")
}

fn checked(pairs: impl Iterator<Item = (String, String)>, count_max: usize) -> S3Result<Tags> {
    let mut tags = Tags::new();
    for (key, value) in pairs {
        if key.is_empty() || key.chars().count() > KEY_CHARS_MAX {
            return Err(invalid_tag(format!("A tag's key must have 1 to {KEY_CHARS_MAX} characters")));
        }
        if value.chars().count() > VALUE_CHARS_MAX {
            return Err(invalid_tag(format!("A tag's value may have {VALUE_CHARS_MAX} characters")));
        }
        if !key.chars().chain(value.chars()).all(is_tag_character) {
            return Err(invalid_tag("A tag may have letters, numbers, spaces and + - = . _ : / @"));
        }
        if key.to_lowercase().starts_with("aws:") {
            return Err(invalid_tag("Tags whose keys begin with 'aws:' are the system's"));
        }
        if tags.insert(key, value).is_some() {
            return Err(invalid_tag("Several tags have the same key"));
        }
    }
    if tags.len() > count_max {
        return Err(invalid_tag(format!("There may be {count_max} tags")));
    }
    Ok(tags)
}

fn checked_set(tagging: Tagging, count_max: usize) -> S3Result<Tags> {
    checked(
        tagging.tag_set.into_iter().map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default())),
        count_max,
    )
}

/// The tags of an `x-amz-tagging` header: `key=value&key=value`, encoded as in a URL.
pub(super) fn header_tags(header: Option<&str>) -> S3Result<Tags> {
    let pairs = form_urlencoded::parse(header.unwrap_or_default().as_bytes());
    checked(pairs.into_owned(), OBJECT_TAGS_MAX)
}

fn tag_set(tags: Tags) -> Vec<Tag> {
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

impl Service {
    pub(super) async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let tags = checked_set(input.tagging, OBJECT_TAGS_MAX)?;
        let asking = asking.with_tags(&tags);
        let version_id =
            self.set_tags(&asking, &input.bucket, &input.key, input.version_id.as_deref(), tags.clone()).await?;
        Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
    }

    pub(super) async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let version_id =
            self.set_tags(&asking, &input.bucket, &input.key, input.version_id.as_deref(), Tags::new()).await?;
        let mut response = S3Response::new(DeleteObjectTaggingOutput { version_id });
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }

    async fn set_tags(
        &self,
        asking: &Asking<'_>,
        bucket: &str,
        key: &str,
        version_id: Option<&str>,
        tags: Tags,
    ) -> S3Result<Option<String>> {
        let index = self.note(bucket, self.index(bucket).await)?;
        let set = |head: &mut EntryHead| {
            head.tags = tags.clone();
            Ok(())
        };
        let head = self.change_head(asking, &index, key, version_id, set).await?;
        Ok(version_answer(&index, &head))
    }

    pub(super) async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let head = self.object_for(&asking, &index, &input.key, input.version_id.as_deref()).await?.head;
        let version_id = version_answer(&index, &head);
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set: tag_set(head.tags), version_id }))
    }

    pub(super) async fn put_bucket_tagging(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        let tags = checked_set(request.input.tagging, BUCKET_TAGS_MAX)?;
        self.buckets.change(&request.input.bucket, |record| record.tags = tags.clone()).await?;
        let mut response = S3Response::new(PutBucketTaggingOutput::default());
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }

    pub(super) async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        self.buckets.change(&request.input.bucket, |record| record.tags = Tags::new()).await?;
        Ok(S3Response::new(DeleteBucketTaggingOutput::default()))
    }

    pub(super) async fn get_bucket_tagging(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        if bucket.record.tags.is_empty() {
            return Err(S3Error::with_message(S3ErrorCode::NoSuchTagSet, "The bucket has no tags"));
        }
        Ok(S3Response::new(GetBucketTaggingOutput { tag_set: tag_set(bucket.record.tags.clone()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_a_header_are_decoded_and_bounded() {
        let tags = header_tags(Some("a=b&color=light+blue&u=%C3%A9&empty")).unwrap();
        let expected = [("a", "b"), ("color", "light blue"), ("empty", ""), ("u", "é")];
        assert_eq!(tags, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert!(header_tags(None).unwrap().is_empty());
        let many: Vec<String> = (0..11).map(|number| format!("k{number}=v")).collect();
        assert!(header_tags(Some(&many[..10].join("&"))).is_ok());
        for wrong in [many.join("&"), "a=1&a=2".into(), "=v".into(), format!("{}=v", "k".repeat(129))] {
            assert!(header_tags(Some(&wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tags_have_the_characters_of_aws() {
        let check = |key: &str, value: &str| checked(std::iter::once((key.to_owned(), value.to_owned())), 10);
        for text in ["Key 1", "a+b-c=d.e_f:g/h@i", "Schlüssel", "鍵", "x\u{a0}y"] {
            assert!(check(text, text).is_ok(), "{text:?}");
        }
        for text in
            ["a\0", "a\n", "a\tb", "\u{1b}[31m", "\u{7f}", "\u{85}", "a\u{200b}", "<a>", "a&b", "a\u{202e}b"]
        {
            assert!(check(text, "v").is_err() && check("k", text).is_err(), "{text:?}");
            let header = form_urlencoded::Serializer::new(String::new()).append_pair("k", text).finish();
            assert!(header_tags(Some(&header)).is_err(), "{header}");
        }
        assert!(check("aws:x", "v").is_err() && check("AWS:x", "v").is_err() && check("k", "aws:x").is_ok());
    }
}
