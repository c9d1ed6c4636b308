//! All watches of a driver over one stream. When it breaks it is opened again, on another endpoint
//! if there is one, and every watch goes on from the revision that it had seen. What cannot go on,
//! because the revision was compacted away, is told, so that whoever watches looks again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    EventType, KeyValue, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::calls::Calls;

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
pub(crate) struct Sight {
    pub(crate) key: Vec<u8>,
    /// The end of the range; empty for one key.
    pub(crate) end: Vec<u8>,
    /// The first revision of interest.
    pub(crate) from: i64,
    /// Whether changes of values matter, and not only deletions.
    pub(crate) changes: bool,
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

enum Order {
    Watch(i64, Sight, mpsc::UnboundedSender<News>),
    Stop(i64),
}

/// The stream, opened when it is first needed.
#[derive(Debug)]
pub(crate) struct Watches {
    calls: Arc<Calls>,
    orders: Mutex<Option<mpsc::UnboundedSender<Order>>>,
    next: AtomicI64,
}

/// Somebody watches. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    id: i64,
    orders: mpsc::UnboundedSender<Order>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop(self.id));
    }
}

impl Watches {
    pub(crate) fn new(calls: Arc<Calls>) -> Self {
        Self { calls, orders: Mutex::new(None), next: AtomicI64::new(1) }
    }

    /// Watches from `sight.from` on, and tells `to`.
    pub(crate) fn watch(&self, sight: Sight, to: mpsc::UnboundedSender<News>) -> Watching {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let orders = self.orders();
        let _ = orders.send(Order::Watch(id, sight, to));
        Watching { id, orders }
    }

    /// The way to the task of the stream, which ends with its runtime and is started again then.
    fn orders(&self) -> mpsc::UnboundedSender<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        match &*orders {
            Some(open) if !open.is_closed() => open.clone(),
            _ => {
                let (to, from) = mpsc::unbounded_channel();
                let watchers = Watchers::default();
                tokio::spawn(run(self.calls.clone(), from, watchers));
                *orders = Some(to.clone());
                to
            }
        }
    }
}

/// Who watches what.
#[derive(Default)]
struct Watchers(HashMap<i64, (Sight, mpsc::UnboundedSender<News>)>);

impl Watchers {
    /// Takes an order in while there is no stream.
    fn note(&mut self, order: Order) {
        match order {
            Order::Watch(id, sight, to) => drop(self.0.insert(id, (sight, to))),
            Order::Stop(id) => drop(self.0.remove(&id)),
        }
    }

    /// Tells what a message says.
    fn tell(&mut self, message: &WatchResponse) {
        let id = message.watch_id();
        let Some((sight, to)) = self.0.get_mut(&id) else {
            return;
        };
        if message.canceled() {
            // Compacted, or refused: either way nothing more comes of this watch.
            let _ = to.send(News::Missed);
            self.0.remove(&id);
            return;
        }
        for event in message.events() {
            let Some(kv) = event.kv() else {
                continue;
            };
            let news = match event.event_type() {
                EventType::Delete => News::Gone(kv.key().to_vec()),
                EventType::Put => News::Changed(kv.clone()),
            };
            let _ = to.send(news);
        }
        if let Some(header) = message.header().filter(|_| !message.created()) {
            sight.from = sight.from.max(header.revision() + 1);
        }
    }
}

async fn run(
    calls: Arc<Calls>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut watchers: Watchers,
) {
    let mut failures = 0;
    loop {
        while let Ok(order) = orders.try_recv() {
            watchers.note(order);
        }
        if watchers.0.is_empty() {
            match orders.recv().await {
                Some(order) => watchers.note(order),
                None => return,
            }
            continue;
        }
        let at = calls.current();
        if let Some((mut send, mut messages)) = open(&calls, &watchers).await {
            if !attend(&mut send, &mut messages, &mut orders, &mut watchers, &mut failures).await {
                return;
            }
            calls.leave(at);
        }
        // A place in the table for each failure in a row; an answer begins anew.
        tokio::time::sleep(PAUSES[failures.min(PAUSES.len() - 1)]).await;
        failures += 1;
    }
}

/// Opens a stream, and the watches that there are on it.
async fn open(
    calls: &Calls,
    watchers: &Watchers,
) -> Option<(WatchRequestSender, WatchResponseStream)> {
    let mut all = watchers.0.iter();
    let (id, (first, _)) = all.next()?;
    let opened = calls.call(|mut client| async move {
        client.watch(first.key.clone(), Some(options(*id, first))).await
    });
    let (mut send, messages) = opened.await.ok()?.answer.split();
    // Told before anything is read: a thousand of them fit into the stream, since etcd reads on.
    for (id, (sight, _)) in all {
        ask(&mut send, *id, sight).await?;
    }
    Some((send, messages))
}

/// Follows the stream until it breaks. `false` when nobody can watch any more.
async fn attend(
    send: &mut WatchRequestSender,
    messages: &mut WatchResponseStream,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    watchers: &mut Watchers,
    failures: &mut usize,
) -> bool {
    loop {
        tokio::select! {
            order = orders.recv() => {
                let sent = match order {
                    None => return false,
                    Some(Order::Watch(id, sight, to)) => {
                        let sent = ask(send, id, &sight).await;
                        watchers.note(Order::Watch(id, sight, to));
                        sent
                    }
                    // (Of a watch that was refused, the server knows nothing.)
                    Some(Order::Stop(id)) => match watchers.0.remove(&id) {
                        Some(_) => timeout(SILENCE, send.cancel(id)).await.ok().and_then(Result::ok),
                        None => Some(()),
                    },
                };
                if sent.is_none() {
                    return true;
                }
            }
            message = messages.message() => match message {
                Ok(Some(message)) => {
                    *failures = 0;
                    watchers.tell(&message);
                }
                _ => return true,
            },
        }
    }
}

async fn ask(send: &mut WatchRequestSender, id: i64, sight: &Sight) -> Option<()> {
    let asked = send.watch(sight.key.clone(), Some(options(id, sight)));
    timeout(SILENCE, asked).await.ok()?.ok()
}

fn options(id: i64, sight: &Sight) -> WatchOptions {
    let mut options = WatchOptions::new().with_watch_id(id).with_start_revision(sight.from);
    if !sight.end.is_empty() {
        options = options.with_range(sight.end.clone());
    }
    if !sight.changes {
        options = options.with_filters([WatchFilterType::NoPut]);
    }
    options
}
