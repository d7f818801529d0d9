//! Calls to servers on loopback.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;

/// Answers each connection with these bytes, and counts them. Where it listens, and the count.
fn server(address: &str, answer: Vec<u8>) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(address).unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
        }
    });
    (port, count)
}

fn answer(status: &str, header: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{header}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        .into()
}

fn rules(chooser: Chooser, named: &str) -> Rules {
    Rules { chooser, named: named.parse().unwrap() }
}

fn caller(named: &str) -> Caller {
    Caller::with_rules(CallerSettings::of(Chooser::Operator), rules(Chooser::Operator, named))
}

async fn get(caller: &Caller, url: &str) -> Result<Answer, OutgoingError> {
    caller.send(caller.request(Method::GET, url)?).await
}

/// Gives these addresses, one list after the other, to a caller for whom this is named.
fn resolving(named: &str, lists: &'static [&'static [&'static str]]) -> (Caller, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let lookup: Lookup = Arc::new(move |_| {
        let list = lists[counted.fetch_add(1, Ordering::SeqCst).min(lists.len() - 1)];
        let addresses: Vec<IpAddr> = list.iter().map(|address| address.parse().unwrap()).collect();
        Box::pin(async move { Ok(addresses) })
    });
    let guard = Guard { chooser: Chooser::Operator, fixed: Some(rules(Chooser::Operator, named)) };
    (Caller::with(CallerSettings::of(Chooser::Operator), guard, lookup), asked)
}

#[tokio::test]
async fn only_named_networks_are_connected_to() {
    let (port, connections) = server("127.0.0.1:0", answer("200 OK", "", "here"));
    let url = format!("http://127.0.0.1:{port}/");
    assert!(matches!(get(&caller(""), &url).await, Err(OutgoingError::Refused { .. })));
    assert!(matches!(get(&caller("127.0.0.2"), &url).await, Err(OutgoingError::Refused { .. })));
    let by_name = format!("http://localhost:{port}/");
    assert!(matches!(get(&caller("10.0.0.0/8"), &by_name).await, Err(OutgoingError::Refused { .. })));
    let by_name_over_tls = format!("https://localhost:{port}/");
    assert!(matches!(get(&caller(""), &by_name_over_tls).await, Err(OutgoingError::Refused { .. })));
    assert_eq!(connections.load(Ordering::SeqCst), 0, "nothing may be connected to before it is checked");
    let answer = get(&caller("127.0.0.0/8"), &url).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"here"[..]));
}

#[tokio::test]
async fn a_connection_goes_to_the_address_that_was_checked() {
    let (port, right) = server("127.0.0.2:0", answer("200 OK", "", "right"));
    let listener = format!("127.0.0.3:{port}");
    let (_, wrong) = server(&listener, answer("200 OK", "", "wrong"));
    // A name of an attacker: a fit address first, another one afterwards.
    let (caller, asked) = resolving("127.0.0.2", &[&["127.0.0.2"], &["127.0.0.3"]]);
    let url = format!("http://rebinding.example:{port}/");
    assert_eq!(get(&caller, &url).await.unwrap().body, b"right");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the name was resolved again after the check");
    assert!(matches!(get(&caller, &url).await, Err(OutgoingError::Refused { .. })));
    // Of several addresses those that are fit are used.
    let (caller, _) = resolving("127.0.0.2", &[&["127.0.0.3", "169.254.169.254", "127.0.0.2"]]);
    assert_eq!(get(&caller, &url).await.unwrap().body, b"right");
    assert_eq!(wrong.load(Ordering::SeqCst), 0);
    assert_eq!(right.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn redirects_and_proxies_are_not_followed() {
    let (inside, reached) = server("127.0.0.3:0", answer("200 OK", "", "secret"));
    let header = format!("location: http://127.0.0.3:{inside}/\r\n");
    let (port, _) = server("127.0.0.1:0", answer("307 Temporary Redirect", &header, ""));
    let all = caller("127.0.0.0/8");
    let redirect = get(&all, &format!("http://127.0.0.1:{port}/")).await.unwrap();
    assert_eq!(redirect.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn answers_are_bounded_in_bytes_and_time() {
    let (port, _) = server("127.0.0.1:0", answer("200 OK", "", &"x".repeat(2_000)));
    let url = format!("http://127.0.0.1:{port}/");
    let bounded = |answer_bytes_max, time| {
        let settings = CallerSettings { answer_bytes_max, time, ..CallerSettings::of(Chooser::Operator) };
        Caller::with_rules(settings, rules(Chooser::Operator, "127.0.0.1"))
    };
    let long = Duration::from_secs(10);
    assert!(matches!(get(&bounded(1_999, long), &url).await, Err(OutgoingError::TooLong(1_999))));
    assert_eq!(get(&bounded(2_000, long), &url).await.unwrap().body.len(), 2_000);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let (begun, short) = (Instant::now(), Duration::from_millis(200));
    let late = get(&bounded(1, short), &url).await;
    assert!(matches!(late, Err(OutgoingError::Late(_) | OutgoingError::NoAnswer(_))), "{late:?}");
    assert!(begun.elapsed() < long / 2);
}

#[tokio::test]
async fn no_more_calls_are_under_way_than_there_are_places() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let settings =
        CallerSettings { at_once: 2, time: Duration::from_millis(400), ..CallerSettings::of(Chooser::Operator) };
    let caller = Arc::new(Caller::with_rules(settings, rules(Chooser::Operator, "127.0.0.1")));
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (caller, url) = (Arc::clone(&caller), url.clone());
            tokio::spawn(async move { get(&caller, &url).await.is_err() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let connections = std::iter::from_fn(|| silent.accept().ok()).count();
    assert_eq!(connections, 2);
    for call in calls {
        assert!(call.await.unwrap());
    }
}

#[tokio::test]
async fn requests_of_other_clients_are_checked() {
    let request = Client::new().get("http://127.0.0.1:1/");
    assert!(matches!(caller("").send(request).await, Err(OutgoingError::Refused { .. })));
    assert!(matches!(caller("").request(Method::GET, "no url"), Err(OutgoingError::Url { .. })));
    let secret = caller("").request(Method::GET, "https://user:word@10.0.0.1/a?token=t").unwrap_err().to_string();
    assert!(!secret.contains("word") && !secret.contains("token"), "{secret}");
}
