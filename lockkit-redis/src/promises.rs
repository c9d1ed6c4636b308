//! What is kept by the servers as they are: read from `INFO` and `CONFIG` of each master and replica,
//! judged by the worst. Reads only.

use std::collections::HashMap;

use lockkit_core::Error;
use lockkit_core::capabilities::{Capabilities, Fault, Guarantee};
use lockkit_core::driver::in_time;
use lockkit_core::promises::Promises;
use redis::{Value, cmd, from_redis_value};

use crate::error::to_error;
use crate::inner::RedisInner;
use crate::server::{Address, client_at};
use crate::transport::Transport;
use crate::{BACKEND, decode, health};

/// `INFO` of a server, and its settings where this login may read them.
struct ServerFacts {
    info: String,
    settings: Option<HashMap<String, String>>,
}

impl RedisInner {
    /// A replica takes over with its own settings, so these count as a master's do.
    pub(crate) async fn promises(&self) -> Result<Promises, Error> {
        let mut worst: Option<Promises> = None;
        let mut count = |server: &str, read: Option<&ServerFacts>| {
            let one = judge(&self.capabilities, server, read);
            worst = Some(worst.take().map_or(one.clone(), |worst| one.worse(worst)));
        };
        for master in self.transport.masters().await? {
            let read = self.read(master.as_ref()).await;
            let name = master.as_ref().map_or("the server".to_owned(), named);
            count(&name, read.as_ref());
            for replica in read.iter().flat_map(|read| replicas(&read.info)) {
                let read = self.read_replica(&replica).await;
                count(&format!("the replica {}", named(&replica)), read.as_ref());
            }
        }
        worst.ok_or_else(|| Error::retryable(BACKEND, "the cluster has no master"))
    }

    async fn read(&self, node: Option<&Address>) -> Option<ServerFacts> {
        let info = health::text(self.transport.read(node, &cmd("INFO")).await.ok()?).ok()?;
        let config = self.transport.read(node, cmd("CONFIG").arg("GET").arg("*append*")).await;
        Some(ServerFacts { info, settings: config.ok().and_then(settings) })
    }

    /// As the master's login, over a connection of its own. `None` where that cannot be.
    async fn read_replica(&self, address: &Address) -> Option<ServerFacts> {
        let master = match &self.transport {
            Transport::Cluster(_) => return self.read(Some(address)).await,
            transport => transport.server().await.ok()??,
        };
        let client = client_at(&master, address.clone()).ok()?;
        let reading = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            let info: String = cmd("INFO").query_async(&mut connection).await?;
            let config =
                cmd("CONFIG").arg("GET").arg("*append*").query_async(&mut connection).await;
            Ok(ServerFacts { info, settings: config.ok().and_then(settings) })
        };
        in_time(BACKEND, self.limit, async { reading.await.map_err(to_error) }).await.ok()
    }
}

fn settings(answer: Value) -> Option<HashMap<String, String>> {
    from_redis_value(answer).ok()
}

fn named((host, port): &Address) -> String {
    format!("{host}:{port}")
}

/// `slave0:ip=127.0.0.1,port=6380,state=online,…`
fn replicas(info: &str) -> Vec<Address> {
    let of = |line: &str| {
        let (name, facts) = line.trim_end().split_once(':')?;
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let fact = |name: &str| {
            facts.split(',').find_map(|fact| fact.strip_prefix(name)?.strip_prefix('='))
        };
        Some((fact("ip")?.to_owned(), fact("port")?.parse().ok()?))
    };
    info.lines().filter_map(of).collect()
}

/// One server's row.
fn judge(capabilities: &Capabilities, server: &str, read: Option<&ServerFacts>) -> Promises {
    let mut promises = Promises::of(capabilities);
    let facts = read.map(|read| decode::facts(&read.info)).unwrap_or_default();
    let (restart, crash) = (Fault::ServerRestarts, Fault::WritesLost);
    match facts.get("aof_enabled").copied() {
        Some("0") => {
            let why = format!(
                "{server} has appendonly no: a restart brings back an old snapshot, or nothing"
            );
            promises.set(restart, Some(Guarantee::Tokens), &*why);
            promises.set(crash, Some(Guarantee::Tokens), why);
        }
        Some(_) => {
            let why = format!("{server} has appendonly yes: a killed process loses nothing");
            promises.set(restart, Some(capabilities.guarantee(restart)), why);
            let (kept, why) = forced(read.and_then(|read| read.settings.as_ref()));
            promises.set(crash, kept, format!("{server} has appendonly yes, {why}"));
        }
        None => {
            let why = format!("{server} does not say in INFO whether it keeps its writes");
            promises.set(restart, None, &*why);
            promises.set(crash, None, why);
        }
    }
    let policy = facts.get("maxmemory_policy").copied();
    let is_bounded = facts.get("maxmemory").is_some_and(|bytes| *bytes != "0");
    if let Some(policy) = policy.filter(|policy| is_bounded && *policy != "noeviction") {
        let why = format!(
            "{server} has maxmemory-policy {policy}: held locks are evicted when memory is short, \
             by no fault at all"
        );
        promises.limit(Guarantee::Tokens, &why);
    }
    promises
}

/// Whether each write is on disk before it is answered.
fn forced(settings: Option<&HashMap<String, String>>) -> (Option<Guarantee>, String) {
    let setting = |name| settings.and_then(|all| all.get(name)).map(String::as_str);
    match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
        (Some("always"), Some("yes")) => {
            let why = "appendfsync always, but no-appendfsync-on-rewrite yes";
            (Some(Guarantee::Tokens), why.to_owned())
        }
        (Some("always"), _) => (Some(Guarantee::All), "appendfsync always".to_owned()),
        (Some(other), _) => {
            let why = format!("appendfsync {other}: the last writes may not be on disk");
            (Some(Guarantee::Tokens), why)
        }
        (None, _) => (None, "and does not let this login read appendfsync".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_from_info() {
        let info = "connected_slaves:2\r\nslave0:ip=10.0.0.7,port=6380,state=online\r\n\
                    slave1:ip=fd00::1,port=6381,state=online\r\nslave_expires_tracked_keys:0\r\n";
        let found = [("10.0.0.7".to_owned(), 6380), ("fd00::1".to_owned(), 6381)];
        assert_eq!(replicas(info), found);
    }
}
