//! What an operator may set: limits, names, tokens.

use crate::tokens::Tokens;

/// The settings of a [`Service`](crate::Service).
///
/// ```
/// # use lockkit_server::{Limits, Settings};
/// let settings = Settings::new().limits(Limits { waiting: 1_000, ..Limits::default() });
/// ```
#[derive(Debug, Default)]
pub struct Settings {
    pub(crate) limits: Limits,
    pub(crate) hosts: Vec<String>,
    pub(crate) tokens: Option<Tokens>,
}

/// How much a service takes on. What is beyond is refused with status 429 or 413, or waits to be
/// accepted.
///
/// ```
/// use lockkit_server::{Limits, Settings};
///
/// let limits = Limits { connections_per_peer: 100, ..Limits::default() };
/// let settings = Settings::new().limits(limits);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections, over all listeners. Further ones wait to be accepted.
    pub connections: usize,
    /// The same for one peer: an address (of IPv6 its network of 64 bits) or a Unix user. Further
    /// ones are closed.
    pub connections_per_peer: usize,
    /// Requests that wait for an event, and [streams](lockkit_http::wire::Watch).
    pub waiting: usize,
    /// The same for one caller: one name of the tokens; without tokens, one address or Unix user.
    pub waiting_per_caller: usize,
    /// Bytes of a request's body.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            connections_per_peer: 10_000,
            waiting: 16_000,
            waiting_per_caller: 8_000,
            body: 8 << 20,
        }
    }
}

impl Settings {
    /// Default limits, loopback names only, no tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Also answers requests for this host name or address, without a port. Requests for
    /// `localhost`, `127.0.0.1` and `[::1]` are always answered.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Answers callers with one of these tokens only. Without this, every caller may do everything.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = Some(tokens);
        self
    }
}
