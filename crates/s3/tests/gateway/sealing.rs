//! Buckets whose new objects are not sealed, and what nobody can have stored or given out without sealing.
use crate::support::{TestGateway, python, require_boto3, start, start_with_tls, tls_settings, write_pair};
use atoll_base::records::BucketRecord;
use atoll_crypto::{KeyService, SecretKey};
use atoll_s3::{BucketDirectory, unsealed_permit_context};
use bytes::{BufMut, BytesMut};

/// No ciphertext has it.
const PATTERN: &[u8] = b"what the owner of the bucket wrote";

async fn snippet(gateway: &TestGateway, code: &str) -> String {
    let prelude = include_str!("prelude.py");
    let data = "import hashlib\npattern = b'what the owner of the bucket wrote'\ndata = pattern * (5_500_000 // len(pattern))";
    python(gateway, &["-c", &format!("{prelude}\n{data}\n{code}")]).await
}

async fn make_bucket(gateway: &TestGateway, name: &str) -> BucketRecord {
    snippet(gateway, &format!("s3.create_bucket(Bucket='{name}')")).await;
    gateway.directory.bucket(name).await.unwrap().unwrap()
}

async fn set_permit(gateway: &TestGateway, record: &BucketRecord, permit: Option<String>) {
    let changed = BucketRecord { unsealed_permit: permit, ..record.clone() };
    let now = gateway.directory.bucket(&record.name).await.unwrap().unwrap();
    assert!(gateway.directory.update_bucket(&now, &changed).await.unwrap());
}

/// As 'atoll bucket set NAME sealing off' does it.
async fn permit(gateway: &TestGateway, record: &BucketRecord) -> String {
    gateway.keys.wrap(&unsealed_permit_context(&record.id), &SecretKey::random()).await.unwrap()
}

/// Of the stored data: the number of chunks in clear, and of those with seals.
fn in_clear_and_sealed(gateway: &TestGateway) -> (usize, usize) {
    let mut counts = (0, 0);
    gateway.client.each(|name, object| {
        if name.starts_with("s3d/") {
            let is_clear = object.data.windows(PATTERN.len()).any(|window| window == PATTERN);
            assert_eq!(is_clear, object.seals.is_empty(), "{name} has seals or is in clear, not both");
            if is_clear { counts.0 += 1 } else { counts.1 += 1 }
        }
    });
    counts
}

