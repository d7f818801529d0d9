//! The users of hosts, for those who may manage users.

use etcd_client::{Permission, PermissionType};

use super::{ClusterClient, ClusterError, Repeat};
use crate::roles::{Grant, Role, grants};

/// How etcd and the embedded server say that something is there already, or not there.
const IS_THERE: &str = "already exists";
const IS_NOT_THERE: &str = "not found";

fn is_refusal(error: &ClusterError, text: &str) -> bool {
    matches!(error, ClusterError::Refused { cause, .. } if cause.contains(text))
}

impl ClusterClient {
    /// The user that it logs in as; none where cluster state asks for none.
    pub fn user(&self) -> Option<String> {
        self.session.user()
    }

    /// The roles of its own user; nothing where cluster state asks for no user.
    pub async fn own_roles(&self) -> Result<Option<Vec<String>>, ClusterError> {
        let Some(user) = self.user() else { return Ok(None) };
        let asked = self.asked("read its own roles", Repeat::Freely, |etcd| {
            let (mut etcd, user) = (etcd.clone(), user.clone());
            async move { etcd.user_get(user).await }
        });
        Ok(Some(asked.await?.roles().to_vec()))
    }

    /// All users.
    pub async fn users(&self) -> Result<Vec<String>, ClusterError> {
        let asked = self.asked("list users", Repeat::Freely, |etcd| {
            let mut etcd = etcd.clone();
            async move { etcd.user_list().await }
        });
        Ok(asked.await?.users().to_vec())
    }

    /// Sets the roles of hosts to those of this release, and makes a user with some of them and with these grants.
    /// One that is there gets this password.
    pub async fn make_user(
        &self,
        user: &str,
        password: &str,
        roles: &[Role],
        own: &[Grant],
    ) -> Result<(), ClusterError> {
        for role in Role::ALL {
            self.make_role(role.name(), &grants(role)).await?;
        }
        self.make_role(user, own).await?;
        let made = self.asked("make a user", Repeat::Freely, |etcd| {
            let (mut etcd, user, password) = (etcd.clone(), user.to_owned(), password.to_owned());
            async move { etcd.user_add(user, password, None).await.map(drop) }
        });
        match made.await {
            Err(error) if is_refusal(&error, IS_THERE) => {
                let changed = self.asked("change a password", Repeat::Freely, |etcd| {
                    let (mut etcd, user, password) = (etcd.clone(), user.to_owned(), password.to_owned());
                    async move { etcd.user_change_password(user, password).await.map(drop) }
                });
                changed.await?;
            }
            made => made?,
        }
        for role in roles.iter().map(|role| role.name()).chain([user]) {
            let granted = self.asked("grant a role", Repeat::Freely, |etcd| {
                let mut etcd = etcd.clone();
                async move { etcd.user_grant_role(user, role).await.map(drop) }
            });
            granted.await?;
        }
        Ok(())
    }

    async fn make_role(&self, name: &str, grants: &[Grant]) -> Result<(), ClusterError> {
        let made = self.asked("make a role", Repeat::Freely, |etcd| {
            let mut etcd = etcd.clone();
            async move { etcd.role_add(name).await.map(drop) }
        });
        match made.await {
            Err(error) if is_refusal(&error, IS_THERE) => {}
            made => made?,
        }
        for grant in grants {
            let kind = match (grant.reads, grant.writes) {
                (true, true) => PermissionType::Readwrite,
                (false, true) => PermissionType::Write,
                _ => PermissionType::Read,
            };
            let permission = Permission::new(kind, grant.key.clone()).with_range_end(grant.range_end.clone());
            let granted = self.asked("grant a permission", Repeat::Freely, |etcd| {
                let (mut etcd, permission) = (etcd.clone(), permission.clone());
                async move { etcd.role_grant_permission(name, permission).await.map(drop) }
            });
            granted.await?;
        }
        Ok(())
    }

    /// Removes a user with the role of its own. Says whether it was there.
    pub async fn remove_user(&self, user: &str) -> Result<bool, ClusterError> {
        let removed = self.asked("remove a user", Repeat::Freely, |etcd| {
            let mut etcd = etcd.clone();
            async move { etcd.user_delete(user).await.map(drop) }
        });
        let was_there = match removed.await {
            Err(error) if is_refusal(&error, IS_NOT_THERE) => false,
            removed => removed.map(|()| true)?,
        };
        let removed = self.asked("remove a role", Repeat::Freely, |etcd| {
            let mut etcd = etcd.clone();
            async move { etcd.role_delete(user).await.map(drop) }
        });
        match removed.await {
            Err(error) if !is_refusal(&error, IS_NOT_THERE) => Err(error),
            _ => Ok(was_there),
        }
    }
}
