//! All watches of a driver over one stream. When it breaks it is opened again, on another endpoint
//! if there is one, and every watch goes on from the revision that it had seen. What cannot go on,
//! because the revision was compacted away or older data were put back, is reported to its subscribers,
//! which read again; [`Watchers`] has the signs of that.
//!
//! Subscribers of one range share one watch, so that a thousand waiters for permits cost one message
//! for each change and not a thousand.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{
    GetOptions, Txn, TxnOp, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponseStream,
};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::client::{EtcdClient, Task, ranges};
use crate::watchers::{
    MessageEffect, WatchCommand, WatchEvent, WatchKey, WatchRange, WatchRequest, Watchers, digest,
};

/// How long a request may wait for its place in the stream.
const SILENCE: Duration = Duration::from_secs(2);
/// Ranges that are read by one transaction. (etcd takes 128 operations in one.)
const TOGETHER: usize = 64;
const PAUSES: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(1000),
];

/// The stream, opened when it is first needed.
#[derive(Debug)]
pub(crate) struct Watches {
    client: Arc<EtcdClient>,
    task: Task<WatchCommand>,
    next: AtomicU64,
}

/// A subscription. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct WatchHandle {
    id: u64,
    watch_key: WatchKey,
    commands: mpsc::UnboundedSender<WatchCommand>,
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        let _ =
            self.commands.send(WatchCommand::Stop(self.id, std::mem::take(&mut self.watch_key)));
    }
}

impl Watches {
    pub(crate) fn new(client: Arc<EtcdClient>) -> Self {
        Self { client, task: Task::default(), next: AtomicU64::new(1) }
    }

    /// Watches from `range.from` on, and sends its events to `to`.
    pub(crate) fn watch(
        &self,
        range: WatchRange,
        to: mpsc::UnboundedSender<WatchEvent>,
    ) -> WatchHandle {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let watch_key = range.watch_key();
        let commands = self.task.reach(|commands| run(self.client.clone(), commands));
        let _ = commands.send(WatchCommand::Watch(id, range, to));
        WatchHandle { id, watch_key, commands }
    }
}

async fn run(client: Arc<EtcdClient>, mut commands: mpsc::UnboundedReceiver<WatchCommand>) {
    let mut watchers = Watchers::default();
    let mut failures = 0;
    // Whether a stream broke, or did not open, on which any of these watches was to be.
    let mut broken = false;
    loop {
        while let Ok(command) = commands.try_recv() {
            let _ = watchers.note(command);
        }
        if watchers.is_empty() {
            broken = false;
            match commands.recv().await {
                Some(command) => drop(watchers.note(command)),
                None => return,
            }
            continue;
        }
        let at = client.current();
        if let Some(stream) = open(&client, &watchers, broken).await {
            match follow(&client, stream, &mut commands, &mut watchers, &mut failures).await {
                StreamEnd::Unwanted => return,
                StreamEnd::Refused => log_in(&client, &mut watchers).await,
                StreamEnd::Lost => client.leave(at),
                StreamEnd::Restored => {}
            }
        }
        broken = true;
        // A place in the table for each failure in a row; an answer begins again.
        tokio::time::sleep(PAUSES[failures.min(PAUSES.len() - 1)]).await;
        failures += 1;
    }
}

/// The number of a watch of a state, and a digest of what was read; `None` when reading failed.
type Compared = (i64, Option<u64>);

/// A stream, and what is still to be sent on it.
struct Stream<'a> {
    send: WatchRequestSender,
    messages: WatchResponseStream,
    unsent: VecDeque<WatchRequest>,
    /// The number of the endpoint.
    at: usize,
    /// What is read to compare it with what was there before: contents of states.
    comparing: Option<BoxFuture<'a, Vec<Compared>>>,
    /// And the revision that a majority has reached; up to which watch it will count.
    confirming: Option<BoxFuture<'a, (Option<i64>, i64)>>,
}

/// Sees to it that the client has a login, which it renews with usual calls alone. Where that is in
/// vain, the subscribers read again, and get the error.
async fn log_in(client: &EtcdClient, watchers: &mut Watchers) {
    let first = watchers.numbers().pop();
    let Some(range) = first.and_then(|number| watchers.range(number)) else {
        return;
    };
    if client.txn(count(&range.key)).await.is_err() {
        watchers.miss_all();
    }
}

/// A read that shows nothing but a header.
fn count(key: &[u8]) -> Txn {
    let any = GetOptions::new().with_count_only().with_limit(1);
    Txn::new().and_then([TxnOp::get(key, Some(any))])
}