/// Rewrites the heads of a bucket's records whose key has a prefix, as OSDs could.
fn forge_heads(gateway: &TestGateway, prefix: &str, change: impl Fn(&mut serde_json::Value)) {
    let mut forged = 0;
    gateway.client.each(|name, object| {
        let records = object.omap.iter_mut().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
        for (_, value) in records.filter(|_| name.starts_with("s3i/")) {
            let (length, rest) = value[1..].split_first_chunk().unwrap();
            let (head, pieces) = rest.split_at(u32::from_le_bytes(*length) as usize);
            let mut head = serde_json::from_slice(head).unwrap();
            change(&mut head);
            let head = serde_json::to_vec(&head).unwrap();
            let mut changed = BytesMut::from(&value[..1]);
            changed.put_u32_le(head.len() as u32);
            changed.put_slice(&head);
            changed.put_slice(pieces);
            *value = changed.freeze();
            forged += 1;
        }
    });
    assert_eq!(forged, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsealed_objects_are_stored_as_they_are_and_answers_say_so() {
    require_boto3().await;
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let gateway = start_with_tls(tls_settings(directory.path()), |_| {}).await;
    let record = make_bucket(&gateway, "plain").await;
    set_permit(&gateway, &record, Some(permit(&gateway, &record).await)).await;
    snippet(
        &gateway,
        "
def kind(answer):
    return answer.get('ServerSideEncryption'), answer.get('SSECustomerAlgorithm')
put = s3.put_object(Bucket='plain', Key='k', Body=data)
assert kind(put) == (None, None) and put['ETag'] == '\"' + hashlib.md5(data).hexdigest() + '\"', put
assert kind(s3.head_object(Bucket='plain', Key='k')) == (None, None)
got = s3.get_object(Bucket='plain', Key='k')
assert kind(got) == (None, None) and got['Body'].read() == data
for first, last in ((0, 0), (70_001, 5_000_000), (len(data) - 3, len(data) + 9)):
    got = s3.get_object(Bucket='plain', Key='k', Range=f'bytes={first}-{last}')
    assert got['Body'].read() == data[first:last + 1]
s3.put_object(Bucket='plain', Key='empty', Body=b'')
assert s3.get_object(Bucket='plain', Key='empty')['Body'].read() == b''
upload = s3.create_multipart_upload(Bucket='plain', Key='parts')
assert kind(upload) == (None, None)
one = dict(Bucket='plain', Key='parts', UploadId=upload['UploadId'])
etags = [s3.upload_part(**one, PartNumber=1, Body=data)['ETag'],
         s3.upload_part_copy(**one, PartNumber=2, CopySource='plain/k')['CopyPartResult']['ETag']]
s3.complete_multipart_upload(**one, MultipartUpload={'Parts': [
    {'PartNumber': number + 1, 'ETag': etag} for number, etag in enumerate(etags)]})
assert s3.get_object(Bucket='plain', Key='parts')['Body'].read() == data * 2
assert code(s3.get_bucket_encryption, Bucket='plain') == (404, 'ServerSideEncryptionConfigurationNotFoundError')
",
    )
    .await;
    assert_eq!(in_clear_and_sealed(&gateway), (2 + 2 + 2, 0), "and not a seal more than needed");

    // Whoever asks to be encrypted is, and elsewhere nothing has changed.
    snippet(
        &gateway,
        "
def kind(answer):
    return answer.get('ServerSideEncryption'), answer.get('SSECustomerAlgorithm')
own = dict(SSECustomerAlgorithm='AES256', SSECustomerKey=os.urandom(32))
assert kind(s3.put_object(Bucket='plain', Key='s3', Body=data, ServerSideEncryption='AES256')) == ('AES256', None)
assert kind(s3.put_object(Bucket='plain', Key='c', Body=data, **own)) == (None, 'AES256')
assert kind(s3.head_object(Bucket='plain', Key='s3')) == ('AES256', None)
assert s3.get_object(Bucket='plain', Key='s3')['Body'].read() == data
assert s3.get_object(Bucket='plain', Key='c', **own)['Body'].read() == data
assert code(s3.get_object, Bucket='plain', Key='k', **own) == (400, 'InvalidRequest')
s3.put_bucket_encryption(Bucket='plain', ServerSideEncryptionConfiguration={'Rules': [
    {'ApplyServerSideEncryptionByDefault': {'SSEAlgorithm': 'AES256'}}]})
assert kind(s3.put_object(Bucket='plain', Key='default', Body=data)) == ('AES256', None)
assert s3.get_bucket_encryption(Bucket='plain')
s3.create_bucket(Bucket='usual')
assert kind(s3.copy_object(Bucket='usual', Key='copy', CopySource='plain/k')) == ('AES256', None)
s3.delete_bucket_encryption(Bucket='plain')
",
    )
    .await;
    assert_eq!(in_clear_and_sealed(&gateway), (6, 4 * 2));
    snippet(
        &gateway,
        "
assert 'ServerSideEncryption' not in s3.copy_object(Bucket='plain', Key='copy', CopySource='usual/copy')
assert s3.get_object(Bucket='plain', Key='copy')['Body'].read() == data
",
    )
    .await;
    assert_eq!(in_clear_and_sealed(&gateway), (8, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn sealing_that_is_switched_on_again_is_for_new_objects_and_parts() {
    require_boto3().await;
    let gateway = start(|_| {}).await;
    let record = make_bucket(&gateway, "plain").await;
    set_permit(&gateway, &record, Some(permit(&gateway, &record).await)).await;
    let id = snippet(
        &gateway,
        "
s3.put_object(Bucket='plain', Key='before', Body=data)
print(s3.create_multipart_upload(Bucket='plain', Key='parts')['UploadId'])
",
    )
    .await;
    set_permit(&gateway, &record, None).await;
    // Gateways follow within 2 s.
    snippet(
        &gateway,
        &format!(
            "
time.sleep(2.1)
assert s3.put_object(Bucket='plain', Key='after', Body=data)['ServerSideEncryption'] == 'AES256'
assert s3.get_object(Bucket='plain', Key='before')['Body'].read() == data
assert s3.copy_object(Bucket='plain', Key='before', CopySource='plain/before')['ServerSideEncryption'] == 'AES256'
refused = code(s3.upload_part, Bucket='plain', Key='parts', UploadId='{}', PartNumber=1, Body=data)
assert refused == (400, 'InvalidRequest'), refused
",
            id.trim()
        ),
    )
    .await;
    assert_eq!(in_clear_and_sealed(&gateway), (2, 4), "what was replaced waits to be collected");
}

/// Who can write cluster state, but has no key service.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_permit_permits_nothing() {
    require_boto3().await;
    let gateway = start(|_| {}).await;
    let record = make_bucket(&gateway, "bucket").await;
    let other = make_bucket(&gateway, "other").await;
    let of_other = permit(&gateway, &other).await;
    for forged in [record.wrapped_key.clone(), String::new(), of_other] {
        set_permit(&gateway, &record, Some(forged)).await;
        let put = "time.sleep(2.1)\nassert code(s3.put_object, Bucket='bucket', Key='k', Body=data)[0] == 500";
        snippet(&gateway, put).await;
        assert_eq!(in_clear_and_sealed(&gateway), (0, 0));
    }
}

/// Small ones are in the index, where the same holds.
#[tokio::test(flavor = "multi_thread")]
async fn small_unsealed_objects_are_in_the_index_as_they_are() {
    require_boto3().await;
    let gateway = start(|_| {}).await;
    let record = make_bucket(&gateway, "plain").await;
    set_permit(&gateway, &record, Some(permit(&gateway, &record).await)).await;
    snippet(
        &gateway,
        "
s3.put_object(Bucket='plain', Key='k', Body=pattern)
assert s3.copy_object(Bucket='plain', Key='sealed', CopySource='plain/k',
                      ServerSideEncryption='AES256')['ServerSideEncryption'] == 'AES256'
s3.copy_object(Bucket='plain', Key='copy', CopySource='plain/sealed')
for key in ('k', 'sealed', 'copy'):
    got = s3.get_object(Bucket='plain', Key=key, Range='bytes=5-9')
    assert got['Body'].read() == pattern[5:10] and ('ServerSideEncryption' in got) == (key == 'sealed'), key
",
    )
    .await;
    let mut lengths = Vec::new();
    gateway.client.each(|_, object| {
        for (_, value) in object.omap.iter().filter(|(key, _)| key.starts_with(b"d/")) {
            assert_eq!(value == PATTERN, value.len() == PATTERN.len());
            lengths.push(value.len());
        }
    });
    lengths.sort_unstable();
    assert_eq!(lengths, [PATTERN.len(), PATTERN.len(), PATTERN.len() + 28]);

    // An OSD cannot pass contents of its choice off as unsealed data of what was sealed.
    snippet(&gateway, "[s3.delete_object(Bucket='plain', Key=key) for key in ('k', 'copy')]").await;
    forge_heads(&gateway, "o/", |head| head["encryption"] = "unsealed".into());
    gateway.client.each(|_, object| {
        for (_, value) in object.omap.iter_mut().filter(|(key, _)| key.starts_with(b"d/")) {
            *value = bytes::Bytes::from_static(PATTERN);
        }
    });
    snippet(&gateway, "assert code(s3.get_object, Bucket='plain', Key='sealed') == (500, 'InternalError')").await;
}

/// Who can write the bucket's index: a malicious OSD.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_cannot_say_that_sealed_data_is_not() {
    require_boto3().await;
    let gateway = start(|_| {}).await;
    make_bucket(&gateway, "bucket").await;
    let id = snippet(
        &gateway,
        "
s3.put_object(Bucket='bucket', Key='k', Body=data)
print(s3.create_multipart_upload(Bucket='bucket', Key='parts')['UploadId'])
",
    )
    .await;
    for prefix in ["o/", "u/"] {
        forge_heads(&gateway, prefix, |head| head["encryption"] = "unsealed".into());
    }
    // Contents that the OSD invents.
    gateway.client.each(|name, object| {
        if name.starts_with("s3d/") {
            (object.seals, object.unit) = (Default::default(), None);
            object.data.fill(7);
        }
    });
    snippet(
        &gateway,
        &format!(
            "
assert code(s3.get_object, Bucket='bucket', Key='k') == (500, 'InternalError')
part = code(s3.upload_part, Bucket='bucket', Key='parts', UploadId='{}', PartNumber=1, Body=data)
assert part == (400, 'InvalidRequest'), part
assert s3.put_object(Bucket='bucket', Key='k', Body=data)['ServerSideEncryption'] == 'AES256'
assert s3.get_object(Bucket='bucket', Key='k')['Body'].read() == data
",
            id.trim()
        ),
    )
    .await;
}
