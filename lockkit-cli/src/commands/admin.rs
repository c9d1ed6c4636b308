//! Operations of an operator: `break`, which removes a claim; `resize`, which sets the limit of a
//! semaphore; `take-over`, which raises the tokens of a backend above those of another.

use lockkit::driver::BreakMode;
use lockkit::state::LockState;
use lockkit::{LockManager, MemoryDriver, Name, Space, Token};

use crate::args::BackendArgs;
use crate::args::inspect::{BreakArgs, TakeOverArgs};
use crate::args::sync::ResizeArgs;
use crate::backend::Backend;
use crate::commands::show;
use crate::exit::{ExitError, code};
use crate::{acquire, describe, output};

/// What the locks of Terraform's states are named, which `lockkit serve` holds for it. A graceful break
/// only refuses renewals, so it would end none of them.
const TERRAFORM: &str = "lockkit.terraform/";

pub(crate) async fn break_lock(args: &BreakArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    let (name, token) = (&args.subject.name, args.token);
    Name::new(name)?;
    let renews_nothing = name.starts_with(TERRAFORM);
    let how = match args.force || renews_nothing {
        true => BreakMode::Forced,
        false => BreakMode::Graceful,
    };
    let reason = args.reason.as_deref();
    // Refuses what cannot be a reason before anything is touched.
    let stage = LockManager::new(MemoryDriver::new());
    stage.admin().break_lock(Space::Lock, name, token, how, reason).await?;
    let locks = Backend::choose(backend)?.connect().await?;
    let broken = async {
        let states = show::states(&locks, &args.subject).await?;
        let (space, whose) = find(&states, token, name)?;
        match locks.admin().break_lock(space, name, token, how, reason).await? {
            true => Ok((space, whose)),
            false => Err(nobody(name, token)),
        }
    };
    let broken = broken.await;
    acquire::close(&locks).await;
    let (space, whose) = broken?;
    let subject = describe::subject(space, name);
    let then = match how {
        _ if renews_nothing => {
            "it has moved on: this was a forced break, since Terraform renews nothing; its next write \
             of the state is refused"
        }
        BreakMode::Forced => "it has moved on; the former holder may still be at work",
        BreakMode::Graceful => "it moves on when the holder lets go, or when its lease ends",
    };
    output::note(format!("broke {subject}: {whose}; {then}"));
    Ok(0)
}

/// Where the token is, and whose it is.
fn find(states: &[LockState], token: Token, name: &str) -> Result<(Space, String), ExitError> {
    let mut found = states.iter().flat_map(|state| {
        let claims = state.queue.iter().filter(|claim| claim.token == token);
        claims.map(|claim| (state.space(), describe::claim(claim)))
    });
    match (found.next(), found.next()) {
        (Some(found), None) => Ok(found),
        (None, _) => Err(nobody(name, token)),
        (Some(_), Some(_)) => Err(ExitError::usage(format!(
            "the lock and the semaphore {name:?} both have the token {token}: say which with --lock \
             or --semaphore"
        ))),
    }
}

fn nobody(name: &str, token: Token) -> ExitError {
    let sentence = format!("no claim on {name:?} has the token {token}: see `lockkit show`");
    ExitError::new(code::NO, sentence)
}

pub(crate) async fn resize(args: &ResizeArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    Name::new(&args.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let resized = locks.admin().resize(&args.name, args.limit).await;
    acquire::close(&locks).await;
    resized?;
    output::print_line(args.limit)?;
    Ok(0)
}

pub(crate) async fn take_over(args: &TakeOverArgs, chosen: &BackendArgs) -> Result<u8, ExitError> {
    let backend = Backend::choose(chosen)?;
    let from = Backend::beside(chosen, &args.from, "--from")?;
    let old = from.connect().await?;
    let new = backend.connect().await?;
    let reached = old.admin().reached_token().await;
    let reached =
        reached.map_err(|error| ExitError::from(error).at("reading the tokens of", &from))?;
    let base = new.admin().raise_tokens_above(reached).await?;
    old.shutdown().await;
    new.shutdown().await;
    output::print(&format!("tokens begin above {base}\n"))?;
    Ok(0)
}
