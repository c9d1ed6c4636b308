//! `elect`: campaigns, runs the command while it leads, and campaigns again, until it is asked to
//! end.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::launch::{self, Job};
use super::signals::Signals;
use super::{HoldLimit, held, hold, nested, under};
use crate::acquire::{self, LockRequest};
use crate::args::BackendArgs;
use crate::args::acquire::LockArgs;
use crate::args::sync::ElectArgs;
use crate::backend::Backend;
use crate::exit::{Ending, ExitError, code};
use crate::output::{self, printable};
use crate::system;
use crate::taken::Taken;

/// The time between the end of a command and the next candidacy: others go first, and a command
/// that fails at once does not spin.
const PAUSE: Duration = Duration::from_secs(1);

/// The verb.
pub(crate) async fn elect(args: &ElectArgs, backend: &BackendArgs) -> Result<Ending, ExitError> {
    if args.show {
        return leader(args, backend).await.map(Ending::Code);
    }
    let candidacy = candidacy(args);
    let take = LockRequest::new(&args.name, &candidacy, args.max_term, false);
    let command = args.what.words();
    let backend = Backend::choose(backend)?.ttl_or_default(args.ttl).for_command(&command[0]);
    take.rehearse(&backend).await?;
    let hold_limit = HoldLimit::new("--max-term", args.max_term, args.kill_after, backend.ttl())?;
    system::is_usable()?;
    launch::find(&command[0])?;
    nested::refuse(&held::held(), &backend, take.space(), &args.name)?;
    let locks = take.connect(&backend).await?;
    let leftovers = args.leftovers;
    let mut job = Job { command, environment: Vec::new(), contained: false, leftovers };
    let result = async {
        let mut signals = Signals::ending()?;
        loop {
            let guard = take.take(&locks, &mut signals).await?;
            output::note(format!("leads {:?} with token {}", args.name, guard.lease().token()?));
            job.environment =
                nested::environment(held::held(), &args.name, &guard.lease(), &backend)?;
            let ended = under(&locks, &guard, hold_limit, &job, &mut signals).await;
            if let Some(ending) = conclude(guard, ended?, &args.name).await {
                return Ok(ending);
            }
            tokio::select! {
                biased;
                signal = signals.next() => return Ok(Ending::Signal(signal)),
                () = sleep(PAUSE) => {}
            }
        }
    }
    .await;
    acquire::close_after(&locks, &result).await;
    result
}

/// Prints who leads.
async fn leader(args: &ElectArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    lockkit::Name::new(&args.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let leader = locks.election(&args.name).leader().await;
    acquire::close(&locks).await;
    match leader? {
        Some(leader) => {
            let value = leader.value.unwrap_or_else(|| leader.by.to_string());
            output::print_line(printable(&value))?;
            Ok(0)
        }
        None => Err(ExitError::new(code::NO, format!("{:?} has no leader", args.name))),
    }
}

/// Resigns, and says what came of the term; how to end when that was the last one.
async fn conclude(guard: Taken, ended: hold::Outcome, name: &str) -> Option<Ending> {
    let resigned = guard.release().await;
    let code = ended.end.code();
    // Ctrl-C at a prompt reaches the command alone, which has the terminal.
    let from_keyboard =
        [Signal::INT, Signal::QUIT].map(Ending::Signal).contains(&ended.end.ending());
    if ended.asked.is_some() || (from_keyboard && ended.lost.is_none()) {
        return Some(ended.end.ending());
    }
    match (ended.lost, resigned) {
        (Some(why), _) => output::note(format!("does not lead {name:?} any more: {why}")),
        (None, Err(error)) => output::note(format!("resigned from {name:?}: {error}")),
        (None, Ok(())) => {
            output::note(format!("the command ended with {code}: resigned from {name:?}"));
        }
    }
    None
}

/// A candidacy is a wait for the lock of that name, with the value as its note.
fn candidacy(args: &ElectArgs) -> LockArgs {
    LockArgs {
        ttl: args.ttl,
        wait: None,
        once: false,
        shared: false,
        permits: None,
        limit: None,
        resizable: false,
        at_least: None,
        lock_delay: None,
        progress: None,
        note: args.value.clone(),
        busy_exit_code: code::BUSY,
    }
}
