//! The form of a request: its action, the version of the API, and parameters.

use std::collections::BTreeMap;

use atoll_iam::operations::{IamError, Parameters};

use super::error::QueryError;

/// A request's form, taken apart.
#[derive(Debug)]
pub(super) struct Form {
    pub action: String,
    pub version: String,
    /// All others.
    pub parameters: Parameters,
}

impl Form {
    /// `None` if it names no action. Of a parameter that is there twice AWS takes one or the other.
    pub(super) fn parse(body: &[u8]) -> Result<Option<Self>, QueryError> {
        let mut found = BTreeMap::new();
        let mut twice = None;
        for (name, value) in form_urlencoded::parse(body) {
            if found.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                twice = Some(name.into_owned());
            }
        }
        let Some(action) = found.remove("Action") else { return Ok(None) };
        if let Some(name) = twice {
            let text = format!("The parameter {name} is given more than once");
            return Err(IamError::ValidationError(text).into());
        }
        let version = found.remove("Version").unwrap_or_else(|| "NO_VERSION_SPECIFIED".into());
        Ok(Some(Form { action, version, parameters: found.into_iter().collect() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_taken_apart() {
        let form = Form::parse(b"Action=GetUser&Version=2010-05-08&UserName=a+b%2Fc&Empty=").unwrap().unwrap();
        assert_eq!((form.action.as_str(), form.version.as_str()), ("GetUser", "2010-05-08"));
        assert_eq!(form.parameters, Parameters::from_iter([("UserName", "a b/c"), ("Empty", "")]));
        assert_eq!(Form::parse(b"Action=A").unwrap().unwrap().version, "NO_VERSION_SPECIFIED");
        for none in ["", "Version=2010-05-08", "action=A", "a=b&a=c"] {
            assert!(Form::parse(none.as_bytes()).unwrap().is_none(), "{none}");
        }
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        for form in ["Action=A&Action=B", "Action=A&UserName=a&UserName=a", "Action=A&User%4eame=a&UserName=b"] {
            let error = Form::parse(form.as_bytes()).unwrap_err();
            assert_eq!(error.code(), "ValidationError", "{form}");
        }
    }
}
