//! Requests on an export that is open, many at once; one task reads the replies to all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_nbd::protocol::constants::{MAGIC_REQUEST, MAGIC_SIMPLE_REPLY, command, command_flag};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::NbdAddress;
use super::address::Place;
use super::handshake::{Export, open, wrong};
use crate::block::BlockTarget;
use crate::error::BenchError;

const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;

/// A socket of some kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type Answer = Result<Bytes, String>;

/// Requests that wait for their replies.
#[derive(Default)]
struct Waiting {
    requests: HashMap<u64, Request>,
    next_cookie: u64,
    /// Why there will be no more replies.
    ended: Option<String>,
}

struct Request {
    /// Bytes that follow a reply without an error.
    reply_bytes: u32,
    answer: oneshot::Sender<Answer>,
}

/// An export.
pub struct NbdTarget {
    export: Export,
    writer: tokio::sync::Mutex<WriteHalf<Box<dyn Stream>>>,
    waiting: Arc<Mutex<Waiting>>,
    reader: JoinHandle<()>,
}

impl NbdTarget {
    /// Connects and opens the export. One that several clients use at once must allow that.
    pub async fn open(address: &NbdAddress, is_shared: bool) -> Result<Self, BenchError> {
        let at = |error: std::io::Error| wrong(format!("cannot connect to {:?}: {error}", address.place));
        let stream: Box<dyn Stream> = match &address.place {
            Place::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(at)?;
                stream.set_nodelay(true).map_err(at)?;
                Box::new(stream)
            }
            Place::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(at)?),
        };
        NbdTarget::on(stream, &address.export, is_shared).await
    }

    async fn on(mut stream: Box<dyn Stream>, name: &str, is_shared: bool) -> Result<Self, BenchError> {
        let export = open(&mut stream, name).await?;
        if is_shared && !export.can_share {
            return Err(wrong(format!(
                "export '{name}' is not for several clients (NBD_FLAG_CAN_MULTI_CONN); use --clients 1"
            )));
        }
        let (reader, writer) = split(stream);
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let reader = tokio::spawn(read_replies(reader, Arc::clone(&waiting)));
        Ok(NbdTarget { export, writer: tokio::sync::Mutex::new(writer), waiting, reader })
    }

    async fn request(
        &self,
        kind: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: Bytes,
    ) -> Result<Bytes, BenchError> {
        if length > self.export.payload_bytes_max {
            return Err(BenchError::Invalid(format!(
                "the NBD server takes operations of up to {} bytes; choose a smaller block size",
                self.export.payload_bytes_max
            )));
        }
        let (sender, answer) = oneshot::channel();
        let reply_bytes = if kind == command::READ { length } else { 0 };
        let cookie = locked(&self.waiting).add(Request { reply_bytes, answer: sender })?;
        let mut header = BytesMut::with_capacity(REQUEST_BYTES);
        header.put_u32(MAGIC_REQUEST);
        header.put_u16(flags);
        header.put_u16(kind);
        header.put_u64(cookie);
        header.put_u64(offset);
        header.put_u32(length);
        let sent = self.writer.lock().await.write_all_buf(&mut header.chain(data)).await;
        sent.map_err(wrong)?;
        let answer = answer.await.map_err(|_| wrong("the connection was given up"))?;
        answer.map_err(BenchError::Nbd)
    }
}

