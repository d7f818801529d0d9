//! A client of one request after the other, in Rust: for tests that make thousands.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rusty_s3::Method;
use tokio::net::TcpStream;

/// A user at a gateway.
#[derive(Clone)]
pub struct Caller {
    pub address: SocketAddr,
    /// Access key and secret.
    pub user: (String, String),
}

/// The request.
#[derive(Clone, Default)]
pub struct Request {
    pub method: &'static str,
    /// `bucket` or `bucket/key`.
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn new(method: &'static str, path: &str) -> Self {
        Request { method, path: path.into(), ..Default::default() }
    }

    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

impl Caller {
    /// The URL of a request, with a signature in it.
    pub fn sign(&self, request: &Request) -> String {
        let method = match request.method {
            "GET" => Method::Get,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            other => panic!("{other} is not signed here"),
        };
        let url = format!("http://{}/{}", self.address, request.path).parse().unwrap();
        let pairs = |pairs: &'_ [(String, String)]| -> Vec<(String, String)> {
            let mut sorted = pairs.to_vec();
            sorted.sort();
            sorted
        };
        let (query, headers) = (pairs(&request.query), pairs(&request.headers));
        rusty_s3::signing::sign(
            &jiff::Timestamp::now(),
            method,
            url,
            &self.user.0,
            &self.user.1,
            None,
            "us-east-1",
            60,
            query.iter().map(|(name, value)| (name.as_str(), value.as_str())),
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())),
        )
        .to_string()
    }

    /// Status and body of the answer; an error of the connection is a status of 0.
    pub async fn ask(&self, request: Request) -> (u16, Vec<u8>) {
        self.try_ask(request).await.unwrap_or_default()
    }

    async fn try_ask(&self, request: Request) -> Result<(u16, Vec<u8>), Box<dyn std::error::Error>> {
        let url = self.sign(&request);
        let socket = TokioIo::new(TcpStream::connect(self.address).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(socket).await?;
        tokio::spawn(connection);
        let mut built = http::Request::builder()
            .method(request.method)
            .uri(url.split_once(&self.address.to_string()).map_or("/", |(_, path)| path))
            .header("host", self.address.to_string());
        for (name, value) in &request.headers {
            built = built.header(name, value);
        }
        let answer = sender.send_request(built.body(Full::new(Bytes::from(request.body)))?).await?;
        Ok((answer.status().as_u16(), answer.into_body().collect().await?.to_bytes().to_vec()))
    }

    /// The body of an answer that must have this status.
    pub async fn expect(&self, status: u16, request: Request) -> Vec<u8> {
        let what = format!("{} {} {:?}", request.method, request.path, request.query);
        let (found, body) = self.ask(request).await;
        assert_eq!(found, status, "{what}: {}", String::from_utf8_lossy(&body));
        body
    }
}

/// The text of an element of XML.
pub fn element(xml: &[u8], name: &str) -> String {
    let text = String::from_utf8_lossy(xml).into_owned();
    let (_, rest) = text.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {text}"));
    rest.split_once('<').unwrap().0.replace("&quot;", "\"")
}
