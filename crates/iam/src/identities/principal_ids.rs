//! Ids of the principals that policies name: rights belong to a user or role, not to a later holder of its name.

use std::collections::BTreeMap;

use super::Identities;
use crate::policy::Policy;

impl Identities {
    /// The ids of the users and roles that a policy names, by their ARNs. The error is an ARN that names no
    /// principal.
    pub fn principal_ids(&self, policy: &Policy) -> Result<BTreeMap<String, String>, String> {
        let named = policy.principal_arns().into_iter();
        named.map(|arn| self.id_of_principal(&arn).map(|id| (arn.clone(), id)).ok_or(arn)).collect()
    }

    fn id_of_principal(&self, arn: &str) -> Option<String> {
        let (service, rest) = arn.strip_prefix("arn:aws:")?.split_once("::")?;
        let (account, entity) = rest.split_once(':')?;
        let (kind, path_and_name) = entity.split_at(entity.find('/')?);
        let (path, name) = path_and_name.split_at(path_and_name.rfind('/')? + 1);
        match (service, kind) {
            ("iam", "user") => {
                let user = &self.user(account, name)?.record;
                (user.path == path).then(|| user.id.clone())
            }
            ("iam", "role") => {
                let role = &self.role(account, name)?.record;
                (role.path == path).then(|| role.id.clone())
            }
            // The name of the session is the last part.
            ("sts", "assumed-role") => {
                let role = path.trim_matches('/');
                Some(self.role(account, role)?.record.id.clone())
            }
            _ => None,
        }
    }
}
