//! `check`: asks the backend whether the lock that this command runs under still holds.

use lockkit::state::ClaimState;
use lockkit::{LockManager, Name};

use crate::args::BackendArgs;
use crate::backend::Backend;
use crate::exit::{ExitError, code};
use crate::run::held::{self, Held};
use crate::{acquire, describe, output};

pub(crate) async fn check(args: &BackendArgs) -> Result<u8, ExitError> {
    let Some(held) = held::held().pop() else {
        return Err(ExitError::usage(
            "this does not run under `lockkit run`: there is no lock to check",
        ));
    };
    Name::new(&held.name)?;
    let backend = backend(args, &held)?;
    let locks = backend.connect().await?;
    let checked = still_holds(&locks, &held).await;
    acquire::close(&locks).await;
    let subject = describe::subject(held.space(), &held.name);
    let checked = checked.map_err(|failure| failure.at("looking at the lock at", &backend))?;
    if checked.broken {
        return Err(lost(&format!("{subject} was broken")));
    }
    output::detail(format!("{subject} is held with token {}", held.token));
    Ok(0)
}

/// The claim of the lock, with its token; an error if it does not hold any more. One that was broken
/// gracefully holds until its lease ends.
pub(crate) async fn still_holds(locks: &LockManager, held: &Held) -> Result<ClaimState, ExitError> {
    let state = locks.inspect(held.space(), &held.name).await?;
    let claim = state.holders().find(|claim| claim.token.get() == held.token).cloned();
    claim.ok_or_else(|| {
        let subject = describe::subject(held.space(), &held.name);
        lost(&format!("{subject} is not held with token {} any more", held.token))
    })
}

fn lost(sentence: &str) -> ExitError {
    ExitError::new(code::LOST, sentence)
}

/// The backend of the lock: as told, or, where its URL may not be told, as the environment has it.
fn backend(args: &BackendArgs, held: &Held) -> Result<Backend, ExitError> {
    let told = args.url.is_some() || args.local;
    let of_the_lock = BackendArgs { namespace: Some(held.namespace.clone()), ..args.clone() };
    if !told && !held.hidden {
        return Backend::of_the_lock(held, &of_the_lock);
    }
    let chosen = Backend::choose(&of_the_lock)?;
    held.is_in(&chosen, "not")?;
    Ok(chosen)
}
