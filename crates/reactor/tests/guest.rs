//! A loop as the guest of tokio.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use atoll_reactor::{Event, GuestTurns, ListenAddress, LocalRuntime, Reactor, Stream};
use bytes::Bytes;

/// No timer of the loop hides that news of its peers are missed.
const DEADLINE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 500;

/// Runs a task of a guest to its end.
fn run_as_guest<F: Future<Output = ()> + 'static>(task: impl FnOnce(LocalRuntime) -> F) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let guest = LocalRuntime::new().unwrap();
        let mut turns = GuestTurns::new(&guest).unwrap();
        let is_done = Rc::new(Cell::new(false));
        let (task, done) = (task(guest.clone()), is_done.clone());
        guest.spawn(async move {
            task.await;
            done.set(true);
        });
        let running = poll_fn(|context| {
            turns.poll(&guest, context).unwrap();
            if is_done.get() { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(DEADLINE, running).await.expect("the guest misses nothing");
    });
}

/// Sends back whatever comes by TCP, and by shared memory under this name; gives the address.
fn start_echo(name: &str) -> SocketAddr {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let name = name.to_owned();
    std::thread::spawn(move || {
        let mut server = Reactor::new().unwrap();
        let (_, address) = server.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        server.listen_shared(&name).unwrap();
        let ListenAddress::Tcp(address) = address else { unreachable!("it listens over TCP") };
        ready.send(address).unwrap();
        let mut events = Vec::new();
        loop {
            server.poll(None, &mut events).unwrap();
            for event in events.drain(..) {
                if let Event::Received(id) = event {
                    let bytes = server.received(id).unwrap().split().freeze();
                    server.send(id, [bytes]);
                }
            }
        }
    });
    is_ready.recv().unwrap()
}

async fn have_echoed(stream: &Stream, bytes: usize) {
    for round in 0..ROUNDS {
        let sent = vec![round as u8; bytes];
        stream.send([Bytes::from(sent.clone())]);
        let mut echoed = Vec::new();
        while echoed.len() < bytes {
            stream.receive().await.unwrap();
            stream.with_received(|received| echoed.extend_from_slice(&received.split())).unwrap();
        }
        assert_eq!(echoed, sent);
    }
}

/// Echoes `tcp_bytes` by TCP, and `shared_bytes` by shared memory.
fn echoes(what: &str, tcp_bytes: usize, shared_bytes: usize) {
    let name = format!("atoll-test-guest-{what}-{}", std::process::id());
    let address = start_echo(&name);
    run_as_guest(|guest| async move {
        have_echoed(&guest.connect(address).await.unwrap(), tcp_bytes).await;
        have_echoed(&guest.connect_shared(&name).unwrap(), shared_bytes).await;
    });
}

#[test]
fn a_guest_is_notified_of_arrivals() {
    echoes("whole", 4_096, 4_096);
}

#[test]
fn a_guest_is_notified_of_fragmented_arrivals() {
    echoes("pieces", 300_000, 600_000);
}

#[test]
fn the_timers_of_a_guest_run_out_and_other_threads_wake_it() {
    run_as_guest(|guest| async move {
        guest.sleep(Duration::from_millis(5)).await;
        let wake = guest.wake_handle();
        let (told, mut is_told) = tokio::sync::mpsc::unbounded_channel();
        guest.on_wake(move || told.send(()).unwrap());
        std::thread::spawn(move || wake.wake());
        is_told.recv().await.unwrap();
    });
}
