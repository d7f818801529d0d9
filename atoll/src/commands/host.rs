//! Hosts: the list, the rights of each in cluster state, and revocation.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use atoll_admin::hosts::{self, Host, Taken};
use atoll_authority::{Published, fingerprint};
use atoll_cluster::ClusterClient;
use atoll_node::{OtherLogin, look_at_pin, pin, renew_identity, rotate_login};
use atoll_terminal::{print_line, print_note};
use atoll_types::join::HostRole;
use clap::Subcommand;
use serde_json::json;

use super::arguments::OutputArguments;
use super::cluster::token::RoleArgument;
use super::open_cluster::{OpenCluster, connected};
use super::output::{ago, print_json, print_table};
use super::secret_file::write_new_secret;

#[derive(Subcommand)]
pub enum HostCommand {
    /// List hosts, their roles, and their users in cluster state
    #[command(after_help = "\
Examples:
  atoll host ls
  atoll host ls --json | jq -r '.[] | select(.user == null).host'")]
    Ls(OutputArguments),
    /// Give a host of an etcd a user of its own, with the rights of its roles
    #[command(after_help = "\
Example:
  atoll host add h2 --role osd --password-file h2.password
  atoll up --join token-of-h2 --etcd-user atoll-h2 --etcd-password-file h2.password      # on h2

It is for an etcd whose users are asked for ('etcdctl auth enable'), on a host that logs in as one with the role root. A
host that joins the embedded cluster state gets its user by 'atoll cluster token create --role ROLE'.")]
    Add {
        #[command(flatten)]
        output: OutputArguments,
        /// Its name
        host: String,
        /// Kinds of processes that the host runs
        #[arg(long)]
        role: RoleArgument,
        /// A new file for its password
        #[arg(long, value_name = "FILE")]
        password_file: PathBuf,
    },
    /// Shut a host out: its rights in cluster state, its keys, its certificate, and its OSDs
    #[command(after_help = "\
Example:
  atoll host revoke h2 --yes

Its user in cluster state is removed, so its processes are refused from then on. The keys of its gateway, clients and
OSDs are revoked. Other hosts forget its admin server. Its OSDs are out, and other OSDs take over their PGs as soon as
these have other copies. A host whose keys/kms.json may have leaked needs more: 'atoll key rotate',
and new secrets for its users. Call it on the host that made the cluster. It may be repeated.")]
    Revoke {
        #[command(flatten)]
        output: OutputArguments,
        /// Its name
        host: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Forget a host that was shut out and has no OSDs any more; another one can have its name then
    #[command(after_help = "Example:\n  atoll host rm h2")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// Its name
        host: String,
    },
    /// Give this host another password in cluster state, while its processes run
    #[command(after_help = "\
Examples:
  atoll host rotate
  for h in h1 h2 h3; do ssh $h atoll host rotate --data /srv/atoll; done

A host that joined with an earlier release logs in as all hosts did, with all rights: it gets a user of its own, with the
rights of its roles. When all have one ('atoll host ls'), call it on the host that made the cluster: the password that
they shared is changed there, and no longer valid.")]
    Rotate {
        #[command(flatten)]
        output: OutputArguments,
        /// Change the shared password although hosts log in with it, which are then cut off
        #[arg(long)]
        force: bool,
    },
    /// Show the key of signed records that this host accepts, or accept the one that signs now
    #[command(after_help = "\
Examples:
  atoll host pin                              compare the fingerprints with those of a host with the key service
  atoll host pin --yes --fingerprint 1f0c-...

A host without keys/kms.json remembers the public key that signs pools, settings and process keys, and follows its
successors. After 'atoll up --new-key kms', or when a host has seen a false key first, it refuses all of them: then the
right key has to be named here. Take its fingerprint from 'atoll host pin' on a host with keys/kms.json. Restart the
processes of this host afterwards ('atoll down', 'atoll up').")]
    Pin {
        #[command(flatten)]
        output: OutputArguments,
        /// Accept the key that signs now, in place of the remembered one
        #[arg(long)]
        yes: bool,
        /// Accept only the key with this fingerprint
        #[arg(long, requires = "yes")]
        fingerprint: Option<String>,
    },
    /// Give this host's servers another private key for TLS, and a certificate for it
    #[command(after_help = "\
Gateways, NBD servers and the admin server load it by themselves; open connections stay. Clients trust it by
tls/ca.crt, as the previous one. A certificate that Atoll has not made is left alone.

Example:
  atoll host renew-tls")]
    RenewTls(OutputArguments),
}

