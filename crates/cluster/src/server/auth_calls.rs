//! The calls about users and roles. They are not behind the gate: the caller is checked here.

use std::net::{IpAddr, SocketAddr};

use atoll_security_log::{SecurityEvent, note};
use atoll_types::hosts::HostRequest;
use atoll_types::join::JoinRequest;
use tonic::{Request, Response, Status};

use super::auth::{Access, Auth, Caller, Permission, ROOT};
use super::change::Change;
use super::passwords::{PasswordDigest, is_random};
use super::proto::{auth_server, authpb, *};
use super::services::Services;
use super::tokens::peer_of;
use super::{host_calls, join_login, status};

/// A request whose sender is known.
struct Asked<T> {
    caller: Caller,
    peer: Option<SocketAddr>,
    request: T,
}

impl Services {
    fn asked<T>(&self, request: Request<T>) -> Result<Asked<T>, Status> {
        let peer = request.remote_addr();
        let caller = self.shared.gate.caller(request.metadata()).inspect_err(|error| {
            note(SecurityEvent::BadToken, peer_of(peer), error.message());
        })?;
        Ok(Asked { caller, peer, request: request.into_inner() })
    }

    /// Refuses callers that may not change users and roles.
    fn check_root(&self, auth: &Auth, caller: &Caller) -> Result<(), Status> {
        match caller {
            Caller::Nobody if self.shared.gate.is_shut(auth) => Err(status::user_empty()),
            caller => auth.check_root(caller),
        }
    }

    fn look(&self, caller: &Caller) -> Result<std::sync::Arc<super::state::State>, Status> {
        let state = self.shared.state()?;
        self.check_root(&state.auth, caller)?;
        Ok(state)
    }

    /// Changes users and roles for a caller with the right to.
    async fn change_auth<T>(
        &self,
        asked: Asked<T>,
        change: impl FnOnce(&mut Auth) -> Result<(), Status> + Send + 'static,
    ) -> Result<Option<ResponseHeader>, Status> {
        let (services, caller) = (self.clone(), asked.caller);
        let changed = self.shared.writer.submit(move |all| {
            services.check_root(&all.state().auth, &caller)?;
            change(all.auth())
        });
        self.noted(asked.peer, changed.await)?;
        Ok(self.header())
    }

    /// Users of the data directory are not changed by requests.
    fn refuse_owner(&self, name: &str) -> Result<(), Status> {
        if self.shared.gate.owner() == Some(name) { Err(status::owner_is_fixed()) } else { Ok(()) }
    }

    async fn log_in(&self, request: AuthenticateRequest, address: Option<SocketAddr>) -> Result<String, Status> {
        let AuthenticateRequest { name, password } = request;
        let gate = &self.shared.gate;
        let state = self.shared.state()?;
        if !gate.is_shut(&state.auth) {
            return Err(status::auth_not_enabled());
        }
        if let Some(token) = join_login::token_of(&name) {
            return self.join(token, &password, &peer_of(address)).await;
        }
        if let Some(user) = host_calls::user_of(&name) {
            return self.host_call(&state.auth, user, &password).await;
        }
        if gate.is_owner(&name, &password) {
            return gate.issue(Caller::Owner, None);
        }
        let user = state.auth.users.get(&name).filter(|_| gate.owner() != Some(&*name));
        let known = user.and_then(|user| user.password.clone()).ok_or_else(status::auth_failed)?;
        let address = address.map_or(IpAddr::from([0; 4]), |peer| peer.ip());
        let turn = known.is_slow().then(|| gate.login_turns.begin(address));
        if matches!(turn, Some(None)) {
            return Err(Status::resource_exhausted("too many log-ins are under way; try again"));
        }
        if !is_password(&known, password).await? {
            return Err(status::auth_failed());
        }
        gate.issue(Caller::User(name.into()), Some(known))
    }
}

impl Services {
    async fn join(&self, token: &str, request: &str, peer: &str) -> Result<String, Status> {
        let request: JoinRequest = serde_json::from_str(request).map_err(|_| status::auth_failed())?;
        // Another one takes long, and strangers may ask.
        if !is_random(&request.password) {
            return Err(status::auth_failed());
        }
        let digest = digest_of(request.password.clone()).await?;
        let asked = join_login::Asked { token: token.to_owned(), request, digest, peer: peer.to_owned() };
        let signer = self.shared.signer();
        let joined = self.shared.writer.submit(move |change| join_login::join(change, &asked, &signer)).await?;
        match joined {
            join_login::Outcome::Joined(answer) => {
                Ok(serde_json::to_string(&answer).expect("an answer is plain JSON"))
            }
            join_login::Outcome::Refused(status) => Err(status),
        }
    }

