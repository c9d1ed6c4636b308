//! `lockkit run`: takes the lock, runs the command under it, gives it back. The command never
//! outlives the lease.
//!
//! Three processes: lockkit holds and renews the lock; the [supervisor](supervise) guards the
//! command's process group and ends it by the clock, or when lockkit is gone; the command itself,
//! which a [launcher](launch) becomes once it is guarded.

pub(crate) mod elect;
mod group;
mod hold;
pub(crate) mod launch;
pub(crate) mod nested;
mod once;
pub(crate) mod signals;
pub(crate) mod supervise;
mod supervisor;
mod terminal;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use lockkit::{Error, Guard, Space};

use crate::args::RunArgs;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::take::{self, Take};
use crate::{output, phrase};
use hold::Hold;
use nested::Held;
use once::Once;
use signals::Signals;

/// The word that makes this program the [supervisor](supervise).
pub(crate) const SUPERVISE: &str = "__supervise";

/// The word that makes this program the [launcher](launch).
pub(crate) const LAUNCH: &str = "__launch";

/// The verb.
pub(crate) async fn run(args: &RunArgs) -> Result<u8, Failure> {
    let take =
        Take { name: &args.name, args: &args.take, max_hold: args.max_hold, detached: false };
    let backend = Backend::choose(&args.backend)?;
    take.rehearse(&backend).await?;
    let kill_after = kill_after(args.kill_after, args.take.ttl.unwrap_or(backend.ttl()))?;
    launch::find(&args.command[0])?;
    let held = nested::held();
    nested::refuse(&held, &backend, take.space(), &args.name)?;
    let locks = backend.connect().await?;
    let result = async {
        let once = args.only_once.then(|| Once::new(&locks, &args.name, args.keep));
        if let Some(once) = &once
            && once.is_decided().await?
        {
            return Ok(0);
        }
        let mut signals = Signals::ending()?;
        let guard = take.take(&locks, &mut signals).await?;
        if let Some(once) = &once
            && once.is_decided().await?
        {
            let _ = guard.release().await;
            return Ok(0);
        }
        let place = Place { backend: &backend, space: take.space(), name: &args.name };
        let ended = under(&guard, &place, held, kill_after, &args.command, &mut signals).await?;
        if let (Some(once), None, 0) = (&once, &ended.lost, ended.end.code()) {
            once.decide(&guard).await?;
        }
        conclude(guard, ended, &args.name).await
    }
    .await;
    take::close(&locks).await;
    result
}

/// Which lock a command runs under.
struct Place<'a> {
    backend: &'a Backend,
    space: Space,
    name: &'a str,
}

/// Runs the command under a lock that is held, to the end of all that it started.
async fn under(
    guard: &Guard,
    place: &Place<'_>,
    held: Vec<Held>,
    kill_after: Duration,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<hold::Outcome, Failure> {
    let token = guard.token()?;
    // The lease of a lock that was waited for counts from the last renewal in line: of a short one,
    // so little may be left that the command would be ended before the first renewal.
    if guard.remaining() < guard.granted_ttl() / 3 * 2 {
        guard.renew().await?;
    }
    let subject = phrase::subject(place.space, place.name);
    output::detail(format!("acquired {subject} with token {token}"));
    let one = Held::new(place.backend, place.space, place.name, token);
    let environment = nested::environment(held, one);
    match Hold::begin(guard.lease(), kill_after, command, environment, signals) {
        Ok(hold) => hold.until_the_end().await,
        Err(error) => Err(Failure::os("cannot start the command", error)),
    }
}

/// Releases, and finds the exit code.
async fn conclude(guard: Guard, ended: hold::Outcome, name: &str) -> Result<u8, Failure> {
    let lost = |why: &dyn std::fmt::Display| {
        let sentence = format!("the lock {name:?} was lost while the command ran: {why}");
        Failure::new(code::LOST, sentence)
    };
    let released = guard.release().await;
    if let Some(why) = ended.lost {
        return Err(lost(&why));
    }
    match released {
        Ok(()) => output::detail(format!("released {name:?}")),
        Err(Error::Lost { reason }) => return Err(lost(&reason)),
        Err(error) => output::note(format!(
            "warning: the command is done, but {name:?} could not be released ({error}): it is \
             free when its lease ends"
        )),
    }
    Ok(ended.end.code())
}

/// The time between SIGTERM and SIGKILL.
fn kill_after(asked: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    match asked {
        None => Ok(Duration::from_secs(5).min(ttl / 4)),
        // Renewals come at a third of the ttl: more would end the command between two of them.
        Some(asked) if asked >= ttl / 3 => Err(Failure::usage(format!(
            "--kill-after of {} is too long for a ttl of {}: it must be less than a third of it",
            phrase::duration(asked),
            phrase::duration(ttl)
        ))),
        Some(asked) => Ok(asked),
    }
}

/// This program once more, in another role. By the kernel's name for it: the file may have been
/// replaced by an upgrade since this process started, and the roles must understand each other.
fn myself(shown_as: &str, role: &str) -> Command {
    let program = match cfg!(target_os = "linux") {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    };
    let mut command = Command::new(program.unwrap_or_else(|_| "lockkit".into()));
    command.arg0(shown_as).arg(role);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_after_is_five_seconds_or_a_quarter_and_less_than_a_third() {
        let seconds = Duration::from_secs;
        assert_eq!(kill_after(None, seconds(30)).unwrap(), seconds(5));
        assert_eq!(kill_after(None, seconds(8)).unwrap(), seconds(2));
        assert_eq!(kill_after(Some(seconds(9)), seconds(30)).unwrap(), seconds(9));
        let refused = kill_after(Some(seconds(10)), seconds(30)).unwrap_err();
        assert_eq!(refused.code, code::USAGE);
    }
}
