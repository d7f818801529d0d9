//! Choices at the first start.

use atoll_types::records::Redundancy;

use super::*;

fn code(data: u32, parity: u32) -> Choices {
    Choices { ec: Some(Redundancy::erasure(data, parity, None, None)), ..Choices::default() }
}

struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Root {
        Root(tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap())
    }

    fn directory(&self, name: &str) -> DataDir {
        DataDir::new(&self.0.path().join(name))
    }

    /// Returns the number of OSDs and the first pools of a cluster that is made with these choices, or the error.
    fn made(&self, name: &str, choices: &Choices) -> Result<(usize, FirstPools), String> {
        let directory = self.directory(name);
        let mut cluster = plan(&directory, choices).map_err(|error| error.to_string())?;
        write_plan(&directory, &mut cluster, choices).map_err(|error| error.to_string())?;
        Ok((cluster.osd_ids.len(), cluster.first_pools.unwrap()))
    }
}

#[test]
fn a_code_brings_its_osds_unless_they_are_counted() {
    let root = Root::new();
    let (osds, pools) = root.made("small", &code(2, 1)).unwrap();
    assert_eq!((osds, pools.copies, pools.ec), (3, 3, code(2, 1).ec));
    assert_eq!(root.made("large", &code(4, 2)).unwrap().0, 6);
    let counted = Choices { osd_count: Some(8), ..code(4, 2) };
    assert_eq!(root.made("counted", &counted).unwrap().0, 8);
    let hosts = Choices { failure_domain: Some(FailureDomain::Host), ..code(4, 2) };
    assert_eq!(root.made("hosts", &hosts).unwrap().0, 3, "of other hosts there will be more");
    let short = Choices { osd_count: Some(5), ..code(4, 2) };
    let text = root.made("short", &short).unwrap_err();
    assert!(text.contains("--ec 4+2") && text.contains("takes 6 OSDs") && text.contains("--osds 6"), "{text}");
    assert!(root.made("one", &code(1, 1)).unwrap_err().contains("data shards, and not 1"));
    assert!(root.made("much", &code(u32::MAX, u32::MAX)).unwrap_err().contains("data shards"));
    assert_eq!(root.made("none", &Choices::default()).unwrap(), (3, FirstPools { ec: None, ..pools }));
}

#[test]
fn the_code_is_chosen_once() {
    let root = Root::new();
    root.made("a", &code(2, 1)).unwrap();
    root.made("a", &code(2, 1)).unwrap();
    root.made("a", &Choices::default()).unwrap();
    assert!(root.made("a", &code(2, 2)).unwrap_err().starts_with("--ec was chosen"));
    root.made("b", &Choices::default()).unwrap();
    assert!(root.made("b", &code(2, 1)).unwrap_err().starts_with("--ec was chosen"));
}

#[test]
fn a_cluster_file_of_before_there_were_codes_is_read() {
    let pools: FirstPools = serde_json::from_str(r#"{"copies":2,"failure_domain":"host"}"#).unwrap();
    assert_eq!(pools, FirstPools { copies: 2, failure_domain: FailureDomain::Host, ec: None });
}
