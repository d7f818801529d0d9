//! Finding the versions of a key, and changing them, while others do the same.

use atoll_types::records::DefaultRetention;
use atoll_types::{Condition, Mutation};
use std::time::Duration;

use bytes::Bytes;
use s3s::header::{X_AMZ_DELETE_MARKER, X_AMZ_VERSION_ID};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use super::Service;
use super::conditions::WriteConditions;
use super::object_lock::{YEAR_9999_MS, locked};
use crate::DirectoryError;
use crate::access::{Asked, Asking, access_denied};
use crate::clock::unix_ms;
use crate::data::Unfinished;
use crate::error::GatewayError;
use crate::index::Index;
use crate::names::{
    VERSION_PREFIX, entry_key, is_version_id, null_key, parse_version_key, version_key, versions_prefix,
};
use crate::object_lock::Retention;
use crate::record::{EntryHead, Piece, decode_head, decode_pieces, encode_version};
use crate::versions::{self, Change, KeyRecords, NULL_VERSION, versioning_is};

/// How often a change is tried while others change the same key.
const ATTEMPTS: u32 = 32;

/// A version of an object, or a delete marker.
pub(super) struct Version {
    pub head: EntryHead,
    pub pieces: Vec<Piece>,
    pub record: Bytes,
    /// Where it stands behind the newest version; `None` if it is that one.
    pub place: Option<String>,
}

impl Version {
    pub(super) fn new(record: Bytes, place: Option<String>) -> Result<Self, GatewayError> {
        Ok(Version { head: decode_head(&record)?, pieces: decode_pieces(&record)?, record, place })
    }
}

/// Result of a write of a key.
pub(super) struct Written {
    pub head: EntryHead,
    /// True if the bucket has versions, or had some.
    pub is_versioned: bool,
}

fn no_such_key() -> S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist")
}

fn no_such_version() -> S3Error {
    s3_error!(NoSuchVersion, "The specified version does not exist")
}

fn busy() -> S3Error {
    s3_error!(SlowDown, "Other requests change the same key all the time; try again")
}

/// Lets others get done who change the same key: the longer, the more often they were quicker.
pub(super) async fn pause_before(attempt: u32) {
    if attempt > 0 {
        let most_ms = u64::from(attempt.min(10)) * 5;
        tokio::time::sleep(Duration::from_millis(1 + atoll_keys::random_u64() % most_ms)).await;
    }
}

/// Returns true if an error means that there is no object to be read.
fn is_missing(error: &S3Error) -> bool {
    matches!(error.code(), S3ErrorCode::NoSuchKey | S3ErrorCode::NoSuchVersion | S3ErrorCode::MethodNotAllowed)
}

/// The id of a version as S3 writes it.
pub(super) fn version_name(head: &EntryHead) -> String {
    head.version_id.clone().unwrap_or_else(|| NULL_VERSION.into())
}

/// The version id for an answer: buckets that never had versions have none.
pub(super) fn version_answer(index: &Index, head: &EntryHead) -> Option<String> {
    let is_null_version = index.bucket.record.versioning.is_some() && head.version_id.is_none();
    if is_null_version { Some(NULL_VERSION.into()) } else { head.version_id.clone() }
}

pub(super) fn check_version_id(version_id: Option<&str>) -> S3Result<()> {
    match version_id {
        Some(id) if id != NULL_VERSION && !is_version_id(id) => {
            Err(s3_error!(InvalidArgument, "Invalid version id specified"))
        }
        _ => Ok(()),
    }
}

/// The answer where a delete marker was found.
fn deleted(mut error: S3Error, head: &EntryHead) -> S3Error {
    let mut headers = http::HeaderMap::new();
    headers.insert(X_AMZ_DELETE_MARKER, http::HeaderValue::from_static("true"));
    if let Ok(id) = http::HeaderValue::from_str(&version_name(head)) {
        headers.insert(X_AMZ_VERSION_ID, id);
    }
    error.set_headers(headers);
    error
}

impl Service {
    /// The newest version of a key, or the one of this id. A delete marker counts as one.
    pub(super) async fn version(
        &self,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
    ) -> S3Result<Option<Version>> {
        check_version_id(version_id)?;
        let found = find_version(index, key, version_id).await;
        self.note(&index.bucket.record.name, found)
    }

