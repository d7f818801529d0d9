//! Environment of the gateway in tests: a cluster and a directory in memory.

pub mod caller;
pub mod cut;
pub mod memory_client;
pub mod memory_directory;
pub mod programs;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_iam::Record;
use atoll_keys::LocalKeys;
use atoll_objects::{ClientError, ObjectClient};
use atoll_s3::{DataStore, Gateway, GatewayConfig, Listener, Workers};
use atoll_tls::{Tls, TlsSettings};
use atoll_types::identities::AccountRecord;
use atoll_types::records::{FailureDomain, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_types::{ObjectName, PoolId, ReadOutcome, ReadRequest, WriteRequest};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use memory_client::MemoryClient;
use memory_directory::MemoryDirectory;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Passes both calls on, as the real handle's implementation will.
pub struct Store(pub MemoryClient);

#[async_trait]
impl DataStore for Store {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        ObjectClient::send_read(&self.0, pool, object, request).await
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        ObjectClient::send_write(&self.0, pool, request).await
    }
}

/// A gateway on a loopback port, with two users.
pub struct TestGateway {
    pub gateway: Gateway,
    pub client: MemoryClient,
    pub directory: Arc<MemoryDirectory>,
    pub keys: Arc<LocalKeys>,
    pub address: SocketAddr,
    /// Access key and secret.
    pub users: Vec<(String, String)>,
    /// PEM file of the certificate, if the gateway speaks HTTPS.
    pub certificate: Option<std::path::PathBuf>,
    pub stop: Option<oneshot::Sender<()>>,
    pub served: tokio::task::JoinHandle<()>,
    _keys_directory: tempfile::TempDir,
}

pub const POOL: PoolId = PoolId(1);
/// Pool of [`start_with_data_pool`].
pub const DATA_POOL: PoolId = PoolId(2);

impl TestGateway {
    /// Makes an erasure-coded pool: it has a record, and refuses omap.
    pub fn add_coded_pool(&self, id: PoolId, name: &str, chunk_bytes: u32) {
        self.client.refuse_omap(id);
        self.directory.add_pool(PoolRecord {
            format: RECORD_FORMAT,
            id,
            name: name.into(),
            redundancy: Redundancy::erasure(2, 1, Some(chunk_bytes), None),
            pg_num: 32,
            pg_num_first: 0,
            failure_domain: FailureDomain::Osd,
            device_class: None,
        });
    }
}

/// A gateway that keeps data in an erasure-coded pool.
pub async fn start_with_data_pool(change: impl FnOnce(&mut GatewayConfig)) -> TestGateway {
    let gateway = start(|config| {
        config.data_pool = Some("data".into());
        change(config);
    })
    .await;
    gateway.add_coded_pool(DATA_POOL, "data", 64 << 10);
    gateway
}

pub async fn start(change: impl FnOnce(&mut GatewayConfig)) -> TestGateway {
    // Whatever the tests do, no key may meet a nonce twice.
    atoll_keys::watch_nonces();
    let keys_directory = tempfile::tempdir().unwrap();
    let keys = Arc::new(LocalKeys::create(&keys_directory.path().join("kms.json")).unwrap());
    let directory = Arc::new(MemoryDirectory::default());
    let mut users = Vec::new();
    for name in ["ALICE", "BOB"] {
        let (mut record, secret) = atoll_credentials::new_user(&*keys, name, name, 1).await.unwrap();
        if name == "BOB" {
            let account = "200000000000".to_owned();
            record.account = Some(account.clone());
            directory.add_identity(Record::Account(AccountRecord {
                format: RECORD_FORMAT,
                id: account,
                canonical_id: "b0b".into(),
                name: "bob".into(),
                email: None,
                created_unix_ms: 0,
            }));
        }
        directory.add_identity(Record::AccessKey(record));
        users.push((name.to_owned(), secret));
    }
    let mut config = GatewayConfig::new(POOL);
    config.collect_interval = None;
    change(&mut config);
    let client = MemoryClient::default();
    let gateway = Gateway::new(config, Arc::new(Store(client.clone())), directory.clone(), keys.clone()).unwrap();
    let (address, stop, served) = serve(&gateway).await;
    TestGateway {
        gateway,
        client,
        directory,
        keys,
        address,
        users,
        certificate: None,
        stop: Some(stop),
        served,
        _keys_directory: keys_directory,
    }
}

