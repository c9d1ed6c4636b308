//! `latch`: count down, wait, look, reset.

use lockkit::sync::Latch;
use lockkit::{Identity, LockManager};

use crate::args::sync::{LatchArgs, LatchVerb};
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output::{self, printable};
use crate::take;

pub(crate) async fn latch(verb: &LatchVerb) -> Result<u8, Failure> {
    match verb {
        LatchVerb::Down { latch, participant } => {
            let (locks, gate) = open(latch).await?;
            let host = || Identity::of_this_process().host;
            let participant = participant.clone().unwrap_or_else(host);
            let missing = gate.count_down_as(participant).await;
            take::close(&locks).await;
            output::print_line(missing?)?;
        }
        LatchVerb::Wait { latch, wait } => {
            let (locks, gate) = open(latch).await?;
            let opened = match wait {
                Some(limit) => gate.wait_timeout(*limit).await,
                None => gate.wait().await.map(|()| true),
            };
            take::close(&locks).await;
            if !opened? {
                let sentence = format!("somebody is still missing at the latch {:?}", latch.name);
                return Err(Failure::new(code::BUSY, sentence));
            }
        }
        LatchVerb::Show { latch } => {
            let (locks, gate) = open(latch).await?;
            let seen = async { Ok::<_, Failure>((gate.count().await?, gate.arrived().await?)) };
            let seen = seen.await;
            take::close(&locks).await;
            let (missing, arrived) = seen?;
            let lines = std::iter::once(format!("missing {missing}"));
            let lines = lines.chain(arrived.iter().map(|id| format!("counted {id}")));
            output::print(&lines.map(|line| printable(&line) + "\n").collect::<String>())?;
        }
        LatchVerb::Reset { latch } => {
            let (locks, gate) = open(latch).await?;
            let reset = gate.reset(latch.count).await;
            take::close(&locks).await;
            reset?;
        }
    }
    Ok(0)
}

async fn open(args: &LatchArgs) -> Result<(LockManager, Latch), Failure> {
    lockkit::Name::new(&args.name)?;
    if args.count == 0 || args.count > Latch::MAX_COUNT {
        let (count, most) = (args.count, Latch::MAX_COUNT);
        let sentence = format!("a latch counts down from 1 to {most}, not from {count}");
        return Err(Failure::usage(sentence));
    }
    let locks = Backend::choose(&args.backend)?.connect().await?;
    let latch = locks.latch(&args.name, args.count);
    Ok((locks, latch))
}
