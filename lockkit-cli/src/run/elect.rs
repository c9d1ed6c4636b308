//! `elect`: campaigns, runs the command while it leads, and campaigns again, until it is told to
//! end.

use std::time::Duration;

use lockkit::Guard;
use tokio::time::sleep;

use super::signals::Signals;
use super::{Place, hold, kill_after, launch, nested, under};
use crate::args::TakeArgs;
use crate::args::sync::ElectArgs;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output;
use crate::take::{self, Take};

/// The time between the end of a command and the next candidacy: others go first, and a command
/// that fails at once does not spin.
const PAUSE: Duration = Duration::from_secs(1);

/// The verb.
pub(crate) async fn elect(args: &ElectArgs) -> Result<u8, Failure> {
    let candidacy = candidacy(args);
    let take =
        Take { name: &args.name, args: &candidacy, max_hold: args.max_term, detached: false };
    let backend = Backend::choose(&args.backend)?;
    take.rehearse(&backend).await?;
    let kill_after = kill_after(args.kill_after, args.ttl.unwrap_or(backend.ttl()))?;
    launch::find(&args.command[0])?;
    nested::refuse(&nested::held(), &backend, take.space(), &args.name)?;
    let locks = backend.connect().await?;
    let place = Place { backend: &backend, space: take.space(), name: &args.name };
    let result = async {
        let mut signals = Signals::ending()?;
        loop {
            let guard = take.take(&locks, &mut signals).await?;
            output::note(format!("leads {:?} with token {}", args.name, guard.token()?));
            let held = nested::held();
            let command = &args.command;
            let ended = under(&guard, &place, held, kill_after, command, &mut signals).await;
            if let Some(code) = conclude(guard, ended?, &args.name).await {
                return Ok(code);
            }
            tokio::select! {
                biased;
                signal = signals.next() => return Ok(code::SIGNAL + signal.as_raw() as u8),
                () = sleep(PAUSE) => {}
            }
        }
    }
    .await;
    take::close(&locks).await;
    result
}

/// Resigns, and says what came of the term; a code when that was the last one.
async fn conclude(guard: Guard, ended: hold::Outcome, name: &str) -> Option<u8> {
    let resigned = guard.release().await;
    let code = ended.end.code();
    if ended.asked.is_some() {
        return Some(code);
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
fn candidacy(args: &ElectArgs) -> TakeArgs {
    TakeArgs {
        ttl: args.ttl,
        wait: None,
        once: false,
        shared: false,
        permits: None,
        limit: None,
        resizable: false,
        note: args.value.clone(),
        busy_exit_code: code::BUSY,
    }
}
