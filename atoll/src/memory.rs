//! Memory that must not be found after a process has ended: keys, passwords, and data of requests.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Sees to it that there is no core dump of this process or of those that it starts, and none of its memory in one that
/// is made by force. Another process of the same user cannot look into this one.
pub fn protect() {
    // First, because a process that is not dumpable may not change its own filter. Without memory that is its own and
    // of no file, a core dump has none of what it was working with.
    let filtered = std::fs::write("/proc/self/coredump_filter", "0");
    let limited = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let failure = filtered.err().or(limited.err().map(Into::into)).or(hidden.err().map(Into::into));
    if let Some(error) = failure {
        atoll_terminal::print_note!("atoll: a core dump of this process could have keys in it: {error}");
    }
}
