//! What an operator should know about a server: read from `INFO`, said as findings.

use std::collections::HashMap;

use futures_util::future::join_all;
use lockkit_core::Error;
use lockkit_core::state::{Finding, Health, Severity};
use redis::Value;

use crate::driver::Shared;
use crate::keys::BUCKETS;
use crate::link::Link;
use crate::{keys, nodes, reply, script};

pub(crate) async fn examine(shared: &Shared) -> Result<Health, Error> {
    let cluster = matches!(shared.link, Link::Cluster(_));
    let nodes = nodes::masters(shared).await?;
    let asked = nodes.iter().map(|node| nodes::ask(shared, node.as_ref(), redis::cmd("INFO")));
    let (mut infos, mut silent) = (Vec::new(), Vec::new());
    for (node, answer) in nodes.iter().zip(join_all(asked).await) {
        match (answer, node) {
            (Ok(info), _) => infos.push(text(info)?),
            (Err(error), Some((host, port))) => silent.push((format!("{host}:{port}"), error)),
            (Err(error), None) => return Err(error),
        }
    }
    if infos.is_empty()
        && let Some((_, error)) = silent.pop()
    {
        return Err(error);
    }
    let mut health = Health::well(server(&facts(infos.first().map_or("", String::as_str))));
    for finding in infos.iter().flat_map(|info| findings(&facts(info), cluster)) {
        // What holds for all nodes is said once.
        if !health.findings.contains(&finding) {
            health = health.with(finding);
        }
    }
    Ok(silent.into_iter().fold(health, |health, (node, error)| {
        health.with(Finding {
            severity: Severity::Note,
            what: format!("The node {node} does not answer: {error}"),
            advice: "Its locks cannot be used until it is back or replaced.".to_owned(),
        })
    }))
}

/// What an operator asks for, beyond what is looked at on every connection: counters of tokens that are
/// none. (In a cluster, whose nodes have some each, the error of an acquire names its counter.)
pub(crate) async fn examine_all(shared: &Shared) -> Result<Health, Error> {
    let health = examine(shared).await?;
    if let Link::Cluster(_) = shared.link {
        return Ok(health);
    }
    let (counters, none): (Vec<_>, [&str; 0]) = ((0..BUCKETS).map(keys::counter).collect(), []);
    let foreign = reply::array(shared.run(&script::COUNTERS, &counters, &none).await?)?;
    Ok(foreign.iter().filter_map(reply::text).fold(health, |health, counter| {
        health.with(Finding {
            severity: Severity::Problem,
            what: format!(
                "{counter} is no counter of tokens: one lock in {BUCKETS} cannot be taken"
            ),
            advice: "find out who wrote it, and delete it while none of these locks is held"
                .to_owned(),
        })
    }))
}

fn text(info: Value) -> Result<String, Error> {
    match info {
        Value::VerbatimString { text, .. } => Ok(text),
        other => reply::text(&other).map(str::to_owned).ok_or_else(|| reply::unexpected(&other)),
    }
}

fn facts(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
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
    let mut say = |severity, what: String, advice: &str| {
        found.push(Finding { severity, what, advice: advice.to_owned() });
    };
    if is_older(fact("redis_version"), (6, 2)) {
        say(
            Severity::Warning,
            format!("the server is version {}", fact("redis_version")),
            "use 6.2 or later: lockkit is not tested with older ones",
        );
    }
    if fact("role") == "slave" {
        say(
            Severity::Problem,
            "this server is a replica, which takes no writes".to_owned(),
            "connect to the master, through sentinel or the cluster if there is one",
        );
    }
    let policy = fact("maxmemory_policy");
    if !matches!(policy, "" | "noeviction") {
        let limited = fact("maxmemory") != "0";
        say(
            if limited { Severity::Problem } else { Severity::Warning },
            format!("the eviction policy is {policy}: locks disappear when memory is short"),
            "set maxmemory-policy to noeviction, or keep locks on a server of their own",
        );
    }
    if fact("aof_enabled") == "0" {
        say(
            Severity::Note,
            "there is no append-only file: locks are forgotten when the server restarts".to_owned(),
            "set appendonly yes, or rely on tokens, which grow all the same",
        );
    }
    let replicated = fact("connected_slaves").parse().unwrap_or(0) > 0;
    if replicated && !cluster && fact("role") == "master" {
        say(
            Severity::Note,
            "replication is asynchronous: a failover may forget the locks granted last".to_owned(),
            "rely on tokens, or set min_replicas, which makes it rarer",
        );
    }
    if fact("loading") == "1" {
        say(
            Severity::Warning,
            "the server is loading its data".to_owned(),
            "wait until it is done",
        );
    }
    found
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
    fn what_can_drop_locks_is_found() {
        let info = "redis_version:5.0.1\nrole:slave\nmaxmemory:100\nmaxmemory_policy:allkeys-lru\n\
                    aof_enabled:0\n";
        let found = findings(&facts(info), false);
        let problems = found.iter().filter(|f| f.severity == Severity::Problem).count();
        assert_eq!((found.len(), problems), (4, 2), "{found:?}");
    }
}
