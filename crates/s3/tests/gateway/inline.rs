//! Small objects, whose data is in the bucket index.
use std::time::Duration;

use crate::support::memory_client::Fault;
use crate::support::{POOL, TestGateway, python, require_boto3, start_with_data_pool};
use bytes::Bytes;

async fn snippet(gateway: &TestGateway, code: &str) -> String {
    let prelude = include_str!("prelude.py");
    python(gateway, &["-c", &format!("{prelude}\n{code}")]).await
}

/// With a bucket of that name and a pool for data that knows no omap.
async fn with_bucket() -> TestGateway {
    require_boto3().await;
    let gateway = start_with_data_pool(|config| config.garbage_grace = Duration::ZERO).await;
    snippet(&gateway, "s3.create_bucket(Bucket='bucket')").await;
    gateway
}

/// What the indexes hold under keys with a prefix.
fn records(gateway: &TestGateway, prefix: &str) -> Vec<(Bytes, Bytes)> {
    let mut found = Vec::new();
    gateway.client.each(|_, object| {
        let records = object.omap.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
        found.extend(records.map(|(key, value)| (key.clone(), value.clone())));
    });
    found
}

/// How many bodies are in the index and in chunks, and how many records wait to be collected.
fn counts(gateway: &TestGateway) -> (usize, usize, usize) {
    (records(gateway, "d/").len(), gateway.client.names("s3d/").len(), records(gateway, "g/").len())
}

