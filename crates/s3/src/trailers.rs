//! The trailers of a request's body. They are there only once the body was read.

use std::sync::{Arc, OnceLock};

use http::{Extensions, HeaderMap};
use s3s::TrailingHeaders;

/// Returns true if a request's body is in aws-chunked framing, perhaps with trailers.
pub(crate) fn is_aws_chunked(headers: &HeaderMap) -> bool {
    let sha256 = headers.get("x-amz-content-sha256");
    sha256.is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-"))
}

/// Trailers of a body that the shell decodes, in the extensions of its request.
#[derive(Clone, Default)]
pub(crate) struct ArrivingTrailers(Arc<OnceLock<HeaderMap>>);

impl ArrivingTrailers {
    /// They have arrived. That happens once.
    pub(crate) fn set(&self, trailers: HeaderMap) {
        self.0.get_or_init(|| trailers);
    }
}

/// Trailers, by the decoder of the body.
pub(crate) enum Trailers {
    /// By s3s: the request is signed.
    Signed(TrailingHeaders),
    /// By the shell: it is not.
    Unsigned(ArrivingTrailers),
}

impl Trailers {
    /// Those of a request with these extensions and this handle of s3s, if it can have any.
    pub(crate) fn of(extensions: &Extensions, signed: Option<TrailingHeaders>) -> Option<Self> {
        let unsigned = || extensions.get::<ArrivingTrailers>().cloned().map(Trailers::Unsigned);
        signed.map(Trailers::Signed).or_else(unsigned)
    }

    /// The trailer with this name, if it has arrived.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let find = |trailers: &HeaderMap| Some(trailers.get(name)?.to_str().ok()?.to_owned());
        match self {
            Trailers::Signed(trailers) => trailers.read(find)?,
            Trailers::Unsigned(trailers) => find(trailers.0.get()?),
        }
    }
}
