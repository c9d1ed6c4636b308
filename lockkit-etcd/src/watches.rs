//! All watches of a driver over one stream. When it breaks it is opened again, on another endpoint
//! if there is one, and every watch goes on from the revision that it had seen. What cannot go on,
//! because the revision was compacted away, is told, so that whoever watches looks again.
//!
//! Those who want to see the same share one watch, so that a thousand who wait for permits cost one
//! message for each change and not a thousand.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{
    EventType, GetOptions, KeyValue, Txn, TxnOp, WatchFilterType, WatchOptions, WatchRequestSender,
    WatchResponse, WatchResponseStream,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::calls::Calls;
use crate::task::Task;

/// How long a request may wait for its place in the stream.
const SILENCE: Duration = Duration::from_secs(2);
const PAUSES: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(1000),
];

/// What to watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchRange {
    pub(crate) key: Vec<u8>,
    /// The end of the range; empty for one key.
    pub(crate) end: Vec<u8>,
    /// The first revision of interest.
    pub(crate) from: i64,
    /// Whether changes of values matter, and not only deletions.
    pub(crate) changes: bool,
}

impl WatchRange {
    fn shown(&self) -> Shown {
        (self.key.clone(), self.end.clone(), self.changes)
    }
}

/// What was seen.
#[derive(Debug)]
pub(crate) enum News {
    /// A key was deleted, or its lease ended.
    Gone(Vec<u8>),
    /// A key was written.
    Changed(KeyValue),
    /// Something may have been missed: look again.
    Missed,
}

#[derive(Debug)]
enum Order {
    Watch(u64, WatchRange, mpsc::UnboundedSender<News>),
    Stop(u64, Shown),
}

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

/// Who watches what.
#[derive(Default)]
struct Watchers {
    /// The watches at etcd, by the number that etcd knows them by.
    watches: HashMap<i64, Watch>,
    /// The same by what they show.
    by_range: HashMap<Shown, i64>,
    last: i64,
}

/// A range, and whether changes of values matter.
type Shown = (Vec<u8>, Vec<u8>, bool);

/// A watch at etcd.
struct Watch {
    /// `from` is the next revision of which nothing has come yet.
    range: WatchRange,
    /// Who is told, and from which revision on.
    told: HashMap<u64, (i64, mpsc::UnboundedSender<News>)>,
}

/// What is to be sent to etcd.
enum Word {
    Watch(i64),
    Cancel(i64),
}

impl Watchers {
    /// Takes an order in; says what etcd must be told of it.
    fn note(&mut self, order: Order) -> Option<Word> {
        match order {
            Order::Watch(id, range, to) => self.add(id, range, to),
            Order::Stop(id, shown) => self.remove(id, &shown),
        }
    }

    fn add(&mut self, id: u64, range: WatchRange, to: mpsc::UnboundedSender<News>) -> Option<Word> {
        let shared = self.by_range.get(&range.shown());
        if let Some(watch) = shared.and_then(|number| self.watches.get_mut(number)) {
            if range.from < watch.range.from {
                // What came before is gone from here.
                let _ = to.send(News::Missed);
                return None;
            }
            watch.told.insert(id, (range.from, to));
            return None;
        }
        self.last += 1;
        self.by_range.insert(range.shown(), self.last);
        let told = HashMap::from([(id, (range.from, to))]);
        self.watches.insert(self.last, Watch { range, told });
        Some(Word::Watch(self.last))
    }

    fn remove(&mut self, id: u64, shown: &Shown) -> Option<Word> {
        let number = *self.by_range.get(shown)?;
        let watch = self.watches.get_mut(&number)?;
        watch.told.remove(&id);
        if !watch.told.is_empty() {
            return None;
        }
        self.forget(number);
        Some(Word::Cancel(number))
    }

    /// Nothing more comes of this watch: whoever wants to know has to look.
    fn miss(&mut self, number: i64) {
        if let Some(watch) = self.forget(number) {
            for (_, to) in watch.told.into_values() {
                let _ = to.send(News::Missed);
            }
        }
    }

    fn forget(&mut self, number: i64) -> Option<Watch> {
        let watch = self.watches.remove(&number)?;
        self.by_range.remove(&watch.range.shown());
        Some(watch)
    }

