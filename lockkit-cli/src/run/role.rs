//! The other processes that this same program can be: the supervisor, the launcher, the first
//! process of a command's own PID namespace, and the last moment of a process that a signal ends.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use super::{launch, script, supervise};
use crate::exit::{Ending, Failure, code};
use crate::output;
use crate::system::{self, contain};

/// The word that makes this program the [supervisor](supervise).
pub(super) const SUPERVISE: &str = "__supervise";

/// The word that makes this program the [launcher](launch).
pub(super) const LAUNCH: &str = "__launch";

/// The word that makes this program the [first process](contain) of a PID namespace.
pub(crate) const FIRST: &str = "__first";

/// The word that makes this program the [process](contain::unmask) that becomes a contained command.
pub(crate) const UNMASK: &str = "__unmask";

/// The word that makes this program the [keeper](script) of a script's lock.
pub(super) const KEEP: &str = "__keep";

/// The word that makes this program the [stand-in](script) for a script.
const STAND_IN: &str = "__stand-in";

/// The word that makes this program end by a signal.
const END: &str = "__end";

/// The word that makes this program a process that takes part in a case of the suite.
#[cfg(feature = "compare")]
pub(crate) const WORKER: &str = "worker";

/// The words that make this program the clients of a storm.
#[cfg(feature = "lab")]
const CLIENTS: [&str; 2] = ["storm-client", "storm-consumer"];

/// The word that makes this program a server that a storm strikes at.
#[cfg(feature = "lab")]
const SERVICE: &str = "service";

/// Plays the role that these arguments name, if they name one.
pub(crate) fn play(arguments: &[OsString]) -> Option<ExitCode> {
    let rest = arguments.get(2..).unwrap_or_default();
    match arguments.get(1)?.to_str()? {
        SUPERVISE => Some(supervise::main()),
        LAUNCH => Some(launch::main(rest)),
        FIRST => Some(contain::main(rest)),
        UNMASK => Some(contain::unmask(rest)),
        KEEP => Some(script::keeper(rest)),
        STAND_IN => Some(script::stand_in(rest)),
        END => Some(end(rest)),
        #[cfg(feature = "lab")]
        word if word == WORKER || CLIENTS.contains(&word) => {
            Some(crate::commands::storm::take_part(&arguments[1..]))
        }
        #[cfg(feature = "lab")]
        SERVICE => Some(crate::commands::storm::be_struck(rest)),
        #[cfg(all(feature = "compare", not(feature = "lab")))]
        WORKER => Some(crate::commands::compare::take_part(rest)),
        _ => None,
    }
}

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
pub(crate) fn asynchronously(work: impl Future<Output = Result<Ending, Failure>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(work);
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(Failure::os("cannot begin", error)),
    };
    let ending = done.unwrap_or_else(|failure| {
        if let Some(sentence) = failure.sentence {
            output::fail(sentence);
        }
        failure.ending
    });
    ExitCode::from(ending.code())
}

/// Ends this process by the signal. A program that is executed anew has the default action of every
/// signal that was caught, and the same process id: the parent sees one process, ended by a signal.
pub(crate) fn end_by(signal: Signal) -> ExitCode {
    let _ = myself("lockkit", END).arg(signal.as_raw().to_string()).exec();
    ExitCode::from(Ending::Signal(signal).code())
}

fn end(arguments: &[OsString]) -> ExitCode {
    let number = arguments.first().and_then(|word| word.to_str()?.parse().ok());
    let Some(signal) = number.and_then(Signal::from_named_raw) else {
        return ExitCode::from(code::SOFTWARE);
    };
    // SIGQUIT is passed on, not an accident to be looked into.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = kill_process(getpid(), signal);
    ExitCode::from(Ending::Signal(signal).code())
}
