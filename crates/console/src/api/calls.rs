//! Which command a call is.

use std::sync::Arc;

use serde_json::Value;

use super::caller::Caller;
use super::document::Given;
use super::operator_calls;
use super::refusal::Refusal;
use crate::commands::{Command, CommandFailure};
use crate::copies::{COPIES_MAX, CopyJob, Turn};
use crate::shared::Shared;

/// Largest length of a list by default.
const LISTED_MAX: usize = 10_000;

/// Makes a call whose answer is that of a command.
pub(super) async fn perform(
    shared: &Arc<Shared>,
    id: &str,
    given: Given,
    caller: &Caller,
) -> Result<Value, Refusal> {
    let user = &caller.name();
    operator_calls::check_not_oneself(id, &given, user)?;
    let confirmed = confirmation(id, &given);
    if let Some(name) = confirmed.filter(|name| given.text("confirm") != Some(name)) {
        return Err(Refusal::wrong_confirmation(&name));
    }
    let mut commands = commands_of(id, &given).ok_or_else(|| {
        Refusal::internal(format!("the call {id} is in the document, and not made of any command"))
    })?;
    commands = commands.into_iter().map(|command| operator_calls::on_behalf(id, command, caller)).collect();
    let copy = copy_of(shared, id, &given, user)?;
    let (runner, user) = (Arc::clone(&shared.commands), user.to_owned());
    let run = move || {
        let mut answer = Value::Null;
        for command in &commands {
            answer = runner.run(command, &user)?;
        }
        Ok::<_, CommandFailure>(answer)
    };
    let answer =
        tokio::task::spawn_blocking(run).await.map_err(|error| Refusal::internal(error.to_string()))??;
    if let Some((turn, copy)) = copy
        && !is_done(&answer)
    {
        turn.begin(copy);
    }
    Ok(shaped(id, &given, answer))
}

/// The copying that a call begins and does not wait for.
fn copy_of(shared: &Shared, id: &str, given: &Given, user: &str) -> Result<Option<(Turn, CopyJob)>, Refusal> {
    let Some(command) = copy_command(id, given) else { return Ok(None) };
    let turn = shared.copies.turn(&given.name("image")).ok_or_else(|| {
        let message = format!("This server copies {COPIES_MAX} images already.");
        Refusal::conflict(message, "Wait until one of them is done, or use another host's console.")
    })?;
    Ok(Some((turn, CopyJob { runner: Arc::clone(&shared.commands), command, user: user.to_owned() })))
}

/// Returns true if a call that begins to copy found nothing to copy.
fn is_done(answer: &Value) -> bool {
    answer.get("cancelled").is_some()
}

/// Returns the required value of `confirm`, for calls that remove something.
fn confirmation(id: &str, given: &Given) -> Option<String> {
    let name = |name| given.name(name);
    Some(match id {
        "markOsdOut" | "removeOsd" => format!("osd.{}", name("osd")),
        "removePool" => name("pool"),
        "trashImage" | "breakImageLock" => name("image"),
        "resizeImage" if given.is_true("allow_shrink") => name("image"),
        "removeSnapshot" | "rollBackImage" => format!("{}@{}", name("image"), name("snapshot")),
        "removeAccount" => name("account"),
        "removeUser" => name("user"),
        "removeGroup" => name("group"),
        "removeRole" => name("role"),
        "removePolicy" | "removeUserPolicy" | "removeGroupPolicy" | "removeRolePolicy" => name("policy"),
        "removeAccessKey" => name("access_key"),
        "removeOperator" => name("operator"),
        "removeKeyPolicy" => name("key"),
        _ => return None,
    })
}

pub(super) fn command(words: &str) -> Command {
    Command { words: words.split(' ').map(str::to_owned).collect(), operands: Vec::new(), document: None }
}

impl Command {
    pub(super) fn with(mut self, operand: impl Into<String>) -> Self {
        self.operands.push(operand.into());
        self
    }

    pub(super) fn option(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.words.push(format!("--{name}={value}"));
        self
    }

    pub(super) fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.words.push(format!("--{name}"));
        }
        self
    }

    /// With options of these names for the fields of the body that are there.
    pub(super) fn fields(self, given: &Given, names: &[(&str, &str)]) -> Self {
        names.iter().fold(self, |command, (field, option)| match given.body.get(*field) {
            None => command,
            Some(Value::String(text)) => command.option(option, text),
            Some(value) => command.option(option, value),
        })
    }

    /// With whether blocks are sealed, if the body says so.
    fn sealing(self, given: &Given) -> Self {
        match given.body.get("sealed").and_then(Value::as_bool) {
            Some(is_on) => self.option("sealing", on_off(is_on)),
            None => self,
        }
    }

    fn document(mut self, option: Option<&'static str>, document: Option<&Value>) -> Self {
        self.document = document.map(|document| (option, document.clone()));
        self
    }
}

