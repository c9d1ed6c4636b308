//! What an operator should know about a server: findings, from `INFO`.

use std::collections::HashMap;

use futures_util::future::join_all;
use lockkit_core::Error;
use lockkit_core::driver::ServerRun;
use lockkit_core::state::{Finding, Health, Severity};
use redis::Value;

use crate::decode::{self, facts};
use crate::error::is_about_rights;
use crate::inner::RedisInner;
use crate::keys::BUCKETS;
use crate::locator::ServerLocator;
use crate::transport::Transport;
use crate::{keys, script};

pub(crate) async fn examine(inner: &RedisInner) -> Result<Health, Error> {
    let transport = &inner.transport;
    let cluster = matches!(transport, Transport::Cluster(_));
    let (nodes, info) = (transport.masters().await?, redis::cmd("INFO"));
    let asked = nodes.iter().map(|node| transport.read(node.as_ref(), &info));
    let (mut infos, mut silent) = (Vec::new(), Vec::new());
    for (node, answer) in nodes.iter().zip(join_all(asked).await) {
        match (answer, node) {
            (Ok(info), _) => infos.push(text(info)?),
            (Err(error), Some((host, port))) => {
                silent.push((format!("{host}:{port}"), Error::from(error)));
            }
            (Err(error), None) => return Err(error.into()),
        }
    }
    if infos.is_empty()
        && let Some((_, error)) = silent.pop()
    {
        return Err(error);
    }
    let mut health = Health::well(server(&facts(infos.first().map_or("", String::as_str))));
    for finding in infos.iter().flat_map(|info| findings(&facts(info), cluster)) {
        // What is true of all nodes is one finding.
        if !health.findings.contains(&finding) {
            health = health.with(finding);
        }
    }
    Ok(silent.into_iter().fold(health, |health, (node, error)| {
        health.with(Finding::new(
            Severity::Note,
            format!("The node {node} does not answer: {error}"),
            "Its locks cannot be used until it is back or replaced.",
        ))
    }))
}

/// What an operator asks for, beyond what is read at every connection: counters of tokens that are
/// none. (In a cluster, whose nodes have some each, the error of an acquire names its counter.)
pub(crate) async fn examine_all(inner: &RedisInner) -> Result<Health, Error> {
    let health = examine(inner).await?;
    if let Transport::Cluster(_) = inner.transport {
        return Ok(health);
    }
    let (counters, none): (Vec<_>, [&str; 0]) = ((0..BUCKETS).map(keys::counter).collect(), []);
    let foreign = decode::array(inner.run(&script::COUNTERS, &counters, &none).await?)?;
    Ok(foreign.iter().filter_map(decode::text).fold(health, |health, counter| {
        health.with(Finding::new(
            Severity::Problem,
            format!("{counter} is no counter of tokens: one lock in {BUCKETS} cannot be taken"),
            "find out who wrote it, and delete it while none of these locks is held",
        ))
    }))
}

/// Which run of the server answers; `None` where this user may not ask.
///
/// Redis' `run_id` is another one after each start, and with the server that takes over. Nothing
/// tells these apart once it is done, so the identity is always the same, and
/// [`keeps_writes`] is `false` where another server can take over.
pub(crate) async fn run(inner: &RedisInner) -> Result<Option<ServerRun>, Error> {
    if let Transport::Cluster(_) = inner.transport {
        return Ok(None);
    }
    match inner.transport.read(None, redis::cmd("INFO").arg("server")).await {
        Ok(info) => {
            let info = text(info)?;
            let id = facts(&info).get("run_id").copied();
            Ok(id.map(|id| ServerRun::new("redis", id)))
        }
        Err(failed) if is_about_rights(&failed.error) => Ok(None),
        Err(failed) => Err(failed.into()),
    }
}

/// Whether the append-only file has every write before it is acknowledged, and there is no replica
/// that could take over.
pub(crate) async fn keeps_writes(inner: &RedisInner) -> Result<bool, Error> {
    if matches!(inner.transport, Transport::Cluster(_))
        || matches!(*inner.locator, ServerLocator::Sentinels(_))
    {
        return Ok(false);
    }
    let info = inner.transport.read(None, redis::cmd("INFO").arg("replication")).await?;
    let settings = inner.transport.read(None, redis::cmd("CONFIG").arg("GET").arg("append*")).await;
    let settings = settings.ok().and_then(|all| redis::from_redis_value(all).ok());
    let settings: HashMap<String, String> = settings.unwrap_or_default();
    let info = text(info)?;
    let facts = facts(&info);
    let never_took_over =
        facts.get("master_replid2").is_some_and(|id| id.bytes().all(|b| b == b'0'));
    let alone = facts.get("role") == Some(&"master") && facts.get("connected_slaves") == Some(&"0");
    let is = |name, value| settings.get(name).is_some_and(|set: &String| set == value);
    let on_disk = is("appendonly", "yes") && is("appendfsync", "always");
    Ok(alone && never_took_over && on_disk)
}

pub(crate) fn text(info: Value) -> Result<String, Error> {
    decode::text(&info).map(str::to_owned).ok_or_else(|| decode::unexpected(&info))
}

