//! Many operations one after another, against a simple model of users, groups and policies.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::identities::FIRST_ACCOUNT;
use proptest::prelude::*;

use super::{READS, World};

/// One operation. Names come from a few, in either case, so that they meet.
#[derive(Clone, Debug)]
enum Step {
    CreateUser(String),
    DeleteUser(String),
    RenameUser(String, String),
    CreateKey(String),
    DeleteKeys(String),
    CreateGroup(String),
    DeleteGroup(String),
    RenameGroup(String, String),
    Join(String, String),
    Leave(String, String),
    CreatePolicy(String),
    DeletePolicy(String),
    Attach(String, String),
    Detach(String, String),
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "A", "b", "B", "c"]).prop_map(str::to_owned)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => name().prop_map(Step::CreateUser),
        1 => name().prop_map(Step::DeleteUser),
        1 => (name(), name()).prop_map(|(old, new)| Step::RenameUser(old, new)),
        1 => name().prop_map(Step::CreateKey),
        1 => name().prop_map(Step::DeleteKeys),
        2 => name().prop_map(Step::CreateGroup),
        1 => name().prop_map(Step::DeleteGroup),
        1 => (name(), name()).prop_map(|(old, new)| Step::RenameGroup(old, new)),
        3 => (name(), name()).prop_map(|(user, group)| Step::Join(user, group)),
        1 => (name(), name()).prop_map(|(user, group)| Step::Leave(user, group)),
        2 => name().prop_map(Step::CreatePolicy),
        1 => name().prop_map(Step::DeletePolicy),
        2 => (name(), name()).prop_map(|(user, policy)| Step::Attach(user, policy)),
        1 => (name(), name()).prop_map(|(user, policy)| Step::Detach(user, policy)),
    ]
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ModelUser {
    groups: BTreeSet<String>,
    policies: BTreeSet<String>,
    keys: usize,
}

/// All names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    users: BTreeMap<String, ModelUser>,
    groups: BTreeSet<String>,
    policies: BTreeSet<String>,
}

const MISSING: &str = "NoSuchEntity";
const TAKEN: &str = "EntityAlreadyExists";
const IN_USE: &str = "DeleteConflict";

fn free(is_taken: bool) -> Result<(), &'static str> {
    if is_taken { Err(TAKEN) } else { Ok(()) }
}

fn there(is_there: bool) -> Result<(), &'static str> {
    if is_there { Ok(()) } else { Err(MISSING) }
}

fn unused(is_used: bool) -> Result<(), &'static str> {
    if is_used { Err(IN_USE) } else { Ok(()) }
}

impl Model {
    fn user(&mut self, name: &str) -> Result<&mut ModelUser, &'static str> {
        self.users.get_mut(&name.to_lowercase()).ok_or(MISSING)
    }

    fn apply(&mut self, step: &Step) -> Result<(), &'static str> {
        match step {
            Step::CreateUser(name) => {
                free(self.users.contains_key(&name.to_lowercase()))?;
                self.users.insert(name.to_lowercase(), ModelUser::default());
            }
            Step::DeleteUser(name) => {
                let user = self.user(name)?;
                unused(*user != ModelUser::default())?;
                self.users.remove(&name.to_lowercase());
            }
            Step::RenameUser(old, new) => {
                self.user(old)?;
                let (old, new) = (old.to_lowercase(), new.to_lowercase());
                free(old != new && self.users.contains_key(&new))?;
                let user = self.users.remove(&old).unwrap_or_default();
                self.users.insert(new, user);
            }
            Step::CreateKey(name) => self.user(name)?.keys += 1,
            Step::DeleteKeys(name) => self.user(name)?.keys = 0,
            Step::CreateGroup(name) => free(!self.groups.insert(name.to_lowercase()))?,
            Step::DeleteGroup(name) => {
                there(self.groups.contains(&name.to_lowercase()))?;
                unused(self.users.values().any(|user| user.groups.contains(&name.to_lowercase())))?;
                self.groups.remove(&name.to_lowercase());
            }
            Step::RenameGroup(old, new) => {
                let (old, new) = (old.to_lowercase(), new.to_lowercase());
                there(self.groups.contains(&old))?;
                free(old != new && self.groups.contains(&new))?;
                self.groups.remove(&old);
                self.groups.insert(new.clone());
                for user in self.users.values_mut().filter(|user| user.groups.contains(&old)) {
                    user.groups.remove(&old);
                    user.groups.insert(new.clone());
                }
            }
            _ => self.apply_to_both(step)?,
        }
        Ok(())
    }

    /// Steps about a user and something else, and about policies.
    fn apply_to_both(&mut self, step: &Step) -> Result<(), &'static str> {
        match step {
            Step::Join(user, group) => {
                there(self.groups.contains(&group.to_lowercase()))?;
                self.user(user)?.groups.insert(group.to_lowercase());
            }
            Step::Leave(user, group) => {
                there(self.groups.contains(&group.to_lowercase()))?;
                there(self.user(user)?.groups.remove(&group.to_lowercase()))?;
            }
            Step::CreatePolicy(name) => free(!self.policies.insert(name.to_lowercase()))?,
            Step::DeletePolicy(name) => {
                there(self.policies.contains(&name.to_lowercase()))?;
                unused(self.users.values().any(|user| user.policies.contains(&name.to_lowercase())))?;
                self.policies.remove(&name.to_lowercase());
            }
            Step::Attach(user, policy) => {
                let is_policy = self.policies.contains(&policy.to_lowercase());
                let user = self.user(user)?;
                there(is_policy)?;
                user.policies.insert(policy.to_lowercase());
            }
            Step::Detach(user, policy) => there(self.user(user)?.policies.remove(&policy.to_lowercase()))?,
            _ => {}
        }
        Ok(())
    }
}

