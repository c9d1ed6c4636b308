//! How a driver is to reach its ensemble: what a program says by methods. No I/O.

use std::fmt;
use std::time::Duration;

use lockkit_core::{Error, Result};
#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acls, Client, Connector, Error as ZkError, SaslOptions};

use crate::paths::Neighbours;

/// How long a guard can trust a session of 30 s, and what ZooKeeper's sample configuration has as
/// its tick.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_TICK: Duration = Duration::from_secs(2);

/// The least ttl that a session is asked for, unless the manager's is less: two ticks, what servers
/// give at least unless told otherwise. A shorter one would end with every stall of a busy machine.
pub(crate) const LEAST: Duration = Duration::from_secs(4);
/// By how much what was asked for may be rounded.
pub(crate) const ROUNDED: Duration = Duration::from_millis(2);
/// The longest; servers count timeouts in 31 bits.
const LONGEST: Duration = Duration::from_secs(86_400);

/// What is asked of the servers and of the client for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTimeouts {
    pub(crate) timeout: Duration,
    /// How long a connection may be silent before another server is tried.
    pub(crate) connection: Duration,
}

/// Where the ensemble is, and what sessions there are to be like.
///
/// ```no_run
/// use std::time::Duration;
/// use lockkit_zk::{ZkDriver, ZkOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let options = ZkOptions::new("10.0.0.7:2181,10.0.0.8:2181")
///     .chroot("/locks")?
///     .session_timeout(Duration::from_secs(20));
/// let driver = ZkDriver::connect_with(options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ZkOptions {
    pub(crate) hosts: String,
    /// `/apps/shop`, or nothing.
    pub(crate) chroot: String,
    pub(crate) ttl: Duration,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) tick: Duration,
    pub(crate) connector: Connector,
    pub(crate) neighbours: Option<Neighbours>,
    /// Whether servers are spoken to in TLS, unless they are given as `tcp://`.
    pub(crate) tls: bool,
    /// Whether nodes are made so that only a client that has the same login can touch them.
    pub(crate) private: bool,
}

impl ZkOptions {
    /// These servers, `host:port,host:port`.
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            chroot: String::new(),
            neighbours: None,
            ttl: DEFAULT_TTL,
            session_timeout: None,
            tick: DEFAULT_TICK,
            connector: Client::connector(),
            tls: false,
            private: false,
        }
    }

    /// Puts everything under this path, which is made when it is not there.
    pub fn chroot(mut self, path: &str) -> Result<Self> {
        let good = path.starts_with('/')
            && !path.ends_with('/')
            && path[1..].split('/').all(|part| !matches!(part, "" | "." | ".."))
            && !path.contains(char::is_control);
        if !good {
            let message = format!("{path:?} is no chroot: use a path such as /apps/shop");
            return Err(Error::Config(message));
        }
        self.chroot = path.to_owned();
        Ok(self)
    }

    /// How long guards are to last without news from the ensemble; 30 s unless set. It is the ttl of
    /// the main session. Claims with another ttl get a session of that ttl, but none below 4 s
    /// (or this ttl, if that is less).
    ///
    /// Sessions are asked to last somewhat longer (see [`tick`](Self::tick)), and the servers
    /// have bounds of their own: what was agreed on is what guards report.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Asks for a session of exactly this timeout, one for all claims, whatever their ttl.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// The `tickTime` of the servers, 2 s unless set. A follower tells its leader only twice a tick
    /// whom it heard of, so a guard trusts a session for less than its timeout, by half a tick and
    /// the longest silence of an idle client. Set it when yours is longer.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Shares locks with programs that use another library.
    ///
    /// The lock `a` then lies at `/CHROOT/a` (with a namespace, at `/CHROOT/NAMESPACE/a`), and
    /// a client that locks that path with Curator's `InterProcessMutex`, or kazoo's `Lock`, excludes ours and is
    /// excluded by it, readers included; all wait in one queue. Semaphores and registers are not
    /// shared. `/CHROOT/lockkit` is lockkit's own: a lock or a namespace `lockkit` lies at
    /// `/CHROOT/%6Cockkit`, so a client that locks a path there is not excluded.
    pub fn neighbours(mut self, neighbours: Neighbours) -> Self {
        self.neighbours = Some(neighbours);
        self
    }

    /// Logs in with ZooKeeper's `digest` scheme. Nodes are then made for this login alone: every
    /// client of these locks needs the same.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        let auth = format!("{user}:{password}");
        self.connector = self.connector.with_auth("digest", auth.as_bytes());
        self.private = true;
        self
    }

    /// Logs in with SASL's DIGEST-MD5, which the servers check, other than a login of `digest`: a
    /// wrong password is an error. Nodes are then made for this user alone.
    pub fn sasl_login(mut self, user: &str, password: &str) -> Self {
        let login = SaslOptions::digest_md5(user.to_owned(), password.to_owned());
        self.connector = self.connector.with_sasl(login);
        self.private = true;
        self
    }

    /// Speaks TLS with the servers: whom to trust, and what to show to a server that asks who is
    /// there.
    ///
    /// Installs ring as the provider of cryptography for all of the program, unless it has one.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: TlsOptions) -> Self {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // A client may have been faster, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        self.connector = self.connector.with_tls(options);
        self.tls = true;
        self
    }

    /// Connects with this connector: for what it can and a URL cannot say. Its session timeout is
    /// replaced by what [`ttl`](Self::ttl) or [`session_timeout`](Self::session_timeout) ask for,
    /// and its connection timeout by what goes with that.
    pub fn connector(mut self, connector: Connector) -> Self {
        self.connector = connector;
        self
    }

    /// Makes nodes that only the login that made them can touch, as [`login`](Self::login) does by
    /// itself; for logins that the connector was given.
    pub fn private(mut self, private: bool) -> Self {
        self.private = private;
        self
    }

    /// Whether more than one server is named.
    pub(crate) fn has_several(&self) -> bool {
        self.hosts.contains(',')
    }

    /// Connects to one of the servers, the way they are spoken to.
    pub(crate) async fn dial(&self, connector: Connector) -> Result<Client, ZkError> {
        #[cfg(feature = "tls")]
        if self.tls {
            return connector.secure_connect(&self.hosts).await;
        }
        connector.connect(&self.hosts).await
    }

    /// The address of a server of [`hosts`](Self::hosts) that is spoken to without TLS.
    pub(crate) fn plain<'a>(&self, host: &'a str) -> Option<&'a str> {
        match host.split_once("://") {
            Some(("tcp", host)) => Some(host),
            None if !self.tls => Some(host),
            _ => None,
        }
    }

    pub(crate) fn acls(&self) -> Acls<'static> {
        if self.private { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// What to ask for a session that is trusted for this ttl: the shortest that is.
    pub(crate) fn asked(&self, ttl: Duration) -> SessionTimeouts {
        if let Some(timeout) = self.session_timeout {
            return SessionTimeouts { timeout, connection: connection_timeout(timeout) };
        }
        let ttl = ttl.min(LONGEST);
        // One for a longer ttl is as talkative as the main one, so that no more of it is lost to
        // silence.
        let most = match ttl > self.ttl {
            true => self.asked(self.ttl).connection,
            false => Duration::MAX,
        };
        let connection = |timeout| connection_timeout(timeout).min(most);
        let (mut short, mut long) = (ttl, ttl * 2);
        // Servers count in whole milliseconds.
        while long > short + Duration::from_millis(1) {
            let middle = short + (long - short) / 2;
            match self.trusted(middle, connection(middle)) < ttl {
                true => short = middle,
                false => long = middle,
            }
        }
        let whole = long.as_nanos().div_ceil(1_000_000);
        let timeout = Duration::from_millis(u64::try_from(whole).unwrap_or(u64::MAX));
        SessionTimeouts { timeout, connection: connection(timeout) }
    }

    /// For how long a session of this timeout may be trusted, counted from the sending of a request
    /// that took a leader and a majority, when a connection counts as lost after `connection`
    /// without a word from the server.
    ///
    /// The leader ends a session when it has not heard of it for the timeout. But it does not hear
    /// of it at once: a follower reports the sessions that it heard from with its answers to the
    /// leader's pings, twice a tick, and a forwarded request (a write) counts as no sign of life of
    /// the session by itself. So when a follower is cut off right after it passed on an
    /// answer, the leader's count began up to half a tick before the client's last word to the
    /// follower before that request.
    pub(crate) fn trusted(&self, timeout: Duration, connection: Duration) -> Duration {
        // Eight times in that time the client looks whether three eighths of it, or 10 s, have
        // passed since it said something, and pings.
        let silence = (connection * 3 / 8).min(Duration::from_secs(10)) + connection / 8;
        timeout.saturating_sub(silence + (self.tick / 2).min(timeout / 4))
    }
}

