//! Who takes a lock, as others see it: the user, the command, this process, the host.

use std::ffi::OsStr;
use std::path::Path;

use lockkit::ClientIdentity;

/// This user on this host, with the command that runs under the lock: `ada:backup.sh[12]@db-1`. The
/// number is that of this process, which ends the command when it is told to end.
pub(crate) fn running(command: &OsStr) -> ClientIdentity {
    let command = Path::new(command).file_name().unwrap_or(command).to_string_lossy();
    let program = format!("{}:{command}", user());
    ClientIdentity { program, ..ClientIdentity::of_this_process() }
}

/// Whether this is this process, whatever it runs.
pub(crate) fn is_this_process(identity: &ClientIdentity) -> bool {
    let me = ClientIdentity::of_this_process();
    (identity.pid, &identity.host) == (me.pid, &me.host)
}

/// The user's name, or its number where the environment does not tell.
pub(crate) fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    match named.filter(|user| !user.is_empty()) {
        Some(user) => user,
        None => format!("uid{}", rustix::process::getuid()),
    }
}