/// ARNs keep the case of names, so policies are named as they were made.
fn policy_arn(world: &World, name: &str) -> String {
    let found =
        world.identities.policy(FIRST_ACCOUNT, name).map_or(name.to_owned(), |entry| entry.record.name.clone());
    format!("arn:aws:iam::{FIRST_ACCOUNT}:policy/{found}")
}

fn apply(world: &mut World, step: &Step) -> Result<(), &'static str> {
    let (user, group) = ("UserName", "GroupName");
    match step {
        Step::CreateUser(name) => world.run("CreateUser", &[(user, name)]),
        Step::DeleteUser(name) => world.run("DeleteUser", &[(user, name)]),
        Step::RenameUser(old, new) => world.run("UpdateUser", &[(user, old), ("NewUserName", new)]),
        Step::CreateKey(name) => world.run("CreateAccessKey", &[(user, name)]),
        Step::DeleteKeys(name) => {
            let listed = world.run("ListAccessKeys", &[(user, name)])?;
            for key in super::texts(&listed, "AccessKeyMetadata", "AccessKeyId") {
                world.run("DeleteAccessKey", &[(user, name), ("AccessKeyId", &key)])?;
            }
            Ok(listed)
        }
        Step::CreateGroup(name) => world.run("CreateGroup", &[(group, name)]),
        Step::DeleteGroup(name) => world.run("DeleteGroup", &[(group, name)]),
        Step::RenameGroup(old, new) => world.run("UpdateGroup", &[(group, old), ("NewGroupName", new)]),
        Step::Join(name, of) => world.run("AddUserToGroup", &[(user, name), (group, of)]),
        Step::Leave(name, of) => world.run("RemoveUserFromGroup", &[(user, name), (group, of)]),
        Step::CreatePolicy(name) => world.run("CreatePolicy", &[("PolicyName", name), ("PolicyDocument", READS)]),
        Step::DeletePolicy(name) => {
            let arn = policy_arn(world, name);
            world.run("DeletePolicy", &[("PolicyArn", &arn)])
        }
        Step::Attach(name, policy) => {
            let arn = policy_arn(world, policy);
            world.run("AttachUserPolicy", &[(user, name), ("PolicyArn", &arn)])
        }
        Step::Detach(name, policy) => {
            let arn = policy_arn(world, policy);
            world.run("DetachUserPolicy", &[(user, name), ("PolicyArn", &arn)])
        }
    }
    .map(drop)
}

/// The model that the records amount to.
fn told(world: &World) -> Model {
    let identities = &world.identities;
    let keys_of = |name: &str| {
        let keys = identities.access_keys().filter_map(|key| key.record.user.clone());
        keys.filter(|owner| owner.to_lowercase() == name).count()
    };
    let users = identities.users(FIRST_ACCOUNT).map(|user| {
        let record = &user.record;
        let name = record.name.to_lowercase();
        let policies = record.policies.managed.iter();
        let model = ModelUser {
            groups: record.groups.iter().map(|group| group.to_lowercase()).collect(),
            policies: policies.map(|arn| arn.rsplit('/').next().unwrap_or_default().to_lowercase()).collect(),
            keys: keys_of(&name),
        };
        (name, model)
    });
    Model {
        users: users.collect(),
        groups: identities.groups(FIRST_ACCOUNT).map(|group| group.record.name.to_lowercase()).collect(),
        policies: identities.policies(FIRST_ACCOUNT).map(|policy| policy.record.name.to_lowercase()).collect(),
    }
}

/// Checks that every reference has its target.
fn check_references(world: &World) {
    let identities = &world.identities;
    for key in identities.access_keys() {
        if let Some(owner) = &key.record.user {
            let found = identities.user(FIRST_ACCOUNT, owner).map(|user| user.record.name.clone());
            assert_eq!(found.as_ref(), Some(owner), "the user of {}", key.record.access_key);
        }
    }
    for user in identities.users(FIRST_ACCOUNT) {
        for group in &user.record.groups {
            let found = identities.group(FIRST_ACCOUNT, group).map(|group| group.record.name.clone());
            assert_eq!(found.as_ref(), Some(group), "a group of {}", user.record.name);
        }
        for arn in &user.record.policies.managed {
            assert!(identities.managed_policy(FIRST_ACCOUNT, arn).is_some(), "{arn} of {}", user.record.name);
        }
    }
    let ids: BTreeSet<_> = identities.users(FIRST_ACCOUNT).map(|user| user.record.id.clone()).collect();
    assert_eq!(ids.len(), identities.users(FIRST_ACCOUNT).count(), "ids are unique");
}

proptest! {
    #[test]
    fn records_are_as_a_simple_model_has_them(steps in prop::collection::vec(step(), 1..80)) {
        let (mut world, mut model) = (World::new(), Model::default());
        for step in steps {
            let expected = model.apply(&step);
            prop_assert_eq!(apply(&mut world, &step), expected, "{:?}", step);
            prop_assert_eq!(&told(&world), &model, "{:?}", step);
            check_references(&world);
        }
    }
}
