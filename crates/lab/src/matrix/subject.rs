//! Runs of a load on a subject: the command line of its benchmark, and its preparation.

use std::path::Path;
use std::process::Command;

use atoll_bench::{Measurement, Processes};

use super::cluster::{FioRbd, Running, Stops, socket};
use super::command::{run, run_json};
use super::definition::{Load, Subject, Way, Work};
use super::haproxy::{self, Haproxy};
use super::prometheus::{self, Prometheus};
use super::settling::later_cpu_us;
use crate::error::LabError;

/// Gateways follow a change of a bucket within two seconds.
const BUCKET_PAUSE: std::time::Duration = std::time::Duration::from_millis(2500);

/// A subject that loads can be run on.
pub(super) struct Prepared<'a> {
    subject: &'a Subject,
    cluster: &'a Running,
    haproxy: Option<Haproxy>,
    prometheus: Option<Prometheus>,
    servers: Processes,
}

/// Facts from the data directory of a running cluster.
pub struct DataFacts {
    /// Where its gateway listens for plain HTTP: HOST:PORT.
    pub gateway: String,
    /// Its processes.
    pub servers: Processes,
}

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub seconds: f64,
    pub warm_up_seconds: f64,
}

/// Makes the images, buckets and HAProxy of the subject's loads.
pub(super) fn prepare<'a>(
    subject: &'a Subject,
    cluster: &'a Running,
    loads: &[&Load],
    facts: &dyn Fn(&Path) -> Result<DataFacts, LabError>,
    stops: &Stops,
) -> Result<Prepared<'a>, LabError> {
    let mut servers = cluster.said.servers.clone();
    if let (Some(atoll), true) = (&cluster.said.atoll, servers.0.is_empty()) {
        servers = facts(&atoll.data)?.servers;
    }
    let mut prepared = Prepared { subject, cluster, haproxy: None, prometheus: None, servers };
    let image = loads.iter().filter_map(|load| match load.work {
        Work::Block { working_set_bytes, .. } => Some((load.clients, working_set_bytes)),
        Work::Object { .. } => None,
    });
    let image = image.filter(|_| subject.images_of.is_none());
    if let Some((clients, bytes)) = image.reduce(|one, other| (one.0.max(other.0), one.1.max(other.1))) {
        (0..clients).try_for_each(|number| prepared.make_image(&prepared.image(number), bytes))?;
    }
    if subject.scraped {
        let data = prepared.data().ok_or_else(|| prepared.cannot("only clusters of Atoll are scraped"))?;
        prepared.prometheus = Some(prometheus::start(&cluster.atoll, data, stops)?);
    }
    let has_objects = loads.iter().any(|load| matches!(load.work, Work::Object { .. }));
    if let Some(data) = cluster.said.atoll.as_ref().map(|atoll| &atoll.data).filter(|_| has_objects) {
        if subject.way == Way::Haproxy {
            prepared.haproxy = Some(haproxy::start(data, &facts(data)?.gateway, stops)?);
        }
        prepared.make_bucket(data)?;
    }
    Ok(prepared)
}

