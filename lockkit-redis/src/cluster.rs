//! The way to a cluster: a connection to each master, and the table of who has which slot. A node that
//! does not answer costs nobody else anything. What an answer means is not known here.
//!
//! Not by the client crate's own connection to a cluster: that one sends a request again by itself
//! when a connection broke, and does not say so; and while it looks for a node, nothing reaches the
//! others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::select_ok;
use redis::{
    Client, Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind,
    Value,
};

use crate::failure::{Again, Failed, bounded};
use crate::link::Turn;
use crate::own::{NOT_A_WORD, Own};
use crate::peer::Heard;
use crate::source::{Address, Source, elsewhere};
use crate::voice::Voice;
use crate::{keys, reply};

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
    /// Those that somebody named: asked when none that is known answers.
    named: Vec<(Address, Arc<Own>)>,
    /// How to log in.
    client: Client,
    voice: Arc<Voice>,
    limit: Duration,
    table: Mutex<Table>,
    looking: AtomicBool,
}

/// The first and the last slot of a range, and its master.
type Range = (u16, u16, Address);

#[derive(Default)]
struct Table {
    ranges: Vec<Range>,
    /// Slots that have moved since the table was read.
    moved: HashMap<u16, Address>,
    nodes: HashMap<Address, Arc<Own>>,
}

impl Table {
    fn owner(&self, slot: u16) -> Option<Address> {
        let range = || self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        self.moved.get(&slot).or_else(|| range().map(|(_, _, address)| address)).cloned()
    }
}

