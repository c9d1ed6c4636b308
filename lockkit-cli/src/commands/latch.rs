//! `latch`: count down, wait, look, reset.

use lockkit::sync::Latch;
use lockkit::{Error, Identity, LockManager};

use crate::args::BackendArgs;
use crate::args::sync::LatchVerb;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output::{self, printable};
use crate::take;

pub(crate) async fn latch(verb: &LatchVerb, backend: &BackendArgs) -> Result<u8, Failure> {
    match verb {
        LatchVerb::Down { latch, participant } => {
            let (locks, gate) = open(&latch.name, latch.count, backend).await?;
            let host = || Identity::of_this_process().host;
            let participant = participant.clone().unwrap_or_else(host);
            let missing = gate.count_down_as(participant).await;
            take::close(&locks).await;
            output::print_line(missing?)?;
        }
        LatchVerb::Wait { latch, wait } => {
            let (locks, gate) = open(&latch.name, latch.count, backend).await?;
            let opened = match wait {
                Some(limit) => gate.wait_timeout(*limit).await,
                None => gate.wait().await.map(|()| true),
            };
            take::close(&locks).await;
            if !opened? {
                let sentence = format!("the latch {:?} is still closed", latch.name);
                return Err(Failure::new(code::BUSY, sentence));
            }
        }
        LatchVerb::Show { name, count } => {
            let (locks, gate) = open(name, count.unwrap_or(1), backend).await?;
            let seen = look(&locks, name, gate, count.is_none()).await;
            take::close(&locks).await;
            output::print(&seen?)?;
        }
        LatchVerb::Reset { latch } => {
            let (locks, gate) = open(&latch.name, latch.count, backend).await?;
            let reset = gate.reset(latch.count).await;
            take::close(&locks).await;
            reset?;
        }
    }
    Ok(0)
}

/// How many are missing, and which have counted, one a line.
async fn look(
    locks: &LockManager,
    name: &str,
    gate: Latch,
    any_count: bool,
) -> Result<String, Failure> {
    let counted = gate.count().await;
    let (gate, missing) = match counted {
        // A look needs no count of its own.
        Err(Error::CountMismatch { name, in_use, .. }) if any_count => {
            let gate = locks.latch(name, in_use);
            let missing = gate.count().await?;
            (gate, missing)
        }
        Err(Error::CountMismatch { name, in_use, asked }) => {
            let sentence = format!("the latch {name:?} has a count of {in_use}, not {asked}");
            return Err(Failure::usage(sentence));
        }
        counted => (gate, counted?),
    };
    // One that nobody has touched has whatever count it is asked for.
    if any_count && missing == 1 && locks.latch(name, 2).count().await.ok() == Some(2) {
        let sentence = format!("nobody has counted down at the latch {name:?} yet: give its COUNT");
        return Err(Failure::new(code::NO, sentence));
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
) -> Result<(LockManager, Latch), Failure> {
    lockkit::Name::new(name)?;
    if count == 0 || count > Latch::MAX_COUNT {
        let most = Latch::MAX_COUNT;
        let sentence = format!("a latch counts down from 1 to {most}, not from {count}");
        return Err(Failure::usage(sentence));
    }
    let locks = Backend::choose(backend)?.connect().await?;
    let latch = locks.latch(name, count);
    Ok((locks, latch))
}