    /// The object that a read means.
    pub(super) async fn object(&self, index: &Index, key: &str, version_id: Option<&str>) -> S3Result<Version> {
        match (self.version(index, key, version_id).await?, version_id) {
            (Some(version), None) if version.head.is_delete_marker => Err(deleted(no_such_key(), &version.head)),
            (Some(version), Some(_)) if version.head.is_delete_marker => {
                let error = s3_error!(MethodNotAllowed, "The specified version is a delete marker");
                Err(deleted(error, &version.head))
            }
            (Some(version), _) => Ok(version),
            (None, Some(_)) => Err(no_such_version()),
            (None, None) => Err(no_such_key()),
        }
    }

    /// The object that a read means, if who asks may have it.
    pub(super) async fn object_for(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
    ) -> S3Result<Version> {
        let found = self.object(index, key, version_id).await;
        let asked = Asked::key(&index.bucket, key, version_id);
        match found {
            Ok(version) => {
                asking.check_pending(&Asked { object: Some(&version.head), ..asked })?;
                Ok(version)
            }
            Err(error) if is_missing(&error) && !asking.may_know(&index.bucket, key) => Err(access_denied()),
            Err(error) => Err(error),
        }
    }

    /// Asks the questions left to an operation that reads an object by its conditions only.
    pub(super) async fn check_reading_by_conditions(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
    ) -> S3Result<()> {
        if asking.permit.pending.is_empty() {
            return Ok(());
        }
        match self.object_for(asking, index, key, version_id).await {
            // The conditions say what that means.
            Err(error) if is_missing(&error) => Ok(()),
            found => found.map(drop),
        }
    }

    /// Checks the conditions of a write of an object as they are now; they are checked again with the
    /// write.
    pub(super) async fn check_conditions(
        &self,
        index: &Index,
        key: &str,
        conditions: &WriteConditions,
    ) -> S3Result<()> {
        if conditions.are_none() {
            return Ok(());
        }
        let newest = self.version(index, key, None).await?;
        conditions.check_write(newest.as_ref().map(|version| &version.head))
    }

    /// Makes an object, or a delete marker, the newest version of its key, if the conditions hold
    /// then. Where the bucket has no versions, it takes the place of the object that was there. `with`
    /// is part of the same change; if a condition of it does not hold, the error has its number.
    pub(super) async fn write_version(
        &self,
        index: &Index,
        key: &str,
        (head, pieces): (&EntryHead, &[Piece]),
        conditions: &WriteConditions,
        with: &Change,
        mut data: Option<Unfinished>,
    ) -> Result<Written, WriteError> {
        let mut index = index.clone();
        for attempt in 0..ATTEMPTS {
            let versioning = index.bucket.record.versioning;
            let found = match conditions.are_none() {
                true if attempt == 0 => self.guessed_records(&index, key, head.is_delete_marker).await?,
                _ => {
                    // A wrong guess is nobody else's doing.
                    pause_before(attempt.saturating_sub(1)).await;
                    key_records(&index, key).await?
                }
            };
            let newest: Option<EntryHead> = found.newest.as_deref().map(decode_head).transpose()?;
            if let (Some(record), Some(head)) = (&found.newest, &newest)
                && names_data_of(record, pieces)?
                && let Some(published) = data.take()
            {
                // The change was refused because it had been done.
                published.keep();
                return Ok(self.written(&index, key, head.clone(), pieces));
            }
            let mut head = head.clone();
            lock_by_default(&index, &mut head, self.retained_from_unix_ms());
            match head.is_delete_marker {
                false => conditions.check_write(newest.as_ref())?,
                // There is nothing that the conditions could mean.
                true if newest.is_none() && !conditions.are_none() => {
                    return Ok(Written { head, is_versioned: false });
                }
                true => conditions.check_deletion(newest.as_ref())?,
            }
            let mut change = match versioning {
                Some(versioning) => versions::add(key, versioning, &found, &mut head, pieces)?,
                None => versions::replace(key, &head, pieces),
            };
            if versioning.is_none() {
                // Done a second time, it would displace what it has written itself. Done late, when its client was told
                // that it failed, it would undo what was written since.
                change.conditions = Change::while_newest_is(key, found.newest.as_ref()).conditions;
            }
            let all = [&with.conditions[..], &[versioning_is(versioning)], &change.conditions].concat();
            change.mutations.extend(with.mutations.iter().cloned());
            let result = match data.take() {
                Some(unpublished) => index.publish(key, all, change.mutations, unpublished).await,
                None => index.change(key, all, change.mutations).await.map_err(|error| (error, None)),
            };
            let number = match result {
                Ok(()) => return Ok(self.written(&index, key, head, pieces)),
                Err((GatewayError::ConditionFailed(number), unpublished)) => {
                    data = unpublished;
                    number
                }
                Err((error, _)) => return Err(error.into()),
            };
            if number < with.conditions.len() {
                return Err(GatewayError::ConditionFailed(number).into());
            } else if number == with.conditions.len() {
                index = self.with_versioning(&index, key).await?;
            }
        }
        Err(busy().into())
    }

