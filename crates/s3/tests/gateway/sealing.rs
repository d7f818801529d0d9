//! Buckets whose new objects are not sealed, and objects that can never be stored or returned without sealing.
use crate::support::{self, TestGateway, start, start_with_tls, tls_settings, write_pair};
use atoll_credentials::unsealed_permit_context;
use atoll_keys::{KeyService, SecretKey};
use atoll_s3::BucketDirectory;
use atoll_types::records::BucketRecord;
use bytes::{BufMut, BytesMut};

/// No ciphertext has it.
const PATTERN: &[u8] = b"what the owner of the bucket wrote";

async fn step(gateway: &TestGateway, arguments: &[&str]) -> String {
    support::step(gateway, "sealing", arguments).await
}

async fn make_bucket(gateway: &TestGateway, name: &str) -> BucketRecord {
    step(gateway, &["create_bucket", name]).await;
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

/// Returns, of the stored data, the number of chunks in clear, and of those with seals.
fn in_clear_and_sealed(gateway: &TestGateway) -> (usize, usize) {
    let mut counts = (0, 0);
    gateway.client.each(|name, object| {
        if name.starts_with("s3d/") || name.contains('@') {
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
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let gateway = start_with_tls(tls_settings(directory.path()), |_| {}).await;
    let record = make_bucket(&gateway, "plain").await;
    set_permit(&gateway, &record, Some(permit(&gateway, &record).await)).await;
    step(&gateway, &["put_in_clear"]).await;
    assert_eq!(in_clear_and_sealed(&gateway), (2 + 2 + 2, 0), "and not a seal more than needed");

    // Whoever asks to be encrypted is, and elsewhere nothing has changed.
    step(&gateway, &["ask_for_encryption"]).await;
    assert_eq!(in_clear_and_sealed(&gateway), (6, 4 * 2));
    step(&gateway, &["copy_into_the_clear"]).await;
    assert_eq!(in_clear_and_sealed(&gateway), (8, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn sealing_that_is_switched_on_again_is_for_new_objects_and_parts() {
    let gateway = start(|_| {}).await;
    let record = make_bucket(&gateway, "plain").await;
    set_permit(&gateway, &record, Some(permit(&gateway, &record).await)).await;
    let id = step(&gateway, &["put_and_begin_upload", "plain", "before"]).await;
    set_permit(&gateway, &record, None).await;
    step(&gateway, &["sealing_is_on_again", id.trim()]).await;
    assert_eq!(in_clear_and_sealed(&gateway), (2, 4), "what was replaced waits to be collected");
}

/// A writer of cluster state without the key service.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_permit_permits_nothing() {
    let gateway = start(|_| {}).await;
    let record = make_bucket(&gateway, "bucket").await;
    let other = make_bucket(&gateway, "other").await;
    let of_other = permit(&gateway, &other).await;
    for forged in [record.wrapped_key.clone(), String::new(), of_other] {
        set_permit(&gateway, &record, Some(forged)).await;
        step(&gateway, &["no_object_is_taken"]).await;
        assert_eq!(in_clear_and_sealed(&gateway), (0, 0));
    }
}

/// Small ones are in the index, where the same holds.
#[tokio::test(flavor = "multi_thread")]
async fn small_unsealed_objects_are_in_the_index_as_they_are() {
    let gateway = start(|_| {}).await;
    let record = make_bucket(&gateway, "plain").await;
    set_permit(&gateway, &record, Some(permit(&gateway, &record).await)).await;
    step(&gateway, &["put_small"]).await;
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
    step(&gateway, &["delete_what_is_in_clear"]).await;
    forge_heads(&gateway, "o/", |head| head["encryption"] = "unsealed".into());
    gateway.client.each(|_, object| {
        for (_, value) in object.omap.iter_mut().filter(|(key, _)| key.starts_with(b"d/")) {
            *value = bytes::Bytes::from_static(PATTERN);
        }
    });
    step(&gateway, &["sealed_is_refused"]).await;
}

/// A writer of the bucket's index: a malicious OSD.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_cannot_say_that_sealed_data_is_not() {
    let gateway = start(|_| {}).await;
    make_bucket(&gateway, "bucket").await;
    let id = step(&gateway, &["put_and_begin_upload", "bucket", "k"]).await;
    for prefix in ["o/", "u/"] {
        forge_heads(&gateway, prefix, |head| head["encryption"] = "unsealed".into());
    }
    // Contents that the OSD invents.
    gateway.client.each(|name, object| {
        if name.starts_with("s3d/") || name.contains('@') {
            (object.seals, object.unit) = (Default::default(), None);
            object.data.fill(7);
        }
    });
    step(&gateway, &["forged_is_refused", id.trim()]).await;
}