    async fn host_call(&self, auth: &Auth, user: &str, request: &str) -> Result<String, Status> {
        let request: HostRequest = serde_json::from_str(request).map_err(|_| status::auth_failed())?;
        let known = auth.users.get(user).and_then(|user| user.password.clone()).ok_or_else(status::auth_failed)?;
        // Those of hosts are drawn, and compared at once.
        if known.is_slow() || !known.is_of(&request.password) {
            return Err(status::auth_failed());
        }
        let (user, signer) = (user.to_owned(), self.shared.signer());
        let perform = move |change: &mut Change| host_calls::perform(change, &user, &known, &request, &signer);
        self.shared.writer.submit(perform).await.map(|()| "done".into())
    }
}

/// Compares off the threads of the runtime if that takes long.
async fn is_password(known: &PasswordDigest, password: String) -> Result<bool, Status> {
    if !known.is_slow() {
        return Ok(known.is_of(&password));
    }
    let known = known.clone();
    let compared = tokio::task::spawn_blocking(move || known.is_of(&password)).await;
    compared.map_err(|_| status::stopped())
}

async fn digest_of(password: String) -> Result<PasswordDigest, Status> {
    tokio::task::spawn_blocking(move || PasswordDigest::of(&password)).await.map_err(|_| status::stopped())?
}

fn to_permission(given: &authpb::Permission) -> Permission {
    let access = match given.perm_type() {
        authpb::permission::Type::Read => Access::Read,
        authpb::permission::Type::Write => Access::Write,
        authpb::permission::Type::Readwrite => Access::ReadWrite,
    };
    Permission { access, key: given.key.clone(), range_end: given.range_end.clone() }
}

fn to_proto(permission: &Permission) -> authpb::Permission {
    let kind = match permission.access {
        Access::Read => authpb::permission::Type::Read,
        Access::Write => authpb::permission::Type::Write,
        Access::ReadWrite => authpb::permission::Type::Readwrite,
    };
    let (key, range_end) = (permission.key.clone(), permission.range_end.clone());
    authpb::Permission { perm_type: kind.into(), key, range_end }
}