fn server(facts: &HashMap<&str, &str>) -> String {
    match facts.get("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", facts.get("redis_version").unwrap_or(&"of an unknown version")),
    }
}

fn findings(facts: &HashMap<&str, &str>, cluster: bool) -> Vec<Finding> {
    let fact = |name| facts.get(name).copied().unwrap_or_default();
    let mut found = Vec::new();
    let mut find = |severity, what: String, advice: &str| {
        found.push(Finding::new(severity, what, advice));
    };
    if is_older(fact("redis_version"), (6, 2)) {
        find(
            Severity::Warning,
            format!("the server is version {}", fact("redis_version")),
            "use 6.2 or later: lockkit is not tested with older ones",
        );
    }
    if fact("role") == "slave" {
        find(
            Severity::Problem,
            "this server is a replica, which takes no writes".to_owned(),
            "connect to the master, through sentinel or the cluster if there is one",
        );
    }
    if let Some(policy) = eviction(facts) {
        find(
            Severity::Problem,
            format!(
                "the eviction policy is {policy}: when memory is short, locks disappear while they \
                 are held, and only fencing tokens protect"
            ),
            "set maxmemory-policy to noeviction, or keep locks on a server of their own",
        );
    }
    if let Some(product) = several_masters(facts) {
        find(
            Severity::Problem,
            format!("this is {product}: several servers take writes, and each would grant a lock"),
            "keep locks on a server, or behind sentinels, with one master at a time",
        );
    }
    if fact("aof_enabled") == "0" {
        find(
            Severity::Note,
            "there is no append-only file: locks are forgotten when the server restarts".to_owned(),
            "set appendonly yes, or rely on tokens, which grow all the same",
        );
    }
    let replicated = fact("connected_slaves").parse().unwrap_or(0) > 0;
    if replicated && !cluster && fact("role") == "master" {
        find(
            Severity::Note,
            "replication is asynchronous: a failover may forget the locks granted last".to_owned(),
            "rely on tokens, or set min_replicas, which makes it rarer",
        );
    }
    if fact("loading") == "1" {
        find(
            Severity::Warning,
            "the server is loading its data".to_owned(),
            "wait until it is done",
        );
    }
    found
}

/// The policy by which this server drops keys when memory is short, if it drops any. Any user who may
/// connect may read it, as part of `INFO`.
pub(crate) fn eviction<'a>(facts: &HashMap<&str, &'a str>) -> Option<&'a str> {
    let policy = facts.get("maxmemory_policy").copied().unwrap_or_default();
    (!matches!(policy, "" | "noeviction")).then_some(policy)
}

/// What takes writes at several servers at a time, as far as `INFO` tells.
pub(crate) fn several_masters(facts: &HashMap<&str, &str>) -> Option<&'static str> {
    if facts.get("role") == Some(&"active-replica") {
        return Some("a KeyDB with active replicas");
    }
    let is_active = facts.keys().any(|name| name.starts_with("crdt_"));
    is_active.then_some("an active-active database")
}

fn is_older(version: &str, than: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_well_kept_server_has_no_findings() {
        let info = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:100\r\n\
                    maxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";
        assert_eq!(findings(&facts(info), false), []);
        assert_eq!(server(&facts(info)), "Redis 7.0.15");
    }

    #[test]
    fn each_policy_that_drops_keys_is_a_problem_whatever_the_memory() {
        for policy in ["volatile-lru", "allkeys-random", "volatile-ttl"] {
            let info = format!(
                "redis_version:7.0.15\nrole:master\nmaxmemory:0\naof_enabled:1\n\
                 maxmemory_policy:{policy}\n"
            );
            assert_eq!(eviction(&facts(&info)), Some(policy));
            let [found] = &findings(&facts(&info), false)[..] else { panic!("{policy}") };
            assert!(
                found.severity == Severity::Problem && found.what.contains(policy),
                "{found:?}"
            );
        }
    }

    #[test]
    fn several_masters_are_a_problem_where_info_tells() {
        let keydb = "redis_version:6.3.4\nrole:active-replica\naof_enabled:1\n";
        let active =
            "redis_version:7.2.4\nrole:master\naof_enabled:1\ncrdt_replid:1\ncrdt_slots:0-16383\n";
        for (info, product) in [(keydb, "KeyDB"), (active, "active-active")] {
            let [found] = &findings(&facts(info), false)[..] else { panic!("{info}") };
            assert!(
                found.severity == Severity::Problem && found.what.contains(product),
                "{found:?}"
            );
        }
        assert_eq!(several_masters(&facts("redis_version:7.0.15\nrole:master\n")), None);
    }

    #[test]
    fn what_can_drop_locks_is_found() {
        let info = "redis_version:5.0.1\nrole:slave\nmaxmemory:100\nmaxmemory_policy:allkeys-lru\n\
                    aof_enabled:0\n";
        let found = findings(&facts(info), false);
        let problems = found.iter().filter(|f| f.severity == Severity::Problem).count();
        assert_eq!((found.len(), problems), (4, 2), "{found:?}");
    }
}
