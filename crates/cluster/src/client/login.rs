//! The connection under a client, and its user. A host's password changes while its processes run: a refused
//! client looks for another one, and continues with that.

use std::sync::{Arc, Mutex, PoisonError};

use super::{ClusterError, ConnectOptions, Repeat, etcd_options, repeat};

/// A user and a password.
pub type Login = (String, String);

/// Says which users and passwords there are now, the likeliest first.
#[derive(Clone)]
pub struct LoginSource(Arc<dyn Fn() -> Vec<Login> + Send + Sync>);

impl LoginSource {
    /// Asks this function, which may read a file.
    pub fn new(read: impl Fn() -> Vec<Login> + Send + Sync + 'static) -> LoginSource {
        LoginSource(Arc::new(read))
    }
}

impl LoginSource {
    /// The likeliest login.
    pub fn first(&self) -> Option<Login> {
        (self.0)().into_iter().next()
    }
}

impl std::fmt::Debug for LoginSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoginSource")
    }
}

/// A connection of one user.
struct Current {
    etcd: etcd_client::Client,
    login: Option<Login>,
}

/// The connection, which is replaced when its user is refused.
pub(super) struct Session {
    current: Mutex<Current>,
    /// Held while another user is tried.
    replacing: tokio::sync::Mutex<()>,
}

async fn connect(options: &ConnectOptions) -> Result<Current, ClusterError> {
    let etcd_options = etcd_options(options)?;
    let etcd = repeat(options, "connect", Repeat::Freely, || {
        etcd_client::Client::connect(options.endpoints.clone(), Some(etcd_options.clone()))
    });
    let login = options.user.clone().map(|user| (user, options.password.clone().unwrap_or_default()));
    Ok(Current { etcd: etcd.await?, login })
}

/// The logins of the source that were not refused already.
fn others(options: &ConnectOptions, refused: Option<&Login>) -> Vec<Login> {
    let all = options.login.as_ref().map(|source| (source.0)()).unwrap_or_default();
    all.into_iter().filter(|login| Some(login) != refused).collect()
}

impl Session {
    pub async fn begin(options: &ConnectOptions) -> Result<Session, ClusterError> {
        let mut begun = connect(options).await;
        if matches!(begun, Err(ClusterError::Authentication { .. })) {
            let refused = options.user.clone().zip(options.password.clone());
            for (user, password) in others(options, refused.as_ref()) {
                let connected = connect(&options.clone().with_user(user, password)).await;
                if connected.is_ok() {
                    begun = connected;
                    break;
                }
            }
        }
        Ok(Session { current: Mutex::new(begun?), replacing: tokio::sync::Mutex::default() })
    }

    /// The connection as it is now.
    pub fn etcd(&self) -> etcd_client::Client {
        self.lock().etcd.clone()
    }

    /// Returns the user that it logs in as.
    pub fn user(&self) -> Option<String> {
        self.lock().login.as_ref().map(|(user, _)| user.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        // It is replaced as a whole.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a refusal, tries the logins that there are now. Says whether one of them is taken.
    pub async fn log_in_anew(&self, options: &ConnectOptions) -> bool {
        let refused = self.lock().login.clone();
        let _alone = self.replacing.lock().await;
        let now = self.lock().login.clone();
        if now != refused {
            // Somebody else has done it meanwhile.
            return true;
        }
        for (user, password) in others(options, refused.as_ref()) {
            match connect(&options.clone().with_user(user.clone(), password)).await {
                Ok(connected) => {
                    tracing::info!("logged in to cluster state as {user}, with another password than before");
                    *self.lock() = connected;
                    return true;
                }
                Err(error) => tracing::debug!("cluster state refuses another login of this host: {error}"),
            }
        }
        false
    }
}
