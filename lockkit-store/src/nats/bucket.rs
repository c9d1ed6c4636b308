//! The configuration of the bucket: what is refused, what is worth a remark, and how it is created.

use std::time::Duration;

use lockkit_core::driver::{ServerVersion, unix_ms};
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, Result};
use serde_json::{Value, json};

use super::requests::{RequestFailure, ServerRefusal};
use super::{BACKEND, NO_STREAM, NatsStore};
use crate::store::StoreError;

const OTHER_CONFIGURATION: u64 = 10_058;
const NO_JETSTREAM: [u64; 2] = [10_039, 10_076];
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// Before, several of three replicas' clients could win one swap.
const SOUND_REPLICAS: ServerVersion = ServerVersion(2, 10, 23);

/// Checks the bucket, after creating it where there is none.
pub(super) async fn examine(store: &NatsStore) -> Result<Vec<Finding>> {
    let name = format!("KV_{}", store.bucket);
    let info = found_or_created(store, &name).await?;
    let server = store.client.server_info();
    if let Some((what, advice)) = refusal(&info["config"], &server.version, store) {
        let sentence = format!("the bucket {} {what}: {advice}", store.bucket);
        return Err(Error::permanent(BACKEND, sentence));
    }
    let replicas = info["config"]["num_replicas"].as_u64().unwrap_or(1);
    let mut findings = Vec::new();
    if store.target.replicas.is_some_and(|asked| asked != replicas)
        || server.cluster.is_some() && replicas == 1
    {
        let asked = store.target.replicas.unwrap_or(3);
        findings.push(Finding::new(
            Severity::Warning,
            format!("the bucket {} has {replicas} replica(s)", store.bucket),
            format!("for another number: nats stream edit {name} --replicas={asked}"),
        ));
    }
    Ok(findings)
}

/// The bucket's configuration and state. A bucket that is being created by several clients at once, or that
/// elects a leader, does not answer for a while.
async fn found_or_created(store: &NatsStore, name: &str) -> Result<Value> {
    let mut attempt = 1;
    loop {
        let found = match store.api(&format!("STREAM.INFO.{name}"), json!({})).await {
            Err(RequestFailure::Refused(ServerRefusal { error: NO_STREAM, .. })) => {
                create(store, name).await
            }
            Err(RequestFailure::Refused(refusal)) if NO_JETSTREAM.contains(&refusal.error) => {
                let advice = "start nats-server with -js, or enable JetStream for this account";
                Err(Error::permanent(BACKEND, format!("{refusal}: {advice}")))
            }
            info => info.map_err(|failure| StoreError::from(failure).into_error(BACKEND)),
        };
        match found {
            Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                tokio::time::sleep(PAUSE * attempt).await;
                attempt += 1;
            }
            found => return found,
        }
    }
}

async fn create(store: &NatsStore, name: &str) -> Result<Value> {
    let (bucket, replicas) = (&store.bucket, store.target.replicas.unwrap_or(1));
    // So that versions grow also where a bucket takes the place of one that was lost.
    let first = unix_ms() * 1_000;
    let config = json!({
        "name": name, "subjects": [format!("$KV.{bucket}.>")], "description": "locks of lockkit",
        "storage": "file", "num_replicas": replicas, "retention": "limits", "discard": "new",
        "max_msgs_per_subject": 1, "max_msgs": -1, "max_bytes": -1, "max_consumers": -1,
        "allow_rollup_hdrs": true, "deny_delete": true, "allow_direct": true,
        "first_seq": first,
    });
    let created = store.api(&format!("STREAM.CREATE.{name}"), config).await;
    created.map_err(|failure| {
        let is_for_now = match &failure {
            RequestFailure::NotSent(_) | RequestFailure::NoAnswer(_) => true,
            // Another client has just created it.
            RequestFailure::Refused(it) => it.error == OTHER_CONFIGURATION || it.is_for_now(),
            RequestFailure::Forbidden(_) => false,
        };
        let error = StoreError::from(failure);
        let sentence = format!(
            "there is no bucket {bucket}, and it cannot be created: {error}; with the right to \
             do so, create it: nats kv add {bucket} --history=1 --storage=file --replicas={replicas}"
        );
        match is_for_now {
            true => Error::retryable(BACKEND, sentence),
            false => Error::permanent(BACKEND, sentence),
        }
    })
}

/// What is wrong with this configuration, and what to do.
fn refusal(config: &Value, version: &str, store: &NatsStore) -> Option<(&'static str, String)> {
    let is_set = |field: &str| match &config[field] {
        Value::Array(list) => !list.is_empty(),
        Value::Bool(is_set) => *is_set,
        Value::Number(number) => number.as_i64().is_none_or(|number| number > 0),
        other => !other.is_null(),
    };
    let edit = |option: &str| format!("nats stream edit KV_{} {option}", store.bucket);
    let another = "name another bucket in the URL; one that is missing is created".to_owned();
    let is_sound = ServerVersion::parse(version).is_some_and(|version| version >= SOUND_REPLICAS);
    let is_replicated = config["num_replicas"].as_u64() > Some(1);
    let least = i64::try_from(store.facts.most_bytes + super::HEADERS).unwrap_or(i64::MAX);
    let is_small = is_set("max_msg_size") && config["max_msg_size"].as_i64() < Some(least);
    let is_limited = is_set("max_bytes") || is_set("max_msgs");
    let is_no_bucket = is_set("sealed") || is_set("no_ack") || config["retention"] != "limits";
    let is_copy = is_set("mirror") || is_set("sources");
    let upgrade = format!("nats-server {version}: upgrade to {SOUND_REPLICAS}, or use one replica");
    let refused = [
        (is_set("max_age"), "drops documents, and so locks, by age (max_age)", edit("--max-age=0")),
        (config["storage"] != "file", "has its data in memory only", another.clone()),
        (is_copy, "is a copy of another stream (mirror, sources)", another.clone()),
        (is_set("deny_purge"), "refuses to remove what is over (deny_purge)", another.clone()),
        (is_no_bucket, "is sealed, unacknowledged or a queue", another),
        (
            is_limited && config["discard"] != "new",
            "drops the oldest documents when it is full",
            edit("--discard=new"),
        ),
        (is_small, "takes no values of 900 KB", edit("--max-msg-size=-1")),
        (
            is_replicated && !is_sound,
            "has replicas on servers where several clients can win one compare-and-swap",
            upgrade,
        ),
    ];
    let first = refused.into_iter().find(|(is_wrong, ..)| *is_wrong);
    first.map(|(_, what, advice)| (what, advice))
}
