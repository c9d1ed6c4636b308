//! A bucket of NATS JetStream's key-value store as a [`Store`].
//!
//! A document is the last message of its subject, and its version the message's sequence in the stream, which
//! only grows. A swap publishes with the expected last sequence of the subject. Reads are answered by the
//! stream's leader (`STREAM.MSG.GET`): direct gets, which any replica answers, are older than what this
//! process has written itself at times.
//!
//! The requests are the server's JSON API, over the client's own request and answer: the client's interfaces
//! for JetStream repeat some requests, and hide some errors.

mod bucket;
mod requests;
mod url;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, HeaderMap};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::driver::{ServerVersion, locked};
use lockkit_core::state::Finding;
use lockkit_core::{Error, Result};
use serde_json::{Value, json};

use self::requests::{PAUSE, RequestFailure, ServerRefusal, Violations, ask};
pub(crate) use self::url::{Target, parse};
use crate::options::StoreOptions;
use crate::store::{
    ChangeReporter, Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreError,
    StoreFacts, because,
};

const BACKEND: &str = "nats";
const MOST_BYTES: usize = 900_000;
/// Room for the headers of a swap.
const HEADERS: usize = 1_000;
const NO_STREAM: u64 = 10_059;
const NO_MESSAGE: u64 = 10_037;
/// The server says so often that it still watches.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Since this version a consumer may have several filters.
const SEVERAL_FILTERS: ServerVersion = ServerVersion(2, 10, 0);
const STATUS_ONLY: u16 = 100;

/// A bucket of NATS. Cheap to clone; clones share their connection.
#[derive(Clone)]
pub struct NatsStore {
    client: Client,
    violations: Violations,
    bucket: Arc<str>,
    target: Arc<Target>,
    facts: Arc<StoreFacts>,
    /// The sequence of the message that says that a document was deleted, where one was by other programs.
    deletions: Arc<Mutex<HashMap<String, u64>>>,
}

impl fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStore").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl NatsStore {
    /// Connects to the servers that a URL names. The bucket is not looked at.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::open(parse(url)?).await
    }

    async fn open(target: Target) -> Result<Self> {
        let violations = Violations::new();
        let listener = violations.clone();
        let options = target.options.clone().event_callback(move |event| {
            listener.take(event);
            std::future::ready(())
        });
        let connected = options.connect(target.servers.clone()).await;
        let client = connected.map_err(|error| match error.kind() {
            ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::Tls => Error::permanent(BACKEND, error),
            _ => Error::retryable(BACKEND, error),
        })?;
        let mut facts = Self::usual_facts();
        let most_payload = client.server_info().max_payload.saturating_sub(HEADERS);
        facts.most_bytes = facts.most_bytes.min(most_payload);
        let (bucket, facts) = (target.bucket.as_str().into(), Arc::new(facts));
        let (target, deletions) = (Arc::new(target), Arc::default());
        Ok(Self { client, violations, bucket, target, facts, deletions })
    }

    /// What holds of every bucket, on servers that take the usual size of messages.
    pub fn usual_facts() -> StoreFacts {
        let mut facts = StoreFacts::of(BACKEND);
        facts.most_bytes = MOST_BYTES;
        facts.shards = 256;
        facts.min_ttl = Duration::from_millis(500);
        facts.pace = Duration::from_millis(250);
        facts.reports_changes = true;
        facts.faults = FAULTS;
        facts
    }

    /// What the URL says to drivers.
    pub(crate) fn options(&self) -> StoreOptions {
        self.target.store.clone()
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{}", self.bucket, key.replace('/', "."))
    }

    fn key(&self, subject: &str) -> Option<String> {
        let key = subject.strip_prefix("$KV.")?.strip_prefix(&*self.bucket)?.strip_prefix('.')?;
        Some(key.replace('.', "/"))
    }

    async fn api(&self, operation: &str, body: Value) -> Result<Value, RequestFailure> {
        let (subject, body) = (format!("$JS.API.{operation}"), body.to_string());
        ask(&self.client, &self.violations, subject, None, body.into_bytes()).await
    }

    async fn is_lost(&self) -> bool {
        let info = self.api(&format!("STREAM.INFO.KV_{}", self.bucket), json!({})).await;
        matches!(info, Err(RequestFailure::Refused(ServerRefusal { error: NO_STREAM, .. })))
    }

    /// All data was lost. Where the bucket may be created, locks go on, with greater tokens.
    async fn create_again(&self) -> Result<(), StoreError> {
        bucket::examine(self).await.map(drop).map_err(|error| match error.is_retryable() {
            true => StoreError::Unavailable(Arc::new(error)),
            false => StoreError::Forbidden(Arc::new(error)),
        })
    }

    async fn subjects(&self, filter: &str) -> Result<Vec<String>, StoreError> {
        let mut subjects = Vec::new();
        loop {
            let body = json!({ "subjects_filter": filter, "offset": subjects.len() });
            let info = self.api(&format!("STREAM.INFO.KV_{}", self.bucket), body).await?;
            let page = info["state"]["subjects"].as_object().cloned().unwrap_or_default();
            let is_last = page.is_empty();
            subjects.extend(page.into_iter().map(|(subject, _)| subject));
            if is_last || subjects.len() as u64 >= info["total"].as_u64().unwrap_or_default() {
                return Ok(subjects);
            }
        }
    }
}

