//! A table of DynamoDB as a [`Store`].
//!
//! A document is an item: `p` and `k` are its key, `w` its version, `d` its contents. The version is a random
//! number that is new in each write, so it never recurs. A swap is a put with a condition on `w`, and its
//! refusal brings the stored item along; reads are consistent. [`answers`](mod@answers) has what each answer
//! means; [`http`](mod@http) sends each request once.
//!
//! Shards have partitions of their own, since they are what is written most; the documents of another family
//! share one with those whose next letter is the same, where they lie in order and can be listed.

mod answers;
mod http;
mod table;
mod target;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::{BehaviorVersion, ConfigLoader};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure};
use futures_util::{StreamExt, stream};
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::driver::ClaimId;
use lockkit_core::state::Finding;
use lockkit_core::{Error, Result};

pub(crate) use self::target::parse;
use crate::options::StoreOptions;
use crate::service_url::ServiceUrl;
use crate::store::{
    Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreError, StoreFacts, because,
};

const BACKEND: &str = "dynamodb";
/// What a read of a shard may cost at most: 16 read units of 4 KB.
const MOST_BYTES: usize = 64_000;
const SHARDS: u32 = 64;
/// The family and one letter: what the partitions of listed documents are called.
const LISTED: usize = 3;
/// In the order of keys.
const LETTERS: &[u8] = b"-0123456789abcdefghijklmnopqrstuvwxyz";
/// Partitions that a listing reads at a time.
const READ_AT_ONCE: usize = 8;

const FAULTS: &[(Fault, Guarantee)] = &[
    (Fault::WritesLost, Guarantee::Impossible),
    (Fault::DataLost, Guarantee::Tokens),
    (Fault::OlderDataRestored, Guarantee::Tokens),
    (Fault::Failover, Guarantee::Impossible),
    (Fault::SplitBrain, Guarantee::Impossible),
    (Fault::LeaderLost, Guarantee::Impossible),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

type Item = HashMap<String, AttributeValue>;

/// A table of DynamoDB. Cheap to clone; clones share their connections.
///
/// ```no_run
/// use std::sync::Arc;
/// use lockkit_store::{DynamoStore, StoreDriver, StoreOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let store = DynamoStore::open("dynamodb://locks?region=eu-central-1").await?;
/// let driver = StoreDriver::connect(Arc::new(store), StoreOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DynamoStore {
    client: Client,
    url: Arc<ServiceUrl>,
    facts: Arc<StoreFacts>,
}

impl fmt::Debug for DynamoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoStore").field("table", &self.url.name).finish_non_exhaustive()
    }
}

impl DynamoStore {
    /// A store in the table that a URL names: `dynamodb://TABLE?region=…&endpoint=…`. Credentials, and what
    /// the URL does not say, come from where the AWS command has them: environment, profiles, roles. The table
    /// is not looked at.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, |config| config).await
    }

    /// The same with settings of the client crate: credentials or a profile from elsewhere. Region and endpoint
    /// of the URL come first; and locks need requests that are sent once, whatever else is set.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
    /// use lockkit_store::DynamoStore;
    ///
    /// let url = "dynamodb://locks?region=eu-central-1";
    /// let store = DynamoStore::open_with(url, |config| config.profile_name("jobs")).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn open_with(
        url: &str,
        configure: impl FnOnce(ConfigLoader) -> ConfigLoader,
    ) -> Result<Self> {
        let url = Arc::new(parse(url)?);
        let loader = configure(aws_config::defaults(BehaviorVersion::latest()));
        let client = target::client(&url, loader).await?;
        Ok(Self { client, url, facts: Arc::new(Self::usual_facts()) })
    }

    /// What the URL says to drivers.
    pub(crate) fn options(&self) -> StoreOptions {
        self.url.store.clone()
    }

    /// What holds of every table.
    pub fn usual_facts() -> StoreFacts {
        let mut facts = StoreFacts::of(BACKEND);
        (facts.most_bytes, facts.shards) = (MOST_BYTES, SHARDS);
        (facts.min_ttl, facts.pace) = (Duration::from_secs(1), Duration::from_secs(1));
        facts.faults = FAULTS;
        facts
    }

    /// What makes the table that the URL names, and the least rights of its users: a command, a template of
    /// CloudFormation and a policy. No I/O.
    pub fn schema(url: &str) -> Result<String> {
        parse(url).map(|url| table::schema(&url))
    }

    async fn read_partition(
        &self,
        partition: String,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let (condition, from) = match after {
            Some(after) if after >= prefix => ("p = :p AND k > :from", after),
            _ => ("p = :p AND k >= :from", prefix),
        };
        let (mut keys, mut start) = (Vec::new(), None);
        loop {
            let page = self
                .client
                .query()
                .table_name(&self.url.name)
                .consistent_read(true)
                .key_condition_expression(condition)
                .expression_attribute_values(":p", AttributeValue::S(partition.clone()))
                .expression_attribute_values(":from", AttributeValue::S(from.to_owned()))
                .projection_expression("k")
                .limit(i32::try_from(limit).unwrap_or(i32::MAX))
                .set_exclusive_start_key(start)
                .send()
                .await
                .map_err(|error| self.error_of(&error, "Query"))?;
            let found = page.items().iter().filter_map(|item| item.get("k")?.as_s().ok());
            let read = keys.len() + page.items().len();
            keys.extend(found.filter(|key| key.starts_with(prefix)).cloned());
            start = page.last_evaluated_key;
            if start.is_none() || keys.len() < read || keys.len() >= limit {
                return Ok(keys);
            }
        }
    }

    fn error_of<E>(&self, error: &answers::CallError<E>, action: &'static str) -> StoreError
    where
        E: aws_sdk_dynamodb::error::ProvideErrorMetadata + std::error::Error + 'static,
    {
        answers::error_of(error, action, &self.url.name)
    }
}

