//! Clients that hold memory of the gateway and do nothing: all others are served.

use std::time::{Duration, Instant};

use crate::support::caller::{Caller, Request};
use crate::support::{TestGateway, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);

/// With a bucket; the memory is that of the default, as far as nothing is said.
async fn with_bucket(memory_max: Option<u64>, stall_timeout: Duration) -> (TestGateway, Caller) {
    let gateway = start(|config| {
        config.memory_max = memory_max.unwrap_or(config.memory_max);
        config.stall_timeout = stall_timeout;
    })
    .await;
    let caller = Caller { address: gateway.address, user: gateway.users[0].clone() };
    caller.expect(200, Request::new("PUT", "bucket")).await;
    (gateway, caller)
}

/// Sends the head of a request alone.
async fn begin(caller: &Caller, request: &Request, length: usize) -> TcpStream {
    let url = caller.sign(request);
    let (_, path) = url.split_once(&caller.address.to_string()).unwrap();
    let head = format!(
        "{} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n",
        request.method, caller.address
    );
    let mut socket = TcpStream::connect(caller.address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

/// Objects of all sizes are written and read in a short time.
async fn is_served(caller: &Caller) {
    let served = async {
        for bytes in [10, 1_000, 10_000, 100_000, 6_000_000] {
            let key = format!("bucket/{bytes}");
            caller.expect(200, Request::new("PUT", &key).body(vec![7; bytes])).await;
            assert!(caller.expect(200, Request::new("GET", &key)).await == vec![7; bytes]);
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("others are served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_that_drip_do_not_stop_others() {
    let (_gateway, caller) = with_bucket(None, Duration::from_secs(60)).await;
    let mut dripping = Vec::new();
    for number in 0..130 {
        // So much of each has come.
        let sent = [1, 1, 5_000, 5_000, 70_000][number % 5];
        let mut socket = begin(&caller, &Request::new("PUT", &format!("bucket/drip{number}")), 5 << 20).await;
        socket.write_all(&vec![1; sent]).await.unwrap();
        dripping.push(socket);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    is_served(&caller).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gets_that_nobody_reads_do_not_stop_others() {
    let (_gateway, caller) = with_bucket(Some(128 << 20), Duration::from_secs(60)).await;
    let body = vec![3; 30 << 20];
    caller.expect(200, Request::new("PUT", "bucket/large").body(body.clone())).await;
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(begin(&caller, &Request::new("GET", "bucket/large"), 0).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    is_served(&caller).await;
    // In small reads, and whole.
    let whole = tokio::time::timeout(PATIENCE, caller.expect(200, Request::new("GET", "bucket/large"))).await;
    assert!(whole.expect("large ones, too") == body);
    // Those who wake up get all of it.
    let mut answer = Vec::new();
    let mut late = unread.pop().unwrap();
    while answer.len() < body.len() {
        let count = tokio::time::timeout(PATIENCE, late.read_buf(&mut answer)).await.unwrap().unwrap();
        assert!(count > 0, "it ends after {} bytes", answer.len());
    }
    assert!(answer.ends_with(&body[..1 << 20]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_drips_is_cut_off() {
    let stall_timeout = Duration::from_secs(2);
    let (gateway, caller) = with_bucket(None, stall_timeout).await;
    let begun = Instant::now();
    let mut socket = begin(&caller, &Request::new("PUT", "bucket/drip"), 1 << 20).await;
    let (mut read, mut write) = socket.split();
    let mut answer = Vec::new();
    let drip = async {
        loop {
            let _is_over = write.write_all(&[1]).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // The answer comes, and then the connection ends.
    let cut = async {
        let first = tokio::time::timeout(PATIENCE, read.read_buf(&mut answer)).await;
        assert!(first.is_ok_and(|first| first.is_ok()), "there is an answer");
        let took = begun.elapsed();
        let _is_reset = tokio::time::timeout(PATIENCE, read.read_to_end(&mut answer)).await.expect("and an end");
        took
    };
    let took = tokio::select! {
        () = drip => unreachable!("it goes on"),
        took = cut => took,
    };
    assert!(took < 2 * stall_timeout, "it was cut off after {took:?}");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("RequestTimeout"), "{answer}");

    // An answer of which a few bytes are taken now and then.
    caller.expect(200, Request::new("PUT", "bucket/large").body(vec![3; 30 << 20])).await;
    let begun = Instant::now();
    let mut socket = begin(&caller, &Request::new("GET", "bucket/large"), 0).await;
    let mut bytes = vec![0; 100];
    let ended = async {
        while socket.read(&mut bytes).await.is_ok_and(|count| count > 0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if gateway.client.names("s3d/").is_empty() || begun.elapsed() > PATIENCE {
                break;
            }
            // What is in the buffers of the system is read fast once the connection is cut.
            if begun.elapsed() > 4 * stall_timeout {
                bytes = vec![0; 1 << 20];
            }
        }
    };
    ended.await;
    assert!(begun.elapsed() < PATIENCE, "the connection was cut");
}

/// When there are more connections without a signed request than allowed, the oldest is closed, and the new one is
/// served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_strangers_have_a_bound() {
    // Four of strangers, two of one address.
    let gateway = start(|config| config.connections_max = 8).await;
    let health = b"GET /-/health HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        socket.write_all(health).await.unwrap();
        assert!(tokio::time::timeout(PATIENCE, socket.read_u8()).await.unwrap().is_ok());
        open.push(socket);
    }
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, open[0].read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the oldest is closed");
    for socket in &mut open[1..] {
        socket.write_all(health).await.unwrap();
        let mut answers = vec![0; 64];
        assert!(tokio::time::timeout(PATIENCE, socket.read_exact(&mut answers)).await.unwrap().is_ok());
    }
}