    /// Returns the records that a writer of a version needs, without a read if only the newest one matters: that
    /// may be guessed. A key without a known entry is probably new, unless it is to be removed.
    async fn guessed_records(
        &self,
        index: &Index,
        key: &str,
        is_removal: bool,
    ) -> Result<KeyRecords, GatewayError> {
        let newest = self.entry_hints.newest(&index.bucket.record.id, key);
        if index.bucket.record.versioning.is_some_and(|versioning| !versioning.is_enabled)
            || is_removal && newest.is_none()
        {
            return key_records(index, key).await;
        }
        Ok(KeyRecords { newest, null_place: None })
    }

    fn written(&self, index: &Index, key: &str, head: EntryHead, pieces: &[Piece]) -> Written {
        let (bucket_id, is_versioned) = (&index.bucket.record.id, index.bucket.record.versioning.is_some());
        match head.is_delete_marker && !is_versioned {
            true => self.entry_hints.forget(bucket_id, key),
            false => self.entry_hints.note(bucket_id, key, encode_version(&head, pieces)),
        }
        Written { head, is_versioned }
    }

    /// Passes a write's outcome on, but forgets a bucket whose index turned out to be gone.
    pub(super) fn note_write(&self, bucket: &str, result: Result<Written, WriteError>) -> S3Result<Written> {
        match result {
            Err(WriteError::Gateway(error)) => self.note(bucket, Err(error)),
            Err(WriteError::Answer(error)) => Err(error),
            Ok(written) => Ok(written),
        }
    }

    /// Returns the index with the versioning in force, after informing the key's writers of it.
    async fn with_versioning(&self, index: &Index, key: &str) -> Result<Index, GatewayError> {
        let name = &index.bucket.record.name;
        self.buckets.forget(name);
        let fresh = self.index(name).await?;
        if fresh.bucket.record.id != index.bucket.record.id {
            return Err(GatewayError::NoSuchBucket(name.clone()));
        }
        if !fresh.align_versioning(fresh.shard_of(key)).await? {
            let detail = "its record of the bucket is older than the bucket's index".into();
            return Err(DirectoryError::Unavailable(detail).into());
        }
        Ok(fresh)
    }

    /// Removes one version for good. `None` if there is no such version.
    pub(super) async fn remove_version(
        &self,
        index: &Index,
        key: &str,
        version_id: &str,
        conditions: &WriteConditions,
        bypasses_governance: bool,
    ) -> S3Result<Option<EntryHead>> {
        for attempt in 0..ATTEMPTS {
            pause_before(attempt).await;
            let Some(version) = self.version(index, key, Some(version_id)).await? else { return Ok(None) };
            conditions.check_deletion(Some(&version.head))?;
            if !version.head.lock.allows_removal(self.lapse_unix_ms(), bypasses_governance) {
                return Err(locked());
            }
            let change = match &version.place {
                None => {
                    let next = self.note(&index.bucket.record.name, next_version(index, key).await)?;
                    let next = next.as_ref().map(|(place, record)| (place.as_str(), record));
                    versions::remove_newest(key, &version.record, next, unix_ms())?
                }
                Some(place) => versions::remove_older(key, place, &version.record, unix_ms())?,
            };
            match index.change(key, change.conditions, change.mutations).await {
                Err(GatewayError::ConditionFailed(_)) => {}
                result => {
                    self.note(&index.bucket.record.name, result)?;
                    return Ok(Some(version.head));
                }
            }
        }
        Err(busy())
    }

