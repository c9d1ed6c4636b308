//! How a driver is to reach its ensemble: read from a URL, or said by methods. No I/O.

use std::fmt;
use std::time::Duration;

use lockkit_core::{Error, parse_duration, without_password};
use percent_encoding::percent_decode_str;
use zookeeper_client::{Acls, Client, Connector};

/// How long a guard can trust a session of 30 s, and what ZooKeeper's sample configuration has as
/// its tick.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_TICK: Duration = Duration::from_secs(2);

/// Where the ensemble is, and what sessions there are to be like.
#[derive(Clone)]
pub struct ZkOptions {
    pub(crate) hosts: String,
    pub(crate) root: String,
    pub(crate) ttl: Duration,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) tick: Duration,
    pub(crate) connector: Connector,
    /// Whether nodes are made so that only whoever has the same login can touch them.
    pub(crate) private: bool,
}

impl ZkOptions {
    /// These servers, `host:port,host:port`.
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            root: "/lockkit".to_owned(),
            ttl: DEFAULT_TTL,
            session_timeout: None,
            tick: DEFAULT_TICK,
            connector: Client::connector(),
            private: false,
        }
    }

    /// Reads `zk://[user:password@]host:port,host:port[/chroot][?ttl=30s&tick=2s&…]`.
    ///
    /// `ttl`: see [`ttl`](Self::ttl). `session_timeout`: see
    /// [`session_timeout`](Self::session_timeout). `tick`: see [`tick`](Self::tick).
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            let shown = without_password(url);
            let form = "zk://[user:password@]host:port,host:port[/chroot][?ttl=30s]";
            Error::Config(format!("{shown}: {what}; a ZooKeeper URL is {form}"))
        };
        let rest =
            url.strip_prefix("zk://").ok_or_else(|| wrong("it does not begin with zk://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The password may contain '@': everything up to the last one is the login.
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let (hosts, chroot) = match place.find('/') {
            Some(slash) => place.split_at(slash),
            None => (place, ""),
        };
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(wrong("it names no server"));
        }
        let mut options = Self::new(hosts);
        if !matches!(chroot, "" | "/") {
            options = options.chroot(chroot)?;
        }
        if let Some(login) = login {
            let (user, password) = login.split_once(':').ok_or_else(|| wrong("no password"))?;
            let decode = |text| percent_decode_str(text).decode_utf8();
            match (decode(user), decode(password)) {
                (Ok(user), Ok(password)) => options = options.login(&user, &password),
                _ => return Err(wrong("the login is not UTF-8")),
            }
        }
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            options = match name {
                "ttl" => options.ttl(parse_duration(value)?),
                "session_timeout" => options.session_timeout(parse_duration(value)?),
                "tick" => options.tick(parse_duration(value)?),
                _ => return Err(wrong(&format!("there is no option {name:?}"))),
            };
        }
        Ok(options)
    }

    /// Puts everything under this path, which is made when it is not there.
    pub fn chroot(mut self, path: &str) -> Result<Self, Error> {
        let good = path.starts_with('/')
            && !path.ends_with('/')
            && path[1..].split('/').all(|part| !matches!(part, "" | "." | ".."))
            && !path.contains(char::is_control);
        if !good {
            let message = format!("{path:?} is no chroot: use a path such as /apps/shop");
            return Err(Error::Config(message));
        }
        self.root = format!("{path}/lockkit");
        Ok(self)
    }

    /// How long guards are to last without news from the ensemble; 30 s unless set. All locks of
    /// one driver live in one session, so this is chosen once, here; the ttl of a single lock does
    /// not change it.
    ///
    /// The session is asked to last somewhat longer (see [`tick`](Self::tick)), and the servers
    /// have bounds of their own: what was agreed on is what guards report.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Asks for a session of exactly this timeout, whatever the ttl.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// The `tickTime` of the servers, 2 s unless set. A follower tells its leader only twice a tick
    /// whom it heard of, so a guard trusts a session for less than its timeout, by half a tick and
    /// the interval of the client's pings. Set it when yours is longer.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
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

    /// Connects with this connector: for what it can and a URL cannot say. Its session timeout is
    /// replaced by what [`ttl`](Self::ttl) or [`session_timeout`](Self::session_timeout) ask for.
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

    pub(crate) fn acls(&self) -> Acls<'static> {
        if self.private { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// The session timeout to ask for.
    pub(crate) fn asked_timeout(&self) -> Duration {
        let long = (self.ttl + self.tick / 2).mul_f64(20.0 / 17.0);
        let short = self.ttl.mul_f64(20.0 / 12.0);
        // Servers count in whole milliseconds.
        let whole = long.min(short).as_nanos().div_ceil(1_000_000);
        let asked = Duration::from_millis(u64::try_from(whole).unwrap_or(u64::MAX));
        self.session_timeout.unwrap_or(asked)
    }

    /// For how long a session of this timeout may be trusted, counted from the sending of a request
    /// that the leader answered.
    ///
    /// The leader ends a session when it has not heard of it for the timeout. But it does not hear
    /// of it at once: a follower reports the sessions that it heard from with its answers to the
    /// leader's pings, twice a tick, and a forwarded request (`sync` or a write) counts as no sign
    /// of life of the session by itself. So when a follower is cut off right after it passed on an
    /// answer, the leader's count began up to half a tick plus one interval of the client's pings
    /// before that request.
    pub(crate) fn trusted(&self, timeout: Duration) -> Duration {
        let ping = (timeout * 3 / 20).min(Duration::from_secs(10));
        timeout - ping - (self.tick / 2).min(timeout / 4)
    }
}

impl fmt::Debug for ZkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkOptions")
            .field("hosts", &self.hosts)
            .field("root", &self.root)
            .field("ttl", &self.ttl)
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_chroot_login_and_times() {
        let url = "zk://me:se%40@c@a:1,b:2/apps/shop?ttl=12s&tick=500ms";
        let options = ZkOptions::parse(url).unwrap();
        assert_eq!((&*options.hosts, &*options.root), ("a:1,b:2", "/apps/shop/lockkit"));
        assert_eq!(options.ttl, Duration::from_secs(12));
        assert!(options.private);
        assert!(!format!("{options:?}").contains("se"));
        let plain = ZkOptions::parse("zk://a:1/").unwrap();
        assert_eq!((&*plain.root, plain.private), ("/lockkit", false));
    }

    #[test]
    fn what_cannot_be_is_refused_without_the_password() {
        for bad in
            ["zk://", "zk://me:secret@", "zk://a/b//c", "zk://a/../b", "zk://me@a", "zk://a?x=1"]
        {
            let message = ZkOptions::parse(bad).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn the_session_lasts_as_much_longer_as_is_not_trusted() {
        for (ttl, tick) in [(30_000_u64, 2_000), (1_000, 2_000), (2_000, 500), (60_000, 3_000)] {
            let tick = Duration::from_millis(tick);
            let options = ZkOptions::new("a").ttl(Duration::from_millis(ttl)).tick(tick);
            let trusted = options.trusted(options.asked_timeout()).as_millis();
            // Pings never wait for more than 10 s, which leaves more of a long session.
            assert!(
                (u128::from(ttl)..u128::from(ttl) + 1_000).contains(&trusted),
                "{ttl} {trusted}"
            );
        }
    }
}
