//! All operations.

use super::call::HolderKind::{self, Group, Policy, Role, User};
use super::subject::About::{
    self, All, Attachment, KeyOwner, Listing, New, NewProvider, One, OwnUser, PolicyArn, ProviderArn, Renamed,
};
use super::{
    Operation, Run, access_keys, accounts, attached_policies, groups, inline_policies, kms_keys, managed_policies,
    oidc_providers, policy_versions, roles, tags, users,
};

const fn change(name: &'static str, kind: HolderKind, about: About, run: Run) -> Operation {
    Operation { name, is_of_operators: false, is_change: true, kind, about, run }
}

const fn look(name: &'static str, kind: HolderKind, about: About, run: Run) -> Operation {
    Operation { name, is_of_operators: false, is_change: false, kind, about, run }
}

const fn of_operators(name: &'static str, is_change: bool, run: Run) -> Operation {
    Operation { name, is_of_operators: true, is_change, kind: User, about: All, run }
}

pub(super) const OPERATIONS: &[Operation] = &[
    of_operators("CreateAccount", true, accounts::create),
    of_operators("DeleteAccount", true, accounts::delete),
    of_operators("GetAccount", false, accounts::get),
    of_operators("ListAccounts", false, accounts::list),
    of_operators("UpdateAccount", true, accounts::update),
    of_operators("CreateKey", true, kms_keys::create),
    of_operators("DeleteKey", true, kms_keys::delete),
    of_operators("DeleteKeyPolicy", true, kms_keys::delete_policy),
    of_operators("GetKeyPolicy", false, kms_keys::get_policy),
    of_operators("ListKeys", false, kms_keys::list),
    of_operators("PutKeyPolicy", true, kms_keys::put_policy),
    look("GetAccountSummary", User, All, accounts::summary),
    look("ListAccountAliases", User, All, accounts::list_aliases),
    change("CreateUser", User, New(User), users::create),
    change("DeleteUser", User, One(User), users::delete),
    look("GetUser", User, OwnUser, users::get),
    look("ListUsers", User, Listing(User), users::list),
    look("ListGroupsForUser", User, One(User), users::list_groups),
    change("UpdateUser", User, Renamed(User), users::update),
    change("CreateAccessKey", User, OwnUser, access_keys::create),
    change("DeleteAccessKey", User, OwnUser, access_keys::delete),
    look("GetAccessKeyLastUsed", User, KeyOwner, access_keys::last_used),
    look("ListAccessKeys", User, OwnUser, access_keys::list),
    change("UpdateAccessKey", User, OwnUser, access_keys::update),
    change("AddUserToGroup", Group, One(Group), groups::add_user),
    change("CreateGroup", Group, New(Group), groups::create),
    change("DeleteGroup", Group, One(Group), groups::delete),
    look("GetGroup", Group, One(Group), groups::get),
    look("ListGroups", Group, Listing(Group), groups::list),
    change("RemoveUserFromGroup", Group, One(Group), groups::remove_user),
    change("UpdateGroup", Group, Renamed(Group), groups::update),
    change("CreateRole", Role, New(Role), roles::create),
    change("DeleteRole", Role, One(Role), roles::delete),
    look("GetRole", Role, One(Role), roles::get),
    look("ListInstanceProfilesForRole", Role, One(Role), roles::list_instance_profiles),
    look("ListRoles", Role, Listing(Role), roles::list),
    change("UpdateAssumeRolePolicy", Role, One(Role), roles::update_trust_policy),
    change("UpdateRole", Role, One(Role), roles::update),
    change("UpdateRoleDescription", Role, One(Role), roles::update_description),
    change("CreatePolicy", Policy, New(Policy), managed_policies::create),
    change("DeletePolicy", Policy, PolicyArn, managed_policies::delete),
    look("GetPolicy", Policy, PolicyArn, managed_policies::get),
    look("ListPolicies", Policy, Listing(Policy), managed_policies::list),
    look("ListEntitiesForPolicy", Policy, PolicyArn, attached_policies::list_holders),
    change("CreatePolicyVersion", Policy, PolicyArn, policy_versions::create),
    change("DeletePolicyVersion", Policy, PolicyArn, policy_versions::delete),
    look("GetPolicyVersion", Policy, PolicyArn, policy_versions::get),
    look("ListPolicyVersions", Policy, PolicyArn, policy_versions::list),
    change("SetDefaultPolicyVersion", Policy, PolicyArn, policy_versions::set_default),
    change("AttachGroupPolicy", Group, Attachment(Group), attached_policies::attach),
    change("AttachRolePolicy", Role, Attachment(Role), attached_policies::attach),
    change("AttachUserPolicy", User, Attachment(User), attached_policies::attach),
    change("DetachGroupPolicy", Group, Attachment(Group), attached_policies::detach),
    change("DetachRolePolicy", Role, Attachment(Role), attached_policies::detach),
    change("DetachUserPolicy", User, Attachment(User), attached_policies::detach),
    look("ListAttachedGroupPolicies", Group, One(Group), attached_policies::list),
    look("ListAttachedRolePolicies", Role, One(Role), attached_policies::list),
    look("ListAttachedUserPolicies", User, One(User), attached_policies::list),
    change("DeleteGroupPolicy", Group, One(Group), inline_policies::delete),
    change("DeleteRolePolicy", Role, One(Role), inline_policies::delete),
    change("DeleteUserPolicy", User, One(User), inline_policies::delete),
    look("GetGroupPolicy", Group, One(Group), inline_policies::get),
    look("GetRolePolicy", Role, One(Role), inline_policies::get),
    look("GetUserPolicy", User, One(User), inline_policies::get),
    look("ListGroupPolicies", Group, One(Group), inline_policies::list),
    look("ListRolePolicies", Role, One(Role), inline_policies::list),
    look("ListUserPolicies", User, One(User), inline_policies::list),
    change("PutGroupPolicy", Group, One(Group), inline_policies::put),
    change("PutRolePolicy", Role, One(Role), inline_policies::put),
    change("PutUserPolicy", User, One(User), inline_policies::put),
    look("ListPolicyTags", Policy, PolicyArn, tags::list),
    look("ListRoleTags", Role, One(Role), tags::list),
    look("ListUserTags", User, One(User), tags::list),
    change("TagPolicy", Policy, PolicyArn, tags::add),
    change("TagRole", Role, One(Role), tags::add),
    change("TagUser", User, One(User), tags::add),
    change("UntagPolicy", Policy, PolicyArn, tags::remove),
    change("UntagRole", Role, One(Role), tags::remove),
    change("UntagUser", User, One(User), tags::remove),
    change("AddClientIDToOpenIDConnectProvider", User, ProviderArn, oidc_providers::add_client_id),
    change("CreateOpenIDConnectProvider", User, NewProvider, oidc_providers::create),
    change("DeleteOpenIDConnectProvider", User, ProviderArn, oidc_providers::delete),
    look("GetOpenIDConnectProvider", User, ProviderArn, oidc_providers::get),
    look("ListOpenIDConnectProviders", User, All, oidc_providers::list),
    change("RemoveClientIDFromOpenIDConnectProvider", User, ProviderArn, oidc_providers::remove_client_id),
    change("UpdateOpenIDConnectProviderThumbprint", User, ProviderArn, oidc_providers::update_thumbprints),
];
