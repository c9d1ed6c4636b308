//! What an operator may set: limits, names, tokens, the states of Terraform.

use std::time::Duration;

use lockkit_core::{Capabilities, Error};

use crate::tokens::AccessTokens;

/// The settings of a [`Service`](crate::Service).
///
/// ```
/// # use lockkit_server::{Limits, ServiceSettings};
/// let settings = ServiceSettings::new().limits(Limits { waiting: 1_000, ..Limits::default() });
/// ```
#[derive(Debug, Default)]
pub struct ServiceSettings {
    pub(crate) limits: Limits,
    pub(crate) hosts: Vec<String>,
    pub(crate) tokens: Option<AccessTokens>,
    pub(crate) terraform: TerraformSettings,
}

/// How much a service takes on. What is beyond is refused with status 429 or 413, or waits to be
/// accepted.
///
/// ```
/// use lockkit_server::{Limits, ServiceSettings};
///
/// let limits = Limits { connections_per_peer: 100, ..Limits::default() };
/// let settings = ServiceSettings::new().limits(limits);
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

/// How the service keeps states of Terraform and OpenTofu.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_server::{ServiceSettings, TerraformSettings};
///
/// let half_a_day = Some(Duration::from_secs(12 * 60 * 60));
/// let terraform = TerraformSettings { longest: half_a_day, ..TerraformSettings::default() };
/// let settings = ServiceSettings::new().terraform(terraform);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerraformSettings {
    /// The longest time of a lock; `None` for no end. Terraform renews nothing, and is not notified
    /// when this time is over: its next write is refused, while it may still change infrastructure.
    pub longest: Option<Duration>,
    /// Whether a state is also written without a lock (`-lock=false`), under a short one of the
    /// service's own.
    pub unlocked_writes: bool,
    /// Bytes of a state.
    pub body: usize,
    /// Bytes of a state as it is stored, compressed; by default no limit but on etcd, 4 MB, because
    /// etcd keeps every version until it is compacted.
    pub stored: Option<usize>,
    /// States that are received at the same time.
    pub uploads: usize,
}

impl Default for TerraformSettings {
    fn default() -> Self {
        let (body, uploads) = (32 << 20, 4);
        Self { longest: None, unlocked_writes: false, body, stored: None, uploads }
    }
}

impl TerraformSettings {
    /// The TTL of a claim without an end: the longest that a backend takes.
    const NO_END: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// What etcd takes of one state, in bytes.
    const STORED_ON_ETCD: usize = 4_000_000;

    /// The TTL of Terraform's claims.
    pub(crate) fn claim_ttl(&self) -> Duration {
        self.longest.unwrap_or(Self::NO_END)
    }

    /// The most bytes of a compressed state on this backend.
    pub(crate) fn stored_on(&self, backend: &str) -> usize {
        let default = if backend == "etcd" { Self::STORED_ON_ETCD } else { usize::MAX };
        self.stored.unwrap_or(default)
    }

    /// Refuses a longest time that cannot be one.
    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), Error> {
        let least = capabilities.min_ttl.max(Duration::from_secs(1));
        match self.longest {
            Some(longest) if longest < least || longest > Self::NO_END => Err(Error::Config(
                format!("the longest time of a Terraform lock is {least:?} to 10 years"),
            )),
            _ => Ok(()),
        }
    }
}

impl ServiceSettings {
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

    /// Keeps states of Terraform in this way.
    #[must_use]
    pub fn terraform(mut self, terraform: TerraformSettings) -> Self {
        self.terraform = terraform;
        self
    }

    /// Answers callers with one of these tokens only. Without this, every caller may do everything.
    #[must_use]
    pub fn tokens(mut self, tokens: AccessTokens) -> Self {
        self.tokens = Some(tokens);
        self
    }
}
