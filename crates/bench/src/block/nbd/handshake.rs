//! Choosing an export (section "Handshake", NBD_OPT_GO).

use atoll_nbd::protocol::constants::{
    MAGIC_INIT, MAGIC_OPTION, MAGIC_OPTION_REPLY, client_flag, handshake_flag, info, option, option_reply,
    transmission_flag,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::BenchError;

/// The most that a server may say in one reply, and replies to one option.
const REPLY_BYTES_MAX: u32 = 64 << 10;
const REPLIES_MAX: usize = 64;
/// Payload that every server takes, if it announces no limit (section "Size constraints").
const PAYLOAD_BYTES: u32 = 32 << 20;

/// A server's description of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub size_bytes: u64,
    /// Most bytes of one request.
    pub payload_bytes_max: u32,
    pub can_fua: bool,
    pub can_flush: bool,
    pub is_read_only: bool,
    /// True if several connections may write, each seeing writes that were acknowledged to another.
    pub can_share: bool,
}

pub(super) fn wrong(detail: impl std::fmt::Display) -> BenchError {
    BenchError::Nbd(detail.to_string())
}

/// Opens an export.
pub(super) async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    name: &str,
) -> Result<Export, BenchError> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).await.map_err(wrong)?;
    let mut greeting = greeting.as_slice();
    if greeting.get_u64() != MAGIC_INIT || greeting.get_u64() != MAGIC_OPTION {
        return Err(wrong("the server does not speak newstyle NBD"));
    }
    let flags = greeting.get_u16();
    if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(wrong("the server does not speak fixed newstyle NBD"));
    }
    let has_no_zeroes = flags & handshake_flag::NO_ZEROES != 0;
    let no_zeroes = if has_no_zeroes { client_flag::NO_ZEROES } else { 0 };
    let mut request = BytesMut::new();
    request.put_u32(client_flag::FIXED_NEWSTYLE | no_zeroes);
    request.put_u64(MAGIC_OPTION);
    request.put_u32(option::GO);
    request.put_u32(name.len() as u32 + 8);
    request.put_u32(name.len() as u32);
    request.put_slice(name.as_bytes());
    request.put_u16(1);
    request.put_u16(info::BLOCK_SIZE);
    stream.write_all(&request).await.map_err(wrong)?;
    replies(stream, name).await
}