pub async fn serve(gateway: &Gateway) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    serve_on(gateway, Listener::plain).await
}

pub async fn serve_on(
    gateway: &Gateway,
    listen: impl FnOnce(tokio::net::TcpListener) -> Listener,
) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (gateway, listener) = (gateway.clone(), listen(listener));
    let workers = Workers::new([tokio::runtime::Handle::current()]);
    let served =
        tokio::spawn(async move { gateway.serve(workers, vec![listener], async { drop(stopped.await) }).await });
    (address, stop, served)
}

/// A gateway that is reached over TLS, with the certificates of a directory.
pub async fn start_with_tls(settings: TlsSettings, change: impl FnOnce(&mut GatewayConfig)) -> TestGateway {
    let mut gateway = start(change).await;
    gateway.certificate = Some(settings.certificates.join("server.crt"));
    let tls = Arc::new(Tls::load(settings).unwrap());
    let (address, stop, served) = serve_on(&gateway.gateway, |socket| Listener::tls(socket, tls)).await;
    (gateway.address, gateway.stop, gateway.served) = (address, Some(stop), served);
    gateway
}

/// Settings for a directory.
pub fn tls_settings(directory: &std::path::Path) -> TlsSettings {
    TlsSettings { certificates: directory.to_owned(), client_authority: None, only_version_13: false }
}

/// Makes a self-signed certificate for these names and its key; returns the certificate.
pub fn write_pair(directory: &std::path::Path, name: &str, names: &[&str]) -> Vec<u8> {
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    std::fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
    certificate.der().to_vec()
}

/// Runs a Python program with the endpoint and the users' credentials; prints and returns its output. It must
/// succeed.
pub async fn python(gateway: &TestGateway, program: &[&str]) -> String {
    let scheme = if gateway.certificate.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", gateway.address);
    let [user, other] = [&gateway.users[0], &gateway.users[1]];
    let mut environment = vec![
        ("S3_ENDPOINT", endpoint.as_str()),
        ("S3_ACCESS_KEY", &user.0),
        ("S3_SECRET_KEY", &user.1),
        ("S3_OTHER_ACCESS_KEY", &other.0),
        ("S3_OTHER_SECRET_KEY", &other.1),
        ("NO_PROXY", "*"),
    ];
    let certificate = gateway.certificate.as_ref().map(|path| path.to_str().expect("a path of ASCII"));
    environment.extend(certificate.map(|path| ("AWS_CA_BUNDLE", path)));
    let (status, said) = programs::run(program, &environment).await;
    println!("{said}");
    assert!(status == 0, "{program:?} failed with {status}:\n{said}");
    said
}

/// Runs a step of a file in `steps/`, with the rest of the words as arguments.
pub async fn step(gateway: &TestGateway, file: &str, arguments: &[&str]) -> String {
    let path = format!("{}/tests/gateway/steps/{file}.py", env!("CARGO_MANIFEST_DIR"));
    python(gateway, &[&[path.as_str()], arguments].concat()).await
}

/// Status and body of a request without a body.
pub async fn ask(gateway: &TestGateway, method: &str, url: &str, headers: &[(&str, &str)]) -> (u16, Vec<u8>) {
    let socket = TokioIo::new(TcpStream::connect(gateway.address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(url).header("host", gateway.address.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = sender.send_request(request.body(String::new()).unwrap()).await.unwrap();
    (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes().to_vec())
}

pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    for _ in 0..200 {
        if check().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("{what} did not come true");
}