#[async_trait]
impl Store for DynamoStore {
    fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    /// The whole item is read in any case, so a document that has not changed costs as much.
    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError> {
        let read = self.client.get_item().table_name(&self.url.name);
        let read = read.set_key(Some(key_of(key))).consistent_read(true).send().await;
        let read = read.map_err(|error| self.error_of(&error, "GetItem"))?;
        let Some(item) = read.item else { return Ok(ReadOutcome::Absent) };
        match document(item) {
            Some(document) if unless == Some(&document.version) => Ok(ReadOutcome::Same),
            Some(document) => Ok(ReadOutcome::Document(document)),
            None => Err(StoreError::Forbidden(because(format!(
                "the item {key} of the table {} is not lockkit's: keep locks in a table of their own",
                self.url.name
            )))),
        }
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        let version = ClaimId::random().to_hex();
        let put = self.client.put_item().table_name(&self.url.name);
        let put = put
            .set_item(Some(key_of(key)))
            .item("w", AttributeValue::S(version.clone()))
            .item("d", AttributeValue::B(Blob::new(document)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = match expected {
            None => put.condition_expression("attribute_not_exists(p)"),
            Some(expected) => put
                .condition_expression("w = :w")
                .expression_attribute_values(":w", AttributeValue::S(expected.as_str().to_owned())),
        };
        let error = match put.send().await {
            Ok(_) => return PutOutcome::Stored(DocumentVersion::opaque(version)),
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                PutOutcome::Conflict(failed.item.clone().and_then(self::document))
            }
            _ => self.error_of(&error, "PutItem").into(),
        }
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let delete = self.client.delete_item().table_name(&self.url.name);
        let deleted = delete.set_key(Some(key_of(key))).send().await;
        deleted.map(drop).map_err(|error| self.error_of(&error, "DeleteItem"))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let begin = after.map_or("", |after| &after[..after.len().min(LISTED)]);
        let mut partitions =
            partitions(prefix).into_iter().filter(|partition| &**partition >= begin);
        let read = |partition| self.read_partition(partition, prefix, after, limit);
        // Alone: where little is asked for, it mostly has that.
        let mut keys = match partitions.next() {
            Some(first) => read(first).await?,
            None => Vec::new(),
        };
        let mut others = stream::iter(partitions.map(read)).buffered(READ_AT_ONCE);
        while keys.len() < limit
            && let Some(found) = others.next().await
        {
            keys.extend(found?);
        }
        keys.truncate(limit);
        Ok(keys)
    }

    async fn another(&self) -> Result<Option<Arc<dyn Store>>, StoreError> {
        let refused = |error: Error| StoreError::Forbidden(because(error.to_string()));
        let client = target::again(&self.url, &self.client).map_err(refused)?;
        Ok(Some(Arc::new(Self { client, ..self.clone() })))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        table::examine(self).await
    }
}

/// The name of a document's partition.
fn partition(key: &str) -> &str {
    match key.starts_with("l/") {
        true => key,
        false => key.get(..LISTED).unwrap_or(key),
    }
}

/// The partitions in which keys of this prefix may lie, in order.
fn partitions(prefix: &str) -> Vec<String> {
    if prefix.starts_with("l/") {
        let mut shards: Vec<_> = (0..SHARDS).map(|shard| format!("l/{shard}")).collect();
        shards.sort_unstable();
        return shards;
    }
    match prefix.get(..LISTED) {
        Some(partition) => vec![partition.to_owned()],
        None => LETTERS.iter().map(|letter| format!("{prefix}{}", char::from(*letter))).collect(),
    }
}

fn key_of(key: &str) -> Item {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    HashMap::from([("p".to_owned(), text(partition(key))), ("k".to_owned(), text(key))])
}

/// The document in an item; `None` where another program has written it.
fn document(mut item: Item) -> Option<Document> {
    match (item.remove("w")?, item.remove("d")?) {
        (AttributeValue::S(version), AttributeValue::B(bytes)) => {
            let version = DocumentVersion::opaque(version);
            Some(Document { bytes: bytes.into_inner(), version })
        }
        _ => None,
    }
}