impl Drop for NbdTarget {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl BlockTarget for NbdTarget {
    fn size_bytes(&self) -> u64 {
        self.export.size_bytes
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Bytes, BenchError> {
        self.request(command::READ, 0, offset, length, Bytes::new()).await
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), BenchError> {
        let Export { can_fua, can_flush, is_read_only, .. } = self.export;
        if is_read_only || !(can_fua || can_flush) {
            let why = if is_read_only {
                "is read-only"
            } else {
                "offers neither FUA nor FLUSH, so that no write is durable"
            };
            return Err(BenchError::Invalid(format!("the NBD export {why}")));
        }
        let flags = if can_fua { command_flag::FUA } else { 0 };
        self.request(command::WRITE, flags, offset, data.len() as u32, data).await?;
        if !can_fua {
            self.request(command::FLUSH, 0, 0, 0, Bytes::new()).await?;
        }
        Ok(())
    }

    /// Block status needs structured replies, which this client does not ask for.
    async fn extents(&self, _offset: u64, length: u64) -> Result<Vec<(u64, bool)>, BenchError> {
        Ok(vec![(length, true)])
    }
}

impl Waiting {
    fn add(&mut self, request: Request) -> Result<u64, BenchError> {
        if let Some(why) = &self.ended {
            return Err(wrong(why));
        }
        self.next_cookie += 1;
        self.requests.insert(self.next_cookie, request);
        Ok(self.next_cookie)
    }
}

fn locked(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read_replies(mut reader: ReadHalf<Box<dyn Stream>>, waiting: Arc<Mutex<Waiting>>) {
    let why = loop {
        if let Err(error) = read_reply(&mut reader, &waiting).await {
            break error.to_string();
        }
    };
    let mut waiting = locked(&waiting);
    for (_, request) in waiting.requests.drain() {
        // The task that asked may have given up.
        let _ = request.answer.send(Err(why.clone()));
    }
    waiting.ended = Some(why);
}

async fn read_reply(reader: &mut ReadHalf<Box<dyn Stream>>, waiting: &Mutex<Waiting>) -> Result<(), BenchError> {
    let mut header = [0; REPLY_BYTES];
    reader.read_exact(&mut header).await.map_err(|error| wrong(format!("the connection ended: {error}")))?;
    let mut header = header.as_slice();
    let (magic, error, cookie) = (header.get_u32(), header.get_u32(), header.get_u64());
    if magic != MAGIC_SIMPLE_REPLY {
        return Err(wrong(format!("the server's reply is not understood (magic {magic:#x})")));
    }
    let request = locked(waiting).requests.remove(&cookie);
    let request = request.ok_or_else(|| wrong("the server answers a request that was not sent"))?;
    let answer = if error == 0 {
        let mut data = BytesMut::with_capacity(request.reply_bytes as usize);
        let mut limited = reader.take(request.reply_bytes.into());
        while data.len() < request.reply_bytes as usize {
            if limited.read_buf(&mut data).await.map_err(wrong)? == 0 {
                return Err(wrong("the connection ended within a reply"));
            }
        }
        Ok(data.freeze())
    } else {
        Err(format!("the server answers with error {error} ({})", std::io::Error::from_raw_os_error(error as i32)))
    };
    // The task that asked may have given up.
    let _ = request.answer.send(answer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use atoll_nbd::protocol::constants::{option_reply, transmission_flag};
    use tokio::io::DuplexStream;

    use super::super::handshake::tests::{export_info, greeting, reply};
    use super::*;

    const FLUSH: u16 = transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH;

    async fn opened(flags: u16) -> (NbdTarget, DuplexStream) {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        let mut said = greeting();
        reply(&mut said, option_reply::INFO, &export_info(1 << 20, flags));
        reply(&mut said, option_reply::ACK, &[]);
        server.write_all(&said).await.unwrap();
        let target = NbdTarget::on(Box::new(client), "disk", false).await.unwrap();
        server.read_exact(&mut [0; 4 + 16 + 4 + 4 + 2 + 2]).await.unwrap();
        (target, server)
    }

    /// Flags, kind and cookie of the next request.
    async fn next_request(server: &mut DuplexStream) -> (u16, u16, u64) {
        let mut header = [0; REQUEST_BYTES];
        server.read_exact(&mut header).await.unwrap();
        let mut header = header.as_slice();
        assert_eq!(header.get_u32(), MAGIC_REQUEST);
        let (flags, kind, cookie, _, length) =
            (header.get_u16(), header.get_u16(), header.get_u64(), header.get_u64(), header.get_u32());
        if kind == command::WRITE {
            server.read_exact(&mut vec![0; length as usize]).await.unwrap();
        }
        (flags, kind, cookie)
    }

    async fn answer(server: &mut DuplexStream, error: u32, cookie: u64, data: &[u8]) {
        let mut bytes = BytesMut::new();
        bytes.put_u32(MAGIC_SIMPLE_REPLY);
        bytes.put_u32(error);
        bytes.put_u64(cookie);
        bytes.put_slice(data);
        server.write_all(&bytes).await.unwrap();
    }

    #[tokio::test]
    async fn replies_find_their_requests_in_any_order() {
        let (target, mut server) = opened(FLUSH).await;
        let serve = async {
            let (_, _, first) = next_request(&mut server).await;
            let (_, _, second) = next_request(&mut server).await;
            answer(&mut server, 0, second, &[2; 4096]).await;
            answer(&mut server, 5, first, &[]).await;
        };
        let (first, second, ()) = tokio::join!(target.read(0, 4096), target.read(4096, 4096), serve);
        assert!(first.unwrap_err().to_string().contains("error 5"));
        assert_eq!(second.unwrap(), vec![2; 4096]);
    }

    #[tokio::test]
    async fn a_write_is_durable_by_fua_or_by_a_flush_behind_it() {
        for (flags, expected) in [
            (FLUSH | transmission_flag::SEND_FUA, vec![(command_flag::FUA, command::WRITE)]),
            (FLUSH, vec![(0, command::WRITE), (0, command::FLUSH)]),
        ] {
            let (target, mut server) = opened(flags).await;
            let serve = async {
                for one in &expected {
                    let (flags, kind, cookie) = next_request(&mut server).await;
                    assert_eq!((flags, kind), *one);
                    answer(&mut server, 0, cookie, &[]).await;
                }
            };
            let (written, ()) = tokio::join!(target.write(0, Bytes::from(vec![1; 512])), serve);
            written.unwrap();
        }
        let (target, _server) = opened(transmission_flag::HAS_FLAGS).await;
        assert!(target.write(0, Bytes::from(vec![1; 512])).await.is_err(), "not durable at all");
    }

    #[tokio::test]
    async fn a_server_that_errs_or_goes_ends_all_requests() {
        let (target, mut server) = opened(FLUSH).await;
        let serve = async {
            next_request(&mut server).await;
            answer(&mut server, 0, 77, &[]).await;
        };
        let (read, ()) = tokio::join!(target.read(0, 512), serve);
        assert!(read.unwrap_err().to_string().contains("was not sent"));
        assert!(target.read(0, 512).await.is_err(), "later ones as well");
        let (target, server) = opened(FLUSH).await;
        drop(server);
        assert!(target.read(0, 512).await.is_err());
    }
}
