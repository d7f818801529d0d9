//! One user with one password, and the tokens given out for it.

use std::collections::HashMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use atoll_security_log::{SecurityEvent, note};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::{join_login, limits, status};

/// Checks credentials and tokens. Without credentials everyone may do everything.
#[derive(Clone)]
pub struct Gate {
    guard: Option<Arc<Guard>>,
}

struct Guard {
    user: String,
    password: String,
    /// When each was last used.
    tokens: Mutex<HashMap<String, Instant>>,
}

impl Gate {
    pub fn new(credentials: Option<(String, String)>) -> Gate {
        let guard = credentials
            .map(|(user, password)| Arc::new(Guard { user, password, tokens: Mutex::new(HashMap::new()) }));
        Gate { guard }
    }

    /// A new token for the right credentials.
    pub fn authenticate(&self, user: &str, password: &str) -> Result<String, Status> {
        let guard = self.guard.as_ref().ok_or_else(status::auth_not_enabled)?;
        let is_right =
            same(user.as_bytes(), guard.user.as_bytes()) & same(password.as_bytes(), guard.password.as_bytes());
        if !is_right {
            return Err(status::auth_failed());
        }
        let mut bytes = [0u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .map_err(|error| Status::internal(format!("/dev/urandom: {error}")))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut tokens = guard.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        tokens.retain(|_, used| now.duration_since(*used) < limits::TOKEN_IDLE);
        if tokens.len() >= limits::TOKENS {
            return Err(Status::resource_exhausted("too many tokens are in use; wait for some to expire"));
        }
        tokens.insert(token.clone(), now);
        Ok(token)
    }
}

impl Gate {
    /// What a host that joins needs to log in as all hosts do.
    pub fn login_of_hosts(&self) -> Result<String, Status> {
        let guard = self.guard.as_ref().ok_or_else(status::auth_not_enabled)?;
        Ok(join_login::answer(&guard.user, &guard.password))
    }

    /// Whether a request has a token that holds.
    fn check(&self, request: &Request<()>) -> Result<(), Status> {
        let Some(guard) = &self.guard else { return Ok(()) };
        let metadata = request.metadata();
        let token = metadata
            .get("token")
            .or_else(|| metadata.get("authorization"))
            .and_then(|value| value.to_str().ok())
            .ok_or_else(status::invalid_token)?;
        let mut tokens = guard.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match tokens.get_mut(token) {
            Some(used) if now.duration_since(*used) < limits::TOKEN_IDLE => *used = now,
            _ => return Err(status::invalid_token()),
        }
        Ok(())
    }
}

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.check(&request).inspect_err(|error| {
            note(SecurityEvent::BadToken, peer_of(request.remote_addr()), error.message());
        })?;
        Ok(request)
    }
}

/// A peer in the log.
pub(super) fn peer_of(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an unknown peer".into(), |address| address.ip().to_string())
}

/// Takes as long for a near miss as for a far one.
pub(super) fn same(given: &[u8], known: &[u8]) -> bool {
    let difference = given.iter().zip(known).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == known.len() && difference == 0
}
