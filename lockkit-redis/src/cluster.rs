//! A cluster: a connection to each master, and the table of which has which slot. A node that does not
//! answer delays no request to another. What an answer means is not known here.
//!
//! Not by the client crate's own connection to a cluster: that one sends a request again by itself
//! when a connection broke, and does not say so; and while it looks for a node, nothing reaches the
//! others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::select_ok;
use lockkit_core::driver::locked;
use redis::{Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use crate::connection::{SILENCE, ServerConnection};
use crate::error::{RequestError, bounded};
use crate::locator::ServerLocator;
use crate::peer::Response;
use crate::publisher::Publisher;
use crate::server::{Address, Priority, address_of, client_at, into_result};
use crate::{decode, keys};

/// How often a request is sent on to where a node says that its slot is.
const REDIRECTS: u32 = 5;
/// How often a request waits for a cluster that is not in order just now, and how long at first; each
/// time twice as long.
const PAUSES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Connections to the masters of a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<ClusterState>);

struct ClusterState {
    /// The configured ones: asked when none that is known answers.
    named: Vec<(Address, Arc<ServerConnection>)>,
    /// How to log in.
    client: Client,
    publisher: Arc<Publisher>,
    limit: Duration,
    table: Mutex<SlotTable>,
    /// Whether the table is being read in the background.
    refreshing: AtomicBool,
}

/// The first and the last slot of a range, and its master.
type SlotRange = (u16, u16, Address);

#[derive(Default)]
struct SlotTable {
    ranges: Vec<SlotRange>,
    /// Slots that have moved since the table was read.
    moved: HashMap<u16, Address>,
    nodes: HashMap<Address, Arc<ServerConnection>>,
}

impl SlotTable {
    fn owner(&self, slot: u16) -> Option<Address> {
        let range = || self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        self.moved.get(&slot).or_else(|| range().map(|(_, _, address)| address)).cloned()
    }
}

impl Cluster {
    /// Connects to no node yet. `nodes` has one at least.
    pub(crate) fn new(nodes: &[Client], publisher: &Arc<Publisher>, limit: Duration) -> Self {
        let connection = |client: &Client| {
            let locator = Arc::new(ServerLocator::Client(client.clone()));
            let connection = ServerConnection::new(locator, publisher.clone(), limit);
            (address_of(client), Arc::new(connection))
        };
        Self(Arc::new(ClusterState {
            named: nodes.iter().map(connection).collect(),
            client: nodes[0].clone(),
            publisher: publisher.clone(),
            limit,
            table: Mutex::default(),
            refreshing: AtomicBool::new(false),
        }))
    }

