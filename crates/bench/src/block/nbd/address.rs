//! Where an export is (`doc/uri.md` of NetworkBlockDevice/nbd).

use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use url::Url;

/// The port that IANA has given NBD.
const PORT: u16 = 10809;

/// An export and where its server listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NbdAddress {
    pub(super) place: Place,
    pub(super) export: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl NbdAddress {
    /// How its bytes travel.
    pub fn transport(&self) -> &'static str {
        match self.place {
            Place::Tcp { .. } => "plain TCP",
            Place::Unix(_) => "a Unix socket",
        }
    }
}

impl FromStr for NbdAddress {
    type Err = String;

    /// `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("'{text}' {why}: use nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH (without TLS)")
        };
        let url = Url::parse(text).map_err(|error| wrong(&format!("is not a URI ({error})")))?;
        let decoded = percent_decode_str(url.path().strip_prefix('/').unwrap_or_default()).decode_utf8();
        let export = decoded.map_err(|_| wrong("names an export that is not UTF-8"))?.into_owned();
        let host = url.host_str().filter(|host| !host.is_empty());
        let place = match (url.scheme(), host) {
            ("nbd", Some(host)) => {
                Place::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port: url.port().unwrap_or(PORT) }
            }
            ("nbd+unix", None) => {
                let socket = url.query_pairs().find(|(name, _)| name == "socket");
                let (_, path) = socket.ok_or_else(|| wrong("names no socket"))?;
                Place::Unix(PathBuf::from(path.into_owned()))
            }
            _ => return Err(wrong("is not the address of an NBD export")),
        };
        Ok(NbdAddress { place, export })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> NbdAddress {
        NbdAddress { place: Place::Tcp { host: host.into(), port }, export: export.into() }
    }

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| text.parse::<NbdAddress>().unwrap();
        assert_eq!(read("nbd://localhost/disk1"), tcp("localhost", 10809, "disk1"));
        assert_eq!(read("nbd://[::1]:4000/a%20b"), tcp("::1", 4000, "a b"));
        assert_eq!(read("nbd://10.0.0.1"), tcp("10.0.0.1", 10809, ""));
        let unix = read("nbd+unix:///disk1?socket=/tmp/d/nbd.sock");
        assert_eq!((unix.place, unix.export.as_str()), (Place::Unix("/tmp/d/nbd.sock".into()), "disk1"));
    }

    #[test]
    fn others_are_refused() {
        for text in
            ["disk1", "nbd:///x", "nbds://host/x", "nbd+unix:///x", "nbd+unix://h/x?socket=/s", "http://h/x"]
        {
            assert!(text.parse::<NbdAddress>().is_err(), "{text}");
        }
    }
}