#[tonic::async_trait]
impl auth_server::Auth for Services {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let address = request.remote_addr();
        let peer = peer_of(address);
        let token = self.log_in(request.into_inner(), address).await.inspect_err(|error| match error.code() {
            tonic::Code::InvalidArgument => note(SecurityEvent::BadPassword, &peer, error.message()),
            tonic::Code::PermissionDenied => note(SecurityEvent::RefusedRight, &peer, error.message()),
            // Nothing that a stranger has tried.
            _ => {}
        })?;
        Ok(Response::new(AuthenticateResponse { header: self.header(), token }))
    }

    async fn auth_enable(
        &self,
        request: Request<AuthEnableRequest>,
    ) -> Result<Response<AuthEnableResponse>, Status> {
        let asked = self.asked(request)?;
        // With an owner users are asked for theirs anyway.
        let has_owner = self.shared.gate.owner().is_some();
        let enable = move |auth: &mut Auth| if has_owner { Ok(()) } else { auth.enable() };
        Ok(Response::new(AuthEnableResponse { header: self.change_auth(asked, enable).await? }))
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Result<Response<AuthDisableResponse>, Status> {
        let asked = self.asked(request)?;
        if self.shared.gate.owner().is_some() {
            self.look(&asked.caller)?;
            return Err(status::owner_is_fixed());
        }
        let disable = |auth: &mut Auth| {
            auth.is_enabled = false;
            Ok(())
        };
        Ok(Response::new(AuthDisableResponse { header: self.change_auth(asked, disable).await? }))
    }

    async fn auth_status(
        &self,
        request: Request<AuthStatusRequest>,
    ) -> Result<Response<AuthStatusResponse>, Status> {
        let asked = self.asked(request)?;
        let state = self.look(&asked.caller)?;
        Ok(Response::new(AuthStatusResponse {
            header: self.header(),
            enabled: self.shared.gate.is_shut(&state.auth),
            auth_revision: state.auth.revision + 1,
        }))
    }

    async fn user_add(
        &self,
        request: Request<AuthUserAddRequest>,
    ) -> Result<Response<AuthUserAddResponse>, Status> {
        let mut asked = self.asked(request)?;
        self.look(&asked.caller)?;
        let AuthUserAddRequest { name, password, options } = std::mem::take(&mut asked.request);
        if self.shared.gate.owner() == Some(&*name) {
            return Err(status::user_exists());
        }
        let has_password = !options.is_some_and(|options| options.no_password);
        let digest = if has_password { Some(digest_of(password).await?) } else { None };
        let header = self.change_auth(asked, move |auth| auth.add_user(&name, digest)).await?;
        Ok(Response::new(AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<AuthUserGetRequest>,
    ) -> Result<Response<AuthUserGetResponse>, Status> {
        let Asked { caller, peer, request } = self.asked(request)?;
        let state = self.shared.state()?;
        // Everyone may look at himself.
        if caller != Caller::User(request.name.as_str().into()) {
            self.noted(peer, self.check_root(&state.auth, &caller))?;
        }
        let roles = if self.shared.gate.owner() == Some(&*request.name) {
            vec![ROOT.to_owned()]
        } else {
            let user = state.auth.users.get(&request.name).ok_or_else(status::user_not_found)?;
            user.roles.iter().cloned().collect()
        };
        Ok(Response::new(AuthUserGetResponse { header: self.header(), roles }))
    }

    async fn user_list(
        &self,
        request: Request<AuthUserListRequest>,
    ) -> Result<Response<AuthUserListResponse>, Status> {
        let asked = self.asked(request)?;
        let state = self.noted(asked.peer, self.look(&asked.caller))?;
        let mut users: Vec<String> = state.auth.users.keys().cloned().collect();
        users.extend(self.shared.gate.owner().map(str::to_owned));
        users.sort();
        users.dedup();
        Ok(Response::new(AuthUserListResponse { header: self.header(), users }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Result<Response<AuthUserDeleteResponse>, Status> {
        let mut asked = self.asked(request)?;
        let name = std::mem::take(&mut asked.request.name);
        self.look(&asked.caller)?;
        self.refuse_owner(&name)?;
        let user = name.clone();
        let header = self.change_auth(asked, move |auth| auth.delete_user(&user)).await?;
        self.end_leases_of(&name).await?;
        Ok(Response::new(AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Response<AuthUserChangePasswordResponse>, Status> {
        let mut asked = self.asked(request)?;
        self.look(&asked.caller)?;
        let AuthUserChangePasswordRequest { name, password } = std::mem::take(&mut asked.request);
        self.refuse_owner(&name)?;
        let digest = digest_of(password).await?;
        let header = self.change_auth(asked, move |auth| auth.change_password(&name, Some(digest))).await?;
        Ok(Response::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Response<AuthUserGrantRoleResponse>, Status> {
        let mut asked = self.asked(request)?;
        let AuthUserGrantRoleRequest { user, role } = std::mem::take(&mut asked.request);
        let header = self.change_auth(asked, move |auth| auth.grant_role(&user, &role)).await?;
        Ok(Response::new(AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Response<AuthUserRevokeRoleResponse>, Status> {
        let mut asked = self.asked(request)?;
        let AuthUserRevokeRoleRequest { name, role } = std::mem::take(&mut asked.request);
        let header = self.change_auth(asked, move |auth| auth.revoke_role(&name, &role)).await?;
        Ok(Response::new(AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<AuthRoleAddRequest>,
    ) -> Result<Response<AuthRoleAddResponse>, Status> {
        let mut asked = self.asked(request)?;
        let name = std::mem::take(&mut asked.request.name);
        let header = self.change_auth(asked, move |auth| auth.add_role(&name)).await?;
        Ok(Response::new(AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<AuthRoleGetRequest>,
    ) -> Result<Response<AuthRoleGetResponse>, Status> {
        let Asked { caller, peer, request } = self.asked(request)?;
        let state = self.shared.state()?;
        let is_own =
            |name: &str| state.auth.users.get(name).is_some_and(|user| user.roles.contains(&request.role));
        if !matches!(&caller, Caller::User(name) if is_own(name)) {
            self.noted(peer, self.check_root(&state.auth, &caller))?;
        }
        let role = state.auth.roles.get(&request.role).ok_or_else(status::role_not_found)?;
        let perm = role.permissions.iter().map(to_proto).collect();
        Ok(Response::new(AuthRoleGetResponse { header: self.header(), perm }))
    }

    async fn role_list(
        &self,
        request: Request<AuthRoleListRequest>,
    ) -> Result<Response<AuthRoleListResponse>, Status> {
        let asked = self.asked(request)?;
        let state = self.noted(asked.peer, self.look(&asked.caller))?;
        let roles = state.auth.roles.keys().cloned().collect();
        Ok(Response::new(AuthRoleListResponse { header: self.header(), roles }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Result<Response<AuthRoleDeleteResponse>, Status> {
        let mut asked = self.asked(request)?;
        let role = std::mem::take(&mut asked.request.role);
        let header = self.change_auth(asked, move |auth| auth.delete_role(&role)).await?;
        Ok(Response::new(AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<AuthRoleGrantPermissionResponse>, Status> {
        let mut asked = self.asked(request)?;
        let AuthRoleGrantPermissionRequest { name, perm } = std::mem::take(&mut asked.request);
        let given = perm.as_ref().map(to_permission);
        let grant = move |auth: &mut Auth| {
            let given = given.ok_or_else(status::permission_not_given)?;
            auth.grant_permission(&name, given)
        };
        let header = self.change_auth(asked, grant).await?;
        Ok(Response::new(AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<AuthRoleRevokePermissionResponse>, Status> {
        let mut asked = self.asked(request)?;
        let AuthRoleRevokePermissionRequest { role, key, range_end } = std::mem::take(&mut asked.request);
        let revoke = move |auth: &mut Auth| auth.revoke_permission(&role, &key, &range_end);
        let header = self.change_auth(asked, revoke).await?;
        Ok(Response::new(AuthRoleRevokePermissionResponse { header }))
    }
}
