//! The other end of a probe. It answers with at most as many bytes as it receives, only to connected probes, and
//! has a limit on everything.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

use super::path_mtu::forbid_fragments;
use super::protocol::{DATAGRAM_BYTES_MAX, FRAME_BYTES, Frame, GREETING, TOKEN_BYTES, Token, unix_ns};
use crate::request::Stop;

/// How often it looks whether it is to end.
const PAUSE: Duration = Duration::from_millis(20);
/// Silence after which a connection is ended.
const IDLE: Duration = Duration::from_secs(10);

/// Limits of a responder.
#[derive(Clone, Copy, Debug)]
pub struct ResponderLimits {
    /// How long it runs.
    pub duration: Duration,
    /// Connections at once.
    pub connections: usize,
    /// How long one connection lasts.
    pub connection_duration: Duration,
    /// Frames answered on one connection.
    pub frames: u64,
    /// Datagrams answered for one connection.
    pub datagrams: u32,
}

impl ResponderLimits {
    /// The usual limits, for a run of some time.
    pub fn for_duration(duration: Duration) -> Self {
        ResponderLimits {
            duration,
            connections: 16,
            connection_duration: Duration::from_secs(120),
            frames: 1_000_000,
            datagrams: 1_000,
        }
    }
}

struct Session {
    address: IpAddr,
    datagrams_left: u32,
}

type Sessions = Arc<Mutex<BTreeMap<Token, Session>>>;

/// Locks the list of sessions, which stays valid after a panic of one connection.
fn lock(sessions: &Sessions) -> MutexGuard<'_, BTreeMap<Token, Session>> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers probes of other hosts.
pub struct Responder {
    listener: TcpListener,
    datagrams: UdpSocket,
    address: SocketAddr,
    limits: ResponderLimits,
}

impl Responder {
    /// Listens on a TCP and a UDP port of the same number.
    pub fn bind(address: SocketAddr, limits: ResponderLimits) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let datagrams = UdpSocket::bind(address)?;
        listener.set_nonblocking(true)?;
        datagrams.set_read_timeout(Some(PAUSE))?;
        // An answer that came in pieces would hide that it does not fit.
        forbid_fragments(&datagrams)?;
        Ok(Responder { listener, datagrams, address, limits })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until its time is over or it is stopped. `connected` is called with each probe's address.
    pub fn run(self, stop: &Stop, connected: &(dyn Fn(SocketAddr) + Sync)) -> io::Result<()> {
        let sessions = Sessions::default();
        let until = Instant::now() + self.limits.duration;
        let is_over = || stop.is_set() || Instant::now() >= until;
        std::thread::scope(|threads| {
            let answering = threads.spawn(|| answer_datagrams(&self.datagrams, &sessions, &is_over));
            while !is_over() && !answering.is_finished() {
                match self.listener.accept() {
                    Ok((stream, address)) => {
                        connected(address);
                        let (sessions, limits) = (Arc::clone(&sessions), self.limits);
                        // Its thread may outlive this scope, by its time to be idle at the most.
                        std::thread::spawn(move || serve(stream, address.ip(), &sessions, limits));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                    // Who connected is gone already, or there are too many open files for a while.
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
            answering.join().unwrap_or_else(|_| Err(io::Error::other("the thread for datagrams panicked")))
        })
    }
}

fn serve(stream: TcpStream, address: IpAddr, sessions: &Sessions, limits: ResponderLimits) {
    let Some(token) = register(address, sessions, limits) else { return };
    // Why the connection ended is of no interest.
    let _ = answer_frames(stream, token, limits);
    lock(sessions).remove(&token);
}

/// A token for a new connection; none if there are too many.
fn register(address: IpAddr, sessions: &Sessions, limits: ResponderLimits) -> Option<Token> {
    let mut token = [0; TOKEN_BYTES];
    let filled = getrandom(&mut token, GetRandomFlags::empty()).ok()?;
    let mut sessions = lock(sessions);
    if filled != TOKEN_BYTES || sessions.len() >= limits.connections {
        return None;
    }
    sessions.insert(token, Session { address, datagrams_left: limits.datagrams });
    Some(token)
}

fn answer_frames(mut stream: TcpStream, token: Token, limits: ResponderLimits) -> io::Result<()> {
    let until = Instant::now() + limits.connection_duration;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting != GREETING {
        return Ok(());
    }
    let mut answer = GREETING.to_vec();
    answer.extend_from_slice(&token);
    stream.write_all(&answer)?;
    let mut bytes = [0; FRAME_BYTES];
    for _ in 0..limits.frames {
        stream.read_exact(&mut bytes)?;
        let frame = Frame { unix_ns: unix_ns(), ..Frame::decode(&bytes) };
        stream.write_all(&frame.encode())?;
        if Instant::now() >= until {
            break;
        }
    }
    Ok(())
}

fn answer_datagrams(socket: &UdpSocket, sessions: &Sessions, is_over: &dyn Fn() -> bool) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while !is_over() {
        // Errors are of the last answer (nobody listens there any more, it did not fit) or the time-out.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        if may_answer(&buffer[..length], from.ip(), sessions) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
    Ok(())
}

fn may_answer(datagram: &[u8], from: IpAddr, sessions: &Sessions) -> bool {
    let Some(token) = datagram.first_chunk::<TOKEN_BYTES>() else { return false };
    let mut sessions = lock(sessions);
    let Some(session) = sessions.get_mut(token).filter(|session| session.address == from) else { return false };
    if session.datagrams_left == 0 {
        return false;
    }
    session.datagrams_left -= 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> ResponderLimits {
        ResponderLimits {
            connections: 2,
            datagrams: 1,
            frames: 2,
            ..ResponderLimits::for_duration(Duration::from_secs(20))
        }
    }

    #[test]
    fn connections_are_limited() {
        let (sessions, address) = (Sessions::default(), IpAddr::from([10, 0, 0, 1]));
        let first = register(address, &sessions, limits()).unwrap();
        assert!(register(address, &sessions, limits()).is_some_and(|token| token != first));
        assert!(register(address, &sessions, limits()).is_none());
    }

    #[test]
    fn datagrams_of_strangers_are_not_answered() {
        let (sessions, address) = (Sessions::default(), IpAddr::from([10, 0, 0, 1]));
        let token = register(address, &sessions, limits()).unwrap();
        let datagram = [&token[..], b"and more"].concat();
        assert!(!may_answer(&datagram, IpAddr::from([10, 0, 0, 2]), &sessions));
        assert!(!may_answer(&[7; 100], address, &sessions));
        assert!(!may_answer(&token[..15], address, &sessions));
        assert!(may_answer(&datagram, address, &sessions));
        assert!(!may_answer(&datagram, address, &sessions), "its limit is one");
    }

    #[test]
    fn a_connection_ends_at_its_limit_and_strangers_get_nothing() {
        let responder = Responder::bind("127.0.0.1:0".parse().unwrap(), limits()).unwrap();
        let (address, stop) = (responder.address(), Stop::default());
        std::thread::scope(|threads| {
            let running = threads.spawn(|| responder.run(&stop, &|_| ()));
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut bytes = Vec::new();
            // Unread bytes may turn the end into a reset.
            let _ = stranger.read_to_end(&mut bytes);
            assert!(bytes.is_empty());
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&GREETING).unwrap();
            for number in 0..2 {
                stream.write_all(&Frame { number, unix_ns: 0 }.encode()).unwrap();
            }
            stream.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), GREETING.len() + TOKEN_BYTES + 2 * FRAME_BYTES);
            stop.set();
            running.join().unwrap().unwrap();
        });
    }
}