const FAULTS: &[(Fault, Guarantee)] = &[
    // Written to the disk every two minutes, unless sync_interval says otherwise.
    (Fault::WritesLost, Guarantee::Tokens),
    (Fault::DataLost, Guarantee::Tokens),
    (Fault::OlderDataRestored, Guarantee::Tokens),
    (Fault::Failover, Guarantee::Impossible),
    (Fault::SplitBrain, Guarantee::Impossible),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

#[async_trait]
impl Store for NatsStore {
    fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    /// The client takes the servers of its URL in a random order.
    async fn another(&self) -> Result<Option<Arc<dyn Store>>, StoreError> {
        let another = Self::open((*self.target).clone()).await;
        let another = another.map_err(|error| StoreError::Unavailable(Arc::new(error)))?;
        Ok(Some(Arc::new(another)))
    }

    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError> {
        let body = json!({ "last_by_subj": self.subject(key) });
        let answer = match self.api(&format!("STREAM.MSG.GET.KV_{}", self.bucket), body).await {
            Err(RequestFailure::Refused(ServerRefusal { error: NO_MESSAGE, .. })) => {
                locked(&self.deletions).remove(key);
                return Ok(ReadOutcome::Absent);
            }
            Err(RequestFailure::Refused(ServerRefusal { error: NO_STREAM, .. })) => {
                self.create_again().await?;
                return Ok(ReadOutcome::Absent);
            }
            answer => answer?,
        };
        let message = &answer["message"];
        let part = |name: &str| STANDARD.decode(message[name].as_str().unwrap_or_default());
        let odd =
            || StoreError::Unavailable(because("NATS answers with a message without a number"));
        let (Some(sequence), Ok(headers), Ok(bytes)) =
            (message["seq"].as_u64(), part("hdrs"), part("data"))
        else {
            return Err(odd());
        };
        if String::from_utf8_lossy(&headers).contains("KV-Operation:") {
            locked(&self.deletions).insert(key.to_owned(), sequence);
            return Ok(ReadOutcome::Absent);
        }
        let version = DocumentVersion::ordered(sequence);
        Ok(match unless == Some(&version) {
            true => ReadOutcome::Same,
            false => ReadOutcome::Document(Document { bytes, version }),
        })
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        let deletion = || locked(&self.deletions).get(key).copied();
        let expected = match expected {
            Some(version) => version.order(),
            None => Some(deletion().unwrap_or_default()),
        };
        let Some(expected) = expected else { return PutOutcome::Conflict(None) };
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        headers.insert("Nats-Expected-Stream", format!("KV_{}", self.bucket));
        let (subject, payload) = (self.subject(key), document.to_vec());
        match ask(&self.client, &self.violations, subject, Some(headers), payload).await {
            Ok(answer) => match answer["seq"].as_u64() {
                Some(sequence) => PutOutcome::Stored(DocumentVersion::ordered(sequence)),
                None => PutOutcome::Unknown(because("NATS acknowledges without a number")),
            },
            // Certainly not carried out, which is also what a bucket that was lost looks like.
            Err(RequestFailure::NotSent(_)) if self.is_lost().await => {
                match self.create_again().await {
                    Ok(()) => PutOutcome::Conflict(None),
                    Err(error) => PutOutcome::Throttled { pause: PAUSE, cause: Arc::new(error) },
                }
            }
            Err(failure) => failure.into(),
        }
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let body = json!({ "filter": self.subject(key) });
        self.api(&format!("STREAM.PURGE.KV_{}", self.bucket), body).await?;
        Ok(())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let whole = prefix.rfind('/').map_or("", |at| &prefix[..=at]);
        let subjects = self.subjects(&format!("{}>", self.subject(whole))).await?;
        let keys = subjects.iter().filter_map(|subject| self.key(subject));
        let is_asked = |key: &String| {
            key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after)
        };
        let mut keys: Vec<_> = keys.filter(is_asked).collect();
        keys.sort_unstable();
        keys.truncate(limit);
        Ok(keys)
    }

    async fn watch(&self, changes: &ChangeReporter) -> Result<(), StoreError> {
        let lost = |why: &str| StoreError::Unavailable(because(why));
        let inbox = self.client.new_inbox();
        let messages = self.client.subscribe(inbox.clone()).await;
        let mut messages = messages.map_err(|error| StoreError::Unavailable(Arc::new(error)))?;
        let mut config = json!({
            "deliver_subject": inbox, "deliver_policy": "new", "ack_policy": "none", "max_deliver": 1,
            "headers_only": true, "mem_storage": true, "num_replicas": 1,
            "idle_heartbeat": HEARTBEAT.as_nanos() as u64,
        });
        // Without the sessions: their beats are most of what is written.
        let (shards, registers) = (self.subject("l/>"), self.subject("r/>"));
        let version = ServerVersion::parse(&self.client.server_info().version);
        match version >= Some(SEVERAL_FILTERS) {
            true => config["filter_subjects"] = json!([shards, registers]),
            false => config["filter_subject"] = json!(shards),
        }
        let name = format!("KV_{}", self.bucket);
        let body = json!({ "stream_name": name, "config": config });
        self.api(&format!("CONSUMER.CREATE.{name}"), body).await?;
        changes.is_watching();
        let mut delivered = 0;
        loop {
            let message = tokio::time::timeout(HEARTBEAT * 3, messages.next()).await;
            let Ok(Some(message)) = message else { return Err(lost("the watch has ended")) };
            if message.status.is_some_and(|status| status.as_u16() == STATUS_ONLY) {
                continue;
            }
            // $JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.NUMBER.TIME.PENDING
            let number =
                message.reply.as_ref().and_then(|reply| reply.rsplit('.').nth(2)?.parse().ok());
            if number != Some(delivered + 1_u64) {
                changes.is_watching();
            }
            delivered = number.unwrap_or(delivered);
            if let Some(key) = self.key(&message.subject) {
                changes.changed(&key);
            }
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        bucket::examine(self).await
    }
}
