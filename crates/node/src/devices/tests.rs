//! OSDs on files; block devices are tested by the end-to-end scenario `devices`.

use super::*;

struct Fixture {
    // The project's own directory is on a file system with O_DIRECT.
    temporary: tempfile::TempDir,
    directory: DataDir,
}

impl Fixture {
    fn new() -> Self {
        let temporary = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        Fixture { directory: DataDir::new(&temporary.path().join("data")), temporary }
    }

    fn choices(&self, name: &str) -> OsdChoices {
        OsdChoices {
            id: None,
            device: self.temporary.path().join(name),
            device_bytes: Some(600 << 20),
            wal_device: None,
            wal_bytes: None,
            wipe: false,
            encrypt: None,
        }
    }
}

#[test]
fn osds_get_numbers_links_and_keys_and_are_found_again() {
    let fixture = Fixture::new();
    let directory = &fixture.directory;
    let wal_device = Some(fixture.temporary.path().join("wal"));
    let with_log = OsdChoices { wal_device, wal_bytes: Some(64 << 20), ..fixture.choices("a") };
    let first = create_osd(directory, &with_log, None).unwrap();
    let second = create_osd(directory, &fixture.choices("b"), None).unwrap();
    assert_eq!((first.id, second.id), (OsdId(0), OsdId(1)));
    assert_eq!((first.device_bytes, first.wal_device_bytes), (600 << 20, Some(64 << 20)));
    assert_eq!(directory.prepared_osds(), [OsdId(0), OsdId(1)]);
    assert_eq!(device_bytes(directory, OsdId(1)).unwrap(), 600 << 20);
    assert_eq!(fs::read_link(directory.device(OsdId(0))).unwrap(), with_log.device);
    assert!(directory.wal_device(OsdId(0)).is_some() && directory.wal_device(OsdId(1)).is_none());
    assert!(second.next.contains("osd.0, osd.1"), "{}", second.next);

    let again = OsdChoices { id: Some(OsdId(1)), ..fixture.choices("c") };
    let error = create_osd(directory, &again, None).unwrap_err().to_string();
    assert!(error.contains("osd.1 has a device already"), "{error}");
    assert!(!again.device.exists(), "nothing is made for an OSD that cannot be");

    fs::remove_file(directory.device(OsdId(0))).unwrap();
    let error = create_osd(directory, &fixture.choices("c"), None).unwrap_err().to_string();
    assert!(error.contains("wal-device"), "a store is not opened with the log of another: {error}");
}

#[test]
fn a_file_that_was_made_goes_if_the_osd_does_not_come_to_be() {
    let fixture = Fixture::new();
    let small = OsdChoices { device_bytes: Some(1 << 20), ..fixture.choices("small") };
    let error = create_osd(&fixture.directory, &small, None).unwrap_err().to_string();
    assert!(error.contains("at least"), "{error}");
    assert!(!small.device.exists());
    let nowhere = OsdChoices { device_bytes: None, ..fixture.choices("none") };
    let error = create_osd(&fixture.directory, &nowhere, None).unwrap_err().to_string();
    assert!(error.contains("--size"), "{error}");
    let in_dev = OsdChoices { device: "/dev/atoll-no-such-disk".into(), ..fixture.choices("x") };
    assert!(create_osd(&fixture.directory, &in_dev, None).is_err());
    assert!(fixture.directory.prepared_osds().is_empty());
}

#[test]
fn a_link_to_a_device_that_is_gone_is_not_replaced_by_a_file() {
    let fixture = Fixture::new();
    let created = create_osd(&fixture.directory, &fixture.choices("a"), None).unwrap();
    fs::remove_file(&created.device).unwrap();
    let text = r#"{"format":1,"cluster_id":"c","state_endpoints":[],"frame_mode":"secure","osd_ids":[0],
        "osd_bytes":1073741824,"s3_listen":"","nbd_listen":[]}"#;
    let cluster: ClusterFile = serde_json::from_str(text).unwrap();
    make_devices(&fixture.directory, &cluster, &cluster.osd_ids).unwrap();
    assert!(device_bytes(&fixture.directory, created.id).is_err(), "the device is still gone");
}

#[test]
fn a_device_that_is_made_in_place_of_an_encrypted_one_is_encrypted_too() {
    let fixture = Fixture::new();
    let directory = &fixture.directory;
    let choices = OsdChoices { encrypt: Some(UnlockWith::Kms), ..fixture.choices("a") };
    let created = create_osd(directory, &choices, None).unwrap();
    assert_eq!(created.device_bytes, (600 << 20) - (16 << 20), "a LUKS2 header takes 16 MiB");
    assert_eq!(directory.unlock_with(created.id).unwrap(), Some(UnlockWith::Kms));
    fs::remove_file(directory.device(created.id)).unwrap();
    let text = r#"{"format":1,"cluster_id":"c","state_endpoints":[],"frame_mode":"secure","osd_ids":[0,1],
        "osd_bytes":1073741824,"s3_listen":"","nbd_listen":[]}"#;
    let cluster: ClusterFile = serde_json::from_str(text).unwrap();
    make_devices(directory, &cluster, &cluster.osd_ids).unwrap();
    let first_bytes = |osd| {
        let mut bytes = [0; 4];
        io::Read::read_exact(&mut File::open(directory.device(osd)).unwrap(), &mut bytes).unwrap();
        bytes
    };
    assert_eq!((&first_bytes(created.id), &first_bytes(OsdId(1))), (b"LUKS", b"ATOL"));

    fs::remove_file(directory.device(created.id)).unwrap();
    create_osd(directory, &fixture.choices("b"), None).unwrap();
    assert_eq!(directory.unlock_with(created.id).unwrap(), None, "it was created without --encrypt");
    let no_file = UnlockWith::PassphraseFile(fixture.temporary.path().join("none"));
    let choices = OsdChoices { encrypt: Some(no_file), id: Some(OsdId(2)), ..fixture.choices("c") };
    assert!(create_osd(directory, &choices, None).unwrap_err().to_string().contains("none"));
    assert!(!choices.device.exists(), "nothing is made without a passphrase");
}

#[test]
fn osds_that_are_created_at_once_get_numbers_of_their_own() {
    let fixture = Fixture::new();
    let fixture = &fixture;
    let create = |number: u32| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let choices = fixture.choices(&format!("device{number}"));
        runtime.block_on(crate::members::add_osd(&fixture.directory, &choices)).unwrap()
    };
    let mut created: Vec<CreatedOsd> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || create(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    created.sort_by_key(|osd| osd.id);
    let ids: Vec<u32> = created.iter().map(|osd| osd.id.0).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    for osd in &created {
        assert_eq!(fs::read_link(fixture.directory.device(osd.id)).unwrap(), osd.device);
        let made = fs::read_to_string(fixture.directory.osd(osd.id).join("new-store")).unwrap();
        assert_eq!(made, osd.store_id);
    }
}
