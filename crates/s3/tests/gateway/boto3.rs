//! The gateway through HTTP with a real S3 client: boto3.

use crate::support::programs::installed;
use crate::support::{TestGateway, python, start, start_with_data_pool, start_with_tls, tls_settings, write_pair};
use atoll_iam::Identities;
use atoll_iam::operations::{Context, Operation, Parameters, RANDOM_BYTES};
use atoll_keys::KeyService;
use atoll_s3::BucketDirectory;
use atoll_types::identities::FIRST_ACCOUNT;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_conformance() {
    let gateway = start_with_data_pool(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_conformance.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");

    // All buckets were deleted, and with them everything they held.
    let left = gateway.client.names("");
    assert!(left.is_empty(), "objects stay behind: {left:?}");
}

/// Unsupported requests are refused, and change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_refusals() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_refusals.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Versions, object lock, tags, and the answers about the parts of objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_versions() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_versions.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Policies, ACLs, ownership of objects, public access.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_access() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_access.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// The same over TLS, where boto3 sends checksums as trailers, also in unsigned requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_access_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let change = |config: &mut atoll_s3::GatewayConfig| config.garbage_grace = std::time::Duration::ZERO;
    let gateway = start_with_tls(tls_settings(directory.path()), change).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_access.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Every operation of S3 with credentials that must not do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_credentials() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_credentials.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Coverage of signatures, in every place of a signature.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_signed_headers() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_signed_headers.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Denials by the content of a body; buckets that are made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_conditions() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_conditions.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Every operation with the actions that it needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_actions() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_actions.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Forms and URLs that are signed with version 2, where that is off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_without_version_2() {
    let gateway = start(|config| {
        config.garbage_grace = std::time::Duration::ZERO;
        config.allows_version_2 = false;
    })
    .await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_signed_headers.py");
    let said = python(&gateway, &[script, "--without-version-2"]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
}

/// Users, groups, roles and policies, and temporary credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_identities() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iam.py");
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let (key, secret) = add_service_account(&gateway).await;
    let said = python(&gateway, &[script, &format!("--service-account={key}:{secret}")]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Roles for bearers of an issuer's token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_issuers() {
    // Issuers are there; others on loopback are not to be asked.
    atoll_outgoing::configure("", "127.0.0.1");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iam_issuers.py");
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// A key of an account's root that may only read, as operators make it.
async fn add_service_account(gateway: &TestGateway) -> (String, String) {
    let new = atoll_credentials::new_access_key(&*gateway.keys).await.unwrap();
    let policy =
        r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}}"#;
    let create = |identities: &Identities| {
        let context = Context {
            identities,
            account: identities.account(FIRST_ACCOUNT).cloned().unwrap(),
            caller: None,
            now_ms: 0,
            random: [0; RANDOM_BYTES],
            new_access_key: Some(&new),
            last_used: None,
        };
        let parameters = Parameters::default().with("PolicyDocument", policy);
        Operation::find("CreateAccessKey")?.run(&context, parameters)
    };
    gateway.directory.change_identities(&create).await.unwrap();
    (new.access_key, new.secret)
}

/// Rules for scripts of other origins: as boto3 sets them, and as browsers ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_cross_origin() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_cors.py");
    let gateway = start(|config| {
        config.domain = Some("s3.example.com".into());
        config.garbage_grace = std::time::Duration::ZERO;
    })
    .await;
    let said = python(&gateway, &[script, "--domain=s3.example.com"]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Uploads by HTML form, as boto3 signs them and otherwise, without TLS and with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_forms() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_forms.py");
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let change = |config: &mut atoll_s3::GatewayConfig| {
        config.domain = Some("s3.example.com".into());
        config.garbage_grace = std::time::Duration::ZERO;
    };
    for gateway in [start(change).await, start_with_tls(tls_settings(directory.path()), change).await] {
        let said = python(&gateway, &[script, "--domain=s3.example.com"]).await;
        assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
        assert!(gateway.client.names("").is_empty(), "objects stay behind");
    }
}

/// Over TLS boto3 sends checksums as trailers of an unsigned aws-chunked body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_conformance_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let gateway = start_with_tls(tls_settings(directory.path()), |_| {}).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_conformance.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
}

