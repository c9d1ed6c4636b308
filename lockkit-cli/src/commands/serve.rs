//! `serve`: a lock service over HTTP on a backend, until it is told to end.

use lockkit_server::Service;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::BackendArgs;
use crate::args::serve::ServeArgs;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output;
use crate::run::signals::Signals;

pub(crate) async fn serve(args: &ServeArgs, backend: &BackendArgs) -> Result<u8, Failure> {
    if backend.prefix.is_some() {
        let sentence = "serve takes no --prefix: every client sends its own";
        return Err(Failure::usage(sentence));
    }
    let mut signals = Signals::ending()?;
    let chosen = Backend::choose(backend)?;
    let locks = chosen.connect().await?;
    let service = Service::new(locks.driver().clone())?;
    let (stop, stopping) = watch::channel(());
    let mut servers = JoinSet::new();
    for place in &args.listen {
        let cannot = |e| Failure::new(code::OS, format!("cannot listen at {place}: {e}"));
        let listener = place.open().await.map_err(cannot)?;
        let place = listener.place().map_err(cannot)?;
        let mut stopping = stopping.clone();
        let stop = async move { drop(stopping.changed().await) };
        servers.spawn(lockkit_server::serve(listener, service.clone(), stop));
        output::note(format!("serving the locks of {} at {place}", chosen.shown()));
    }
    let ended = tokio::select! {
        _ = signals.next() => None,
        ended = servers.join_next() => ended,
    };
    drop(stop);
    if let Some(Ok(Err(error))) = ended {
        return Err(Failure::os("cannot go on serving", error));
    }
    while servers.join_next().await.is_some() {}
    Ok(0)
}