/// The commands of a call, one after the other; the last one has the answer.
fn commands_of(id: &str, given: &Given) -> Option<Vec<Command>> {
    let one = cluster_command(id, given)
        .or_else(|| image_command(id, given))
        .or_else(|| image_use_command(id, given))
        .or_else(|| identity_command(id, given))
        .or_else(|| role_command(id, given))
        .or_else(|| own_policy_command(id, given))
        .or_else(|| key_command(id, given))
        .or_else(|| operator_calls::command_of(id, given));
    one.map(|command| vec![command]).or_else(|| settings_commands(id, given))
}

fn cluster_command(id: &str, given: &Given) -> Option<Command> {
    let name = |name| given.name(name);
    Some(match id {
        "getStatus" => command("status"),
        "listApprovals" => command("approval ls"),
        "getHealth" => command("health"),
        "getSpace" => command("df"),
        "listOsds" => command("osd ls"),
        "getFailureDomains" => command("osd tree"),
        "markOsdOut" => command("osd out").with(name("osd")),
        "markOsdIn" => command("osd in").with(name("osd")),
        "removeOsd" => command("osd rm").flag("lost", given.is_true("lost")).with(name("osd")),
        "reweightOsd" => command("osd reweight")
            .with(name("osd"))
            .with(given.body.get("weight").map(Value::to_string).unwrap_or_default()),
        "setOsdLocation" => {
            let fields = [("host", "host"), ("rack", "rack"), ("zone", "zone")];
            command("osd set-location").fields(given, &fields).with(name("osd"))
        }
        "listPools" => command("pool ls"),
        "createPool" => create_pool(given),
        "removePool" => command("pool rm").option("yes-destroy", name("pool")).with(name("pool")),
        "listPgs" => {
            let asked = |command: Command, name: &str| match given.asked(name) {
                Some(value) => command.option(name, value),
                None => command,
            };
            let listed = asked(asked(command("pg ls"), "pool"), "osd");
            listed.flag("not-clean", given.asked("not_clean") == Some("true"))
        }
        "queryPg" => command("pg query").with(name("pg")),
        "mapObject" => {
            let mapped = command("pg map").option("pool", name("pool"));
            mapped.with(given.asked("object").unwrap_or_default())
        }
        "scrubPg" => command("pg scrub").flag("deep", given.is_true("deep")).with(name("pg")),
        "listFlags" => command("flag ls"),
        "setFlag" => command("flag set").with(name("flag")),
        "unsetFlag" => command("flag unset").with(name("flag")),
        "listSettings" => command("settings ls"),
        "listBuckets" => command("bucket ls"),
        "setBucket" => {
            let is_sealed = given.is_true("new_objects_sealed");
            command("bucket set").with(name("bucket")).with("sealing").with(on_off(is_sealed))
        }
        _ => return None,
    })
}

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn create_pool(given: &Given) -> Command {
    let plain = [
        ("pg_num", "pg-num"),
        ("size", "size"),
        ("min_size", "min-size"),
        ("failure_domain", "failure-domain"),
        ("device_class", "device-class"),
    ];
    let created = command("pool create").fields(given, &plain).with(given.text("name").unwrap_or_default());
    let Some(code) = given.body.get("erasure_code") else { return created };
    let coded = created.option("ec", format!("{}+{}", code["data"], code["parity"]));
    match &code["chunk_bytes"] {
        Value::Null => coded,
        bytes => coded.option("chunk", bytes),
    }
}

