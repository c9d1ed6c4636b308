//! The other processes that this same program can be: the supervisor, the launcher, the first
//! process of a command's own PID namespace, and the last moment of a process that a signal ends.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use crate::exit::{Ending, ExitError, code};
use crate::output;
use crate::system;

/// The word that makes this program the supervisor.
pub(crate) const SUPERVISE: &str = "__supervise";

/// The word that makes this program the launcher.
pub(crate) const LAUNCH: &str = "__launch";

/// The word that makes this program the first process of a PID namespace.
pub(crate) const FIRST: &str = "__first";

/// The word that makes this program the process that becomes a contained command.
pub(crate) const UNMASK: &str = "__unmask";

/// The word that makes this program the keeper of a script's lock.
pub(crate) const KEEP: &str = "__keep";

/// The word that makes this program the stand-in for a script.
pub(crate) const STAND_IN: &str = "__stand-in";

/// The word that makes this program end by a signal.
pub(crate) const END: &str = "__end";

/// The word that makes this program a process that takes part in a case of the suite.
#[cfg(feature = "compare")]
pub(crate) const WORKER: &str = "worker";

/// This program once more, in another role: the roles must understand each other.
pub(crate) fn myself(shown_as: &str, role: &str) -> Command {
    let mut command = Command::new(system::this_program());
    command.arg0(shown_as).arg(role);
    command
}

/// The stand-in for a script, as a command.
pub(super) fn stand_in(folder: &Path, pause: Duration) -> Vec<OsString> {
    let pause = pause.as_millis().to_string();
    vec![system::this_program().into(), STAND_IN.into(), folder.into(), pause.into()]
}

/// Does what a role does by an async function, to its end.
pub(crate) fn asynchronously(work: impl Future<Output = Result<Ending, ExitError>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(work);
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(ExitError::os("cannot begin", error)),
    };
    let ending = done.unwrap_or_else(|failure| {
        if let Some(sentence) = failure.sentence {
            output::fail(sentence);
        }
        failure.ending
    });
    ExitCode::from(ending.code())
}

/// Ends this process by the signal. A program that is executed again has the default action of every
/// signal that was caught, and the same process id: the parent sees one process, ended by a signal.
pub(crate) fn end_by(signal: Signal) -> ExitCode {
    let _ = myself("lockkit", END).arg(signal.as_raw().to_string()).exec();
    ExitCode::from(Ending::Signal(signal).code())
}

/// The `main` of the process that ends by a signal.
pub(crate) fn end(arguments: &[OsString]) -> ExitCode {
    let number = arguments.first().and_then(|word| word.to_str()?.parse().ok());
    let Some(signal) = number.and_then(Signal::from_named_raw) else {
        return ExitCode::from(code::SOFTWARE);
    };
    // SIGQUIT is passed on, not an accident to be looked into.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = kill_process(getpid(), signal);
    ExitCode::from(Ending::Signal(signal).code())
}
