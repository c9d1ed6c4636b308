//! All watches of a driver over one stream. When it breaks it is opened again, on another endpoint
//! if there is one, and every watch goes on from the revision that it had seen. What cannot go on,
//! because the revision was compacted away or older data were put back, is told, so that whoever
//! watches looks again; [`Watchers`] has the signs of that.
//!
//! Those who want to see the same share one watch, so that a thousand who wait for permits cost one
//! message for each change and not a thousand.

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

use crate::calls::{Calls, Task, ranges};
use crate::watchers::{Message, News, Order, Shown, WatchRange, Watchers, Word, digest};

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
    calls: Arc<Calls>,
    task: Task<Order>,
    next: AtomicU64,
}

/// Somebody watches. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    id: u64,
    shown: Shown,
    orders: mpsc::UnboundedSender<Order>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop(self.id, std::mem::take(&mut self.shown)));
    }
}

impl Watches {
    pub(crate) fn new(calls: Arc<Calls>) -> Self {
        Self { calls, task: Task::default(), next: AtomicU64::new(1) }
    }

    /// Watches from `range.from` on, and tells `to`.
    pub(crate) fn watch(&self, range: WatchRange, to: mpsc::UnboundedSender<News>) -> Watching {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let shown = range.shown();
        let orders = self.task.reach(|orders| run(self.calls.clone(), orders));
        let _ = orders.send(Order::Watch(id, range, to));
        Watching { id, shown, orders }
    }
}

async fn run(calls: Arc<Calls>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut watchers = Watchers::default();
    let mut failures = 0;
    // Whether a stream broke, or did not open, on which any of these watches was to be.
    let mut broken = false;
    loop {
        while let Ok(order) = orders.try_recv() {
            let _ = watchers.note(order);
        }
        if watchers.is_empty() {
            broken = false;
            match orders.recv().await {
                Some(order) => drop(watchers.note(order)),
                None => return,
            }
            continue;
        }
        let at = calls.current();
        if let Some(stream) = open(&calls, &watchers, broken).await {
            match attend(&calls, stream, &mut orders, &mut watchers, &mut failures).await {
                Broken::Unwanted => return,
                Broken::Refused => log_in(&calls, &mut watchers).await,
                Broken::Lost => calls.leave(at),
                Broken::Restored => {}
            }
        }
        broken = true;
        // A place in the table for each failure in a row; an answer begins anew.
        tokio::time::sleep(PAUSES[failures.min(PAUSES.len() - 1)]).await;
        failures += 1;
    }
}

/// The number of a watch of a state, and a digest of what was read; `None` when reading failed.
type Compared = (i64, Option<u64>);

/// A stream, and what is still to be said on it.
struct Stream<'a> {
    send: WatchRequestSender,
    messages: WatchResponseStream,
    unsaid: VecDeque<Word>,
    /// The number of the endpoint.
    at: usize,
    /// What is read to compare it with what was there before: contents of states.
    comparing: Option<BoxFuture<'a, Vec<Compared>>>,
    /// And the revision that a majority has reached; up to which watch it will count.
    confirming: Option<BoxFuture<'a, (Option<i64>, i64)>>,
}

/// Sees to it that the client has a login, which it renews with usual calls alone. Where that is in
/// vain, those who watch are told, so that they look and hear the reason.
async fn log_in(calls: &Calls, watchers: &mut Watchers) {
    let first = watchers.numbers().pop();
    let Some(range) = first.and_then(|number| watchers.range(number)) else {
        return;
    };
    if calls.txn(count(&range.key)).await.is_err() {
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
async fn open<'a>(calls: &'a Calls, watchers: &Watchers, again: bool) -> Option<Stream<'a>> {
    let mut all = watchers.numbers();
    let number = all.pop()?;
    let range = watchers.range(number)?;
    let opened = calls.call(|mut client| async move {
        client.watch(range.key.clone(), Some(options(number, range))).await
    });
    let opened = opened.await.ok()?;
    let (at, (send, messages)) = (opened.at, opened.answer.split());
    let unsaid = all.into_iter().map(Word::Watch).collect();
    let comparing = again.then(|| contents(calls, watchers.states()).boxed());
    Some(Stream { send, messages, unsaid, at, comparing, confirming: None })
}

/// What lies in these ranges; `None` where that could not be read.
async fn contents(calls: &Calls, states: Vec<(i64, WatchRange)>) -> Vec<Compared> {
    let mut contents = Vec::with_capacity(states.len());
    for some in states.chunks(TOGETHER) {
        let get = |(_, range): &(i64, WatchRange)| {
            let end = (!range.end.is_empty()).then(|| GetOptions::new().with_range(&*range.end));
            TxnOp::get(&*range.key, end)
        };
        let txn = Txn::new().and_then(some.iter().map(get).collect::<Vec<_>>());
        let shown = calls.txn(txn).await.map(|reply| ranges(&reply.answer)).unwrap_or_default();
        let mut shown = shown.iter().map(|range| digest(range.kvs()));
        contents.extend(some.iter().map(|(number, _)| (*number, shown.next())));
    }
    contents
}

/// Why a stream is of no use any more.
enum Broken {
    /// Nobody can watch any more.
    Unwanted,
    /// etcd refused a watch on it.
    Refused,
    /// It ended, or takes no more requests.
    Lost,
    /// All watches on it were of other data.
    Restored,
}

/// Follows the stream until it breaks.
async fn attend<'a>(
    calls: &'a Calls,
    mut stream: Stream<'a>,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    watchers: &mut Watchers,
    failures: &mut usize,
) -> Broken {
    loop {
        if stream.confirming.is_none()
            && let Some((key, last)) = watchers.to_be_confirmed()
        {
            let at = stream.at;
            let reached = async move { (calls.revision_at(at, count(&key)).await.ok(), last) };
            stream.confirming = Some(reached.boxed());
        }
        let next = stream.unsaid.front();
        tokio::select! {
            order = orders.recv() => match order {
                None => return Broken::Unwanted,
                Some(order) => stream.unsaid.extend(watchers.note(order)),
            },
            // While it reads, etcd is listened to: neither can hold up the other.
            said = say(&mut stream.send, next, watchers) => match said {
                Some(()) => drop(stream.unsaid.pop_front()),
                None => return Broken::Lost,
            },
            message = stream.messages.message() => match message {
                Ok(Some(message)) => {
                    match watchers.tell(&message) {
                        Message::Taken => {}
                        Message::Refused => return Broken::Refused,
                        Message::Restored => return Broken::Restored,
                    }
                    *failures = 0;
                }
                _ => return Broken::Lost,
            },
            (reached, last) = read(&mut stream.confirming) => match reached {
                Some(revision) => stream.unsaid.extend(watchers.reached(revision, last)),
                None => return Broken::Lost,
            },
            contents = read(&mut stream.comparing) => for (number, content) in contents {
                stream.unsaid.extend(watchers.compared(number, content));
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

/// Says the next thing, if there is one. `None`: the stream is broken.
///
/// Dropped before it is done, it has said nothing.
async fn say(
    send: &mut WatchRequestSender,
    next: Option<&Word>,
    watchers: &Watchers,
) -> Option<()> {
    match next {
        None => std::future::pending().await,
        Some(Word::Cancel(number)) => timeout(SILENCE, send.cancel(*number)).await.ok()?.ok(),
        Some(Word::Watch(number)) => match watchers.range(*number) {
            Some(range) => {
                let asked = send.watch(range.key.clone(), Some(options(*number, range)));
                timeout(SILENCE, asked).await.ok()?.ok()
            }
            None => Some(()), // nobody wants it any more
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
