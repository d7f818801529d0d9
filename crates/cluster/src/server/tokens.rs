//! Callers: passwords, and the tokens given out for them.

use std::collections::HashMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use atoll_connection_limits::LoginTurns;
use atoll_security_log::{SecurityEvent, note};
use tonic::metadata::MetadataMap;
use tonic::service::Interceptor;
use tonic::{Extensions, Request, Status};

use super::auth::{Auth, Caller};
use super::connections::Connections;
use super::passwords::{PasswordDigest, same};
use super::writer::WriterHandle;
use super::{limits, status};
use crate::client::LoginSource;

/// Checks credentials and tokens. Without an owner, and while users are not asked for, everyone may do everything.
#[derive(Clone)]
pub struct Gate {
    owner: Option<Arc<Owner>>,
    tokens: Arc<Mutex<HashMap<String, Token>>>,
    writer: WriterHandle,
    pub connections: Connections,
    /// Turns of users whose passwords are slow to compare.
    pub login_turns: LoginTurns,
}

/// The user of the server's data directory.
struct Owner {
    name: String,
    password: Mutex<Password>,
    /// Where another password is found when one is refused.
    source: Option<LoginSource>,
}

struct Password {
    text: String,
    /// Raised by each change: tokens of before are void.
    changes: u64,
}

impl Owner {
    fn password(&self) -> std::sync::MutexGuard<'_, Password> {
        // It is replaced as a whole.
        self.password.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if this is the password, or the data directory has it from now on.
    fn has_password(&self, given: &str) -> bool {
        if same(given.as_bytes(), self.password().text.as_bytes()) {
            return true;
        }
        let now = self.source.as_ref().and_then(LoginSource::first).filter(|(name, _)| *name == self.name);
        let Some((_, text)) = now.filter(|(_, text)| same(given.as_bytes(), text.as_bytes())) else {
            return false;
        };
        let mut password = self.password();
        *password = Password { text, changes: password.changes + 1 };
        tracing::info!("{} has another password, as the data directory says", self.name);
        true
    }
}

struct Token {
    caller: Caller,
    /// For the owner: the number of changes of the password when the token was given.
    changes: u64,
    /// Password of the user when the token was given: with another password, or another user of that name, it is
    /// void.
    password: Option<PasswordDigest>,
    last_used: Instant,
}

impl Gate {
    pub fn new(owner: Option<(String, String)>, source: Option<LoginSource>, writer: WriterHandle) -> Gate {
        let owner = owner.map(|(name, text)| {
            Arc::new(Owner { name, password: Mutex::new(Password { text, changes: 0 }), source })
        });
        let login_turns = LoginTurns::new(limits::SLOW_LOGINS_OF_NETWORK, limits::SLOW_LOGINS);
        Gate { owner, tokens: Arc::default(), writer, connections: Connections::new(), login_turns }
    }

    /// The name of the user who may do everything by the data directory.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref().map(|owner| owner.name.as_str())
    }

    /// Returns true if callers have to authenticate.
    pub fn is_shut(&self, auth: &Auth) -> bool {
        self.owner.is_some() || auth.is_enabled
    }

    /// Returns true if these are the credentials of the owner.
    pub fn is_owner(&self, user: &str, password: &str) -> bool {
        let Some(owner) = self.owner.as_deref() else { return false };
        same(user.as_bytes(), owner.name.as_bytes()) && owner.has_password(password)
    }

    /// Returns a new token for a user whose password was compared.
    pub fn issue(&self, caller: Caller, password: Option<PasswordDigest>) -> Result<String, Status> {
        let mut bytes = [0u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .map_err(|error| Status::internal(format!("/dev/urandom: {error}")))?;
        let text = hex::encode(bytes);
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        tokens.retain(|_, token| now.duration_since(token.last_used) < limits::TOKEN_IDLE);
        if tokens.len() >= limits::TOKENS {
            return Err(Status::resource_exhausted("too many tokens are in use; wait for some to expire"));
        }
        let changes = self.changes();
        tokens.insert(text.clone(), Token { caller, changes, password, last_used: now });
        Ok(text)
    }

    /// Returns the caller of a request. Without a token it is anonymous.
    pub fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let state = self.writer.state();
        let value = metadata.get("token").or_else(|| metadata.get("authorization"));
        let Some(text) = value.and_then(|value| value.to_str().ok()).filter(|_| self.is_shut(&state.auth)) else {
            return Ok(Caller::Nobody);
        };
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let token = tokens.get_mut(text).ok_or_else(status::invalid_token)?;
        let is_fresh = now.duration_since(token.last_used) < limits::TOKEN_IDLE;
        let is_of_now = match &token.caller {
            Caller::User(name) => {
                state.auth.users.get(&**name).is_some_and(|user| user.password == token.password)
            }
            Caller::Owner => token.changes == self.changes(),
            Caller::Nobody => true,
        };
        if !is_fresh || !is_of_now {
            tokens.remove(text);
            return Err(status::invalid_token());
        }
        token.last_used = now;
        Ok(token.caller.clone())
    }

    fn changes(&self) -> u64 {
        self.owner.as_ref().map_or(0, |owner| owner.password().changes)
    }

    fn admit(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        match self.caller(metadata)? {
            Caller::Nobody if self.is_shut(&self.writer.state().auth) => Err(status::invalid_token()),
            caller => Ok(caller),
        }
    }
}

impl Interceptor for Gate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let caller = self.admit(request.metadata()).inspect_err(|error| {
            note(SecurityEvent::BadToken, peer_of(request.remote_addr()), error.message());
        })?;
        request.extensions_mut().insert(caller);
        if let Some(peer) = request.remote_addr() {
            self.connections.log_in(peer);
        }
        Ok(request)
    }
}

/// Returns the caller of a request that has passed the gate.
pub fn caller_of(extensions: &Extensions) -> Caller {
    extensions.get::<Caller>().cloned().expect("the gate has put it there")
}

/// A peer in the log.
pub(super) fn peer_of(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an unknown peer".into(), |address| address.ip().to_string())
}