/// How long a connection of a session with this timeout may be silent before another server is
/// tried.
///
/// A fifth of it: the shorter, the sooner one that stands still or is cut off is left for another.
/// But not so short that a busy machine cuts connections.
pub(crate) fn connection_timeout(session: Duration) -> Duration {
    (session / 5).max(Duration::from_secs(4)).min(session * 2 / 5)
}

/// The longest that a client may have for that which another client has configured.
pub(crate) fn longest_connection_timeout(session: Duration) -> Duration {
    session * 3 / 5
}

/// What the client makes of such a configuration when the servers have agreed to this session: if
/// it is too long for it, two fifths.
pub(crate) fn agreed_silence(session: Duration, configured: Duration) -> Duration {
    if configured > longest_connection_timeout(session) { session * 2 / 5 } else { configured }
}

impl fmt::Debug for ZkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkOptions")
            .field("hosts", &self.hosts)
            .field("chroot", &self.chroot)
            .field("ttl", &self.ttl)
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_lasts_as_much_longer_as_is_not_trusted() {
        for (ttl, tick) in [(30_000_u64, 2_000), (1_000, 2_000), (2_000, 500), (60_000, 3_000)] {
            let tick = Duration::from_millis(tick);
            let options = ZkOptions::new("a").ttl(Duration::from_millis(ttl)).tick(tick);
            let SessionTimeouts { timeout, connection } = options.asked(options.ttl);
            let trusted = options.trusted(timeout, connection).as_millis();
            assert!((u128::from(ttl)..u128::from(ttl) + 5).contains(&trusted), "{ttl} {trusted}");
        }
    }

    /// Counted by hand for the defaults: a connection timeout of 6.9 s makes the client look every
    /// 0.86 s and ping 2.6 s after its last word, so 3.4 s may pass; and half a tick.
    #[test]
    fn what_is_not_trusted_covers_the_longest_silence_of_an_idle_client() {
        let options = ZkOptions::new("a");
        let asked = options.asked(options.ttl).timeout;
        assert_eq!(asked.as_millis(), 34_445);
        let unknown = options.trusted(asked, longest_connection_timeout(asked));
        // Of a client whose connection timeout is not known: 34.4 - 0.3 * 34.4 - 1.
        assert_eq!(unknown.as_millis(), 23_111);
        // A server that grants less than was asked for makes the client no more talkative, until
        // what it was told does not fit.
        let told = connection_timeout(asked);
        assert_eq!(agreed_silence(asked / 2, told), told);
        assert_eq!(agreed_silence(told, told), told * 2 / 5);
    }
}
