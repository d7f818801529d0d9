//! The PROXY protocol, versions 1 and 2: before anything else a proxy says for whom it opened the
//! connection. It is looked for only on connections from trusted proxies, and need not be there.

use std::io;
use std::net::SocketAddr;

use bytes::BytesMut;
use ppp::{HeaderResult, PartialResult, v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest header that is read, with all its additional fields.
const HEADER_BYTES_MAX: usize = 4 << 10;
const BEGINNINGS: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];
const VERSION_2_FIXED_BYTES: usize = 16;

/// For whom the proxy opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// For itself, as a health check; or there is no header.
    Itself,
    /// For this client.
    Client(SocketAddr),
    /// For a client that it does not name.
    Unknown,
}

/// Meaning of the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// That shows when more of them are there.
    TooShort,
    NoHeader,
    Header {
        source: Source,
        length_bytes: usize,
    },
    Malformed(String),
}

/// Reads the header, if there is one; returns also the bytes behind it.
pub(super) async fn read_header(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<(Source, BytesMut)> {
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES_MAX);
    loop {
        match look(&bytes) {
            Look::NoHeader => return Ok((Source::Itself, bytes)),
            Look::Header { source, length_bytes } => return Ok((source, bytes.split_off(length_bytes))),
            Look::Malformed(detail) => return Err(io::Error::new(io::ErrorKind::InvalidData, detail)),
            Look::TooShort if bytes.len() >= HEADER_BYTES_MAX => return Err(too_long()),
            Look::TooShort if socket.read_buf(&mut bytes).await? == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Look::TooShort => {}
        }
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {HEADER_BYTES_MAX} bytes"))
}

fn look(bytes: &[u8]) -> Look {
    let is_possible = |beginning: &&[u8]| {
        let common = beginning.len().min(bytes.len());
        beginning[..common] == bytes[..common]
    };
    let Some(beginning) = BEGINNINGS.iter().find(|beginning| is_possible(beginning)) else {
        return Look::NoHeader;
    };
    if bytes.len() < beginning.len() {
        return Look::TooShort;
    }
    // The length is at the beginning, so a header that is too long is refused before it is read.
    if let (true, Some(length)) = (bytes[0] == b'\r', bytes.get(VERSION_2_FIXED_BYTES - 2..VERSION_2_FIXED_BYTES))
    {
        let length_bytes = VERSION_2_FIXED_BYTES + usize::from(u16::from_be_bytes([length[0], length[1]]));
        if length_bytes > HEADER_BYTES_MAX {
            return Look::Malformed(too_long().to_string());
        }
    }
    let result = HeaderResult::parse(bytes);
    match result {
        // The library waits for more although the line has ended.
        HeaderResult::V1(Err(error)) if bytes.contains(&b'\n') => Look::Malformed(error.to_string()),
        _ if result.is_incomplete() => Look::TooShort,
        HeaderResult::V1(Ok(header)) => {
            Look::Header { source: version_1_source(&header), length_bytes: header.header.len() }
        }
        HeaderResult::V2(Ok(header)) => {
            Look::Header { source: version_2_source(&header), length_bytes: header.header.len() }
        }
        HeaderResult::V1(Err(error)) => Look::Malformed(error.to_string()),
        HeaderResult::V2(Err(error)) => Look::Malformed(error.to_string()),
    }
}

fn version_1_source(header: &v1::Header<'_>) -> Source {
    match header.addresses {
        v1::Addresses::Tcp4(ip) => Source::Client((ip.source_address, ip.source_port).into()),
        v1::Addresses::Tcp6(ip) => Source::Client((ip.source_address, ip.source_port).into()),
        v1::Addresses::Unknown => Source::Unknown,
    }
}

fn version_2_source(header: &v2::Header<'_>) -> Source {
    match (header.command, header.addresses) {
        (v2::Command::Local, _) => Source::Itself,
        (_, v2::Addresses::IPv4(ip)) => Source::Client((ip.source_address, ip.source_port).into()),
        (_, v2::Addresses::IPv6(ip)) => Source::Client((ip.source_address, ip.source_port).into()),
        (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => Source::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As HAProxy sends it: version 2, TCP over IPv4, with a field behind the addresses.
    fn version_2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let mut header = BEGINNINGS[1].to_vec();
        header.extend([0x20 | command, family]);
        header.extend(((addresses.len() + 4) as u16).to_be_bytes());
        header.extend(addresses);
        header.extend([4, 0, 1, b'x']);
        header
    }

    const IPV4: [u8; 12] = [192, 0, 2, 7, 127, 0, 0, 1, 0x30, 0x39, 0x23, 0x28];

    async fn read(mut bytes: &[u8]) -> io::Result<(Source, BytesMut)> {
        read_header(&mut bytes).await
    }

    #[tokio::test]
    async fn headers() {
        let client = Source::Client("192.0.2.7:12345".parse().unwrap());
        let mut ipv6 = [0; 36];
        (ipv6[15], ipv6[33]) = (7, 9);
        let six = Source::Client("[::7]:9".parse().unwrap());
        for (header, source) in [
            (b"PROXY TCP4 192.0.2.7 127.0.0.1 12345 9000\r\n".to_vec(), client),
            (b"PROXY TCP6 ::7 ::1 9 9000\r\n".to_vec(), six),
            (b"PROXY UNKNOWN\r\n".to_vec(), Source::Unknown),
            (version_2(1, 0x11, &IPV4), client),
            (version_2(1, 0x21, &ipv6), six),
            (version_2(0, 0x00, &[]), Source::Itself),
            (version_2(1, 0x00, &[]), Source::Unknown),
            (b"".to_vec(), Source::Itself),
        ] {
            for rest in ["GET / HTTP/1.1\r\n", "PUT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01"] {
                let (found, left) = read(&[&header, rest.as_bytes()].concat()).await.unwrap();
                assert_eq!((found, &left[..]), (source, rest.as_bytes()), "{header:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_header() {
        let mut long = version_2(1, 0x11, &IPV4);
        long[14..16].copy_from_slice(&4_090u16.to_be_bytes());
        for wrong in [
            b"PROXY TCP4 192.0.2.7 127.0.0.1 123456 9000\r\n".to_vec(),
            b"PROXY TCP4 nonsense\r\nGET / HTTP/1.1\r\n".to_vec(),
            b"PROXY \r\n".to_vec(),
            b"PROXY TCP4 example 127.0.0.1 1 9000\r\n".to_vec(),
            [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 200]].concat(),
            version_2(2, 0x11, &IPV4),
            version_2(1, 0x11, &IPV4[..4]),
            long,
        ] {
            assert_eq!(read(&wrong).await.unwrap_err().kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
        for cut in ["", "P", "PROXY TCP4 192.0.2.7 127.0.0.1 1 9000\r"] {
            assert_eq!(read(cut.as_bytes()).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// No bytes may make the code here, or the library that it uses, panic.
        #[test]
        fn no_bytes_are_a_panic(
            beginning in prop::sample::select(vec![
                b"".to_vec(), b"PROXY ".to_vec(), b"PROXY TCP4 ".to_vec(), b"PROXY TCP6 ::1 ".to_vec(),
                BEGINNINGS[1].to_vec(), version_2(1, 0x11, &IPV4), version_2(1, 0x31, &[]),
            ]),
            cut in 0usize..40,
            rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = [&beginning[..beginning.len().saturating_sub(cut)], &rest].concat();
            if let Look::Header { length_bytes, .. } = look(&bytes) {
                prop_assert!(length_bytes <= bytes.len());
            }
        }

        /// However the bytes are cut, the same is found.
        #[test]
        fn a_beginning_is_never_taken_for_something_else(at in 0usize..28) {
            let header = version_2(1, 0x11, &IPV4);
            prop_assert_eq!(look(&header[..at.min(header.len() - 1)]), Look::TooShort);
        }
    }
}
