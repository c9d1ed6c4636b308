//! `lockkit run`: takes the lock, runs the command under it, gives it back. The command never
//! outlives the lease.
//!
//! Three processes: lockkit holds and renews the lock; the [supervisor](supervise) guards the
//! command's process group and ends it by the clock, or when lockkit is gone; the command itself,
//! which a [launcher](launch) becomes once it is guarded.

pub(crate) mod elect;
mod group;
pub(crate) mod held;
mod hold;
pub(crate) mod launch;
pub(crate) mod leftovers;
mod nested;
mod once;
pub(crate) mod role;
pub(crate) mod script;
pub(crate) mod signals;
pub(crate) mod supervise;
mod supervisor;
mod terminal;

use std::time::Duration;

use lockkit::{Error, LockManager};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::acquire::{self, LockRequest};
use crate::args::BackendArgs;
use crate::args::acquire::{LockArgs, RunArgs};
use crate::backend::Backend;
use crate::exit::{Ending, ExitError};
use crate::taken::Taken;
use crate::{describe, note, outage, output, system};
use hold::Hold;
use launch::Job;
use once::Once;
use signals::Signals;

/// A command may end before the backend has said how it is.
const LAST_WORD: Duration = Duration::from_millis(500);

/// The verb.
pub(crate) async fn run(args: &RunArgs, backend: &BackendArgs) -> Result<Ending, ExitError> {
    let backend = Backend::choose(backend)?.ttl_or_default(args.take.ttl);
    if args.forget {
        return once::forget(&backend, &args.name).await.map(Ending::Code);
    }
    let command = args.what.words();
    let backend = backend.for_command(&command[0]);
    let note = args.take.note.clone().unwrap_or_else(|| note::of_command(&command));
    let options = LockArgs { note: Some(note), ..args.take.clone() };
    let take = LockRequest::new(&args.name, &options, args.max_hold, false).slots(args.slots);
    take.rehearse(&backend).await?;
    let hold_limit = HoldLimit::new("--max-hold", args.max_hold, args.kill_after, backend.ttl())?;
    system::is_usable()?;
    launch::find(&command[0])?;
    let held = held::held();
    nested::refuse(&held, &backend, take.space(), &args.name)?;
    let locks = take.connect(&backend).await?;
    // While the lock is asked for: it costs no time.
    let told = tokio::spawn(outage::report_problems(locks.clone()));
    let result = async {
        let once = args.only_once.then(|| Once::new(&locks, &args.name, args.keep));
        if let Some(once) = &once
            && once.is_decided().await?
        {
            return Ok(Ending::Code(0));
        }
        let mut signals = Signals::ending()?;
        let guard = take.take(&locks, &mut signals).await?;
        if let Some(once) = &once
            && once.is_decided().await?
        {
            let _ = guard.release().await;
            return Ok(Ending::Code(0));
        }
        let environment = nested::environment(held, &args.name, &guard.lease(), &backend)?;
        let (contained, leftovers) = (args.contain, args.leftovers);
        let job = Job { command, environment, contained, leftovers };
        let ended = under(&locks, &guard, hold_limit, &job, &mut signals).await?;
        if let (Some(once), None, 0) = (&once, &ended.lost, ended.end.code()) {
            once.decide(guard.lease().lock()).await?;
        }
        if ended.lost.is_some() && args.take.lock_delay.is_some() {
            // Whatever is left of its lease keeps the name closed, without this process.
            take.leave();
        }
        match stay(&locks, &take, &guard, &ended, &mut signals).await {
            Stay::Unneeded => conclude(guard, ended, &args.name).await,
            Stay::Asked(signal) => Ok(Ending::Signal(signal)),
            Stay::Over => {
                match guard.release().await {
                    Err(Error::Lost { reason, .. }) => output::note(format!(
                        "the lock {:?} did not stay held for all of --at-least: {reason}",
                        args.name
                    )),
                    released => tell_release(released, &args.name),
                }
                Ok(ended.end.ending())
            }
        }
    }
    .await;
    if take.is_left() {
        return result;
    }
    if result.is_ok() {
        let _ = timeout(LAST_WORD, told).await;
    }
    acquire::close_after(&locks, &result).await;
    result
}

/// How long a command may hold, and how it is ended.
#[derive(Clone, Copy, Debug)]
struct HoldLimit {
    /// The time between SIGTERM and SIGKILL.
    kill_after: Duration,
    /// The longest that it may hold at a time.
    longest: Option<Duration>,
    /// The option that says so.
    option: &'static str,
}

