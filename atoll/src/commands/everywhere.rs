//! Answers of the processes of all hosts, for commands that show them.

use atoll_cluster::ClusterClient;
use atoll_console::{Everywhere, OtherHosts, Tells, ThisHost, Unanswered};
use atoll_node::ProcessesFile;
use atoll_terminal::print_line;
use clap::Args;
use serde::de::DeserializeOwned;

use super::open_cluster::OpenCluster;

/// The processes to ask.
#[derive(Args)]
pub struct WhereArguments {
    /// Only processes of this host; may be given several times
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Only this process: osd.N, or the gateway, nbd or nvme of all these hosts
    #[arg(long, value_name = "NAME")]
    pub process: Option<String>,
}

/// Access to the answers of all hosts.
pub struct Lookout<'a> {
    arguments: &'a WhereArguments,
    this: ThisHost,
    /// None if only this host is asked for; an error says why cluster state is not there.
    state: Option<Result<ClusterClient, String>>,
}

impl<'a> Lookout<'a> {
    /// Connects to cluster state, which knows the other hosts, if any of them is to be asked.
    pub async fn open(open: &OpenCluster, arguments: &'a WhereArguments) -> anyhow::Result<Self> {
        let name = open.cluster.host_name();
        let is_only_this = !arguments.host.is_empty() && arguments.host.iter().all(|host| *host == name);
        let processes = match ProcessesFile::running(&open.directory) {
            Some(file) => file.children.into_iter().map(|child| child.name).collect(),
            None if is_only_this || open.cluster.state_listen.is_some() => open.processes()?,
            None => Vec::new(),
        };
        let this = ThisHost { directory: open.directory.clone(), name, processes };
        let state = match is_only_this {
            true => None,
            false => Some(open.connect_soon().await.map_err(|error| super::explain(&error))),
        };
        if this.processes.is_empty() && matches!(state, Some(Err(_))) {
            // There is nobody to ask.
            open.processes()?;
        }
        Ok(Lookout { arguments, this, state })
    }

    fn is_host_wanted(&self, host: &str) -> bool {
        self.arguments.host.is_empty() || self.arguments.host.iter().any(|wanted| wanted == host)
    }

    /// Asks all processes that are wanted. An unknown process or host is an error.
    pub async fn ask<T: Tells + DeserializeOwned>(&self) -> anyhow::Result<Everywhere<T>> {
        let found = match &self.state {
            None => Ok(OtherHosts::default()),
            Some(Ok(client)) => OtherHosts::find_soon(client, &self.this).await,
            Some(Err(error)) => Err(error.clone()),
        };
        let (others, without_state) = match found {
            Ok(others) => (others, None),
            Err(error) => (OtherHosts::default(), Some(Unanswered::no_hosts(error))),
        };
        if without_state.is_none() {
            self.check_hosts(&others)?;
        }
        let with_own = self.is_host_wanted(&self.this.name);
        let mut everywhere = self.this.ask::<T>(&others.only(&self.arguments.host), with_own).await;
        if with_own && self.this.processes.is_empty() {
            let reason = "nothing runs here ('atoll up' starts it)";
            everywhere.unanswered.push(Unanswered::of_host(&self.this.name, reason));
        }
        everywhere.unanswered.extend(without_state);
        self.choose(everywhere)
    }

    fn check_hosts(&self, others: &OtherHosts) -> anyhow::Result<()> {
        let mut names = others.names();
        names.push(&self.this.name);
        match self.arguments.host.iter().find(|host| !names.contains(&&host[..])) {
            None => Ok(()),
            Some(host) => {
                anyhow::bail!("there is no host '{host}' with an admin server; there are {}", names.join(", "))
            }
        }
    }

    /// Leaves only the process that is wanted.
    fn choose<T>(&self, mut everywhere: Everywhere<T>) -> anyhow::Result<Everywhere<T>> {
        let Some(only) = &self.arguments.process else { return Ok(everywhere) };
        let mut names: Vec<String> = everywhere.told.iter().map(|(_, process, _)| process.clone()).collect();
        everywhere.told.retain(|(_, process, _)| process == only);
        everywhere.unanswered.retain(|silent| silent.process.as_ref().is_none_or(|process| process == only));
        if everywhere.told.is_empty() && everywhere.unanswered.is_empty() {
            names.sort();
            names.dedup();
            anyhow::bail!("there is no process '{only}'; there are {}", names.join(", "));
        }
        Ok(everywhere)
    }
}

/// Names below a table the processes that did not answer: with JSON they are in the document.
pub fn say_unanswered(unanswered: &[Unanswered]) {
    if !unanswered.is_empty() {
        print_line!();
    }
    for one in unanswered {
        print_line!("{one}");
    }
}
