//! Calls about operators and their sessions: the command of each, and the calls that operators may not make about
//! themselves.

use serde_json::Value;

use super::caller::Caller;
use super::calls::command;
use super::document::Given;
use super::refusal::Refusal;
use crate::commands::Command;

pub(super) fn command_of(id: &str, given: &Given) -> Option<Command> {
    let name = || given.name("operator");
    Some(match id {
        "listOperators" => command("operator ls"),
        "createOperator" => {
            with_roles(command("operator create"), given).with(given.text("name").unwrap_or_default())
        }
        "setOperator" => {
            let set = with_roles(command("operator set"), given);
            set.flag("new-password", given.is_true("new_password")).with(name())
        }
        "removeOperator" => command("operator rm").with(name()),
        "listOperatorSessions" => command("operator sessions ls"),
        "endOperatorSession" => command("operator sessions end").with(given.name("session")),
        "endAllSessions" => match given.text("user") {
            Some(user) => command("operator sessions end").option("operator", user),
            None => command("operator sessions end").flag("all", true),
        },
        "resetTotp" => command("operator totp reset").with(name()),
        "listApiTokens" => command("operator token ls"),
        "createApiToken" => {
            let calls = given.body.get("calls").and_then(Value::as_array).into_iter().flatten();
            let made = with_roles(command("operator token create"), given);
            let made = calls.filter_map(Value::as_str).fold(made, |made, call| made.option("call", call));
            let expires = given.body.get("expires_seconds").map(|seconds| format!("{seconds}s"));
            let made = expires.into_iter().fold(made, |made, expires| made.option("expires", expires));
            made.with(given.text("name").unwrap_or_default())
        }
        "revokeApiToken" => command("operator token revoke").with(given.name("token")),
        _ => return None,
    })
}

fn with_roles(command: Command, given: &Given) -> Command {
    let roles = given.body.get("roles").and_then(Value::as_array).into_iter().flatten();
    roles.filter_map(Value::as_str).fold(command, |command, role| command.option("role", role))
}

/// Operators do not change their own roles, and a stolen session does not change its operator's password.
pub(super) fn check_not_oneself(id: &str, given: &Given, user: &str) -> Result<(), Refusal> {
    if ["setOperator", "removeOperator", "resetTotp"].contains(&id) && given.name("operator") == user {
        return Err(Refusal::conflict(
            format!("{user} cannot change or remove himself."),
            "Ask another operator; one's own password is changed with the old one.",
        ));
    }
    Ok(())
}

/// Returns the command as it is run for its caller: a caller that is no admin makes, changes and removes none, and
/// the caller that makes a token is its maker.
pub(super) fn on_behalf(id: &str, command: Command, caller: &Caller) -> Command {
    let is_limited =
        ["createOperator", "setOperator", "removeOperator", "resetTotp", "createApiToken"].contains(&id);
    let command = command.flag("no-admins", is_limited && !caller.is_admin());
    if id == "createApiToken" { command.option("maker", caller.name()) } else { command }
}

#[cfg(test)]
mod tests {
    use atoll_types::operators::OperatorRole;
    use serde_json::json;

    use super::*;
    use crate::api::sessions::tests::session;

    fn given(names: &[(&str, &str)], body: Value) -> Given {
        Given {
            names: names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            query: Vec::new(),
            body: body.as_object().cloned().unwrap_or_default(),
        }
    }

    #[test]
    fn roles_are_options_and_names_are_operands() {
        let body = given(&[], json!({ "name": "--all", "roles": ["storage", "security"] }));
        let caller = |role: OperatorRole| Caller::Session(Box::new(session("a", role)));
        let command = || command_of("createOperator", &body).unwrap();
        let made = on_behalf("createOperator", command(), &caller(OperatorRole::Security));
        assert!(
            !on_behalf("createOperator", command(), &caller(OperatorRole::Admin))
                .words
                .contains(&"--no-admins".into())
        );
        assert_eq!(made.words, ["operator", "create", "--role=storage", "--role=security", "--no-admins"]);
        assert_eq!(made.operands, ["--all"]);
        let one = given(&[], json!({ "user": "ann" }));
        assert_eq!(command_of("endAllSessions", &one).unwrap().words[3..], ["--operator=ann"]);
        assert_eq!(command_of("endAllSessions", &given(&[], json!({}))).unwrap().words[3..], ["--all"]);
    }

    #[test]
    fn a_token_is_made_in_the_name_of_who_asks() {
        let body = given(&[], json!({ "name": "ci", "calls": ["listPools"], "expires_seconds": 60 }));
        let caller = Caller::Session(Box::new(session("a", OperatorRole::Security)));
        let made = on_behalf("createApiToken", command_of("createApiToken", &body).unwrap(), &caller);
        let options = ["--call=listPools", "--expires=60s", "--no-admins", "--maker=ann"];
        assert_eq!(
            (&made.words[3..], &made.operands[..]),
            (&options.map(str::to_owned)[..], &["ci".to_owned()][..])
        );
    }

    #[test]
    fn nobody_changes_himself() {
        let ann = given(&[("operator", "ann")], json!({ "roles": ["admin"] }));
        for id in ["setOperator", "removeOperator"] {
            assert!(check_not_oneself(id, &ann, "ann").is_err() && check_not_oneself(id, &ann, "bob").is_ok());
        }
    }
}
