//! `watch`: one name, now and after each change, until interrupted. A backend that is out of reach
//! for a time does not end it.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select_all;
use lockkit::state::LockState;
use lockkit::{Error, LockManager, Name, Space};
use tokio::time::sleep;

use crate::args::BackendArgs;
use crate::args::look::WatchArgs;
use crate::backend::Backend;
use crate::commands::show;
use crate::exit::Failure;
use crate::output;

/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) async fn watch(args: &WatchArgs, backend: &BackendArgs) -> Result<u8, Failure> {
    Name::new(&args.subject.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    loop {
        let error = match follow(&locks, args).await? {
            Some(error) if error.is_retryable() => error,
            Some(error) => return Err(error.into()),
            None => return Ok(0),
        };
        output::note(format!("{error}: trying again"));
        // Said once for each time that the backend is away.
        while let Err(error) = locks.inspect(Space::Lock, &args.subject.name).await {
            if !error.is_retryable() {
                return Err(error.into());
            }
            sleep(PAUSE).await;
        }
    }
}

/// Prints states until the backend fails.
async fn follow(locks: &LockManager, args: &WatchArgs) -> Result<Option<Error>, Failure> {
    let spaces = show::spaces(&args.subject).iter().enumerate();
    let mut states = select_all(spaces.map(|(at, space)| {
        let states = locks.watch(*space, &args.subject.name).enumerate();
        // A name is seldom that of a lock and of a semaphore: the second is shown once it is used.
        states
            .filter(move |(n, state)| std::future::ready(at == 0 || *n > 0 || is_used(state)))
            .map(|(_, state)| state)
            .boxed()
    }));
    while let Some(state) = states.next().await {
        match state {
            Ok(state) => show::print(&state, args.json)?,
            Err(error) => return Ok(Some(error)),
        }
    }
    Ok(None)
}

fn is_used(state: &Result<LockState, Error>) -> bool {
    state.as_ref().map_or(true, |state| !state.line.is_empty())
}
