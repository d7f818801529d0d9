//! What the gateway does when things go wrong, and what it leaves in the cluster.

use std::time::Duration;

use crate::support::memory_client::Fault;
use crate::support::{TestGateway, eventually, python, require_boto3, start};
use bytes::Bytes;

async fn snippet(gateway: &TestGateway, code: &str) -> String {
    let prelude = include_str!("prelude.py");
    python(gateway, &["-c", &format!("{prelude}\n{code}")]).await
}

async fn with_bucket(code: &str) -> TestGateway {
    require_boto3().await;
    let gateway = start(|config| {
        config.garbage_grace = Duration::ZERO;
        config.stall_timeout = Duration::from_millis(500);
    })
    .await;
    snippet(&gateway, &format!("s3.create_bucket(Bucket='bucket')\n{code}")).await;
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plaintext_is_stored() {
    let gateway = with_bucket(
        "
canary = b'CANARY-OF-PLAIN-DATA' * 300_000
s3.put_object(Bucket='bucket', Key='small', Body=canary[:1_000])
s3.put_object(Bucket='bucket', Key='single', Body=canary)
s3.copy_object(Bucket='bucket', Key='copy', CopySource='bucket/single')
upload = s3.create_multipart_upload(Bucket='bucket', Key='parts')['UploadId']
etag = s3.upload_part(Bucket='bucket', Key='parts', UploadId=upload, PartNumber=1, Body=canary)['ETag']
s3.complete_multipart_upload(Bucket='bucket', Key='parts', UploadId=upload,
                             MultipartUpload={'Parts': [{'PartNumber': 1, 'ETag': etag}]})
assert s3.get_object(Bucket='bucket', Key='parts')['Body'].read() == canary
",
    )
    .await;
    let (mut bytes, mut chunks) = (0, 0);
    gateway.client.each(|name, object| {
        let needle = b"CANARY-OF";
        assert!(!object.data.windows(needle.len()).any(|window| window == needle), "plaintext in {name}");
        for value in object.omap.values() {
            assert!(!value.windows(needle.len()).any(|window| window == needle), "plaintext in {name}");
        }
        bytes += object.data.len();
        chunks += usize::from(name.starts_with("s3d/"));
    });
    assert_eq!((bytes, chunks), (3 * 6_000_000, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cluster_is_told_and_nothing_remains() {
    let gateway = with_bucket("").await;
    gateway.client.set_fault("s3d/", Fault::NoSpace);
    snippet(
        &gateway,
        "assert code(s3.put_object, Bucket='bucket', Key='k', Body=bytes(9 << 20)) == (507, 'InsufficientStorage')",
    )
    .await;
    gateway.client.clear_faults();
    gateway.client.set_fault("s3i/", Fault::NoSpace);
    snippet(
        &gateway,
        "assert code(s3.put_object, Bucket='bucket', Key='k', Body=bytes(2_000)) == (507, 'InsufficientStorage')",
    )
    .await;
    eventually("removal of the data", async || gateway.client.names("s3d/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_stays_when_it_is_uncertain_whether_it_became_visible() {
    let gateway = with_bucket("").await;
    let put = "assert code(s3.put_object, Bucket='bucket', Key='k', Body=b'data' * 500) == (503, 'SlowDown')";
    gateway.client.set_fault("s3i/", Fault::WriteTimesOut { happens: true });
    snippet(&gateway, put).await;
    gateway.client.clear_faults();
    tokio::time::sleep(Duration::from_millis(200)).await;
    snippet(&gateway, "assert s3.get_object(Bucket='bucket', Key='k')['Body'].read() == b'data' * 500").await;

    gateway.client.set_fault("s3i/", Fault::WriteTimesOut { happens: false });
    snippet(&gateway, put).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gateway.client.names("s3d/").len(), 2, "an orphan, as documented");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_never_reaches_a_client() {
    let gateway = with_bucket("s3.put_object(Bucket='bucket', Key='k', Body=bytes(9 << 20))").await;
    let get = "assert code(s3.get_object, Bucket='bucket', Key='k') == (500, 'InternalError')";
    let mut saved = Vec::new();
    gateway.client.each(|name, object| saved.push((name.to_owned(), object.clone())));
    let restore = || {
        gateway.client.each(|name, object| {
            *object = saved.iter().find(|(saved, _)| saved == name).unwrap().1.clone();
        });
    };
    let on_chunk = |number: &str, change: &dyn Fn(&mut crate::support::memory_client::MemoryObject)| {
        gateway.client.each(|name, object| {
            if name.starts_with("s3d/") && name.ends_with(number) {
                change(object);
            }
        });
    };

    on_chunk("/0", &|object| object.data[100_000] ^= 1);
    snippet(&gateway, get).await;
    restore();
    on_chunk("/0", &|object| object.data.truncate(65_536));
    snippet(&gateway, get).await;
    restore();
    on_chunk("/0", &|object| object.unit = None);
    snippet(&gateway, get).await;
    restore();
    let other = saved.iter().find(|(name, _)| name.ends_with("/1")).unwrap().1.clone();
    on_chunk("/0", &|object| *object = other.clone());
    snippet(&gateway, get).await;
    restore();

    // Damage behind what was already sent cuts the connection.
    on_chunk("/2", &|object| object.data[0] ^= 1);
    snippet(
        &gateway,
        "
from botocore.exceptions import IncompleteReadError, ResponseStreamingError
try:
    s3.get_object(Bucket='bucket', Key='k')['Body'].read()
except Exception as error:
    print('cut:', type(error).__name__)
else:
    raise AssertionError('damaged data was delivered')
s3.get_object(Bucket='bucket', Key='k', Range='bytes=0-99')['Body'].read()
",
    )
    .await;
    gateway.client.lose("s3d/");
    snippet(&gateway, get).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_break_off_leave_nothing() {
    let gateway = with_bucket("").await;
    snippet(
        &gateway,
        "
def begin(length):
    url = urllib.parse.urlparse(s3.generate_presigned_url('put_object', {'Bucket': 'bucket', 'Key': 'k'}))
    connection = socket.create_connection((url.hostname, url.port))
    connection.sendall(f'PUT {url.path}?{url.query} HTTP/1.1\\r\\nHost: {url.netloc}\\r\\nContent-Length: {length}\\r\\n\\r\\n'.encode())
    connection.sendall(bytes(9 << 20))
    return connection
begin(20 << 20).close()
stalled = begin(20 << 20)
answer = stalled.recv(100_000)
assert b'RequestTimeout' in answer, answer
assert code(s3.head_object, Bucket='bucket', Key='k')[0] == 404
",
    )
    .await;
    eventually("removal of the data", async || gateway.client.names("s3d/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_collected_after_its_grace() {
    require_boto3().await;
    let gateway = start(|config| config.garbage_grace = Duration::from_secs(2)).await;
    snippet(
        &gateway,
        "
s3.create_bucket(Bucket='bucket')
for number in range(30):
    s3.put_object(Bucket='bucket', Key=f'k{number}', Body=bytes(70_000))
    s3.put_object(Bucket='bucket', Key=f'k{number}', Body=bytes(5 << 20))
for number in range(10):
    s3.delete_object(Bucket='bucket', Key=f'k{number}')
upload = s3.create_multipart_upload(Bucket='bucket', Key='u')['UploadId']
s3.upload_part(Bucket='bucket', Key='u', UploadId=upload, PartNumber=1, Body=b'1')
s3.upload_part(Bucket='bucket', Key='u', UploadId=upload, PartNumber=1, Body=b'2')
s3.abort_multipart_upload(Bucket='bucket', Key='u', UploadId=upload)
",
    )
    .await;
    assert_eq!(gateway.client.names("s3d/").len(), 30 + 2 * 30 + 2);
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let report = gateway.gateway.collect_garbage().await.unwrap();
    assert_eq!((report.records, report.failures), (30 + 10 + 2, 0));
    assert_eq!(gateway.client.names("s3d/").len(), 2 * 20);
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 0);
    snippet(
        &gateway,
        "
for number in range(10, 30):
    assert s3.get_object(Bucket='bucket', Key=f'k{number}')['Body'].read() == bytes(5 << 20)
s3.delete_object(Bucket='bucket', Key='k10')
",
    )
    .await;
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 0, "still in its grace");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_a_deletion_of_their_bucket_exclude_each_other() {
    let gateway = with_bucket("").await;
    gateway.client.set_fault("s3i/", Fault::Slow(Duration::from_millis(2)));
    let said = snippet(
        &gateway,
        "
outcomes = set()
for turn in range(25):
    name = f'race-{turn}'
    s3.create_bucket(Bucket=name)
    put = lambda: code(s3.put_object, Bucket=name, Key=os.urandom(8).hex(), Body=b'x')
    def delete():
        time.sleep(turn * 0.002)
        return code(s3.delete_bucket, Bucket=name)
    deleted, *puts = together(delete, put, put, put)
    done = [result for result in puts if result[0] == 200]
    outcomes.add((deleted[1], len(done) > 0))
    if deleted[0] == 204 or deleted[0] == 200:
        assert not done, (deleted, puts)
        assert all(result[1] == 'NoSuchBucket' for result in puts), puts
    else:
        assert deleted[1] == 'BucketNotEmpty', deleted
        assert s3.list_objects_v2(Bucket=name)['KeyCount'] == len(done)
        assert put()[0] == 200
print(outcomes)
",
    )
    .await;
    assert!(said.contains("BucketNotEmpty"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_cut_short_are_taken_back_or_finished() {
    let gateway = with_bucket(
        "upload = s3.create_multipart_upload(Bucket='bucket', Key='u')['UploadId']
s3.upload_part(Bucket='bucket', Key='u', UploadId=upload, PartNumber=1, Body=b'1')",
    )
    .await;
    let mark = |since_ms: u64, is_final: bool| {
        let mark = format!(r#"{{"format":1,"since_ms":{since_ms},"token":"t","is_final":{is_final}}}"#);
        gateway.client.each(|name, object| {
            if name.starts_with("s3i/") {
                object.omap.insert(Bytes::from_static(b"x/deleting"), Bytes::from(mark.clone()));
            }
        });
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let put = |code: &str| format!("assert code(s3.put_object, Bucket='bucket', Key='k', Body=b'') == {code}");

    mark(now, false);
    gateway.gateway.collect_garbage().await.unwrap();
    snippet(&gateway, &put("(409, 'OperationAborted')")).await;
    mark(now - 11 * 60_000, false);
    gateway.gateway.collect_garbage().await.unwrap();
    snippet(&gateway, &(put("(200, '')") + "\ns3.delete_object(Bucket='bucket', Key='k')")).await;

    mark(now, true);
    gateway.gateway.collect_garbage().await.unwrap();
    assert!(gateway.client.names("").is_empty());
    snippet(&gateway, &put("(404, 'NoSuchBucket')")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_completions_and_aborts_one_wins() {
    let gateway = with_bucket("").await;
    gateway.client.set_fault("s3i/", Fault::Slow(Duration::from_millis(1)));
    snippet(
        &gateway,
        "
for turn in range(25):
    key = f'k{turn}'
    upload = s3.create_multipart_upload(Bucket='bucket', Key=key)['UploadId']
    one = dict(Bucket='bucket', Key=key, UploadId=upload)
    etag = s3.upload_part(**one, PartNumber=1, Body=b'data')['ETag']
    parts = {'Parts': [{'PartNumber': 1, 'ETag': etag}]}
    complete = lambda: code(s3.complete_multipart_upload, **one, MultipartUpload=parts)
    abort = lambda: code(s3.abort_multipart_upload, **one)
    add = lambda: code(s3.upload_part, **one, PartNumber=1, Body=b'other')
    completed, again, aborted, added = together(complete, complete, abort, add)
    is_there = code(s3.head_object, Bucket='bucket', Key=key)[0] == 200
    if is_there:
        body = s3.get_object(Bucket='bucket', Key=key)['Body'].read()
        assert aborted[0] != 204 and body == b'data', (completed, aborted, body)
    assert not (completed[0] == 200 and not is_there), (completed, again, aborted, added)
",
    )
    .await;
    gateway.client.clear_faults();
    // Whatever was not used is garbage now, and after its collection only what is visible remains.
    gateway.gateway.collect_garbage().await.unwrap();
    snippet(
        &gateway,
        "
for page in s3.list_multipart_uploads(Bucket='bucket').get('Uploads', []):
    s3.abort_multipart_upload(Bucket='bucket', Key=page['Key'], UploadId=page['UploadId'])
for entry in s3.list_objects_v2(Bucket='bucket').get('Contents', []):
    assert s3.get_object(Bucket='bucket', Key=entry['Key'])['Body'].read() == b'data'
    s3.delete_object(Bucket='bucket', Key=entry['Key'])
",
    )
    .await;
    gateway.gateway.collect_garbage().await.unwrap();
    assert!(gateway.client.names("s3d/").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_requests_end() {
    let mut gateway = with_bucket("").await;
    gateway.client.set_fault("s3d/", Fault::Slow(Duration::from_millis(1_500)));
    let stop = gateway.stop.take().unwrap();
    let stopping = async {
        eventually("a write under way", async || gateway.client.slow_begun() > 0).await;
        stop.send(()).unwrap();
    };
    let (_, ()) =
        tokio::join!(snippet(&gateway, "s3.put_object(Bucket='bucket', Key='k', Body=bytes(2_000))"), stopping);
    tokio::time::timeout(Duration::from_secs(5), gateway.served).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(gateway.address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_whose_data_is_collected_begins_anew() {
    // In chunks, and in the index.
    for (place, times) in [("s3d/", 1_000), ("d/", 1)] {
        let gateway =
            with_bucket(&format!("s3.put_object(Bucket='bucket', Key='k', Body=b'old' * {times})")).await;
        gateway.client.set_fault(place, Fault::Slow(Duration::from_secs(4)));
        let replace = async {
            eventually("a read under way", async || gateway.client.slow_begun() > 0).await;
            gateway.client.clear_faults();
            let put = format!("s3.put_object(Bucket='bucket', Key='k', Body=b'new' * {times})");
            snippet(&gateway, &put).await;
            assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 1);
        };
        let get = format!("assert s3.get_object(Bucket='bucket', Key='k')['Body'].read() == b'new' * {times}");
        tokio::join!(snippet(&gateway, &get), replace);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_a_small_memory_budget() {
    require_boto3().await;
    let gateway = start(|config| config.memory_max = 1).await;
    snippet(
        &gateway,
        "
s3.create_bucket(Bucket='bucket')
def work(number):
    one = dict(Bucket='bucket', Key=f'k{number}')
    for size in (1, 1_024, 9 << 20, 1_023):
        data = os.urandom(size)
        s3.put_object(**one, Body=data)
        s3.copy_object(Bucket='bucket', Key=f'c{number}', CopySource=one)
        assert s3.get_object(Bucket='bucket', Key=f'c{number}')['Body'].read() == data
    return True
assert all(together(*[lambda number=number: work(number) for number in range(16)]))
",
    )
    .await;
}
