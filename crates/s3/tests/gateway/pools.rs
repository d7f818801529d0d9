//! In which pools the gateway keeps what.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{DATA_POOL, POOL, TestGateway, python, require_boto3, start, start_with_data_pool};
use atoll_base::PoolId;

const OTHER_POOL: PoolId = PoolId(3);

async fn snippet(gateway: &TestGateway, code: &str) -> String {
    let prelude = include_str!("prelude.py");
    python(gateway, &["-c", &format!("{prelude}\n{code}")]).await
}

/// The pools of the data and of the indexes.
fn pools(gateway: &TestGateway) -> (Vec<PoolId>, Vec<PoolId>) {
    let of = |prefix| gateway.client.pools(prefix).into_iter().collect();
    (of("s3d/"), of("s3i/"))
}

const FILL: &str = "
data = os.urandom(9 << 20)
def fill(bucket):
    s3.put_object(Bucket=bucket, Key='single', Body=data)
    upload = s3.create_multipart_upload(Bucket=bucket, Key='parts')['UploadId']
    one = dict(Bucket=bucket, Key='parts', UploadId=upload)
    etags = [s3.upload_part(**one, PartNumber=1, Body=data)['ETag'],
             s3.upload_part_copy(**one, PartNumber=2, CopySource=f'{bucket}/single',
                                 CopySourceRange='bytes=0-4999999')['CopyPartResult']['ETag']]
    s3.complete_multipart_upload(**one, MultipartUpload={'Parts': [
        {'PartNumber': number + 1, 'ETag': etag} for number, etag in enumerate(etags)]})
    body = s3.get_object(Bucket=bucket, Key='parts')['Body'].read()
    assert body == data + data[:5_000_000]
    assert s3.get_object(Bucket=bucket, Key='single', Range='bytes=70000-5000000')['Body'].read() == data[70000:5000001]
def empty(bucket):
    for entry in s3.list_objects_v2(Bucket=bucket).get('Contents', []):
        s3.delete_object(Bucket=bucket, Key=entry['Key'])
    upload = s3.create_multipart_upload(Bucket=bucket, Key='unfinished')['UploadId']
    s3.upload_part(Bucket=bucket, Key='unfinished', UploadId=upload, PartNumber=1, Body=b'1')
";

#[tokio::test(flavor = "multi_thread")]
async fn data_goes_to_the_data_pool_and_indexes_do_not() {
    require_boto3().await;
    let gateway = start_with_data_pool(|config| config.garbage_grace = Duration::ZERO).await;
    snippet(&gateway, &format!("{FILL}\ns3.create_bucket(Bucket='bucket')\nfill('bucket')")).await;
    assert_eq!(pools(&gateway), (vec![DATA_POOL], vec![POOL]));
    assert_eq!(gateway.client.names("s3d/").len(), 3 + 3 + 2);
    // What is replaced and deleted goes from where it is, whoever removes it.
    let replaced =
        "s3.put_object(Bucket='bucket', Key='single', Body=b'')\ns3.delete_object(Bucket='bucket', Key='parts')";
    snippet(&gateway, replaced).await;
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 2);
    assert!(gateway.client.names("s3d/").is_empty());
    snippet(&gateway, &format!("{FILL}\nfill('bucket')\nempty('bucket')\ns3.delete_bucket(Bucket='bucket')"))
        .await;
    assert!(gateway.client.names("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_may_name_its_pool_and_copies_go_between_pools() {
    require_boto3().await;
    let gateway = start_with_data_pool(|_| {}).await;
    gateway.add_coded_pool(OTHER_POOL, "cold", 1 << 20);
    gateway.add_coded_pool(PoolId(4), "disks", 4 << 10);
    snippet(
        &gateway,
        &format!(
            "{FILL}
def make(bucket, constraint):
    return code(s3.create_bucket, Bucket=bucket, CreateBucketConfiguration={{'LocationConstraint': constraint}})
assert make('warm', 'eu-west-1')[0] == 200, 'other constraints mean nothing'
assert make('cold', 'pool:cold')[0] == 200
assert make('none', 'pool:none') == (400, 'InvalidLocationConstraint')
assert make('none', 'pool:disks') == (400, 'InvalidLocationConstraint')
fill('warm')
s3.copy_object(Bucket='cold', Key='copy', CopySource='warm/parts')
upload = s3.create_multipart_upload(Bucket='cold', Key='parts')['UploadId']
one = dict(Bucket='cold', Key='parts', UploadId=upload)
etag = s3.upload_part_copy(**one, PartNumber=1, CopySource='warm/single')['CopyPartResult']['ETag']
s3.complete_multipart_upload(**one, MultipartUpload={{'Parts': [{{'PartNumber': 1, 'ETag': etag}}]}})
"
        ),
    )
    .await;
    assert_eq!(pools(&gateway), (vec![DATA_POOL, OTHER_POOL], vec![POOL]));
    // The copies need nothing of where they came from.
    snippet(&gateway, &format!("{FILL}\nempty('warm')\ns3.delete_bucket(Bucket='warm')")).await;
    assert_eq!(pools(&gateway), (vec![OTHER_POOL], vec![POOL]));
    snippet(
        &gateway,
        "
body = s3.get_object(Bucket='cold', Key='copy')['Body'].read()
assert len(body) == (9 << 20) + 5_000_000
assert s3.get_object(Bucket='cold', Key='parts')['Body'].read() == body[:9 << 20]
s3.copy_object(Bucket='cold', Key='copy', CopySource='cold/copy', MetadataDirective='REPLACE')
",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_data_pool_everything_is_in_one() {
    require_boto3().await;
    let gateway = start(|config| config.data_pool = Some("data".into())).await;
    let first = "s3.create_bucket(Bucket='first')\ns3.put_object(Bucket='first', Key='k', Body=b'first' * 500)";
    snippet(&gateway, first).await;
    assert_eq!(pools(&gateway), (vec![POOL], vec![POOL]));
    // One that is made later is for new buckets; the others stay where they are.
    gateway.add_coded_pool(DATA_POOL, "data", 64 << 10);
    snippet(
        &gateway,
        "
s3.create_bucket(Bucket='second')
s3.put_object(Bucket='first', Key='k2', Body=b'first' * 500)
assert s3.get_object(Bucket='first', Key='k')['Body'].read() == b'first' * 500
",
    )
    .await;
    assert_eq!(gateway.client.pools("s3d/"), BTreeSet::from([POOL]));
    snippet(&gateway, "s3.put_object(Bucket='second', Key='k', Body=b'second' * 500)").await;
    assert_eq!(pools(&gateway), (vec![POOL, DATA_POOL], vec![POOL]));
}
