//! Servers that tests share as long as none of them disturbs it: named by the
//! environment, or else one for each process. May not disturb them either.
//!
//! Test runners that start a process for each test would start a server for each
//! test, too; `cargo xtask test` starts one of each kind beforehand, and for a run
//! of all tests one group of each layout, and names them in the environment.

use std::env;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::sync::OnceCell;

use super::error::{Doing, LabError, Result};
use super::group::Group;
use super::kind::{Layout, ServerKind};
use super::server::Server;

/// A server, or a group of servers, that others use at the same time.
#[derive(Debug, Clone)]
pub struct SharedServer {
    url: String,
    authority: String,
    addr: SocketAddr,
}

impl SharedServer {
    /// The server that [`ServerKind::variable`] names; without one, a server that all
    /// tests of this process share, started at the first call.
    ///
    /// # Errors
    ///
    /// If the URL has no address, or as for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the next caller starts the server.
    pub async fn server(kind: ServerKind) -> Result<Self> {
        match env::var(kind.variable()) {
            Ok(url) => Self::named(&url),
            Err(_) => Self::named(&of_this_process(kind).await?.url()),
        }
    }

    /// The group that [`Layout::variable`] names; without one, a group that all
    /// tests of this process share, started at the first call. Its members wait
    /// long for each other.
    ///
    /// # Errors
    ///
    /// If the URL has no address, or as for [`Group::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the next caller starts the group.
    pub async fn group(layout: Layout) -> Result<Self> {
        match env::var(layout.variable()) {
            Ok(url) => Self::named(&url),
            Err(_) => Self::named(&group_of_this_process(layout).await?.url()),
        }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address; of a group, that of the first server that its URL names.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its URL with another address: that of a proxy before it.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        self.url.replacen(&self.authority, &addr.to_string(), 1)
    }

    fn named(url: &str) -> Result<Self> {
        let odd = || LabError::Answer("a test server's URL needs the form x://host:port".into());
        // The URL of a bucket or a table names its server in an option.
        let named = url.split_once("endpoint=").map_or(url, |(_, endpoint)| endpoint);
        let (_, rest) = named.split_once("://").ok_or_else(odd)?;
        let authority = rest.split(['/', '?', '&']).next().unwrap_or(rest);
        let authority = authority.rsplit('@').next().unwrap_or(authority);
        let first = authority.split(',').next().unwrap_or(authority);
        let addr = first
            .to_socket_addrs()
            .doing(format!("looking up {authority}"))?
            .next()
            .ok_or_else(odd)?;
        Ok(Self { url: url.into(), authority: authority.into(), addr })
    }
}

/// Starts a group of this layout that tests can share.
///
/// # Errors
///
/// As for [`Group::start`].
///
/// # Cancel safety
///
/// If the future is dropped, nothing of the group remains.
pub async fn start_group(layout: Layout) -> Result<Group> {
    match layout {
        Layout::ZooKeeperEnsemble => Group::start_calm_ensemble().await,
        _ => Group::start(layout).await,
    }
}

/// Never dropped, as below.
async fn group_of_this_process(layout: Layout) -> Result<&'static Group> {
    static GROUPS: [OnceCell<Group>; Layout::ALL.len()] =
        [const { OnceCell::const_new() }; Layout::ALL.len()];
    let at = Layout::ALL.iter().position(|other| *other == layout).unwrap_or(0);
    GROUPS[at].get_or_try_init(|| start_group(layout)).await
}

/// Never dropped: its watchdog ends the server when this process ends.
async fn of_this_process(kind: ServerKind) -> Result<&'static Server> {
    static SERVERS: [OnceCell<Server>; ServerKind::ALL.len()] =
        [const { OnceCell::const_new() }; ServerKind::ALL.len()];
    let at = ServerKind::ALL.iter().position(|other| *other == kind).unwrap_or(0);
    SERVERS[at].get_or_try_init(|| Server::start(kind)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_of_a_url_is_replaced() {
        let named = SharedServer::named("mysql://root:p@127.0.0.1:3306/lockkit?x=1").unwrap();
        assert_eq!(named.addr(), "127.0.0.1:3306".parse().unwrap());
        let proxy = "127.0.0.1:9".parse().unwrap();
        assert_eq!(named.url_at(proxy), "mysql://root:p@127.0.0.1:9/lockkit?x=1");
        assert!(SharedServer::named("redis").is_err());
        let bucket = SharedServer::named("az://c?account=a&endpoint=http://127.0.0.1:7/a").unwrap();
        assert_eq!(bucket.addr(), "127.0.0.1:7".parse().unwrap());
        assert_eq!(bucket.url_at(proxy), "az://c?account=a&endpoint=http://127.0.0.1:9/a");
        let table =
            SharedServer::named("dynamodb://t?region=x&endpoint=http://127.0.0.1:7&pace=1s");
        let moved = "dynamodb://t?region=x&endpoint=http://127.0.0.1:9&pace=1s";
        assert_eq!(table.unwrap().url_at(proxy), moved);
        let group = SharedServer::named("redis+sentinel://127.0.0.1:5,127.0.0.1:6/main").unwrap();
        assert_eq!(group.addr(), "127.0.0.1:5".parse().unwrap());
    }
}