/// `atoll host`.
pub fn run(command: &HostCommand) -> anyhow::Result<()> {
    match command {
        HostCommand::Ls(output) => connected(output, async |open, state| list(open, &state, output).await),
        HostCommand::Add { output, host, role, password_file } => connected(output, async |open, state| {
            add(open, &state, output, host, (*role).into(), password_file).await
        }),
        HostCommand::Revoke { output, host, yes } => {
            connected(output, async |open, state| revoke(open, &state, output, host, *yes).await)
        }
        HostCommand::Rm { output, host } => connected(output, async |_, state| {
            hosts::remove(&state, host).await?;
            if output.json {
                return print_json(&json!({ "removed": host }));
            }
            print_line!("host '{host}' is forgotten");
            Ok(())
        }),
        HostCommand::Rotate { output, force } => {
            connected(output, async |open, state| rotate(open, &state, output, *force).await)
        }
        HostCommand::Pin { output, yes, fingerprint } => connected(output, async |open, state| {
            pin_key(open, &state, output, *yes, fingerprint.as_deref()).await
        }),
        HostCommand::RenewTls(output) => {
            let open = OpenCluster::open(&output.data)?;
            let certificate = renew_identity(&open.directory, &open.cluster)?;
            if output.json {
                return print_json(&json!({ "certificate": certificate }));
            }
            print_line!("{} is for another private key from now on", certificate.display());
            Ok(())
        }
    }
}

async fn pin_key(
    open: &OpenCluster,
    state: &ClusterClient,
    output: &OutputArguments,
    yes: bool,
    wanted: Option<&str>,
) -> anyhow::Result<()> {
    let found = look_at_pin(&open.directory, &mut open.cluster.clone(), state).await?;
    let (signs, follows) = match &found.published {
        Published::Follows(key) => (Some(key), true),
        Published::Another(key) => (Some(key), false),
        Published::None => (None, false),
    };
    let name = |key: &String| fingerprint(key).unwrap_or_else(|| "unreadable".into());
    let (pinned, signing) = (found.pinned.as_ref().map(name), signs.map(name));
    if let (Some(wanted), Some(signing)) = (wanted, &signing)
        && wanted != signing
    {
        bail!("the key that signs now has the fingerprint {signing}, and not {wanted}: nothing was changed");
    }
    let accepted = signs.filter(|_| yes && !found.is_verified && found.pinned.as_ref() != signs);
    if let Some(key) = accepted {
        pin(&open.directory, key)?;
    }
    let (is_accepted, is_verified) = (follows || accepted.is_some(), found.is_verified);
    if output.json {
        print_json(&json!({
            "pinned": pinned, "signs": signing, "is_accepted": is_accepted, "is_verified": is_verified,
        }))?;
    } else {
        print_line!("this host remembers   {}", pinned.as_deref().unwrap_or("no key"));
        print_line!("cluster state shows   {}", signing.as_deref().unwrap_or("no key"));
        match (is_verified, follows) {
            (true, true) => print_line!("the key service of this host has confirmed it"),
            (false, true) => print_line!("it is the remembered key, or that one has signed that it follows"),
            (_, false) => {}
        }
    }
    if accepted.is_some() {
        print_note!("restart the processes of this host: 'atoll down', then 'atoll up'");
    }
    match (is_accepted, signs) {
        (true, _) => Ok(()),
        (false, None) => {
            bail!("cluster state shows no key: the cluster does not sign for all ('atoll cluster sign')")
        }
        (false, Some(_)) if is_verified => {
            bail!("the key service of this host has not made that key: it is false")
        }
        (false, Some(_)) => bail!(
            "this host refuses records of that key. If a host with the key service shows the same ('atoll host pin' there), \
             repeat it with --yes"
        ),
    }
}

async fn list(open: &OpenCluster, state: &ClusterClient, output: &OutputArguments) -> anyhow::Result<()> {
    let all = hosts::list(state).await?;
    if output.json {
        return print_json(&all);
    }
    let row = |host: &Host| {
        let osds: Vec<String> = host.osds.iter().map(|osd| osd.0.to_string()).collect();
        vec![
            host.host.clone(),
            host.role.map_or_else(|| "?".into(), |role| role.to_string()),
            login_of(host),
            host.joined_unix_ms.map(ago).unwrap_or_default(),
            host.rotated_unix_ms.map(ago).unwrap_or_default(),
            host.address.clone().unwrap_or_default(),
            osds.join(" "),
        ]
    };
    print_table(
        &["HOST", "ROLE", "LOGIN", "JOINED AGO", "PASSWORD CHANGED AGO", "FROM", "OSDS"],
        &all.iter().map(row).collect::<Vec<_>>(),
    );
    if state.user().is_none() {
        print_note!("cluster state has no authentication: every client that reaches it has all rights");
    } else if all.iter().filter(|host| host.user.is_none() && !host.is_revoked).count() > 1 {
        print_note!(
            "hosts that share a login may do everything: call 'atoll host rotate' on each, and then on the host that made \
             the cluster (this one is '{}')",
            open.cluster.host_name()
        );
    }
    Ok(())
}

