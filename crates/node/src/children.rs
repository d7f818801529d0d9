//! The processes of this host, started and started again. Nothing that fails here ends the others: it is tried again,
//! and health says so.

use std::path::Path;
use std::time::Duration;

use tokio::process::Child;

use crate::data_dir::DataDir;
use crate::managed::{Managed, ask_to_end, group_of};
use crate::processes::ChildStatus;
use crate::progress::Progress;

const STOP_LIMIT: Duration = Duration::from_secs(8);
/// A process that waits for a device that does not answer cannot even be killed.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// The processes, in the order in which they are stopped, backwards.
pub(crate) struct Children<'a> {
    directory: &'a DataDir,
    executable: &'a Path,
    managed: Vec<Managed>,
}

impl<'a> Children<'a> {
    /// None yet. `executable` is the program with the subcommands of the daemons.
    pub fn new(directory: &'a DataDir, executable: &'a Path) -> Self {
        Children { directory, executable, managed: Vec::new() }
    }

    /// Another one, which [`Children::watch`] starts.
    pub fn add(&mut self, name: &str, arguments: &[&str]) {
        let after = |managed: &Managed| group_of(&managed.name) > group_of(name);
        let position = self.managed.iter().position(after).unwrap_or(self.managed.len());
        self.managed.insert(position, Managed::new(name, arguments));
    }

    /// Starts this host's OSDs that do not run yet, and ends those that were removed.
    pub fn follow_members(&mut self) {
        // A file that cannot be read is none to follow.
        let Ok(cluster) = self.directory.cluster() else { return };
        for osd in &cluster.osd_ids {
            if !self.managed.iter().any(|managed| managed.name == osd.to_string()) {
                self.add(&osd.to_string(), &["osd", "run", "--id", &osd.0.to_string()]);
            }
        }
        let is_left = |managed: &Managed| {
            !managed.is_osd() || cluster.osd_ids.iter().any(|osd| managed.name == osd.to_string())
        };
        let (left, removed): (Vec<_>, Vec<_>) = self.managed.drain(..).partition(is_left);
        self.managed = left;
        for pid in removed.iter().filter_map(|managed| managed.child.as_ref().and_then(Child::id)) {
            ask_to_end(pid);
        }
    }

    /// Starts due processes and notices ended ones.
    pub fn watch(&mut self, show: &dyn Fn(Progress<'_>)) {
        for managed in &mut self.managed {
            managed.watch(self.directory, self.executable, show);
        }
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Managed> {
        self.managed.iter().find(|managed| managed.name == name)
    }

    /// Those of OSDs.
    pub fn osds(&self) -> impl Iterator<Item = &Managed> {
        self.managed.iter().filter(|managed| managed.is_osd())
    }

    /// Returns their entries for the list of processes.
    pub fn statuses(&self) -> Vec<ChildStatus> {
        self.managed.iter().map(Managed::status).collect()
    }

    /// Asks the processes to end, the ones that clients use first, and makes them end if they do not.
    pub async fn stop(&mut self) {
        while let Some(last) = self.managed.last().map(|managed| group_of(&managed.name)) {
            let at = self.managed.iter().position(|managed| group_of(&managed.name) == last).unwrap_or(0);
            let mut group = self.managed.split_off(at);
            for managed in &mut group {
                if let Some(pid) = managed.child.as_ref().and_then(Child::id) {
                    ask_to_end(pid);
                }
            }
            let deadline = tokio::time::Instant::now() + STOP_LIMIT;
            for managed in &mut group {
                let Some(child) = &mut managed.child else { continue };
                if tokio::time::timeout_at(deadline, child.wait()).await.is_err() {
                    // It did not end in time; every process survives being killed.
                    let _ = tokio::time::timeout(KILL_LIMIT, child.kill()).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    const PROGRAM: &str = "#!/bin/sh\nexec sleep 60\n";

    struct Host {
        temporary: tempfile::TempDir,
        directory: DataDir,
        said: RefCell<Vec<String>>,
    }

    impl Host {
        fn new() -> Self {
            let temporary = tempfile::tempdir().unwrap();
            let directory = DataDir::new(&temporary.path().join("data"));
            directory.create().unwrap();
            let installed = temporary.path().join("installed");
            std::fs::write(&installed, PROGRAM).unwrap();
            std::fs::set_permissions(&installed, std::fs::Permissions::from_mode(0o700)).unwrap();
            Host { temporary, directory, said: RefCell::default() }
        }

        fn program(&self) -> std::path::PathBuf {
            self.temporary.path().join("program")
        }

        fn install(&self) {
            std::os::unix::fs::symlink(self.temporary.path().join("installed"), self.program()).unwrap();
        }

        /// Watches until this is so.
        async fn watch(&self, children: &mut Children<'_>, is_so: impl Fn(&Children<'_>) -> bool) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_so(children) {
                assert!(Instant::now() < deadline, "{:?}", children.statuses());
                children.watch(&|progress| {
                    if let Progress::Step(said) = progress {
                        self.said.borrow_mut().push(said.to_owned());
                    }
                });
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    fn status(children: &Children<'_>, name: &str) -> ChildStatus {
        children.statuses().into_iter().find(|status| status.name == name).unwrap()
    }

    #[tokio::test]
    async fn a_process_that_cannot_be_started_is_tried_again_and_the_others_run_on() {
        let host = Host::new();
        host.install();
        let program = host.program();
        let mut children = Children::new(&host.directory, &program);
        children.add("osd.0", &["osd", "run"]);
        host.watch(&mut children, |children| status(children, "osd.0").pid.is_some()).await;
        let osd = status(&children, "osd.0").pid;

        // The program is away, as while a package is replaced.
        std::fs::remove_file(&program).unwrap();
        children.add("nbd", &["nbd", "run"]);
        host.watch(&mut children, |children| status(children, "nbd").failure.is_some()).await;
        let failed = status(&children, "nbd");
        assert!(failed.pid.is_none() && failed.failure.unwrap().contains("program"));
        host.install();
        host.watch(&mut children, |children| status(children, "nbd").pid.is_some()).await;

        // Its log cannot be opened.
        std::fs::create_dir(host.directory.logs().join("gateway.log")).unwrap();
        children.add("gateway", &["gateway", "run"]);
        host.watch(&mut children, |children| status(children, "gateway").failure.is_some()).await;
        assert!(status(&children, "gateway").failure.unwrap().contains("gateway.log"));
        std::fs::remove_dir(host.directory.logs().join("gateway.log")).unwrap();
        host.watch(&mut children, |children| status(children, "gateway").pid.is_some()).await;

        assert_eq!(status(&children, "osd.0").pid, osd, "it has run on");
        for name in ["nbd", "gateway"] {
            let said = host.said.borrow().iter().filter(|said| said.starts_with(name)).count();
            assert_eq!(said, 1, "it is said once, however often it is tried");
        }
        children.stop().await;
    }
}
