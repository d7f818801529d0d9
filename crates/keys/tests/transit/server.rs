//! A Transit server in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_keys::{TransitLogin, TransitSettings};
use serde_json::{Value, json};
use tempfile::TempDir;

pub struct Server {
    child: Child,
    address: String,
    ca_file: Option<PathBuf>,
    directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

impl Server {
    /// The server of tests/transit.
    pub fn start(arguments: &[&str]) -> Server {
        Server::start_python(tempfile::tempdir().unwrap(), None, arguments)
    }

    /// The same with a certificate of its own authority.
    pub fn start_with_tls(arguments: &[&str]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=transit-test", "-addext", "subjectAltName=IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .expect("this test needs the openssl command");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let text = |path: &PathBuf| path.display().to_string();
        let tls = ["--tls-cert".to_owned(), text(&certificate), "--tls-key".to_owned(), text(&key)];
        let mut all: Vec<&str> = tls.iter().map(String::as_str).collect();
        all.extend(arguments);
        Server::start_python(directory, Some(certificate), &all)
    }

    fn start_python(directory: TempDir, ca_file: Option<PathBuf>, arguments: &[&str]) -> Server {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/transit/transit_server.py");
        let mut command = Command::new("python3");
        command.args([script, "--listen", "127.0.0.1:0", "--token", "root"]).args(arguments);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("python3 is installed");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on ").expect("the server says where it listens").to_owned();
        Server { child, address, ca_file, directory }
    }

    /// OpenBao or Vault, in development mode.
    pub fn start_real() -> Option<Server> {
        let binary = std::env::var_os("ATOLL_TEST_BAO")?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let listen = format!("-dev-listen-address=127.0.0.1:{port}");
        let mut command = Command::new(binary);
        command.args(["server", "-dev", "-dev-no-store-token", "-dev-root-token-id=root", &listen]);
        command.env("HOME", directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("ATOLL_TEST_BAO names a binary that starts");
        let address = format!("http://127.0.0.1:{port}");
        let server = Server { child, address, ca_file: None, directory };
        server.mount();
        Some(server)
    }

    /// Makes the Transit engine, as soon as the server answers.
    fn mount(&self) {
        let (address, begun) = (self.address.clone(), Instant::now());
        let mounted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                loop {
                    let request = http().post(format!("{address}/v1/sys/mounts/transit"));
                    let request = request.header("X-Vault-Token", "root").json(&json!({ "type": "transit" }));
                    if request.send().await.is_ok_and(|answer| answer.status().is_success()) {
                        return;
                    }
                    assert!(begun.elapsed() < Duration::from_secs(60), "the server does not start");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
        });
        mounted.join().unwrap();
    }

    /// A role on a real server, whose tokens are good for `seconds`: its id and secret id.
    pub async fn make_app_role(&self, seconds: u64) -> (String, String) {
        let policy = r#"path "transit/*" { capabilities = ["create", "read", "update", "delete", "list"] }"#;
        self.ask("sys/auth/approle", json!({ "type": "approle" })).await;
        self.ask("sys/policies/acl/atoll", json!({ "policy": policy })).await;
        let role = json!({ "token_policies": ["atoll"], "token_ttl": seconds });
        self.ask("auth/approle/role/atoll", role).await;
        let id = http().get(format!("{}/v1/auth/approle/role/atoll/role-id", self.address));
        let id: Value = id.header("X-Vault-Token", "root").send().await.unwrap().json().await.unwrap();
        let secret = self.ask("auth/approle/role/atoll/secret-id", json!({})).await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&id["data"]["role_id"]), text(&secret["data"]["secret_id"]))
    }

    async fn ask(&self, path: &str, body: Value) -> Value {
        let request = http().post(format!("{}/v1/{path}", self.address));
        let answer = request.header("X-Vault-Token", "root").json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.unwrap_or_default()
    }

    pub fn settings(&self, login: TransitLogin) -> TransitSettings {
        TransitSettings {
            address: self.address.clone(),
            mount: "transit".into(),
            key: "atoll".into(),
            namespace: None,
            ca_file: self.ca_file.clone(),
            login,
            timeout_ms: 5_000,
        }
    }

    /// A file with this token, as an agent would write it.
    pub fn token_file(&self, token: &str) -> TransitLogin {
        let path = self.directory.path().join("token");
        std::fs::write(&path, format!("{token}\n")).unwrap();
        TransitLogin::TokenFile(path)
    }

    pub fn app_role(&self, role_id: &str, secret_id: &str) -> TransitLogin {
        let path = self.directory.path().join("secret-id");
        std::fs::write(&path, secret_id).unwrap();
        TransitLogin::AppRole { mount: "approle".into(), role_id: role_id.into(), secret_id_file: path }
    }

    /// Sets the failure of the next requests.
    pub async fn fail(&self, kind: &str, seconds: f64, count: Option<u32>) {
        let body = json!({ "kind": kind, "seconds": seconds, "count": count });
        let answer = http().post(format!("{}/_test/failure", self.address)).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{kind}: {}", answer.status());
    }

    /// Advances the clocks that the server and the clients of this runtime use for the age of tokens.
    pub async fn pass(&self, seconds: u64) {
        let body = json!({ "ahead_seconds": seconds });
        let answer = http().post(format!("{}/_test/clock", self.address)).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
    }

    pub async fn revoke_tokens(&self) {
        http().post(format!("{}/_test/revoke", self.address)).send().await.unwrap();
    }

    /// How many requests there were whose name ends so.
    pub async fn requests(&self, operation: &str) -> u64 {
        let counts = self.counts().await;
        let counts = counts["operations"].as_object().expect("counts by operation");
        counts.iter().filter(|(name, _)| name.ends_with(operation)).filter_map(|(_, count)| count.as_u64()).sum()
    }

    pub async fn counts(&self) -> Value {
        let answer = http().get(format!("{}/_test/requests", self.address)).send().await.unwrap();
        answer.json().await.unwrap()
    }
}