    fn table(&self) -> MutexGuard<'_, SlotTable> {
        locked(&self.0.table)
    }

    pub(crate) fn close(&self) {
        *self.table() = SlotTable::default();
        self.0.named.iter().for_each(|(_, connection)| connection.close());
    }

    /// Sends a command to the master that has this key.
    pub(crate) async fn send(
        &self,
        cmd: &Cmd,
        key: &str,
        priority: Priority,
    ) -> Result<Response<Value>, RequestError> {
        let mut sent = InFlight { cluster: self, sent_at: Instant::now(), answered: false };
        let answer = self.send_redirected(cmd, keys::slot(key), priority).await;
        sent.answered = true;
        answer
    }

    async fn send_redirected(
        &self,
        cmd: &Cmd,
        slot: u16,
        priority: Priority,
    ) -> Result<Response<Value>, RequestError> {
        let (mut redirects, mut pauses) = (0, 0);
        loop {
            let failed = match self.node_of(slot).await?.send(cmd, priority).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            let failed = match self.send_asking(cmd, &failed).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(failed)) => failed,
                None => failed,
            };
            self.correct_table(&failed.error, slot);
            match failed.error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) if redirects < REDIRECTS => {
                    redirects += 1;
                }
                ErrorKind::Server(kind) if passes(kind) && pauses < PAUSES => {
                    tokio::time::sleep(PAUSE * 2_u32.pow(pauses)).await;
                    pauses += 1;
                }
                _ => return Err(failed),
            }
        }
    }

    /// Commands that leave at once, to the master that has this key.
    pub(crate) async fn send_all(
        &self,
        pipe: &Pipeline,
        count: usize,
        key: &str,
    ) -> Result<Response<Vec<Value>>, RequestError> {
        let slot = keys::slot(key);
        let mut redirects = 0;
        loop {
            let answers = self.node_of(slot).await?.send_all(pipe, count).await;
            let error = match &answers {
                Ok(response) => response.value.first().and_then(error_in),
                Err(failed) => Some(failed.error.clone()),
            };
            let Some(error) = error else { return answers };
            self.correct_table(&error, slot);
            if error.kind() != ErrorKind::Server(ServerErrorKind::Moved) || redirects == REDIRECTS {
                return answers;
            }
            redirects += 1;
        }
    }

    /// Sends a command once, to this node.
    pub(crate) async fn send_to(
        &self,
        node: &Address,
        cmd: &Cmd,
    ) -> Result<Response<Value>, RequestError> {
        self.node(node).map_err(RequestError::unsent)?.send(cmd, Priority::Waits).await
    }

    /// Where the masters are by now.
    pub(crate) async fn masters(&self) -> RedisResult<Vec<Address>> {
        self.read_table(None).await?;
        let mut masters: Vec<_> = self.table().nodes.keys().cloned().collect();
        masters.sort();
        Ok(masters)
    }

    /// A slot that is on its way to another node: what the first one does not have any more, that one
    /// is asked for.
    async fn send_asking(
        &self,
        cmd: &Cmd,
        failed: &RequestError,
    ) -> Option<Result<Response<Value>, RequestError>> {
        if failed.error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
            return None;
        }
        let node = self.node(&redirect(&failed.error)?).ok()?;
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING");
        pipe.add_command(cmd.clone());
        let answers = node.send_all(&pipe, 2).await;
        Some(answers.and_then(|Response { mut value, peer, .. }| {
            let last = value.pop().unwrap_or(Value::Nil);
            Ok(Response::new(into_result(last).map_err(RequestError::of)?, peer))
        }))
    }

    async fn node_of(&self, slot: u16) -> Result<Arc<ServerConnection>, RequestError> {
        let mut owner = self.table().owner(slot);
        if owner.is_none() {
            self.read_table(None).await.map_err(RequestError::unsent)?;
            owner = self.table().owner(slot);
        }
        let unowned = || (ErrorKind::ClusterConnectionNotFound, "no node has the slot").into();
        let node = owner.ok_or_else(unowned).and_then(|owner| self.node(&owner));
        node.map_err(RequestError::unsent)
    }

    fn node(&self, address: &Address) -> RedisResult<Arc<ServerConnection>> {
        let mut table = self.table();
        if let Some(connection) = table.nodes.get(address) {
            return Ok(connection.clone());
        }
        let locator = ServerLocator::Client(client_at(&self.0.client, address.clone())?);
        let (publisher, limit) = (self.0.publisher.clone(), self.0.limit);
        let connection = Arc::new(ServerConnection::new(Arc::new(locator), publisher, limit));
        table.nodes.insert(address.clone(), connection.clone());
        Ok(connection)
    }

    /// What the answer of the slot's node says of the table, or its silence.
    fn correct_table(&self, error: &RedisError, slot: u16) {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => self.moved(error),
            ErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
                // It may be the only one that is cut off, and another one in its place.
                let owner = self.table().owner(slot);
                self.refresh(owner);
            }
            ErrorKind::Io => self.refresh(None),
            _ => {}
        }
    }

    /// A slot is elsewhere, and others may be.
    fn moved(&self, error: &RedisError) {
        if let (Some((host, port)), Some((_, slot))) = (redirect(error), error.redirect_node()) {
            let mut table = self.table();
            // A node that does not know its host means that of the node which says so.
            let same = || table.owner(slot).map(|(host, _)| host).unwrap_or_default();
            let host = if host.is_empty() { same() } else { host };
            table.moved.insert(slot, (host, port));
        }
        self.refresh(None);
    }

    /// Reads the table again in the background, once for all requests that ask for it; `doubted` as in
    /// [`read_table`](Self::read_table).
    fn refresh(&self, doubted: Option<Address>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.0.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = self.clone();
        runtime.spawn(async move {
            let _refreshing = Refreshing(&cluster.0.refreshing);
            if let Err(error) = cluster.read_table(doubted.as_ref()).await {
                tracing::debug!(%error, "no node of the cluster tells which has which slot");
            }
            tokio::time::sleep(PAUSE).await;
        });
    }

    /// Reads the table from the node that answers first; not from `doubted`, which may be cut off with an old one,
    /// unless no other answers.
    async fn read_table(&self, doubted: Option<&Address>) -> RedisResult<()> {
        let known = self.table().nodes.clone();
        let known: Vec<_> = known.into_iter().filter(|(node, _)| Some(node) != doubted).collect();
        let slots = match self.ask_any(&known).await {
            Ok(slots) => slots,
            Err(_) => self.ask_any(&self.0.named).await?,
        };
        let mut table = self.table();
        let nodes = std::mem::take(&mut table.nodes);
        let masters = |node: &Address| slots.iter().any(|(_, _, master)| master == node);
        table.nodes = nodes.into_iter().filter(|(node, _)| masters(node)).collect();
        (table.ranges, table.moved) = (slots, HashMap::new());
        drop(table);
        let ranges = self.table().ranges.clone();
        ranges.iter().try_for_each(|(_, _, master)| self.node(master).map(drop))
    }

    async fn ask_any(
        &self,
        nodes: &[(Address, Arc<ServerConnection>)],
    ) -> RedisResult<Vec<SlotRange>> {
        let asked = nodes.iter().map(|((host, _), connection)| {
            Box::pin(async move {
                let mut cmd = redis::cmd("CLUSTER");
                cmd.arg("SLOTS");
                let sent = connection.send(&cmd, Priority::First).await;
                decode_slots(sent.map_err(|failed| failed.error)?.value, host)
            })
        });
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return Err((ErrorKind::ClusterConnectionNotFound, "no node is known").into());
        }
        bounded(2 * self.0.limit, select_ok(asked)).await.map(|(slots, _)| slots)
    }
}