/// One command for each field.
fn settings_commands(id: &str, given: &Given) -> Option<Vec<Command>> {
    let value = |value: &Value| match value {
        Value::Null => "any".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let fields = given.body.iter();
    match id {
        "setPool" => Some(
            fields.map(|(key, v)| command("pool set").with(given.name("pool")).with(key).with(value(v))).collect(),
        ),
        "setSetting" => Some(fields.map(|(key, v)| command("settings set").with(key).with(value(v))).collect()),
        _ => None,
    }
}

fn image_command(id: &str, given: &Given) -> Option<Command> {
    let image = || given.name("image");
    let snapshot = || format!("{}@{}", given.name("image"), given.name("snapshot"));
    let text = |name: &str| given.text(name).unwrap_or_default().to_owned();
    Some(match id {
        "listImages" => command("image ls").flag("fast", given.asked("fast") == Some("true")),
        "createImage" => {
            let created = command("image create").fields(given, &[("size_bytes", "size"), ("pool", "pool")]);
            created.sealing(given).with(text("name"))
        }
        "getImage" => command("image info").with(image()),
        "resizeImage" => {
            let resized = command("image resize").fields(given, &[("size_bytes", "size")]);
            resized.flag("allow-shrink", given.is_true("allow_shrink")).with(image())
        }
        "renameImage" => command("image rename").with(image()).with(text("new_name")),
        "trashImage" => {
            let seconds = given.body.get("keep_seconds").and_then(Value::as_u64).unwrap_or(7 * 86_400);
            command("image trash mv").option("keep", format!("{seconds}s")).with(image())
        }
        "listSnapshots" => command("image snap ls").with(image()),
        "createSnapshot" => command("image snap create").with(format!("{}@{}", image(), text("name"))),
        "removeSnapshot" => command("image snap rm").with(snapshot()),
        "renameSnapshot" => command("image snap rename").with(snapshot()).with(text("new_name")),
        "rollBackImage" => command("image snap rollback").with(snapshot()),
        "cloneSnapshot" => {
            let cloned = command("image clone").fields(given, &[("pool", "pool")]).sealing(given);
            cloned.with(snapshot()).with(text("name"))
        }
        "listTrash" => command("image trash ls"),
        "restoreImage" => command("image trash restore").fields(given, &[("name", "name")]).with(given.name("id")),
        _ => return None,
    })
}

/// Returns the commands for users of images, and for their places.
fn image_use_command(id: &str, given: &Given) -> Option<Command> {
    let image = || given.name("image");
    Some(match id {
        "flattenImage" | "migrateImage" | "cancelMigration" => copy_command(id, given)?.flag("no-wait", true),
        "stopFlattening" => command("image flatten").flag("stop", true).with(image()),
        "setImageAccess" => {
            let access = given.text("access").unwrap_or_default().replace('_', "-");
            let clients = given.body.get("clients").and_then(Value::as_array).into_iter().flatten();
            let set = command("image access").flag("reset", true).option("access", access);
            clients.filter_map(Value::as_str).fold(set, |set, client| set.option("allow", client)).with(image())
        }
        "listImageLocks" => command("image lock ls"),
        "breakImageLock" => command("image lock break").flag("yes", true).with(image()),
        _ => return None,
    })
}

/// Returns the command that copies an image to its end.
fn copy_command(id: &str, given: &Given) -> Option<Command> {
    let copy = match id {
        "flattenImage" => command("image flatten"),
        "migrateImage" => command("image migrate").fields(given, &[("pool", "pool")]).sealing(given),
        "cancelMigration" => command("image migrate").flag("cancel", true),
        _ => return None,
    };
    Some(copy.fields(given, &[("rate_bytes", "rate")]).with(given.name("image")))
}

/// A command of an account.
fn of_account(given: &Given, words: &str) -> Command {
    command(words).option("account", given.name("account"))
}

fn role_command(id: &str, given: &Given) -> Option<Command> {
    let of = |words: &str| of_account(given, words);
    Some(match id {
        "listRoles" => of("role ls"),
        "createRole" => {
            let created = of("role create").fields(given, &[("description", "description")]);
            created.with(given.text("name").unwrap_or_default()).document(None, given.body.get("document"))
        }
        "getRole" => of("role show").with(given.name("role")),
        "updateTrustPolicy" => {
            of("role trust").with(given.name("role")).document(None, given.body.get("document"))
        }
        "removeRole" => of("role rm").with(given.name("role")),
        _ => return None,
    })
}

/// Policies of a user's, group's or role's own.
fn own_policy_command(id: &str, given: &Given) -> Option<Command> {
    let (verb, holder) = ["get", "put", "remove"].into_iter().find_map(|verb| {
        let holder = id.strip_prefix(verb)?.strip_suffix("Policy")?;
        ["User", "Group", "Role"].contains(&holder).then(|| (verb, holder.to_lowercase()))
    })?;
    let words = match verb {
        "get" => "policy show",
        "put" => "policy put",
        _ => "policy drop",
    };
    let named = of_account(given, words).option(&holder, given.name(&holder)).with(given.name("policy"));
    Some(named.document(None, given.body.get("document").filter(|_| verb == "put")))
}

fn identity_command(id: &str, given: &Given) -> Option<Command> {
    let text = |name: &str| given.text(name).unwrap_or_default().to_owned();
    let name = |name| given.name(name);
    let of = |words: &str| of_account(given, words);
    let document = given.body.get("document");
    Some(match id {
        "listAccounts" => command("account ls"),
        "createAccount" => command("account create").fields(given, &[("email", "email")]).with(text("name")),
        "setAccount" => {
            command("account set").fields(given, &[("name", "name"), ("email", "email")]).with(name("account"))
        }
        "removeAccount" => command("account rm").with(name("account")),
        "listUsers" => of("user ls"),
        "createUser" => of("user create").fields(given, &[("path", "path")]).with(text("name")),
        "getUser" => of("user show").with(name("user")),
        "removeUser" => of("user rm").with(name("user")),
        "listGroups" => of("group ls"),
        "createGroup" => of("group create").with(text("name")),
        "getGroup" => of("group show").with(name("group")),
        "removeGroup" => of("group rm").with(name("group")),
        "addUserToGroup" => of("group add").with(name("group")).with(name("user")),
        "removeUserFromGroup" => of("group remove").with(name("group")).with(name("user")),
        "listPolicies" => of("policy ls"),
        "createPolicy" => of("policy create").with(text("name")).document(None, document),
        "getPolicy" => of("policy show").with(name("policy")),
        "updatePolicy" => of("policy update").with(name("policy")).document(None, document),
        "removePolicy" => of("policy rm").with(name("policy")),
        "attachPolicy" => of("policy attach").fields(given, &HOLDERS).with(name("policy")),
        "detachPolicy" => of("policy detach").fields(given, &HOLDERS).with(name("policy")),
        _ => return None,
    })
}

const HOLDERS: [(&str, &str); 3] = [("user", "user"), ("group", "group"), ("role", "role")];

fn key_command(id: &str, given: &Given) -> Option<Command> {
    let of = |words: &str| of_account(given, words);
    let access_key = || given.name("access_key");
    Some(match id {
        "listAccessKeys" => match given.asked("user") {
            Some(user) => of("user key ls").with(user),
            None => of("account key ls"),
        },
        "createAccessKey" => {
            let created = match given.text("user") {
                Some(user) => of("user key create").with(user),
                None => of("account key create"),
            };
            let created = created.fields(given, &[("description", "description")]);
            created.document(Some("policy"), given.body.get("policy"))
        }
        "disableAccessKey" => of("user key disable").with(access_key()),
        "enableAccessKey" => of("user key enable").with(access_key()),
        "removeAccessKey" => of("user key rm").with(access_key()),
        "listKeys" => command("key ls"),
        "createKey" => {
            let created = command("key create").fields(given, &[("account", "account")]);
            created.with(given.text("name").unwrap_or_default())
        }
        "getKeyPolicy" => command("key policy get").with(given.name("key")),
        "setKeyPolicy" => {
            let set = command("key policy set").fields(given, &[("account", "account")]).with(given.name("key"));
            set.document(None, given.body.get("document"))
        }
        "removeKeyPolicy" => command("key policy rm").with(given.name("key")),
        "rotateKey" => {
            let is_left = given.body.get("rewrap") == Some(&Value::Bool(false));
            command("key rotate").flag("no-rewrap", is_left).with(given.name("key"))
        }
        "rewrapKeys" => command("key rewrap"),
        _ => return None,
    })
}

/// The answer, where it is not the command's own.
fn shaped(id: &str, given: &Given, answer: Value) -> Value {
    match id {
        "listImages" | "listBuckets" => page(answer, "name", given),
        "listPgs" => page(answer, "pg", given),
        _ => answer,
    }
}

/// Returns the items of a list after one, up to the limit.
fn page(answer: Value, key: &str, given: &Given) -> Value {
    let Value::Array(items) = answer else { return answer };
    let after = given.asked("after");
    let start =
        after.map_or(0, |after| items.iter().position(|item| item[key] == after).map_or(items.len(), |at| at + 1));
    let limit = given.asked("limit").and_then(|limit| limit.parse().ok()).unwrap_or(LISTED_MAX).min(LISTED_MAX);
    Value::Array(items.into_iter().skip(start).take(limit).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::document::operations;

    fn given(names: &[(&str, &str)], body: Value) -> Given {
        Given {
            names: names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            query: Vec::new(),
            body: body.as_object().cloned().unwrap_or_default(),
        }
    }

    /// A call runs the command that the document names for it. These look for themselves, with the functions that the
    /// command calls, too; and some have no command, for which the document has a reason.
    #[test]
    fn every_call_runs_the_command_that_the_document_names() {
        let looks_itself =
            ["approveRequest", "denyRequest", "getFigures", "getPgScrub", "listEvents", "listSlowOperations"];
        let one_field = given(&[], json!({ "size": 3, "document": {} }));
        for operation in operations() {
            let id = &operation.id[..];
            let commands = commands_of(id, &one_field);
            let Some(named) = &operation.command else {
                let has_reason = operation.no_command.as_ref().is_some_and(|reason| reason.ends_with('.'));
                assert!(commands.is_none() && has_reason, "{id}");
                continue;
            };
            assert!(operation.no_command.is_none(), "{id}");
            let Some(commands) = commands else {
                assert!(looks_itself.contains(&id), "{id} runs no command");
                continue;
            };
            assert!(!commands.is_empty() && !looks_itself.contains(&id), "{id}");
            for command in commands {
                let words = command.words.iter().take_while(|word| !word.starts_with("--"));
                assert_eq!(&words.cloned().collect::<Vec<_>>().join(" "), named, "{id}");
            }
        }
    }

    /// Which command it is depends on whose key it is.
    #[test]
    fn access_keys_of_users_are_those_of_the_commands_of_users() {
        let body = given(&[("account", "a")], json!({ "user": "ann" }));
        assert_eq!(commands_of("createAccessKey", &body).unwrap()[0].words[..3], ["user", "key", "create"]);
        let asked = Given { query: vec![("user".into(), "ann".into())], ..given(&[("account", "a")], json!({})) };
        assert_eq!(commands_of("listAccessKeys", &asked).unwrap()[0].words[..3], ["user", "key", "ls"]);
    }

    #[test]
    fn names_are_operands_and_fields_are_options() {
        let given = given(&[("account", "--a"), ("user", "--all")], json!({ "confirm": "--all" }));
        let commands = commands_of("removeUser", &given).unwrap();
        assert_eq!(commands[0].words, ["user", "rm", "--account=--a"]);
        assert_eq!(commands[0].operands, ["--all"]);
        assert_eq!(confirmation("removeUser", &given).as_deref(), Some("--all"));
    }

    #[test]
    fn the_rights_of_an_export_are_set_as_a_whole() {
        let given =
            given(&[("image", "i")], json!({ "access": "multi_attach", "clients": ["vm1", "10.0.0.0/8"] }));
        let set = &commands_of("setImageAccess", &given).unwrap()[0];
        let options = ["--reset", "--access=multi-attach", "--allow=vm1", "--allow=10.0.0.0/8"];
        assert_eq!((&set.words[2..], &set.operands[..]), (&options.map(str::to_owned)[..], &["i".to_owned()][..]));
    }

    #[test]
    fn a_call_that_copies_waits_only_afterwards() {
        let given = given(&[("image", "i")], json!({ "pool": "fast", "rate_bytes": 5, "sealed": true }));
        let begun = &commands_of("migrateImage", &given).unwrap()[0];
        let whole = ["image", "migrate", "--pool=fast", "--sealing=on", "--rate=5"];
        assert_eq!(copy_command("migrateImage", &given).unwrap().words, whole);
        assert_eq!(begun.words, [&whole[..], &["--no-wait"]].concat());
        assert_eq!(copy_command("stopFlattening", &given), None);
        let cancelled = ["image", "migrate", "--cancel", "--rate=5"];
        assert_eq!(copy_command("cancelMigration", &given).unwrap().words, cancelled);
    }

    #[test]
    fn a_policy_of_its_own_is_that_of_its_holder() {
        let names = [("account", "a"), ("user", "ann"), ("group", "g"), ("policy", "home")];
        let given = given(&names, json!({ "document": { "Version": "2012-10-17" }, "confirm": "home" }));
        let put = &commands_of("putGroupPolicy", &given).unwrap()[0];
        assert_eq!(put.words, ["policy", "put", "--account=a", "--group=g"]);
        assert_eq!((&put.operands[..], put.document.is_some()), (&["home".to_owned()][..], true));
        let removed = &commands_of("removeUserPolicy", &given).unwrap()[0];
        assert_eq!((removed.words.last().unwrap().as_str(), &removed.document), ("--user=ann", &None));
        assert_eq!(commands_of("removePolicy", &given).unwrap()[0].words, ["policy", "rm", "--account=a"]);
    }

    #[test]
    fn a_page_begins_after_an_item() {
        let items = json!([{ "name": "a" }, { "name": "b" }, { "name": "c" }]);
        let asked = |query: &[(&str, &str)]| Given {
            query: query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..Given::default()
        };
        assert_eq!(
            page(items.clone(), "name", &asked(&[("after", "a"), ("limit", "1")])),
            json!([{ "name": "b" }])
        );
        assert_eq!(page(items.clone(), "name", &asked(&[("after", "c")])), json!([]));
        assert_eq!(page(items.clone(), "name", &asked(&[])), items);
    }
}
