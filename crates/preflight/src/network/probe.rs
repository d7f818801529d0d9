//! Asks a responder and measures the time of an answer, its clock, and the largest packet size.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::path_mtu::{self, PathMtu};
use super::protocol::{FRAME_BYTES, Frame, GREETING, TOKEN_BYTES, Token, unix_ns};
use crate::request::Stop;

const TIMEOUT: Duration = Duration::from_secs(3);
/// Fewer than a responder answers on one connection.
const FRAMES_MAX: usize = 500_000;

/// Measurements of the way to a peer.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub round_trip: RoundTrip,
    /// How far the peer's clock is ahead of this host's, in milliseconds; behind if negative.
    pub clock_ahead_ms: f64,
    /// The largest packet that gets through; nothing if no datagram is answered.
    pub path: Option<PathMtu>,
    /// The largest that the kernel believes to get through, after all that was tried.
    pub believed_bytes: u32,
}

/// Round trips of small messages over one TCP connection, one at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub count: usize,
    pub min_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Measures everything, for about as long as said, and some seconds for the sizes of packets.
pub(super) fn measure(peer: SocketAddr, duration: Duration, stop: &Stop) -> io::Result<Measured> {
    let (mut stream, token) = connect(peer)?;
    let (round_trip, clock_ahead_ms) = ping(&mut stream, duration, stop)?;
    let path = path_mtu::find(peer, &token, stop)?;
    // A new connection asks what the kernel has learnt meanwhile.
    let (fresh, _) = connect(peer)?;
    let believed_bytes = path_mtu::believed_bytes(&fresh)?;
    Ok(Measured { round_trip, clock_ahead_ms, path, believed_bytes })
}

fn connect(peer: SocketAddr) -> io::Result<(TcpStream, Token)> {
    let mut stream = TcpStream::connect_timeout(&peer, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&GREETING)?;
    let mut answer = [0; GREETING.len() + TOKEN_BYTES];
    stream.read_exact(&mut answer).map_err(|error| {
        let text = format!(
            "it accepts connections and then does not answer ({error}); is it a responder with a free place?"
        );
        io::Error::new(error.kind(), text)
    })?;
    let (greeting, token) = answer.split_at(GREETING.len());
    if greeting != GREETING {
        let text = "the program that answers is not a responder of this release";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let token = token.try_into().expect("the rest of the answer is the token");
    Ok((stream, token))
}

fn ping(stream: &mut TcpStream, duration: Duration, stop: &Stop) -> io::Result<(RoundTrip, f64)> {
    let mut samples_ns = Vec::new();
    let mut nearest: Option<(Duration, f64)> = None;
    let started = Instant::now();
    let mut bytes = [0; FRAME_BYTES];
    while samples_ns.is_empty()
        || (started.elapsed() < duration && samples_ns.len() < FRAMES_MAX && !stop.is_set())
    {
        let number = samples_ns.len() as u64;
        let (asked_unix_ns, asked) = (unix_ns(), Instant::now());
        stream.write_all(&Frame { number, unix_ns: 0 }.encode())?;
        stream.read_exact(&mut bytes)?;
        let taken = asked.elapsed();
        let answer = Frame::decode(&bytes);
        if answer.number != number {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it answered something else than was asked"));
        }
        samples_ns.push(taken.as_nanos() as f64);
        // The quickest answer was written nearest to the middle of its round trip.
        if nearest.is_none_or(|(least, _)| taken < least) {
            let middle_ns = asked_unix_ns as f64 + taken.as_nanos() as f64 / 2.0;
            nearest = Some((taken, (answer.unix_ns as f64 - middle_ns) / 1e6));
        }
    }
    let clock_ahead_ms = nearest.map_or(0.0, |(_, ahead_ms)| ahead_ms);
    Ok((round_trip(samples_ns), clock_ahead_ms))
}

fn round_trip(mut samples_ns: Vec<f64>) -> RoundTrip {
    assert!(!samples_ns.is_empty(), "at least one question was answered");
    samples_ns.sort_unstable_by(f64::total_cmp);
    let quantile_us = |share: f64| samples_ns[(samples_ns.len() as f64 * share) as usize] / 1e3;
    RoundTrip {
        count: samples_ns.len(),
        min_us: quantile_us(0.0),
        p50_us: quantile_us(0.5),
        p99_us: quantile_us(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::super::path_mtu::LimitedBy;
    use super::super::responder::{Responder, ResponderLimits};
    use super::*;

    #[test]
    fn a_responder_on_this_host_is_near_and_has_the_same_clock() {
        let limits = ResponderLimits::for_duration(Duration::from_secs(60));
        let responder = Responder::bind("127.0.0.1:0".parse().unwrap(), limits).unwrap();
        let (address, stop) = (responder.address(), Stop::default());
        std::thread::scope(|threads| {
            let running = threads.spawn(|| responder.run(&stop, &|_| ()));
            let measured = measure(address, Duration::from_millis(100), &stop);
            stop.set();
            running.join().unwrap().unwrap();
            let measured = measured.unwrap();
            let RoundTrip { count, min_us, p50_us, p99_us } = measured.round_trip;
            assert!(count > 0 && min_us > 0.0 && min_us <= p50_us && p50_us <= p99_us);
            assert!(measured.clock_ahead_ms.abs() < 1_000.0, "{}", measured.clock_ahead_ms);
            // The loopback interface takes 65,536 bytes, one more than IPv4 can say.
            assert_eq!(measured.path, Some(PathMtu { bytes: 65_535, limited_by: LimitedBy::Interface }));
            assert_eq!(measured.believed_bytes, 65_535);
        });
    }

    #[test]
    fn an_invalid_responder_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let error = measure(address, Duration::from_millis(10), &Stop::default()).unwrap_err();
        assert!(error.to_string().contains("not a responder"), "{error}");
    }

    #[test]
    fn quantiles_are_in_order() {
        let round_trip = round_trip((1..=100).rev().map(|us| f64::from(us) * 1e3).collect());
        assert_eq!((round_trip.min_us, round_trip.p50_us, round_trip.p99_us), (1.0, 51.0, 100.0));
    }
}
