//! Cost of a transport below all protocols: requests with a payload and short answers between two loops of one
//! process, each on a thread of its own. Prints the CPU time of both and the time of each request.
//!
//!     cargo run --release -p atoll-reactor --example transports -- shm 4096 32

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use atoll_reactor::{ConnectionId, Event, ListenAddress, Reactor};
use bytes::Bytes;

const SECONDS: u64 = 2;
const HEADER_BYTES: usize = 64;
/// Payloads from here on go to a buffer of their own.
const LONG_BYTES: usize = 64 << 10;

fn name() -> String {
    format!("atoll-transports-{}", std::process::id())
}

/// Takes whole requests; returns how many.
fn take_requests(
    reactor: &mut Reactor,
    id: ConnectionId,
    payload_bytes: usize,
    is_in_payload: &mut bool,
) -> usize {
    let mut count = 0;
    let received = reactor.received(id).unwrap();
    loop {
        if *is_in_payload && payload_bytes >= LONG_BYTES {
            if received.take_long_run().is_none() {
                return count;
            }
        } else if *is_in_payload {
            if received.len() < payload_bytes {
                return count;
            }
            drop(received.split_to(payload_bytes).freeze());
        }
        count += usize::from(std::mem::take(is_in_payload));
        if received.len() < HEADER_BYTES {
            return count;
        }
        let _ = received.split_to(HEADER_BYTES);
        *is_in_payload = true;
        if payload_bytes >= LONG_BYTES {
            received.expect_long_run(payload_bytes);
        }
    }
}

fn serve(mut reactor: Reactor, payload_bytes: usize) {
    let (mut events, mut is_in_payload) = (Vec::new(), false);
    let answer = Bytes::from_static(&[7; HEADER_BYTES]);
    loop {
        reactor.poll(None, &mut events).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Received(id) => {
                    let count = take_requests(&mut reactor, id, payload_bytes, &mut is_in_payload);
                    reactor.send(id, std::iter::repeat_n(answer.clone(), count));
                }
                Event::Closed(..) => return,
                _ => {}
            }
        }
    }
}

/// CPU time of this process until now.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let transport = arguments.next().expect("tcp, unix or shm");
    let mut number = || arguments.next().and_then(|text| text.parse().ok()).expect("bytes and depth are numbers");
    let (payload_bytes, depth): (usize, usize) = (number(), number());
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut reactor = Reactor::new().unwrap();
        reactor.listen_local(&name()).unwrap();
        reactor.listen_shared(&name()).unwrap();
        let (_, address) = reactor.listen(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let ListenAddress::Tcp(address) = address else { panic!("it listens on TCP") };
        tell.send(address).unwrap();
        serve(reactor, payload_bytes);
    });
    let address = told.recv().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let id = match transport.as_str() {
        "tcp" => reactor.connect(address).unwrap(),
        "unix" => reactor.connect_local(&name()).unwrap(),
        _ => reactor.connect_shared(&name()).unwrap(),
    };
    let request = [Bytes::from(vec![1; HEADER_BYTES]), Bytes::from(vec![2; payload_bytes])];
    let (mut in_flight, mut done, mut events) = (0, 0_u64, Vec::new());
    let (mut begun, mut cpu_before) = (Instant::now(), cpu());
    let mut is_warm = false;
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        if !is_warm && begun.elapsed() > Duration::from_millis(300) {
            (is_warm, begun, cpu_before, done) = (true, Instant::now(), cpu(), 0);
        }
        while in_flight < depth {
            reactor.send(id, request.clone());
            in_flight += 1;
        }
        reactor.poll(None, &mut events).unwrap();
        for event in events.drain(..) {
            if let Event::Received(id) = event {
                let received = reactor.received(id).unwrap();
                let count = received.len() / HEADER_BYTES;
                let _ = received.split_to(count * HEADER_BYTES);
                in_flight -= count;
                done += count as u64;
            }
        }
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / done as f64;
    let (wall, spent) = (begun.elapsed(), cpu() - cpu_before);
    println!(
        "{transport} {payload_bytes} bytes, depth {depth}: {:.2} us of CPU, {:.2} us each",
        each(spent),
        each(wall)
    );
    reactor.close(id);
    server.join().unwrap();
}