impl Prepared<'_> {
    fn data(&self) -> Option<&Path> {
        self.cluster.said.atoll.as_ref().map(|atoll| atoll.data.as_path())
    }

    fn image(&self, number: u32) -> String {
        format!("bench-{}-{number}", self.subject.images_of.as_ref().unwrap_or(&self.subject.name))
    }

    fn bucket(&self) -> String {
        format!("bench-{}", self.subject.name)
    }

    fn make_image(&self, name: &str, bytes: u64) -> Result<(), LabError> {
        if let Some(data) = self.data() {
            let mut command = self.cluster.atoll.command(&["image", "create", name], data);
            command.args(["--size", &bytes.to_string()]);
            command.args(self.subject.pool.iter().flat_map(|pool| ["--pool", pool]));
            command.args(if self.subject.sealed { [].as_slice() } else { &["--sealing", "off"] });
            run(self.wrapped(command))?;
            let fill = self.cluster.atoll.command(&["bench", "block", "--image", name], data);
            return run(self.wrapped(filling(fill, bytes))).map(drop);
        }
        if let Some(file) = &self.cluster.said.fio_file {
            let detail = format!("its file has {} bytes, its loads need {bytes}", file.size_bytes);
            return if file.size_bytes < bytes { Err(self.cannot(&detail)) } else { Ok(()) };
        }
        let rbd = self.cluster.said.fio_rbd.as_ref();
        let rbd = rbd.ok_or_else(|| self.cannot("its cluster has no images"))?;
        let mut words = rbd.command.clone();
        // The tool is where fio is.
        words.pop();
        words.extend(["rbd", "--conf", &rbd.conf, "--id", &rbd.client, "create"].map(str::to_owned));
        words.extend(["--size".into(), format!("{bytes}B"), format!("{}/{name}", rbd.pool)]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        run(command)?;
        run(filling(self.rbd(name, rbd), bytes)).map(drop)
    }

    fn make_bucket(&self, data: &Path) -> Result<(), LabError> {
        let bucket = self.bucket();
        let mut command = self.cluster.atoll.command(&["bench", "object", "--op", "put", "--size", "4k"], data);
        command.args(["--objects", "1", "--concurrency", "1", "--seconds", "0.1", "--json", "--bucket", &bucket]);
        command.args(self.subject.pool.iter().flat_map(|pool| ["--pool", pool]));
        run(self.wrapped(command))?;
        if !self.subject.sealed {
            run(self.cluster.atoll.command(&["bucket", "set", &bucket, "sealing", "off"], data))?;
            std::thread::sleep(BUCKET_PAUSE);
        }
        Ok(())
    }

    fn cannot(&self, why: &str) -> LabError {
        LabError::Invalid(format!("subject '{}' cannot take this load: {why}", self.subject.name))
    }

    /// Where the cluster's clients are.
    fn wrapped(&self, command: Command) -> Command {
        let Some(clients) = &self.cluster.said.clients else { return command };
        let mut words = clients.wrap.iter();
        let Some(first) = words.next() else { return command };
        let mut wrapped = Command::new(first);
        wrapped.args(words).arg(command.get_program()).args(command.get_args());
        wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        wrapped
    }

    /// One run.
    pub fn run(&self, load: &Load, lengths: Lengths) -> Result<Measurement, LabError> {
        let mut command = match &load.work {
            Work::Block { pattern, working_set_bytes } => {
                let mut command = self.block(load)?;
                command.args(["--rw", pattern.name(), "--bs", &load.size_bytes.to_string()]);
                command.args(["--qd", &load.depth.to_string(), "--working-set", &working_set_bytes.to_string()]);
                // Images are filled when they are made.
                command.args(["--prefill", "nothing"]);
                command
            }
            Work::Object { operation, objects } => {
                let mut command = self.object()?;
                command.args([
                    "--op",
                    operation,
                    "--size",
                    &load.size_bytes.to_string(),
                    "--bucket",
                    &self.bucket(),
                ]);
                command.args(["--concurrency", &load.depth.to_string(), "--clients", &load.clients.to_string()]);
                command.args(["--objects", &objects.to_string(), "--prefill", "missing"]);
                command
            }
        };
        command.args(["--json", "--full", "--seconds", &lengths.seconds.max(load.seconds_min).to_string()]);
        command.args(["--warm-up", &lengths.warm_up_seconds.to_string()]);
        if let Some(bytes) = load.bytes_max {
            command.args(["--bytes-max", &bytes.to_string()]);
        }
        let scraping = self.prometheus.as_ref().map(Prometheus::scrape).transpose()?;
        let mut measured: Measurement = run_json(self.wrapped(command))?;
        drop(scraping);
        measured.later_cpu_us_per_op =
            later_cpu_us(&self.servers, load.writes()).map(|us| us as f64 / measured.operations.max(1) as f64);
        if !self.cluster.said.protections.is_empty() {
            measured.protections = self.cluster.said.protections.clone();
        }
        Ok(measured)
    }

    fn block(&self, load: &Load) -> Result<Command, LabError> {
        if let Some(rbd) = self.cluster.said.fio_rbd.as_ref().filter(|_| self.data().is_none()) {
            if load.clients > 1 {
                return Err(self.cannot("several clients of RBD images are not provided for"));
            }
            return Ok(self.rbd(&self.image(0), rbd));
        }
        if let Some(file) = self.cluster.said.fio_file.as_ref().filter(|_| self.data().is_none()) {
            if load.clients > 1 {
                return Err(self.cannot("several clients of a plain file are not provided for"));
            }
            let mut command = self.cluster.atoll.bare(&["bench", "block", "--fio-file"]);
            command.arg(&file.path);
            return Ok(command);
        }
        let data = self.data().ok_or_else(|| self.cannot("its cluster has no images"))?;
        let mut command = self.cluster.atoll.command(&["bench", "block"], data);
        command.args(["--server-pids", &pids_text(&self.servers)]);
        let export = match self.subject.way {
            Way::NbdUnix => format!("nbd+unix:///{}?socket={}", self.image(0), socket(data).display()),
            Way::NbdTcp => format!("nbd://127.0.0.1:{}/{}", self.cluster.nbd_port, self.image(0)),
            Way::Direct | Way::Tls | Way::Haproxy => {
                let images: Vec<String> = (0..load.clients).map(|number| self.image(number)).collect();
                command.args(["--image", &images.join(",")]);
                return Ok(command);
            }
        };
        command.args(["--nbd", &export, "--clients", &load.clients.to_string()]);
        Ok(command)
    }

    fn rbd(&self, image: &str, rbd: &FioRbd) -> Command {
        let mut command = self.cluster.atoll.bare(&["bench", "block"]);
        command.args(["--rbd", &format!("{}/{image}", rbd.pool), "--ceph-conf", &rbd.conf]);
        command.args(["--ceph-client", &rbd.client, "--fio-command", &rbd.command.join(" ")]);
        command.args(["--server-pids", &pids_text(&self.servers)]);
        command
    }

    fn object(&self) -> Result<Command, LabError> {
        if let Some(data) = self.data() {
            let mut command = self.cluster.atoll.command(&["bench", "object"], data);
            match (&self.haproxy, self.subject.way) {
                (Some(haproxy), _) => {
                    command.args(["--endpoint", &haproxy.endpoint]);
                    command.args(["--server-pids", &format!("haproxy={}", haproxy.process_id)]);
                }
                (None, Way::Tls) => drop(command.arg("--tls")),
                (None, _) => {}
            }
            return Ok(command);
        }
        let s3 = self.cluster.said.s3.as_ref().ok_or_else(|| self.cannot("its cluster has no S3 endpoint"))?;
        let mut command =
            self.cluster.atoll.bare(&["bench", "object", "--endpoint", &s3.endpoint, "--access-key", "env"]);
        command.env("AWS_ACCESS_KEY_ID", &s3.access_key).env("AWS_SECRET_ACCESS_KEY", &s3.secret_key);
        command.args(s3.ca_file.iter().flat_map(|path| ["--ca".as_ref(), path.as_os_str()]));
        command.args(["--server-pids", &pids_text(&self.servers)]);
        Ok(command)
    }
}

/// A benchmark that fills an image.
fn filling(mut command: Command, bytes: u64) -> Command {
    command.args([
        "--rw",
        "randread",
        "--seconds",
        "0.1",
        "--prefill",
        "all",
        "--working-set",
        &bytes.to_string(),
    ]);
    command
}

/// `role=pid,pid;role=pid`, as `--server-pids` takes it.
fn pids_text(servers: &Processes) -> String {
    let role = |(role, pids): (&String, &Vec<u32>)| {
        format!("{role}={}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
    };
    servers.0.iter().map(role).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_by_role() {
        let mut servers = Processes::default();
        servers.add("osd", 3);
        servers.add("osd", 4);
        servers.add("gateway", 5);
        assert_eq!(pids_text(&servers), "gateway=5;osd=3,4");
    }
}