    /// Changes properties of an object, not its data, if the caller may do so: the record is replaced if it is
    /// still the same.
    pub(super) async fn change_head(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
        change: impl Fn(&mut EntryHead) -> S3Result<()>,
    ) -> S3Result<EntryHead> {
        for attempt in 0..ATTEMPTS {
            pause_before(attempt).await;
            let found = self.object_for(asking, index, key, version_id).await?;
            let Version { mut head, pieces, record, place } = found;
            change(&mut head)?;
            let index_key = match place {
                None => entry_key(key),
                Some(place) => version_key(key, &place),
            };
            let unchanged = Condition::OmapEquals { key: index_key.clone(), value: record };
            let set = Mutation::OmapSet { key: index_key, value: encode_version(&head, &pieces) };
            match index.change(key, vec![unchanged], vec![set]).await {
                Err(GatewayError::ConditionFailed(_)) => {}
                result => {
                    self.note(&index.bucket.record.name, result)?;
                    return Ok(head);
                }
            }
        }
        Err(busy())
    }
}

/// Returns true if an entry names the data of these pieces, which are of one write.
fn names_data_of(record: &[u8], pieces: &[Piece]) -> Result<bool, GatewayError> {
    let named = decode_pieces(record)?;
    let ids = |pieces: &[Piece]| pieces.iter().map(|piece| piece.data_id).collect::<Vec<_>>();
    Ok(!pieces.is_empty() && ids(&named) == ids(pieces))
}

/// Retains a new version as its bucket says, unless the request says how.
fn lock_by_default(index: &Index, head: &mut EntryHead, from_unix_ms: u64) {
    let default = index.bucket.record.object_lock.as_ref().and_then(|lock| lock.default_retention);
    if let Some(DefaultRetention { mode, period }) = default
        && head.lock.retention.is_none()
        && !head.is_delete_marker
    {
        let until_ms = head.modified_ms.max(from_unix_ms).saturating_add(period.length_ms());
        head.lock.retention = Some(Retention { mode, until_ms: until_ms.min(YEAR_9999_MS) });
    }
}

/// Why a version was not written.
pub(super) enum WriteError {
    /// An answer for the client.
    Answer(S3Error),
    /// The index did not do it.
    Gateway(GatewayError),
}

impl From<S3Error> for WriteError {
    fn from(error: S3Error) -> Self {
        WriteError::Answer(error)
    }
}

impl From<GatewayError> for WriteError {
    fn from(error: GatewayError) -> Self {
        WriteError::Gateway(error)
    }
}

impl From<WriteError> for S3Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Answer(error) => error,
            WriteError::Gateway(error) => error.into(),
        }
    }
}

/// Returns the records of a key that a writer needs.
async fn key_records(index: &Index, key: &str) -> Result<KeyRecords, GatewayError> {
    let newest = index.entry(key).await?;
    // The null version is in the way of another one only.
    let may_displace_null = index.bucket.record.versioning.is_some_and(|versioning| !versioning.is_enabled);
    let null_place = if may_displace_null { index.get(key, null_key(key)).await? } else { None };
    Ok(KeyRecords { newest, null_place })
}

async fn find_version(
    index: &Index,
    key: &str,
    version_id: Option<&str>,
) -> Result<Option<Version>, GatewayError> {
    let mut newest = index.entry(key).await?;
    let Some(version_id) = version_id else {
        return newest.map(|record| Version::new(record, None)).transpose();
    };
    loop {
        if let Some(record) = &newest
            && version_name(&decode_head(record)?) == version_id
        {
            return Version::new(record.clone(), None).map(Some);
        }
        let place = match version_id {
            NULL_VERSION => index.get(key, null_key(key)).await?,
            id => Some(Bytes::copy_from_slice(id.as_bytes())),
        };
        let place = place.map(|place| String::from_utf8_lossy(&place).into_owned());
        if let Some(place) = place
            && let Some(record) = index.get(key, version_key(key, &place)).await?
        {
            return Version::new(record, Some(place)).map(Some);
        }
        // Versions move when the newest one comes or goes.
        let now = index.entry(key).await?;
        if now == newest {
            return Ok(None);
        }
        newest = now;
    }
}

/// The version behind the newest one: its place and its record.
async fn next_version(index: &Index, key: &str) -> Result<Option<(String, Bytes)>, GatewayError> {
    let prefix = versions_prefix(key);
    let (records, _) = index.page(index.shard_of(key), prefix.clone(), prefix, 1).await?;
    let own = |(index_key, record): (Bytes, Bytes)| {
        let rest = index_key.strip_prefix(VERSION_PREFIX)?;
        let (of, place) = parse_version_key(rest)?;
        (of == key).then(|| (place.to_owned(), record))
    };
    Ok(records.into_iter().next().and_then(own))
}