    /// Tells what a message says. `false` when etcd refuses a watch on this stream: the login that
    /// it was opened with is over. It reads no more requests then, and may not say which it refused.
    fn tell(&mut self, message: &WatchResponse) -> bool {
        let number = message.watch_id();
        if message.canceled() {
            self.miss(number);
            return !message.created() || message.compact_revision() > 0;
        }
        let Some(watch) = self.watches.get_mut(&number) else {
            return true;
        };
        for event in message.events() {
            let Some(kv) = event.kv() else {
                continue;
            };
            watch.tell(event.event_type(), kv);
            // (The header's revision may be that of changes which a later message brings.)
            watch.range.from = watch.range.from.max(kv.mod_revision() + 1);
        }
        true
    }
}

impl Watch {
    fn tell(&self, what: EventType, kv: &KeyValue) {
        for (from, to) in self.told.values() {
            if kv.mod_revision() < *from {
                continue;
            }
            let news = match what {
                EventType::Delete => News::Gone(kv.key().to_vec()),
                EventType::Put => News::Changed(kv.clone()),
            };
            let _ = to.send(news);
        }
    }
}

async fn run(calls: Arc<Calls>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut watchers = Watchers::default();
    let mut failures = 0;
    loop {
        while let Ok(order) = orders.try_recv() {
            let _ = watchers.note(order);
        }
        if watchers.watches.is_empty() {
            match orders.recv().await {
                Some(order) => drop(watchers.note(order)),
                None => return,
            }
            continue;
        }
        let at = calls.current();
        if let Some(stream) = open(&calls, &watchers).await {
            match attend(stream, &mut orders, &mut watchers, &mut failures).await {
                Broken::Unwanted => return,
                Broken::Refused => log_in(&calls, &mut watchers).await,
                Broken::Lost => calls.leave(at),
            }
        }
        // A place in the table for each failure in a row; an answer begins anew.
        tokio::time::sleep(PAUSES[failures.min(PAUSES.len() - 1)]).await;
        failures += 1;
    }
}

/// A stream, and what is still to be said on it.
struct Stream {
    send: WatchRequestSender,
    messages: WatchResponseStream,
    unsaid: VecDeque<Word>,
}

/// Sees to it that the client has a login, which it renews with usual calls alone. Where that is in
/// vain, those who watch are told, so that they look and hear the reason.
async fn log_in(calls: &Calls, watchers: &mut Watchers) {
    let Some(range) = watchers.watches.values().next().map(|watch| watch.range.clone()) else {
        return;
    };
    let any = GetOptions::new().with_count_only().with_limit(1);
    let read = Txn::new().and_then([TxnOp::get(range.key, Some(any))]);
    if calls.txn(read).await.is_err() {
        let all: Vec<_> = watchers.watches.keys().copied().collect();
        all.into_iter().for_each(|number| watchers.miss(number));
    }
}

/// Opens a stream with the first of the watches.
async fn open(calls: &Calls, watchers: &Watchers) -> Option<Stream> {
    let mut all = watchers.watches.iter();
    let (number, first) = all.next()?;
    let range = &first.range;
    let opened = calls.call(|mut client| async move {
        client.watch(range.key.clone(), Some(options(*number, range))).await
    });
    let (send, messages) = opened.await.ok()?.answer.split();
    Some(Stream { send, messages, unsaid: all.map(|(number, _)| Word::Watch(*number)).collect() })
}

/// Why a stream is of no use any more.
enum Broken {
    /// Nobody can watch any more.
    Unwanted,
    /// etcd refused a watch on it.
    Refused,
    /// It ended, or takes no more requests.
    Lost,
}

/// Follows the stream until it breaks.
async fn attend(
    mut stream: Stream,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    watchers: &mut Watchers,
    failures: &mut usize,
) -> Broken {
    loop {
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
                    if !watchers.tell(&message) {
                        return Broken::Refused;
                    }
                    *failures = 0;
                }
                _ => return Broken::Lost,
            },
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
        Some(Word::Watch(number)) => match watchers.watches.get(number) {
            Some(Watch { range, .. }) => {
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
