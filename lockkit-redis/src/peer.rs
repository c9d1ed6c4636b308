//! Which server gave an answer: a run of it, over one connection.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::Evidence;

/// An answer of a server.
pub(crate) struct Response<T> {
    pub(crate) value: T,
    /// The server that gave it: known where the connection is our own.
    pub(crate) peer: Option<Arc<Peer>>,
    /// How many attempts before this one got no answer.
    pub(crate) ambiguous: u32,
}

impl<T> Response<T> {
    pub(crate) fn new(value: T, peer: Option<Arc<Peer>>) -> Self {
        Self { value, peer, ambiguous: 0 }
    }
}

/// The server at the other end of a connection.
pub(crate) struct Peer {
    /// Its `run_id`; empty where the user may not ask for it.
    run: Arc<str>,
    connection: u64,
}

impl Peer {
    pub(crate) fn new(run: Arc<str>) -> Self {
        Self { run, connection: Evidence::new_connection() }
    }

    /// What an answer of this server tells that has this time in it.
    pub(crate) fn evidence(&self, time: Option<Duration>) -> Arc<Evidence> {
        let evidence = Evidence::new(self.run.clone(), self.connection);
        Arc::new(match time {
            Some(time) => evidence.with_time(time),
            None => evidence,
        })
    }
}