async fn replies(stream: &mut (impl AsyncRead + Unpin), name: &str) -> Result<Export, BenchError> {
    let (mut export, mut payload_bytes_max) = (None, PAYLOAD_BYTES);
    for _ in 0..REPLIES_MAX {
        let mut header = [0; 20];
        stream.read_exact(&mut header).await.map_err(wrong)?;
        let mut header = header.as_slice();
        let (magic, answered, kind, length) =
            (header.get_u64(), header.get_u32(), header.get_u32(), header.get_u32());
        if magic != MAGIC_OPTION_REPLY || answered != option::GO || length > REPLY_BYTES_MAX {
            return Err(wrong("the server's reply to NBD_OPT_GO is not understood"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).await.map_err(wrong)?;
        match kind {
            option_reply::ACK => {
                let export = export.ok_or_else(|| wrong("the server does not say how large the export is"))?;
                return Ok(Export { payload_bytes_max, ..export });
            }
            option_reply::INFO => take_info(Bytes::from(data), &mut export, &mut payload_bytes_max)?,
            _ => return Err(refusal(name, kind, &data)),
        }
    }
    Err(wrong("the server does not come to an end with its reply to NBD_OPT_GO"))
}

fn take_info(mut data: Bytes, export: &mut Option<Export>, payload_bytes_max: &mut u32) -> Result<(), BenchError> {
    let short = || wrong("the server's information on the export is too short");
    match data.try_get_u16().map_err(|_| short())? {
        info::EXPORT => {
            let size_bytes = data.try_get_u64().map_err(|_| short())?;
            let flags = data.try_get_u16().map_err(|_| short())?;
            let has = |flag: u16| flags & flag != 0;
            *export = Some(Export {
                size_bytes,
                payload_bytes_max: PAYLOAD_BYTES,
                can_fua: has(transmission_flag::SEND_FUA),
                can_flush: has(transmission_flag::SEND_FLUSH),
                is_read_only: has(transmission_flag::READ_ONLY),
                can_share: has(transmission_flag::CAN_MULTI_CONN),
            });
        }
        info::BLOCK_SIZE => {
            let sizes = [data.try_get_u32(), data.try_get_u32(), data.try_get_u32()];
            let [Ok(_minimum), Ok(_preferred), Ok(maximum)] = sizes else { return Err(short()) };
            *payload_bytes_max = maximum.min(PAYLOAD_BYTES);
        }
        _ => {}
    }
    Ok(())
}

fn refusal(name: &str, kind: u32, message: &[u8]) -> BenchError {
    let why = match kind {
        option_reply::ERR_UNKNOWN => "there is no such export",
        option_reply::ERR_TLS_REQD => "it is served with TLS only, which this client does not speak",
        option_reply::ERR_POLICY => "the server does not allow it",
        option_reply::ERR_UNSUP => "the server is too old for NBD_OPT_GO",
        _ => "the server refuses",
    };
    let message = String::from_utf8_lossy(&message[..message.len().min(500)]);
    wrong(format!("cannot open export '{name}': {why} (reply {kind:#x}) {message}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn greeting() -> BytesMut {
        let mut bytes = BytesMut::new();
        bytes.put_u64(MAGIC_INIT);
        bytes.put_u64(MAGIC_OPTION);
        bytes.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        bytes
    }

    pub fn reply(bytes: &mut BytesMut, kind: u32, data: &[u8]) {
        bytes.put_u64(MAGIC_OPTION_REPLY);
        bytes.put_u32(option::GO);
        bytes.put_u32(kind);
        bytes.put_u32(data.len() as u32);
        bytes.put_slice(data);
    }

    pub fn export_info(size_bytes: u64, flags: u16) -> Vec<u8> {
        [info::EXPORT.to_be_bytes().as_slice(), &size_bytes.to_be_bytes(), &flags.to_be_bytes()].concat()
    }

    async fn opened(said: &[u8]) -> Result<Export, BenchError> {
        let (mut client, mut server) = tokio::io::duplex(1 << 20);
        server.write_all(said).await.unwrap();
        server.shutdown().await.unwrap();
        open(&mut client, "disk").await
    }

    #[tokio::test]
    async fn an_export_is_described() {
        let mut said = greeting();
        reply(&mut said, option_reply::INFO, &export_info(1 << 30, 0b1_0000_1101));
        let sizes = [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 0, 1, 0, 0];
        reply(&mut said, option_reply::INFO, &sizes);
        reply(&mut said, option_reply::ACK, &[]);
        let export = opened(&said).await.unwrap();
        assert_eq!((export.size_bytes, export.payload_bytes_max), (1 << 30, 65536));
        assert!(export.can_fua && export.can_flush && export.can_share && !export.is_read_only);
        for cut in 0..said.len() {
            assert!(opened(&said[..cut]).await.is_err(), "{cut} bytes");
        }
    }

    #[tokio::test]
    async fn whatever_a_server_says_is_an_error_or_an_export() {
        let mut said = greeting();
        reply(&mut said, option_reply::ERR_UNKNOWN, b"no 'disk' here");
        let error = opened(&said).await.unwrap_err().to_string();
        assert!(error.contains("no such export") && error.contains("no 'disk' here"), "{error}");
        for data in [[].as_slice(), &[0], &[0, 0], &[0, 0, 1, 2, 3], &[0, 3, 1]] {
            let mut said = greeting();
            reply(&mut said, option_reply::INFO, data);
            reply(&mut said, option_reply::ACK, &[]);
            assert!(opened(&said).await.is_err(), "{data:?}");
        }
        let mut random = crate::load::Random::new(4);
        for _ in 0..1000 {
            let mut said = greeting();
            said.put_slice(&random.fill(60));
            assert!(opened(&said).await.is_err());
        }
    }
}