impl Cluster {
    /// Asks nobody yet. `nodes` has one at least.
    pub(crate) fn new(nodes: &[Client], voice: &Arc<Voice>, limit: Duration) -> Self {
        let own = |client: &Client| {
            let own = Own::new(Arc::new(Source::Client(client.clone())), voice.clone(), limit);
            (address(client), Arc::new(own))
        };
        Self(Arc::new(ClusterState {
            named: nodes.iter().map(own).collect(),
            client: nodes[0].clone(),
            voice: voice.clone(),
            limit,
            table: Mutex::default(),
            looking: AtomicBool::new(false),
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close(&self) {
        *self.table() = Table::default();
        self.0.named.iter().for_each(|(_, own)| own.close());
    }

    /// Sends a command to the master that has this key.
    pub(crate) async fn send(
        &self,
        cmd: &Cmd,
        key: &str,
        turn: Turn,
    ) -> Result<Heard<Value>, Failed> {
        let mut sent = Sent { cluster: self, at: Instant::now(), over: false };
        let answer = self.send_on(cmd, keys::slot(key), turn).await;
        sent.over = true;
        answer
    }

    async fn send_on(&self, cmd: &Cmd, slot: u16, turn: Turn) -> Result<Heard<Value>, Failed> {
        let (mut redirects, mut pauses) = (0, 0);
        loop {
            let failed = match self.node_of(slot).await?.send(cmd, turn).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            let failed = match self.asked_elsewhere(cmd, &failed).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(failed)) => failed,
                None => failed,
            };
            match failed.error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) if redirects < REDIRECTS => {
                    redirects += 1;
                    self.moved(&failed.error);
                }
                ErrorKind::Server(kind) if passes(kind) && pauses < PAUSES => {
                    tokio::time::sleep(PAUSE * 2_u32.pow(pauses)).await;
                    pauses += 1;
                }
                ErrorKind::Io => {
                    self.look_again();
                    return Err(failed);
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
    ) -> Result<Heard<Vec<Value>>, Failed> {
        let slot = keys::slot(key);
        let mut redirects = 0;
        loop {
            let answers = self.node_of(slot).await?.send_all(pipe, count).await;
            let first = answers.as_ref().ok().and_then(|heard| heard.answer.first());
            let moved = first.and_then(moved);
            match (moved, &answers) {
                (Some(error), _) if redirects < REDIRECTS => {
                    redirects += 1;
                    self.moved(&error);
                    continue;
                }
                (_, Err(failed)) if failed.error.is_io_error() => self.look_again(),
                _ => {}
            }
            return answers;
        }
    }

    /// Sends a command that only looks to this master; once more when the connection turns out to
    /// be dead.
    pub(crate) async fn look_at(&self, node: &Address, cmd: &Cmd) -> Result<Value, Failed> {
        let own = self.node(node).map_err(Failed::for_good)?;
        let answer = match own.send(cmd, Turn::Waits).await {
            Err(failed) if failed.again != Again::No => own.send(cmd, Turn::Waits).await,
            answer => answer,
        };
        Ok(answer?.answer)
    }

    /// Where the masters are by now.
    pub(crate) async fn masters(&self) -> RedisResult<Vec<Address>> {
        self.look().await?;
        let mut masters: Vec<_> = self.table().nodes.keys().cloned().collect();
        masters.sort();
        Ok(masters)
    }

    /// A slot that is on its way to another node: what the first one does not have any more, that one
    /// is asked for.
    async fn asked_elsewhere(
        &self,
        cmd: &Cmd,
        failed: &Failed,
    ) -> Option<Result<Heard<Value>, Failed>> {
        if failed.error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
            return None;
        }
        let node = self.node(&redirect(&failed.error)?).ok()?;
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING");
        pipe.add_command(cmd.clone());
        let answers = node.send_all(&pipe, 2).await;
        Some(answers.and_then(|Heard { mut answer, from }| {
            let last = answer.pop().unwrap_or(Value::Nil);
            let answer = last.extract_error().map_err(Failed::for_good)?;
            Ok(Heard { answer, from })
        }))
    }

    async fn node_of(&self, slot: u16) -> Result<Arc<Own>, Failed> {
        let mut owner = self.table().owner(slot);
        if owner.is_none() {
            self.look().await.map_err(Failed::for_good)?;
            owner = self.table().owner(slot);
        }
        let nobody = || (ErrorKind::ClusterConnectionNotFound, "no node has the slot").into();
        let node = owner.ok_or_else(nobody).and_then(|owner| self.node(&owner));
        node.map_err(Failed::for_good)
    }

    fn node(&self, address: &Address) -> RedisResult<Arc<Own>> {
        let mut table = self.table();
        if let Some(own) = table.nodes.get(address) {
            return Ok(own.clone());
        }
        let client = elsewhere(&self.0.client, address.clone())?;
        let source = Arc::new(Source::Client(client));
        let own = Arc::new(Own::new(source, self.0.voice.clone(), self.0.limit));
        table.nodes.insert(address.clone(), own.clone());
        Ok(own)
    }

    /// A slot is elsewhere, and others may be.
    fn moved(&self, error: &RedisError) {
        if let (Some((host, port)), Some((_, slot))) = (redirect(error), error.redirect_node()) {
            let mut table = self.table();
            // A node that does not know its host means that of the one who says so.
            let same = || table.owner(slot).map(|(host, _)| host).unwrap_or_default();
            let host = if host.is_empty() { same() } else { host };
            table.moved.insert(slot, (host, port));
        }
        self.look_again();
    }

    /// Reads the table again, in the background; once for all who ask for it.
    fn look_again(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.0.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = self.clone();
        runtime.spawn(async move {
            let _looking = Looking(&cluster.0.looking);
            if let Err(error) = cluster.look().await {
                tracing::debug!(%error, "no node of the cluster says who has which slot");
            }
            tokio::time::sleep(PAUSE).await;
        });
    }

    /// Reads the table from whichever node answers first.
    async fn look(&self) -> RedisResult<()> {
        let known: Vec<_> = self.table().nodes.clone().into_iter().collect();
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

    async fn ask_any(&self, nodes: &[(Address, Arc<Own>)]) -> RedisResult<Vec<Range>> {
        let asked = nodes.iter().map(|((host, _), own)| {
            Box::pin(async move {
                let mut cmd = redis::cmd("CLUSTER");
                cmd.arg("SLOTS");
                let answer = own.send(&cmd, Turn::First).await.map_err(|failed| failed.error)?;
                read_slots(answer.answer, host)
            })
        });
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return Err((ErrorKind::ClusterConnectionNotFound, "no node is known").into());
        }
        bounded(2 * self.0.limit, select_ok(asked)).await.map(|(slots, _)| slots)
    }
}

/// A request under way. Whoever gives up waiting for it sooner than the time limit has seen all the
/// same that a node is silent: another one may have taken its place.
struct Sent<'a> {
    cluster: &'a Cluster,
    at: Instant,
    over: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.over && self.at.elapsed() >= NOT_A_WORD {
            self.cluster.look_again();
        }
    }
}

/// Somebody reads the table, for as long as this lives: not longer than its runtime.
struct Looking<'a>(&'a AtomicBool);

impl Drop for Looking<'_> {
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

fn moved(value: &Value) -> Option<RedisError> {
    let error = value.clone().extract_error().err()?;
    (error.kind() == ErrorKind::Server(ServerErrorKind::Moved)).then_some(error)
}

fn redirect(error: &RedisError) -> Option<Address> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

fn address(client: &Client) -> Address {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), *port)
        }
        _ => Address::default(),
    }
}

/// The ranges of `CLUSTER SLOTS`. A node whose host is not known there is at the one that was asked.
fn read_slots(answer: Value, asked: &str) -> RedisResult<Vec<Range>> {
    let unknown = || RedisError::from((ErrorKind::UnexpectedReturnType, "no table of slots"));
    let Value::Array(ranges) = answer else { return Err(unknown()) };
    let range = |range: Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice()
        else {
            return None;
        };
        let host = reply::text(master.first()?).filter(|host| !host.is_empty()).unwrap_or(asked);
        let port = u16::try_from(reply::number(master.get(1)?)?).ok()?;
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some((first, last, (host.to_owned(), port)))
    };
    ranges.into_iter().map(|each| range(each).ok_or_else(unknown)).collect()
}
