//! `latch`: count down, wait, look, reset.

use std::convert::Infallible;
use std::time::Duration;

use lockkit::sync::Latch;
use lockkit::{ClientIdentity, Error, LockManager};
use tokio::time::sleep;

use crate::args::BackendArgs;
use crate::args::sync::LatchVerb;
use crate::backend::Backend;
use crate::exit::{ExitError, code};
use crate::output::{self, printable};
use crate::{acquire, outage};

pub(crate) async fn latch(verb: &LatchVerb, backend: &BackendArgs) -> Result<u8, ExitError> {
    match verb {
        LatchVerb::Down { latch, participant } => {
            let (locks, gate) = open(&latch.name, latch.count, backend).await?;
            let host = || ClientIdentity::of_this_process().host;
            let participant = participant.clone().unwrap_or_else(host);
            let missing = gate.count_down_as(participant).await;
            acquire::close(&locks).await;
            output::print_line(missing?)?;
        }
        LatchVerb::Wait { latch, wait } => {
            let (locks, gate) = open(&latch.name, latch.count, backend).await?;
            let subject = format!("the latch {:?}", latch.name);
            let waiting = async {
                match wait {
                    Some(limit) => gate.wait_timeout(*limit).await,
                    None => gate.wait().await.map(|()| true),
                }
            };
            let opened = tokio::select! {
                biased;
                opened = waiting => opened,
                never = outage::report(&locks, &subject) => match never {},
                never = ask_now_and_then(&gate) => match never {},
            };
            let timeout = Backend::choose(backend)?.timeout();
            let ambiguous = outage::at_the_limit(&locks, timeout);
            acquire::close(&locks).await;
            match (opened?, ambiguous) {
                (true, _) => {}
                (false, Some(sentence)) => {
                    let sentence = format!("{subject} may be open or closed: {sentence}");
                    return Err(ExitError::new(code::UNAVAILABLE, sentence));
                }
                (false, None) => {
                    let sentence = format!("{subject} is still closed");
                    return Err(ExitError::new(code::BUSY, sentence));
                }
            }
        }
        LatchVerb::Show { name, count } => {
            let (locks, gate) = open(name, count.unwrap_or(1), backend).await?;
            let seen = inspect_latch(&locks, name, gate, count.is_none()).await;
            acquire::close(&locks).await;
            output::print(&seen?)?;
        }
        LatchVerb::Reset { latch } => {
            let (locks, gate) = open(&latch.name, latch.count, backend).await?;
            let reset = gate.reset(latch.count).await;
            acquire::close(&locks).await;
            reset?;
        }
    }
    Ok(0)
}

/// Asks the backend, which otherwise speaks when the latch changes: so that its silence shows.
async fn ask_now_and_then(gate: &Latch) -> Infallible {
    let mut pause = Duration::from_secs(1);
    loop {
        sleep(pause).await;
        let _ = gate.count().await;
        pause = Duration::from_secs(5);
    }
}

/// How many are missing, and which have counted, one a line.
async fn inspect_latch(
    locks: &LockManager,
    name: &str,
    gate: Latch,
    any_count: bool,
) -> Result<String, ExitError> {
    let counted = gate.count().await;
    let (gate, missing) = match counted {
        // A look needs no count of its own.
        Err(Error::CountMismatch { name, in_use, .. }) if any_count => {
            let gate = locks.latch(name, in_use);
            let missing = gate.count().await?;
            (gate, missing)
        }
        Err(Error::CountMismatch { name, in_use, asked, .. }) => {
            let sentence = format!("the latch {name:?} has a count of {in_use}, not {asked}");
            return Err(ExitError::usage(sentence));
        }
        counted => (gate, counted?),
    };
    // One that was never used has whatever count it is asked for.
    if any_count && missing == 1 && locks.latch(name, 2).count().await.ok() == Some(2) {
        let sentence = format!("nobody has counted down at the latch {name:?} yet: give its COUNT");
        return Err(ExitError::new(code::NO, sentence));
    }
    let lines = std::iter::once(format!("missing {missing}"));
    let arrived = gate.arrived().await?;
    let lines = lines.chain(arrived.iter().map(|id| format!("counted {id}")));
    Ok(lines.map(|line| printable(&line) + "\n").collect())
}

async fn open(
    name: &str,
    count: u32,
    backend: &BackendArgs,
) -> Result<(LockManager, Latch), ExitError> {
    lockkit::Name::new(name)?;
    if count == 0 || count > Latch::MAX_COUNT {
        let most = Latch::MAX_COUNT;
        let sentence = format!("a latch counts down from 1 to {most}, not from {count}");
        return Err(ExitError::usage(sentence));
    }
    let locks = Backend::choose(backend)?.connect().await?;
    let latch = locks.latch(name, count);
    Ok((locks, latch))
}