/// SSE-S3, SSE-KMS, SSE-C and bucket defaults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_kinds_of_encryption() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let gateway = start_with_tls(tls_settings(directory.path()), |_| {}).await;
    for name in ["project", "second"] {
        gateway.keys.create(name).await.unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_encryption.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
    assert!(gateway.client.names("").is_empty(), "objects stay behind");
}

/// Rights to use keys of the key service, with every operation on objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_key_rights() {
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let default = r#"{"Effect":"Allow","Principal":{"AWS":"100000000000"},"Action":"kms:*","Resource":"*"}"#;
    let other = default.replace("100000000000", "200000000000");
    let pairs = r#"{"Effect":"Allow","Principal":"*","Action":"kms:*","Resource":"*",
        "Condition":{"StringEquals":{"kms:EncryptionContext:team":"blue"}}}"#;
    let both = format!("{default},{other}");
    for (name, policy) in [
        ("free", None),
        ("owned", None),
        ("asked", Some(default)),
        ("shared", Some(&*both)),
        ("pairs", Some(pairs)),
    ] {
        gateway.keys.create(name).await.unwrap();
        let document = policy.map(|text| format!(r#"{{"Version":"2012-10-17","Statement":[{text}]}}"#));
        match document {
            Some(document) => operate(&gateway, "PutKeyPolicy", &[("KeyId", name), ("Policy", &document)]).await,
            None if name == "owned" => operate(&gateway, "CreateKey", &[("KeyId", name)]).await,
            None => {}
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_key_rights.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");
}

/// Does an operation as an operator for the first account.
async fn operate(gateway: &TestGateway, operation: &str, parameters: &[(&str, &str)]) {
    let parameters: Parameters = parameters.iter().copied().collect();
    let run = |identities: &Identities| {
        let context = Context {
            identities,
            account: identities.account(FIRST_ACCOUNT).cloned().unwrap(),
            caller: None,
            now_ms: 0,
            random: [0; RANDOM_BYTES],
            new_access_key: None,
            last_used: None,
        };
        Operation::find(operation)?.run(&context, parameters.clone())
    };
    gateway.directory.change_identities(&run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aws_command_line() {
    let gateway = start(|_| {}).await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let data: Vec<u8> = (0..20u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::create_dir(file("tree")).unwrap();
    std::fs::write(file("tree/large"), &data).unwrap();
    std::fs::write(file("tree/small"), b"small").unwrap();
    let aws = async |arguments: &[&str]| {
        let output = tokio::process::Command::new(installed("aws"))
            .args(["--endpoint-url", &format!("http://{}", gateway.address), "--region", "us-east-1"])
            .args(arguments)
            .env("AWS_ACCESS_KEY_ID", &gateway.users[0].0)
            .env("AWS_SECRET_ACCESS_KEY", &gateway.users[0].1)
            .env("NO_PROXY", "*")
            .output()
            .await
            .expect("this test needs the AWS command line: tools/python_venv.sh installs it");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "aws {arguments:?}: {said}");
        said
    };
    aws(&["s3", "mb", "s3://cli-bucket"]).await;
    aws(&["s3", "sync", &file("tree"), "s3://cli-bucket/tree"]).await;
    assert!(aws(&["s3", "ls", "s3://cli-bucket"]).await.contains("PRE tree/"));
    aws(&["s3", "cp", "s3://cli-bucket/tree/large", "s3://cli-bucket/copy"]).await;
    aws(&["s3", "cp", "s3://cli-bucket/copy", &file("back")]).await;
    assert!(std::fs::read(file("back")).unwrap() == data, "the data came back changed");
    aws(&["s3", "rb", "--force", "s3://cli-bucket"]).await;
    assert!(aws(&["sts", "get-caller-identity"]).await.contains("arn:aws:iam::100000000000:root"));
    aws(&["iam", "create-user", "--user-name", "ann"]).await;
    assert!(aws(&["iam", "list-users"]).await.contains("user/ann"));
    aws(&["iam", "delete-user", "--user-name", "ann"]).await;
    assert!(gateway.client.names("").is_empty());
}
