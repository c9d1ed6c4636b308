//! `break`: takes a lock away from its holder, or a place in line from who waits.

use lockkit::driver::BreakMode;
use lockkit::state::LockState;
use lockkit::{LockManager, MemoryDriver, Name, Space, Token};

use crate::args::BackendArgs;
use crate::args::look::BreakArgs;
use crate::backend::Backend;
use crate::commands::show;
use crate::exit::{Failure, code};
use crate::{output, phrase, take};

pub(crate) async fn break_lock(args: &BreakArgs, backend: &BackendArgs) -> Result<u8, Failure> {
    let (name, token) = (&args.subject.name, args.token);
    Name::new(name)?;
    let how = match args.force {
        true => BreakMode::Forced,
        false => BreakMode::Graceful,
    };
    let reason = args.reason.as_deref();
    // Refuses what cannot be a reason before anything is touched.
    let stage = LockManager::new(MemoryDriver::new());
    stage.break_lock(Space::Lock, name, token, how, reason).await?;
    let locks = Backend::choose(backend)?.connect().await?;
    let broken = async {
        let states = show::states(&locks, &args.subject).await?;
        let (space, whose) = find(&states, token, name)?;
        match locks.break_lock(space, name, token, how, reason).await? {
            true => Ok((space, whose)),
            false => Err(nobody(name, token)),
        }
    };
    let broken = broken.await;
    take::close(&locks).await;
    let (space, whose) = broken?;
    let subject = phrase::subject(space, name);
    let then = match args.force {
        true => "it has moved on; the former holder may still be at work",
        false => "it moves on when the holder lets go, or when its lease ends",
    };
    output::note(format!("broke {subject}: {whose}; {then}"));
    Ok(0)
}

/// Where the token is, and whose it is.
fn find(states: &[LockState], token: Token, name: &str) -> Result<(Space, String), Failure> {
    let mut found = states.iter().flat_map(|state| {
        let claims = state.line.iter().filter(|claim| claim.token == token);
        claims.map(|claim| (state.space(), phrase::standing(claim)))
    });
    match (found.next(), found.next()) {
        (Some(found), None) => Ok(found),
        (None, _) => Err(nobody(name, token)),
        (Some(_), Some(_)) => Err(Failure::usage(format!(
            "the lock and the semaphore {name:?} both have the token {token}: say which with --lock \
             or --semaphore"
        ))),
    }
}

fn nobody(name: &str, token: Token) -> Failure {
    let sentence = format!("no claim on {name:?} has the token {token}: see `lockkit show`");
    Failure::new(code::NO, sentence)
}
