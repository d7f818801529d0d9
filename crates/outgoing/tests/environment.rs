//! Proxies that the environment names, which are read once in a process: so the test runs itself again with them.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::Command;

use atoll_outgoing::{Caller, CallerSettings, Chooser, Method, Rules};

const TARGET: &str = "ATOLL_TEST_TARGET";

#[test]
fn proxies_of_the_environment_are_not_used() {
    if let Ok(target) = std::env::var(TARGET) {
        return call(&target);
    }
    let [proxy, target] = ["127.0.0.1:0", "127.0.0.2:0"].map(|address| TcpListener::bind(address).unwrap());
    for listener in [&proxy, &target] {
        listener.set_nonblocking(true).unwrap();
    }
    let url = |listener: &TcpListener| format!("http://{}/", listener.local_addr().unwrap());
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "proxies_of_the_environment_are_not_used"]).env(TARGET, url(&target));
    // Without certificates of authorities a call without TLS is possible all the same.
    again.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/nonexistent");
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        again.env(name, url(&proxy));
    }
    assert!(again.output().unwrap().status.success());
    assert!(proxy.accept().is_err(), "the proxy was asked");
    assert!(target.accept().is_ok(), "nothing was asked");
}

fn call(target: &str) {
    let rules = Rules { chooser: Chooser::Operator, named: "127.0.0.0/8".parse().unwrap() };
    let settings =
        CallerSettings { time: std::time::Duration::from_millis(300), ..CallerSettings::of(Chooser::Operator) };
    let caller = Caller::with_rules(settings, rules);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Nobody answers; where the call went is what counts.
    assert!(runtime.block_on(caller.send(caller.request(Method::GET, target).unwrap())).is_err());
}
