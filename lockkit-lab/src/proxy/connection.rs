//! A connection through the proxy, as data: what becomes of it and of its messages.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::counts::Tally;
use super::fault::End;
use super::message::Wire;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is delivered after so long.
    Pass(Duration),
    /// It is lost.
    Lose,
    /// It is lost, and the connection ends as its state says.
    End,
}

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Open,
    Cut,
    HalfOpen { receiver: End },
    Over,
}

pub(crate) struct ProxiedConnection {
    pub(super) target: SocketAddr,
    pub(super) wire: Mutex<Box<dyn Wire>>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) state: watch::Sender<ConnectionState>,
    /// Whether anything that the server says is lost, and who waits for that.
    pub(crate) mute: Mutex<Option<Vec<watch::Sender<bool>>>>,
}

impl ProxiedConnection {
    pub(crate) fn new(target: SocketAddr, wire: Box<dyn Wire>) -> Self {
        Self {
            target,
            wire: Mutex::new(wire),
            tally: Mutex::new(Tally::opened()),
            state: watch::Sender::new(ConnectionState::Open),
            mute: Mutex::new(None),
        }
    }
}

/// No code panics while it holds one of these locks but by a defect of its own.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
