//! `watch`: one name, now and after each change, until interrupted. A backend that is out of reach
//! for a time does not end it: the library goes on trying.

use futures_util::StreamExt;
use futures_util::stream::select_all;
use lockkit::state::LockState;
use lockkit::{Error, Name};

use crate::args::BackendArgs;
use crate::args::look::WatchArgs;
use crate::backend::Backend;
use crate::commands::show;
use crate::exit::Failure;
use crate::run::leftovers::Leftovers;

pub(crate) async fn watch(args: &WatchArgs, backend: &BackendArgs) -> Result<u8, Failure> {
    Name::new(&args.subject.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
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
        show::print(&state?, &Leftovers::new(), args.json)?;
    }
    Ok(0)
}

fn is_used(state: &Result<LockState, Error>) -> bool {
    state.as_ref().map_or(true, |state| !state.line.is_empty())
}
