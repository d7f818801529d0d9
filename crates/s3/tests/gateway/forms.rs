//! Uploads by HTML form, byte by byte: forms in pieces, forms that break off, and forms that are larger than the
//! memory there is. `s3_forms.py` tests the meaning of their fields.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::memory_client::Fault;
use crate::support::{TestGateway, ask, eventually, start};

const MIB: usize = 1 << 20;

/// A URL with a signature in it.
fn presigned(gateway: &TestGateway, action: &str, key: &str) -> String {
    let endpoint = format!("http://{}", gateway.address).parse().unwrap();
    let bucket = Bucket::new(endpoint, UrlStyle::Path, "bucket", "us-east-1").unwrap();
    let (access_key, secret_key) = &gateway.users[0];
    let credentials = Credentials::new(access_key, secret_key);
    let expires = Duration::from_secs(60);
    match action {
        "create" => bucket.create_bucket(&credentials).sign(expires).to_string(),
        _ => bucket.get_object(Some(&credentials), key).sign(expires).to_string(),
    }
}

async fn with_bucket(memory_max: u64) -> TestGateway {
    let gateway = start(|config| {
        config.memory_max = memory_max;
        config.garbage_grace = Duration::ZERO;
        config.stall_timeout = Duration::from_secs(2);
    })
    .await;
    assert_eq!(ask(&gateway, "PUT", &presigned(&gateway, "create", ""), &[]).await.0, 200);
    gateway
}

async fn get(gateway: &TestGateway) -> (u16, Vec<u8>) {
    ask(gateway, "GET", &presigned(gateway, "get", "key"), &[]).await
}

/// A form for the object `key`, signed with version 2: all before its file, and all behind it.
fn form(gateway: &TestGateway, conditions: &str) -> (Vec<u8>, &'static [u8]) {
    let policy = format!(
        r#"{{"expiration":"2100-01-01T00:00:00Z","conditions":[{{"bucket":"bucket"}},["eq","$key","key"]{conditions}]}}"#
    );
    let policy = BASE64.encode(policy);
    let (access_key, secret) = &gateway.users[0];
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
    let signature = BASE64.encode(hmac::sign(&key, policy.as_bytes()));
    let fields = [("key", "key"), ("AWSAccessKeyId", access_key), ("policy", &policy), ("signature", &signature)];
    let part = |(name, value): (&str, &str)| {
        format!("--bound\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let fields: String = fields.into_iter().map(part).collect();
    let file = "--bound\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    ((fields + file).into_bytes(), b"\r\n--bound--\r\n")
}

fn whole(gateway: &TestGateway, conditions: &str, file: &[u8]) -> Vec<u8> {
    let (before, behind) = form(gateway, conditions);
    [&before, file, behind].concat()
}

/// A connection on which the head of a POST was sent.
async fn begun(gateway: &TestGateway, headers: &str) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let head = format!(
        "POST /bucket HTTP/1.1\r\nHost: {}\r\nContent-Type: multipart/form-data; boundary=bound\r\n{headers}\r\n\r\n",
        gateway.address
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

/// The first answer on a connection, with its body as far as it came with it.
async fn answer(socket: &mut TcpStream) -> String {
    let mut answer = vec![0; 16 << 10];
    let mut filled = 0;
    while !answer[..filled].windows(4).any(|window| window == b"\r\n\r\n") {
        let read = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut answer[filled..]));
        match read.await.expect("an answer").unwrap() {
            0 => break,
            read => filled += read,
        }
    }
    String::from_utf8_lossy(&answer[..filled]).into_owned()
}

async fn post(gateway: &TestGateway, body: &[u8]) -> String {
    let mut socket = begun(gateway, &format!("Content-Length: {}", body.len())).await;
    // A gateway that refuses the form need not take all of it.
    let _ = socket.write_all(body).await;
    answer(&mut socket).await
}

#[track_caller]
fn is(answer: &str, status: u16, code: &str) {
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(code),
        "{status} {code}: {answer}"
    );
}

