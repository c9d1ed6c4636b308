//! Asking sentinels which server is the master: all of them at once, since one that hangs must cost nothing,
//! and one that is cut off together with an old master names that one.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisResult, Value};

use crate::decode;
use crate::server::{Address, ask, client_at};

/// For how long a majority is waited for at most.
const PATIENCE: Duration = Duration::from_millis(100);
/// When sentinels do not agree, or name a server that is no master yet, they are asked again after this.
const PAUSE: Duration = Duration::from_millis(20);

/// Sentinels, and how to log in at the master that they name.
pub(crate) struct Sentinels {
    pub(crate) sentinels: Vec<Client>,
    pub(crate) master: String,
    /// Somewhere: only its address is not the master's.
    pub(crate) server: Client,
    pub(crate) limit: Duration,
}

impl Sentinels {
    /// Connects to the server that they name, once it says itself that it is the master.
    pub(crate) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<(Client, MultiplexedConnection)> {
        loop {
            let client = client_at(&self.server, self.agreed().await?)?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(config).await?;
            if is_master(&mut connection).await? {
                return Ok((client, connection));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The address that most sentinels name. An error only if all of them fail.
    async fn agreed(&self) -> RedisResult<Address> {
        loop {
            let late = tokio::time::sleep(PATIENCE.min(self.limit / 3));
            tokio::pin!(late);
            let mut asked: FuturesUnordered<_> =
                self.sentinels.iter().map(|sentinel| self.named_by(sentinel)).collect();
            let (mut votes, mut failed) = (Vec::new(), None);
            while !asked.is_empty() {
                tokio::select! {
                    answer = asked.next() => match answer {
                        Some(Ok(address)) => votes.push(address),
                        Some(Err(error)) => failed = Some(error),
                        None => {}
                    },
                    () = &mut late, if !late.is_elapsed() => {}
                }
                let all = late.is_elapsed() || asked.is_empty();
                if let Some(address) = elected(&votes, self.sentinels.len(), all) {
                    return Ok(address.clone());
                }
            }
            if votes.is_empty() {
                let none = || (ErrorKind::EmptySentinelList, "there are no sentinels").into();
                return Err(failed.unwrap_or_else(none));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn named_by(&self, sentinel: &Client) -> RedisResult<Address> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
        let mut named = redis::cmd("SENTINEL");
        named.arg("get-master-addr-by-name").arg(&self.master);
        let answer = ask(&mut connection, &named).await?;
        let address = match &answer {
            Value::Array(parts) => match parts.as_slice() {
                [host, port] => decode::text(host).zip(decode::text(port)),
                _ => None,
            },
            _ => None,
        };
        let address = address.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        let unknown = "a sentinel knows no master of this name";
        address.ok_or_else(|| (ErrorKind::MasterNameNotFoundBySentinel, unknown).into())
    }
}

/// The address that counts: named by most of those that are listed, or, when no more are waited for, by
/// most of those that answered.
fn elected(votes: &[Address], listed: usize, all: bool) -> Option<&Address> {
    let count = |address: &Address| votes.iter().filter(|vote| *vote == address).count();
    let best = votes.iter().max_by_key(|address| count(address))?;
    let most = count(best);
    let tied = votes.iter().any(|address| address != best && count(address) == most);
    (2 * most > listed || (all && !tied)).then_some(best)
}

/// By INFO, which every user of locks may call, and not by ROLE, which says the same.
async fn is_master(connection: &mut MultiplexedConnection) -> RedisResult<bool> {
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let info = ask(connection, &info).await?;
    let unknown = (ErrorKind::UnexpectedReturnType, "no text of facts");
    Ok(decode::facts(decode::text(&info).ok_or(unknown)?).get("role") == Some(&"master"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(names: &[&str]) -> Vec<Address> {
        names.iter().map(|name| ((*name).to_owned(), 6_379)).collect()
    }

    #[test]
    fn a_majority_of_those_listed_counts_at_once_and_of_those_that_answered_later() {
        for (named, listed, all, expected) in [
            (&["a"][..], 3, false, None),
            (&["a", "a"], 3, false, Some("a")),
            (&["b", "a"], 3, false, None),
            (&["b", "a"], 3, true, None), // asked again
            (&["b", "a", "a"], 3, false, Some("a")),
            (&["a"], 3, true, Some("a")),
            (&["b", "a", "a"], 7, true, Some("a")),
            (&["a"], 1, false, Some("a")),
            (&[], 3, true, None),
        ] {
            let votes = votes(named);
            let elected = elected(&votes, listed, all).map(|(host, _)| host.as_str());
            assert_eq!(elected, expected, "{named:?} of {listed}");
        }
    }
}