impl HoldLimit {
    fn new(
        option: &'static str,
        longest: Option<Duration>,
        kill_after: Option<Duration>,
        ttl: Duration,
    ) -> Result<Self, ExitError> {
        let said = describe::duration;
        let shortest = longest.map_or(ttl, |longest| longest.min(ttl));
        let kill_after = match (kill_after, longest) {
            (None, _) => Duration::from_secs(5).min(shortest / 4),
            // Renewals come at a third of the ttl: more would end the command between two of them.
            (Some(asked), _) if asked >= ttl / 3 => {
                return Err(ExitError::usage(format!(
                    "--kill-after of {} is too long for a ttl of {}: it must be less than a third \
                     of it",
                    said(asked),
                    said(ttl)
                )));
            }
            (Some(asked), Some(longest)) if asked >= longest => {
                return Err(ExitError::usage(format!(
                    "--kill-after of {} leaves nothing of a {option} of {}: it must be less",
                    said(asked),
                    said(longest)
                )));
            }
            (Some(asked), _) => asked,
        };
        Ok(Self { kill_after, longest, option })
    }
}

/// Runs the command under a lock that is held, to the end of all that it started.
async fn under(
    locks: &LockManager,
    guard: &Taken,
    hold_limit: HoldLimit,
    job: &Job,
    signals: &mut Signals,
) -> Result<hold::Outcome, ExitError> {
    let lease = guard.lease();
    let token = lease.token()?;
    // The lease of a lock that was waited for counts from the last renewal in the queue: of a short one,
    // so little may be left that the command would be ended before the first renewal.
    if lease.remaining() < lease.granted_ttl() / 3 * 2 {
        lease.renew().await?;
    }
    let lock = lease.lock();
    let subject = describe::subject(lock.mode().space(), lock.name().as_str());
    output::detail(format!("acquired {subject} with token {token}"));
    match Hold::begin(locks.clone(), lease, hold_limit, job, signals) {
        Ok(hold) => hold.until_the_end().await,
        Err(error) => Err(ExitError::os("cannot start the command", error)),
    }
}

/// What became of the rest of --at-least.
enum Stay {
    /// The lock was lost while the command ran, or this process need not stay.
    Unneeded,
    /// A signal asked this process to end.
    Asked(Signal),
    /// It passed, or the lock was lost in it.
    Over,
}

/// Waits for the end of --at-least where the lock cannot be left to the backend. A signal that asks this
/// process to end makes it leave without a release, so that the lease lasts.
async fn stay(
    locks: &LockManager,
    take: &LockRequest<'_>,
    guard: &Taken,
    ended: &hold::Outcome,
    signals: &mut Signals,
) -> Stay {
    let lease = guard.lease();
    let can = locks.capabilities();
    let is_left = lease.least_remaining().is_zero() || (can.detached && can.shorten);
    if ended.lost.is_some() || is_left {
        return Stay::Unneeded;
    }
    // A loss that shows only now was one while the command ran, or may have been.
    if let Err(Error::Lost { .. }) = lease.renew().await {
        return Stay::Unneeded;
    }
    let rest = lease.least_remaining();
    take.stays(rest);
    tokio::select! {
        biased;
        signal = signals.next() => {
            take.leave();
            Stay::Asked(signal)
        }
        _ = lease.lost() => Stay::Over,
        () = sleep(rest) => Stay::Over,
    }
}

/// Releases, and finds how to end.
async fn conclude(guard: Taken, ended: hold::Outcome, name: &str) -> Result<Ending, ExitError> {
    let lost = |why: &dyn std::fmt::Display| {
        let sentence = format!("the lock {name:?} was lost while the command ran: {why}");
        ExitError::new(crate::exit::code::LOST, sentence)
    };
    let released = guard.release().await;
    if let Some(why) = ended.lost {
        return Err(lost(&why));
    }
    if let Err(Error::Lost { reason, .. }) = released {
        return Err(lost(&reason));
    }
    tell_release(released, name);
    Ok(ended.end.ending())
}

fn tell_release(released: Result<(), Error>, name: &str) {
    match released {
        Ok(()) => output::detail(format!("released {name:?}")),
        Err(error) => output::note(format!(
            "warning: the command is done, but {name:?} could not be released ({error}): it is \
             free when its lease ends"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::code;

    #[test]
    fn kill_after_is_five_seconds_or_a_quarter_and_less_than_a_third() {
        let seconds = Duration::from_secs;
        let hold_limit = |longest, asked, ttl| {
            let hold_limit = HoldLimit::new("--max-hold", longest, asked, seconds(ttl));
            hold_limit.map(|hold_limit| hold_limit.kill_after)
        };
        assert_eq!(hold_limit(None, None, 30).unwrap(), seconds(5));
        assert_eq!(hold_limit(None, None, 8).unwrap(), seconds(2));
        assert_eq!(hold_limit(Some(seconds(4)), None, 30).unwrap(), seconds(1));
        assert_eq!(hold_limit(Some(seconds(60)), None, 30).unwrap(), seconds(5));
        assert_eq!(hold_limit(None, Some(seconds(9)), 30).unwrap(), seconds(9));
        assert_eq!(hold_limit(Some(seconds(10)), Some(seconds(9)), 30).unwrap(), seconds(9));
        for (longest, asked) in [(None, 10), (Some(seconds(9)), 9)] {
            let refused = hold_limit(longest, Some(seconds(asked)), 30).unwrap_err();
            assert_eq!(refused.ending, Ending::Code(code::USAGE));
        }
    }
}
