//! Users, roles, and the ranges of keys that roles may read and write, with the rules and refusals of etcd. It is a part of
//! the state: durable, in snapshots, and the same for everyone at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::passwords::PasswordDigest;
use super::status;
use crate::roles::Grant;

/// The role that may do everything; the user of this name must have it before others are asked for theirs.
pub const ROOT: &str = "root";

/// Kind of access to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

impl Access {
    fn includes(self, asked: Access) -> bool {
        self == Access::ReadWrite || self == asked
    }
}

/// Right of a role to a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    pub access: Access,
    pub key: Vec<u8>,
    /// As in requests: empty for one key, one zero byte for all from the key on.
    pub range_end: Vec<u8>,
}

impl Permission {
    fn of(grant: &Grant) -> Option<Permission> {
        let access = match (grant.reads, grant.writes) {
            (true, true) => Access::ReadWrite,
            (true, false) => Access::Read,
            (false, true) => Access::Write,
            (false, false) => return None,
        };
        Some(Permission { access, key: grant.key.clone(), range_end: grant.range_end.clone() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// A user without one cannot log in.
    pub password: Option<PasswordDigest>,
    pub roles: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// By key.
    pub permissions: Vec<Permission>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auth {
    pub is_enabled: bool,
    /// Raised by every change.
    pub revision: u64,
    pub users: BTreeMap<String, User>,
    pub roles: BTreeMap<String, Role>,
}

/// The caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A caller without a token.
    Nobody,
    /// The user of the server's own data directory, who has all rights.
    Owner,
    /// A user of the state.
    User(Arc<str>),
}

impl Auth {
    // ---- what somebody may do --------------------------------------------------------------------

    /// Refuses a caller who may not do this with all keys of a range.
    pub fn check_range(&self, caller: &Caller, key: &[u8], range_end: &[u8], asked: Access) -> Result<(), Status> {
        match caller {
            Caller::Owner => Ok(()),
            Caller::Nobody => self.check_nobody(),
            Caller::User(name) => {
                let user = self.users.get(&**name).ok_or_else(status::permission_denied)?;
                if user.roles.contains(ROOT) || self.covers(user, key, range_end, asked) {
                    return Ok(());
                }
                Err(status::permission_denied())
            }
        }
    }

    /// Refuses callers without all rights.
    pub fn check_root(&self, caller: &Caller) -> Result<(), Status> {
        match caller {
            Caller::Owner => Ok(()),
            Caller::Nobody => self.check_nobody(),
            Caller::User(name) if self.users.get(&**name).is_some_and(|user| user.roles.contains(ROOT)) => Ok(()),
            Caller::User(_) => Err(status::permission_denied()),
        }
    }

    fn check_nobody(&self) -> Result<(), Status> {
        if self.is_enabled { Err(status::user_empty()) } else { Ok(()) }
    }

    fn covers(&self, user: &User, key: &[u8], range_end: &[u8], asked: Access) -> bool {
        let roles = user.roles.iter().filter_map(|role| self.roles.get(role));
        let permissions = roles.flat_map(|role| &role.permissions);
        let mut allowed: Vec<Interval> = permissions
            .filter(|permission| permission.access.includes(asked))
            .map(|permission| Interval::new(&permission.key, &permission.range_end))
            .collect();
        allowed.sort();
        Interval::new(key, range_end).is_covered_by(&allowed)
    }

    // ---- changes ---------------------------------------------------------------------------------

    pub fn enable(&mut self) -> Result<(), Status> {
        let root = self.users.get(ROOT).ok_or_else(status::no_root_user)?;
        if !root.roles.contains(ROOT) {
            return Err(status::no_root_role());
        }
        self.is_enabled = true;
        Ok(())
    }

    pub fn add_user(&mut self, name: &str, password: Option<PasswordDigest>) -> Result<(), Status> {
        if name.is_empty() {
            return Err(status::user_empty());
        }
        if self.users.contains_key(name) {
            return Err(status::user_exists());
        }
        self.users.insert(name.to_owned(), User { password, roles: BTreeSet::new() });
        Ok(())
    }

    pub fn delete_user(&mut self, name: &str) -> Result<(), Status> {
        if self.is_enabled && name == ROOT {
            return Err(status::invalid_auth_management());
        }
        self.users.remove(name).map(drop).ok_or_else(status::user_not_found)
    }

    pub fn change_password(&mut self, name: &str, password: Option<PasswordDigest>) -> Result<(), Status> {
        self.user(name)?.password = password;
        Ok(())
    }

    pub fn grant_role(&mut self, user: &str, role: &str) -> Result<(), Status> {
        if !self.users.contains_key(user) {
            return Err(status::user_not_found());
        }
        // The role root need not have been made.
        if role != ROOT && !self.roles.contains_key(role) {
            return Err(status::role_not_found());
        }
        self.user(user)?.roles.insert(role.to_owned());
        Ok(())
    }

    pub fn revoke_role(&mut self, user: &str, role: &str) -> Result<(), Status> {
        if self.is_enabled && user == ROOT && role == ROOT {
            return Err(status::invalid_auth_management());
        }
        if self.user(user)?.roles.remove(role) { Ok(()) } else { Err(status::role_not_granted()) }
    }

    pub fn add_role(&mut self, name: &str) -> Result<(), Status> {
        if name.is_empty() {
            return Err(status::role_empty());
        }
        if self.roles.contains_key(name) {
            return Err(status::role_exists());
        }
        self.roles.insert(name.to_owned(), Role::default());
        Ok(())
    }

    /// Makes a role have exactly these permissions.
    pub fn set_role(&mut self, name: &str, grants: &[Grant]) {
        let mut permissions: Vec<Permission> = grants.iter().filter_map(Permission::of).collect();
        permissions.sort_by(|a, b| (&a.key, &a.range_end).cmp(&(&b.key, &b.range_end)));
        self.roles.insert(name.to_owned(), Role { permissions });
    }

    pub fn delete_role(&mut self, name: &str) -> Result<(), Status> {
        if self.is_enabled && name == ROOT {
            return Err(status::invalid_auth_management());
        }
        self.roles.remove(name).ok_or_else(status::role_not_found)?;
        for user in self.users.values_mut() {
            user.roles.remove(name);
        }
        Ok(())
    }

    pub fn grant_permission(&mut self, role: &str, given: Permission) -> Result<(), Status> {
        let permissions = &mut self.role(role)?.permissions;
        match permissions.iter_mut().find(|known| known.key == given.key && known.range_end == given.range_end) {
            Some(known) => known.access = given.access,
            None => permissions.push(given),
        }
        permissions.sort_by(|a, b| (&a.key, &a.range_end).cmp(&(&b.key, &b.range_end)));
        Ok(())
    }

    pub fn revoke_permission(&mut self, role: &str, key: &[u8], range_end: &[u8]) -> Result<(), Status> {
        let permissions = &mut self.role(role)?.permissions;
        let before = permissions.len();
        permissions.retain(|known| known.key != key || known.range_end != range_end);
        if permissions.len() == before { Err(status::permission_not_granted()) } else { Ok(()) }
    }

    fn user(&mut self, name: &str) -> Result<&mut User, Status> {
        self.users.get_mut(name).ok_or_else(status::user_not_found)
    }

    fn role(&mut self, name: &str) -> Result<&mut Role, Status> {
        self.roles.get_mut(name).ok_or_else(status::role_not_found)
    }
}

/// Neighbouring keys, from the first up to, not including, the end; without one, all that follow.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Interval {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Interval {
    fn new(key: &[u8], range_end: &[u8]) -> Interval {
        let end = match range_end {
            [0] => None,
            end if end > key => Some(end.to_vec()),
            // One key; and a range in which no key can be is not less than its beginning.
            _ => Some([key, &[0]].concat()),
        };
        Interval { start: key.to_vec(), end }
    }

    /// Returns true if these, in order, leave no gap in it.
    fn is_covered_by(&self, allowed: &[Interval]) -> bool {
        let mut reached = self.start.as_slice();
        for interval in allowed {
            if interval.start.as_slice() > reached {
                return false;
            }
            let Some(end) = &interval.end else { return true };
            if self.end.as_ref().is_some_and(|wanted| end >= wanted) {
                return true;
            }
            reached = reached.max(end);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(asked: (&str, &str), allowed: &[(&str, &str)]) -> bool {
        let interval = |(key, end): (&str, &str)| Interval::new(key.as_bytes(), end.as_bytes());
        let mut allowed: Vec<Interval> = allowed.iter().copied().map(interval).collect();
        allowed.sort();
        interval(asked).is_covered_by(&allowed)
    }

    #[test]
    fn a_range_is_covered_without_gaps_only() {
        assert!(covered(("b", ""), &[("a", "c")]));
        assert!(!covered(("c", ""), &[("a", "c")]));
        assert!(covered(("a", "e"), &[("c", "f"), ("a", "c")]));
        assert!(!covered(("a", "e"), &[("d", "f"), ("a", "c")]));
        assert!(covered(("a", "e"), &[("a", "z"), ("b", "c")]));
        assert!(covered(("a", "e"), &[("", "\0")]));
        assert!(!covered(("a", "\0"), &[("a", "zzz")]));
        assert!(covered(("a", "\0"), &[("a", "b"), ("b", "\0")]));
        assert!(covered(("a", "a\0"), &[("a", "")]), "one key, said in two ways");
        assert!(!covered(("a", "b"), &[("a", "")]));
        assert!(!covered(("b", "a"), &[("c", "d")]), "nothing is not everybody's");
        assert!(!covered(("a", ""), &[]));
    }

    #[test]
    fn a_role_that_goes_is_nobodys() {
        let mut auth = Auth::default();
        auth.add_user("u", None).unwrap();
        auth.add_role("r").unwrap();
        auth.grant_role("u", "r").unwrap();
        let given = Permission { access: Access::Read, key: b"/a/".to_vec(), range_end: b"/a0".to_vec() };
        auth.grant_permission("r", given).unwrap();
        let caller = Caller::User("u".into());
        assert!(auth.check_range(&caller, b"/a/b", b"", Access::Read).is_ok());
        assert!(auth.check_range(&caller, b"/a/b", b"", Access::Write).is_err());
        auth.delete_role("r").unwrap();
        auth.add_role("r").unwrap();
        assert!(auth.check_range(&caller, b"/a/b", b"", Access::Read).is_err());
    }
}