/// Changes that all objects have seen so far.
fn changes(gateway: &TestGateway) -> u64 {
    let mut sum = 0;
    gateway.client.each(|_, object| sum += object.version);
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_put_is_one_change_of_the_index() {
    let gateway = with_bucket().await;
    for (bytes, inline, chunks) in [(0, 0, 0), (1, 1, 0), (1_023, 2, 0), (1_024, 3, 0), (1_025, 3, 1)] {
        let before = changes(&gateway);
        snippet(
            &gateway,
            &format!(
                "
import hashlib
body = (b'CANARY' * 200)[:{bytes}]
one = dict(Bucket='bucket', Key='k{bytes}')
etag = s3.put_object(**one, Body=body, ChecksumAlgorithm='SHA256')['ETag']
assert etag == '\"' + hashlib.md5(body).hexdigest() + '\"'
head = s3.head_object(**one, ChecksumMode='ENABLED')
assert head['ContentLength'] == {bytes} and head['ETag'] == etag and head['ServerSideEncryption'] == 'AES256'
got = s3.get_object(**one, ChecksumMode='ENABLED')
assert got['Body'].read() == body and got['ChecksumSHA256'] == head['ChecksumSHA256']
assert (code(s3.get_object, **one, IfMatch='\"0\"'), code(s3.get_object, **one, IfNoneMatch=etag)) == (
    (412, 'PreconditionFailed'), (304, '304'))
for first, last in ((0, 0), (0, {bytes}), (500, 700), ({bytes} - 1, {bytes} - 1), (1_000, 2_000)):
    if 0 <= first < {bytes}:
        part = s3.get_object(**one, Range=f'bytes={{first}}-{{last}}')
        assert part['Body'].read() == body[first:last + 1] and part['ContentRange'].endswith('/{bytes}')
"
            ),
        )
        .await;
        assert_eq!(counts(&gateway), (inline, chunks, 0), "with {bytes} bytes");
        assert_eq!(changes(&gateway) - before, 1 + chunks as u64, "with {bytes} bytes");
    }
    assert_eq!(gateway.client.pools("s3i/").into_iter().collect::<Vec<_>>(), [POOL]);
    for (key, value) in records(&gateway, "d/") {
        assert_eq!(key.len(), 2 + 32);
        assert!(!value.windows(6).any(|window| window == b"CANARY"), "plaintext in the index");
    }
    let list = "assert [entry['Size'] for entry in s3.list_objects_v2(Bucket='bucket')['Contents']] == [0, 1, 1023, 1024, 1025]";
    snippet(&gateway, list).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replaced_or_deleted_is_collected_and_nothing_else() {
    let gateway = with_bucket().await;
    let put = "put = lambda key, body: s3.put_object(Bucket='bucket', Key=key, Body=body)";
    let steps = [
        ("put('k', b'1'); put('other', b'stays'); put('large', bytes(2_000))", (2, 1, 0), (2, 1)),
        ("put('k', b'2')", (3, 1, 1), (2, 1)),
        ("put('k', bytes(3_000))", (2, 2, 1), (1, 2)),
        ("put('k', b'3')", (2, 2, 1), (2, 1)),
        ("put('k', b'')", (2, 1, 1), (1, 1)),
        ("put('k', b'4'); s3.delete_object(Bucket='bucket', Key='k')", (2, 1, 2), (1, 1)),
    ];
    for (step, before, (inline, chunks)) in steps {
        snippet(&gateway, &format!("{put}\n{step}")).await;
        assert_eq!(counts(&gateway), before, "after {step}");
        let report = gateway.gateway.collect_garbage().await.unwrap();
        assert_eq!((report.records, report.failures), (before.2 as u64, 0), "after {step}");
        assert_eq!(counts(&gateway), (inline, chunks, 0), "collected after {step}");
    }
    snippet(
        &gateway,
        "
assert s3.get_object(Bucket='bucket', Key='other')['Body'].read() == b'stays'
assert s3.get_object(Bucket='bucket', Key='large')['Body'].read() == bytes(2_000)
",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_sealed_anew_and_parts_are_never_in_the_index() {
    let gateway = with_bucket().await;
    snippet(
        &gateway,
        "
s3.create_bucket(Bucket='second')
s3.put_object(Bucket='bucket', Key='k', Body=b'small', ChecksumAlgorithm='CRC32')
s3.copy_object(Bucket='bucket', Key='copy', CopySource='bucket/k')
s3.copy_object(Bucket='second', Key='copy', CopySource='bucket/copy', ServerSideEncryption='aws:kms')
s3.copy_object(Bucket='bucket', Key='k', CopySource='bucket/k', MetadataDirective='REPLACE')
",
    )
    .await;
    assert_eq!(counts(&gateway), (4, 0, 1));
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 1);
    assert_eq!(counts(&gateway), (3, 0, 0));
    let mut values: Vec<Bytes> = records(&gateway, "d/").into_iter().map(|(_, value)| value).collect();
    values.sort();
    values.dedup();
    assert_eq!(values.len(), 3);
    snippet(
        &gateway,
        "
s3.delete_object(Bucket='bucket', Key='k')
for bucket in ('bucket', 'second'):
    assert s3.get_object(Bucket=bucket, Key='copy')['Body'].read() == b'small'
large = os.urandom(5 << 20)
def upload(key, *bodies):
    one = dict(Bucket='bucket', Key=key, UploadId=s3.create_multipart_upload(Bucket='bucket', Key=key)['UploadId'])
    etags = [s3.upload_part(**one, PartNumber=number + 1, Body=body)['ETag'] for number, body in enumerate(bodies)]
    number = len(etags) + 1
    etags.append(s3.upload_part_copy(**one, PartNumber=number, CopySource='second/copy')['CopyPartResult']['ETag'])
    s3.complete_multipart_upload(**one, MultipartUpload={'Parts': [
        {'PartNumber': index + 1, 'ETag': etag} for index, etag in enumerate(etags)]})
    assert s3.get_object(Bucket='bucket', Key=key)['Body'].read() == b''.join(bodies) + b'small'
upload('parts', large)
upload('one')
",
    )
    .await;
    assert_eq!(counts(&gateway), (3, 2 + 1 + 1, 1), "an object that was one small part has a chunk, too");
    snippet(&gateway, "s3.copy_object(Bucket='second', Key='one', CopySource='bucket/one')").await;
    assert_eq!(counts(&gateway), (4, 2 + 1 + 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_takes_its_small_objects_along() {
    let gateway = with_bucket().await;
    snippet(
        &gateway,
        "
for number in range(20):
    s3.put_object(Bucket='bucket', Key=f'k{number}', Body=b'small')
    s3.put_object(Bucket='bucket', Key=f'k{number}', Body=b'small' * (1 + number % 2 * 500))
upload = s3.create_multipart_upload(Bucket='bucket', Key='u')['UploadId']
s3.upload_part(Bucket='bucket', Key='u', UploadId=upload, PartNumber=1, Body=b'1')
assert code(s3.delete_bucket, Bucket='bucket') == (409, 'BucketNotEmpty')
for number in range(20):
    s3.delete_object(Bucket='bucket', Key=f'k{number}')
s3.delete_bucket(Bucket='bucket')
",
    )
    .await;
    assert!(gateway.client.names("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_in_the_index_never_reaches_a_client() {
    let gateway = with_bucket().await;
    snippet(&gateway, "for key in ('k', 'l'): s3.put_object(Bucket='bucket', Key=key, Body=key.encode() * 1_000)")
        .await;
    let intact = records(&gateway, "d/");
    let set = |values: [Option<Bytes>; 2]| {
        gateway.client.each(|_, object| {
            for ((key, _), value) in intact.iter().zip(&values) {
                // All index objects get both, which is no harm: each is looked for in one of them.
                match value {
                    Some(value) => drop(object.omap.insert(key.clone(), value.clone())),
                    None => drop(object.omap.remove(key)),
                }
            }
        });
    };
    let get = |code: &str| {
        format!(
            "for key in ('k', 'l'): assert code(s3.get_object, Bucket='bucket', Key=key, Range='bytes=3-5') == {code}"
        )
    };
    let (good, bad) = (get("(200, '')"), get("(500, 'InternalError')"));
    let [first, second] = [&intact[0].1, &intact[1].1];
    let flipped = |value: &Bytes| {
        let mut value = value.to_vec();
        value[500] ^= 1;
        Some(Bytes::from(value))
    };
    let longer = |value: &Bytes| Some(Bytes::from([&value[..], &[0]].concat()));
    set([flipped(first), flipped(second)]);
    snippet(&gateway, &bad).await;
    set([first, second].map(|value| Some(value.slice(..value.len() - 1))));
    snippet(&gateway, &bad).await;
    set([first, second].map(|value| Some(value.slice(..20))));
    snippet(&gateway, &bad).await;
    set([longer(first), longer(second)]);
    snippet(&gateway, &bad).await;
    set([Some(second.clone()), Some(first.clone())]);
    snippet(&gateway, &bad).await;
    set([None, None]);
    snippet(&gateway, &bad).await;
    set([Some(first.clone()), Some(second.clone())]);
    snippet(&gateway, &good).await;
    // A format of a later release, and one in which the data would be in chunks.
    for (format, code) in [(3, "(500, 'InternalError')"), (1, "(500, 'InternalError')"), (2, "(200, '')")] {
        gateway.client.each(|_, object| {
            for (_, value) in object.omap.iter_mut().filter(|(key, _)| key.starts_with(b"o/")) {
                *value = [&[format], &value[1..]].concat().into();
            }
        });
        snippet(&gateway, &get(code)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_put_happens_whole_or_not_at_all() {
    let gateway = with_bucket().await;
    let put = |code: &str| format!("assert code(s3.put_object, Bucket='bucket', Key='k', Body=b'data') == {code}");
    gateway.client.set_fault("s3i/", Fault::NoSpace);
    snippet(&gateway, &put("(507, 'InsufficientStorage')")).await;
    gateway.client.clear_faults();
    gateway.client.set_fault("s3i/", Fault::WriteTimesOut { happens: false });
    snippet(&gateway, &put("(503, 'SlowDown')")).await;
    assert_eq!(counts(&gateway), (0, 0, 0), "and no orphan");
    gateway.client.clear_faults();
    gateway.client.set_fault("s3i/", Fault::WriteTimesOut { happens: true });
    snippet(&gateway, &put("(503, 'SlowDown')")).await;
    gateway.client.clear_faults();
    snippet(
        &gateway,
        "
assert s3.get_object(Bucket='bucket', Key='k')['Body'].read() == b'data'
create = lambda: code(s3.put_object, Bucket='bucket', Key='k2', Body=b'data', IfNoneMatch='*')
results = together(*[create] * 8)
assert sorted(results) == [(200, '')] + [(412, 'PreconditionFailed')] * 7, results
etag = s3.head_object(Bucket='bucket', Key='k2')['ETag']
assert code(s3.put_object, Bucket='bucket', Key='k2', Body=b'other', IfMatch='\"0\"') == (412, 'PreconditionFailed')
assert code(s3.put_object, Bucket='bucket', Key='k2', Body=b'other', IfMatch=etag) == (200, '')
assert code(s3.put_object, Bucket='bucket', Key='k3', Body=b'x', ContentMD5='AAAAAAAAAAAAAAAAAAAAAA==')[1] == 'BadDigest'
",
    )
    .await;
    assert_eq!(counts(&gateway), (3, 0, 1), "two objects, and one that was replaced");
}