/// Opens a stream with the first of the watches. After another one broke, contents of states are
/// compared.
async fn open<'a>(client: &'a EtcdClient, watchers: &Watchers, again: bool) -> Option<Stream<'a>> {
    let mut all = watchers.numbers();
    let number = all.pop()?;
    let range = watchers.range(number)?;
    let opened = client.call(|mut client| async move {
        client.watch(range.key.clone(), Some(options(number, range))).await
    });
    let opened = opened.await.ok()?;
    let (at, (send, messages)) = (opened.at, opened.answer.split());
    let unsent = all.into_iter().map(WatchRequest::Watch).collect();
    let comparing = again.then(|| contents(client, watchers.states()).boxed());
    Some(Stream { send, messages, unsent, at, comparing, confirming: None })
}

/// What lies in these ranges; `None` where that could not be read.
async fn contents(client: &EtcdClient, states: Vec<(i64, WatchRange)>) -> Vec<Compared> {
    let mut contents = Vec::with_capacity(states.len());
    for some in states.chunks(TOGETHER) {
        let get = |(_, range): &(i64, WatchRange)| {
            let end = (!range.end.is_empty()).then(|| GetOptions::new().with_range(&*range.end));
            TxnOp::get(&*range.key, end)
        };
        let txn = Txn::new().and_then(some.iter().map(get).collect::<Vec<_>>());
        let shown = client.txn(txn).await.map(|reply| ranges(&reply.answer)).unwrap_or_default();
        let mut shown = shown.iter().map(|range| digest(range.kvs()));
        contents.extend(some.iter().map(|(number, _)| (*number, shown.next())));
    }
    contents
}

/// Why a stream is of no use any more.
enum StreamEnd {
    /// No client can watch any more.
    Unwanted,
    /// etcd refused a watch on it.
    Refused,
    /// It ended, or takes no more requests.
    Lost,
    /// All watches on it were of other data.
    Restored,
}

/// Follows the stream until it breaks.
async fn follow<'a>(
    client: &'a EtcdClient,
    mut stream: Stream<'a>,
    commands: &mut mpsc::UnboundedReceiver<WatchCommand>,
    watchers: &mut Watchers,
    failures: &mut usize,
) -> StreamEnd {
    loop {
        if stream.confirming.is_none()
            && let Some((key, last)) = watchers.to_be_confirmed()
        {
            let at = stream.at;
            let reached = async move { (client.revision_at(at, count(&key)).await.ok(), last) };
            stream.confirming = Some(reached.boxed());
        }
        let next = stream.unsent.front();
        tokio::select! {
            command = commands.recv() => match command {
                None => return StreamEnd::Unwanted,
                Some(command) => stream.unsent.extend(watchers.note(command)),
            },
            // While it reads, etcd is listened to: neither can hold up the other.
            sent = send_next(&mut stream.send, next, watchers) => match sent {
                Some(()) => drop(stream.unsent.pop_front()),
                None => return StreamEnd::Lost,
            },
            message = stream.messages.message() => match message {
                Ok(Some(message)) => {
                    match watchers.tell(&message) {
                        MessageEffect::Applied => {}
                        MessageEffect::Refused => return StreamEnd::Refused,
                        MessageEffect::Restored => return StreamEnd::Restored,
                    }
                    *failures = 0;
                }
                _ => return StreamEnd::Lost,
            },
            (reached, last) = read(&mut stream.confirming) => match reached {
                Some(revision) => stream.unsent.extend(watchers.reached(revision, last)),
                None => return StreamEnd::Lost,
            },
            contents = read(&mut stream.comparing) => for (number, content) in contents {
                stream.unsent.extend(watchers.compare_state(number, content));
            },
        }
    }
}

/// Waits for a read that is under way, and takes it out.
async fn read<T>(reading: &mut Option<BoxFuture<'_, T>>) -> T {
    match reading {
        None => std::future::pending().await,
        Some(answer) => {
            let answer = answer.await;
            *reading = None;
            answer
        }
    }
}

/// Sends the next request, if there is one. `None`: the stream is broken.
///
/// Dropped before it is done, it has sent nothing.
async fn send_next(
    send: &mut WatchRequestSender,
    next: Option<&WatchRequest>,
    watchers: &Watchers,
) -> Option<()> {
    match next {
        None => std::future::pending().await,
        Some(WatchRequest::Cancel(number)) => {
            timeout(SILENCE, send.cancel(*number)).await.ok()?.ok()
        }
        Some(WatchRequest::Watch(number)) => match watchers.range(*number) {
            Some(range) => {
                let asked = send.watch(range.key.clone(), Some(options(*number, range)));
                timeout(SILENCE, asked).await.ok()?.ok()
            }
            None => Some(()), // no client wants it any more
        },
    }
}

fn options(number: i64, range: &WatchRange) -> WatchOptions {
    let mut options = WatchOptions::new().with_watch_id(number).with_start_revision(range.from);
    if !range.end.is_empty() {
        options = options.with_range(range.end.clone());
    }
    if !range.changes {
        options = options.with_filters([WatchFilterType::NoPut]);
    }
    options
}