fn login_of(host: &Host) -> String {
    match &host.user {
        Some(user) => user.clone(),
        None if host.is_revoked => "shut out".into(),
        None => "shared, or of the cluster's first host".into(),
    }
}

async fn add(
    open: &OpenCluster,
    state: &ClusterClient,
    output: &OutputArguments,
    host: &str,
    role: HostRole,
    file: &Path,
) -> anyhow::Result<()> {
    if open.cluster.is_state_embedded() {
        bail!(
            "hosts of an embedded cluster state get their users when they join: 'atoll cluster token create --role {role}' \
             makes a token for one"
        );
    }
    if state.user().is_none() {
        bail!(
            "the etcd asks for no user, so rights would mean nothing: add one ('etcdctl user add root', 'etcdctl user \
             grant-role root root', 'etcdctl auth enable'), and give it to this host with 'atoll up --etcd-user root \
             --etcd-password-file FILE'"
        );
    }
    let user = format!("atoll-{host}");
    let password = atoll_node::random_password();
    write_new_secret(file, &password)?;
    let given = hosts::give_user(state, host, role, &user, &password, "").await;
    if let Err(error) = given {
        // Nobody has this password.
        let _ = std::fs::remove_file(file);
        return Err(error.into());
    }
    if output.json {
        return print_json(&json!({ "host": host, "role": role, "user": user, "password_file": file }));
    }
    print_line!("host '{host}' logs in to the etcd as {user}, with the rights of role {role}");
    print_line!("on it: --etcd-user {user} --etcd-password-file FILE, with the content of {}", file.display());
    Ok(())
}

async fn revoke(
    open: &OpenCluster,
    state: &ClusterClient,
    output: &OutputArguments,
    host: &str,
    yes: bool,
) -> anyhow::Result<()> {
    if host == open.cluster.host_name() {
        bail!(
            "'{host}' is this host; call this on another one that manages users, or stop this one ('atoll down')"
        );
    }
    if !hosts::may_manage_users(state).await? {
        bail!("this host may not manage users of cluster state; call this on the host that made the cluster");
    }
    if !yes {
        bail!("host '{host}' and its OSDs would be shut out at once; repeat it with --yes");
    }
    let is_json = output.json;
    let taken = hosts::revoke(state, host, |taken| {
        if !is_json {
            print_line!("{}", text_of(taken));
        }
    });
    let taken = taken.await?;
    let is_out = !taken.contains(&Taken::NoUserOfItsOwn);
    if is_json {
        print_json(&json!({ "host": host, "is_shut_out": is_out, "taken": taken }))?;
    }
    if !is_out {
        bail!(
            "host '{host}' logged in as other hosts do, and still can: 'atoll host rotate' on each of the others, and then \
             on the host that made the cluster, changes that password"
        );
    }
    if !is_json {
        print_line!(
            "host '{host}' is shut out; when its OSDs are removed ('atoll osd rm'), 'atoll host rm {host}'"
        );
    }
    Ok(())
}

fn text_of(taken: &Taken) -> String {
    match taken {
        Taken::User { user } => format!("removed its user in cluster state, {user}"),
        Taken::NoUserOfItsOwn => "it has no user of its own in cluster state".into(),
        Taken::Keys { holders } => format!("revoked the keys of {}", holders.join(", ")),
        Taken::Certificate => "forgot the certificate of its admin server".into(),
        Taken::OsdsOut { osds } => {
            let osds: Vec<String> = osds.iter().map(ToString::to_string).collect();
            format!("marked out {}", osds.join(", "))
        }
    }
}

async fn rotate(
    open: &OpenCluster,
    state: &ClusterClient,
    output: &OutputArguments,
    force: bool,
) -> anyhow::Result<()> {
    let sharing: Vec<String> = hosts::list(state)
        .await?
        .into_iter()
        .filter(|host| host.user.is_none() && !host.is_revoked && host.host != open.cluster.host_name())
        .map(|host| host.host)
        .collect();
    if open.cluster.state_listen.is_some() && !sharing.is_empty() && !force {
        bail!(
            "hosts log in with the password that would be changed, and be cut off: {}. Call 'atoll host rotate' there first, \
             which gives them users of their own, or repeat it with --force",
            sharing.join(", ")
        );
    }
    let login = rotate_login(&open.directory, state).await.context("the password is as it was")?;
    let (user, said) = match &login {
        OtherLogin::Password(user) => (
            user,
            "has another password in cluster state; its processes stay \
            connected",
        ),
        OtherLogin::Shared(user) => {
            (user, "has another password in cluster state; the one that hosts shared is void")
        }
        OtherLogin::Own(user) => (
            user,
            "is this host's own from now on; processes that run keep the login that they have until they start again, or \
             it is void",
        ),
    };
    if output.json {
        return print_json(&json!({ "host": open.cluster.host_name(), "user": user }));
    }
    print_line!("{user} {said}");
    Ok(())
}