/// Neither an object nor data is left, nor is garbage.
async fn nothing_is_left(gateway: &TestGateway) {
    let is_data = |name: &String| name.starts_with("s3d/") || name.contains('@');
    eventually("removal of what was written", async || !gateway.client.names("").iter().any(is_data)).await;
    let mut records = 0;
    gateway.client.each(|_, object| {
        records +=
            object.omap.keys().filter(|key| [&b"o/"[..], b"d/", b"g/"].iter().any(|p| key.starts_with(p))).count();
    });
    assert_eq!(records, 0);
    assert_eq!(get(gateway).await.0, 404);
}

fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_arrive_in_any_pieces() {
    let gateway = with_bucket(1 << 30).await;
    // Much in it looks like the begin of a boundary.
    let file = [noise(5_000), b"\r\n--boun\r\n--\r".repeat(300)].concat();
    let body = whole(&gateway, "", &file);
    for bytes in [1, 7, 1_000, body.len()] {
        let mut socket = begun(&gateway, "Transfer-Encoding: chunked").await;
        for piece in body.chunks(bytes) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            socket.write_all(&chunk).await.unwrap();
        }
        socket.write_all(b"0\r\n\r\n").await.unwrap();
        is(&answer(&mut socket).await, 204, "location: ");
        assert!(get(&gateway).await == (200, file.clone()), "in pieces of {bytes}");
    }
    // The connection serves another form.
    let mut socket = begun(&gateway, &format!("Content-Length: {}", body.len())).await;
    socket.write_all(&body).await.unwrap();
    is(&answer(&mut socket).await, 204, "etag: ");
    let again = format!(
        "POST /bucket HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=bound\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(&[again.as_bytes(), &body].concat()).await.unwrap();
    is(&answer(&mut socket).await, 204, "etag: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_that_break_off_leave_nothing() {
    let gateway = with_bucket(1 << 30).await;
    let (before, behind) = form(&gateway, "");
    let file = noise(9 * MIB);
    let body = whole(&gateway, "", &file);
    // The connection breaks: among the fields, in the file when chunks are written, and at its end.
    for sent in [100, before.len() + 5, before.len() + 8 * MIB + 5, body.len() - 1] {
        let mut socket = begun(&gateway, &format!("Content-Length: {}", body.len())).await;
        socket.write_all(&body[..sent]).await.unwrap();
        if sent > 8 * MIB {
            eventually("a first chunk", async || !gateway.client.names("s3d/").is_empty()).await;
        }
        drop(socket);
        nothing_is_left(&gateway).await;
    }
    // The body ends, but the form does not.
    for cut in [100, before.len() + 8 * MIB, body.len() - behind.len(), body.len() - 3] {
        is(&post(&gateway, &body[..cut]).await, 400, "MalformedPOSTRequest");
        nothing_is_left(&gateway).await;
    }
    // Nothing more comes.
    let mut socket = begun(&gateway, &format!("Content-Length: {}", body.len())).await;
    socket.write_all(&body[..body.len() - 1]).await.unwrap();
    let stalled = answer(&mut socket).await;
    is(&stalled, 400, "RequestTimeout");
    assert!(stalled.contains("connection: close"), "{stalled}");
    nothing_is_left(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_form_is_told() {
    let gateway = with_bucket(1 << 30).await;
    let file = noise(9 * MIB);
    let range = |min: usize, max: usize| format!(r#",["content-length-range",{min},{max}]"#);
    // Told by its length, and found out when most of it is written.
    for max in [MIB, file.len() - 1] {
        is(&post(&gateway, &whole(&gateway, &range(0, max), &file)).await, 400, "EntityTooLarge");
        nothing_is_left(&gateway).await;
    }
    is(&post(&gateway, &whole(&gateway, &range(file.len() + 1, 20 * MIB), &file)).await, 400, "EntityTooSmall");
    nothing_is_left(&gateway).await;
    is(&post(&gateway, &whole(&gateway, &range(file.len() + 1, 20 * MIB), b"x")).await, 400, "EntityTooSmall");
    is(&post(&gateway, &whole(&gateway, &range(0, 0), b"x")).await, 400, "EntityTooLarge");
    let (before, behind) = form(&gateway, "");
    let field = |name: &str, value: &str| {
        format!("--bound\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes()
    };
    let with = |first: Vec<u8>| [&first, &before, &b"x"[..], behind].concat();
    for (body, code) in [
        (with(field("x-ignore-a", &"a".repeat(21 << 10))), "MaxPostPreDataLengthExceeded"),
        (with(field("x-ignore-a", "").repeat(100)), "MaxPostPreDataLengthExceeded"),
        (with(field(&"a".repeat(9 << 10), "")), "MalformedPOSTRequest"),
        (with(field("KEY", "key")), "InvalidArgument"),
        ([field("key", "key"), b"--bound--".to_vec()].concat(), "IncorrectNumberOfFiles"),
        (b"key=key&file=x".to_vec(), "MalformedPOSTRequest"),
        (noise(MIB), "MalformedPOSTRequest"),
        (Vec::new(), "MalformedPOSTRequest"),
    ] {
        is(&post(&gateway, &body).await, 400, code);
    }
    nothing_is_left(&gateway).await;
    // What stands behind the file is passed over.
    let later = [&before, &b"x\r\n"[..], &field("key", "other"), b"--bound--"].concat();
    is(&post(&gateway, &later).await, 204, "");
    assert_eq!(get(&gateway).await, (200, b"x".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_form_is_not_read_to_its_end() {
    let gateway = with_bucket(1 << 30).await;
    // Who asks first is told before the body is sent, or asked for it.
    let bytes = 5 << 30;
    let expects = format!("Content-Length: {bytes}\r\nExpect: 100-continue");
    let mut socket = begun(&gateway, &format!("{expects}\r\nAuthorization: nonsense")).await;
    let refused = answer(&mut socket).await;
    is(&refused, 400, "connection: close");
    let body = whole(&gateway, "", b"data");
    let mut socket = begun(&gateway, &format!("Content-Length: {}\r\nExpect: 100-continue", body.len())).await;
    is(&answer(&mut socket).await, 100, "");
    socket.write_all(&body).await.unwrap();
    is(&answer(&mut socket).await, 204, "");

    let (before, _) = form(&gateway, r#",{"acl":"private"}"#);
    let mut socket = begun(&gateway, &format!("Content-Length: {bytes}")).await;
    socket.write_all(&before).await.unwrap();
    let refused = answer(&mut socket).await;
    is(&refused, 403, "connection: close");
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_secs(8), socket.write_all(&[0; MIB]))
        .await
        .is_ok_and(|sent| sent.is_ok())
    {
        sent += MIB;
        assert!(sent < 64 * MIB, "the gateway goes on reading");
    }
}

/// More than the memory for uploads: 16 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn large_forms_wait_for_what_stores_them() {
    let gateway = with_bucket(1).await;
    let file = noise(64 * MIB);
    let body = whole(&gateway, "", &file);
    gateway.client.set_fault("s3d/", Fault::Held);
    let mut socket = begun(&gateway, &format!("Content-Length: {}", body.len())).await;
    let mut sent = 0;
    // Until the gateway takes nothing more: it has all the chunks that it may have, which take their time.
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(1), socket.write(&body[sent..])).await {
        sent += written.unwrap();
    }
    assert!(sent < 32 * MIB, "{sent} bytes were taken in while nothing could be stored");
    gateway.client.clear_faults();
    gateway.client.release();
    socket.write_all(&body[sent..]).await.unwrap();
    is(&answer(&mut socket).await, 204, "");
    assert!(get(&gateway).await == (200, file), "the file came back changed");
    assert_eq!(gateway.client.names("s3d/").len(), 16);
}