/// A request in flight. A caller that gives up sooner than the time limit has seen all the same that a
/// node is silent: another one may have taken its place.
struct InFlight<'a> {
    cluster: &'a Cluster,
    sent_at: Instant,
    answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered && self.sent_at.elapsed() >= SILENCE {
            self.cluster.refresh(None);
        }
    }
}

/// The table is being read, for as long as this lives: not longer than its runtime.
struct Refreshing<'a>(&'a AtomicBool);

impl Drop for Refreshing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether a cluster may be in order again soon.
fn passes(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
    )
}

fn error_in(value: &Value) -> Option<RedisError> {
    value.clone().extract_error().err()
}

fn redirect(error: &RedisError) -> Option<Address> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// The ranges of `CLUSTER SLOTS`. A node whose host is not known there is at the one that was asked.
fn decode_slots(answer: Value, asked: &str) -> RedisResult<Vec<SlotRange>> {
    let unknown = || RedisError::from((ErrorKind::UnexpectedReturnType, "no table of slots"));
    let Value::Array(ranges) = answer else { return Err(unknown()) };
    let range = |range: Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice()
        else {
            return None;
        };
        let host = decode::text(master.first()?).filter(|host| !host.is_empty()).unwrap_or(asked);
        let port = u16::try_from(decode::number(master.get(1)?)?).ok()?;
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some((first, last, (host.to_owned(), port)))
    };
    ranges.into_iter().map(|each| range(each).ok_or_else(unknown)).collect()
}
