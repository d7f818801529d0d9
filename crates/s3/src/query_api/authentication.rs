//! Signer of a request.

use std::sync::Arc;

use super::error::QueryError;
use super::signature_v4::Signature;
use super::{Api, QueryRequest};
use crate::clock::unix_ms;
use crate::users::Signer;

/// Where IAM is in AWS, so that clients sign for it wherever they are.
const HOME_REGION: &str = "us-east-1";
/// Region in the signatures of clients that use the one STS of the whole of AWS.
const GLOBAL_REGION: &str = "aws-global";

impl QueryRequest<'_> {
    /// Verifies the signature; returns the signer.
    pub(super) async fn authenticate(&self, api: Api) -> Result<Signer, QueryError> {
        let signature = Signature::find(&self.parts.headers)?;
        let mut regions = vec![self.gateway.config.region.as_str(), HOME_REGION];
        if api == Api::Sts {
            regions.push(GLOBAL_REGION);
        }
        regions.dedup();
        signature.check_scope(api.name(), &regions, unix_ms())?;
        let users = &self.gateway.users;
        let secret = users.secret_of(signature.access_key).await?.ok_or(QueryError::InvalidClientTokenId)?;
        signature.verify(&secret, self.parts, self.body)?;
        let token = match self.parts.headers.get("x-amz-security-token") {
            Some(token) => Some(token.to_str().map_err(|_| QueryError::InvalidClientTokenId)?),
            None => None,
        };
        let signer = users.signer(signature.access_key, token).await?;
        self.observe_caller(&signer);
        users.note_use(signature.access_key, api.name(), signature.scope.region);
        Ok(signer)
    }

    /// Notes who has signed, as identities were heard of last. An identity that is gone is refused later.
    fn observe_caller(&self, signer: &Signer) {
        let identities = self.gateway.service.directory.identities();
        if let Ok(caller) = signer.caller(&identities) {
            self.observe(|observed| observed.set_caller(&Arc::new(caller)));
        }
    }
}
