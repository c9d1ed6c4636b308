//! The watches of a driver, their subscribers, what etcd has sent of each, and what has to be read
//! again because it may never be sent. No I/O.
//!
//! A watch goes on from the revision that it had seen. That is of no use where a backup was put
//! back: its revisions are older, and no event comes until they have passed what was seen. There
//! are three signs of it: another cluster, or a raft term below one that was seen, in the answer to
//! a watch; a revision below what was seen, which a member that lags shows as well, so that a read
//! which needs the majority has to confirm it; and, where the revisions have passed it already,
//! other contents, which watches of a state compare.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use etcd_client::{EventType, KeyValue, ResponseHeader, WatchResponse};
use tokio::sync::mpsc;

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
    /// The [`digest`] of the range just before that revision, where it is a state that is watched: it
    /// is compared after the stream was opened again.
    pub(crate) content: Option<u64>,
}

impl WatchRange {
    pub(crate) fn watch_key(&self) -> WatchKey {
        (self.key.clone(), self.end.clone(), self.changes)
    }
}

/// What distinguishes the contents of a range from others.
pub(crate) fn digest(kvs: &[KeyValue]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for kv in kvs {
        (kv.key(), kv.value(), kv.create_revision(), kv.mod_revision()).hash(&mut hasher);
    }
    hasher.finish()
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// A key was deleted, or its lease ended.
    Deleted(Vec<u8>),
    /// A key was written.
    Changed(KeyValue),
    /// Something may have been missed: read again.
    Missed,
}

#[derive(Debug)]
pub(crate) enum WatchCommand {
    Watch(u64, WatchRange, mpsc::UnboundedSender<WatchEvent>),
    Stop(u64, WatchKey),
}

/// A range, and whether changes of values matter.
pub(crate) type WatchKey = (Vec<u8>, Vec<u8>, bool);

/// The watches of a driver and their subscribers.
#[derive(Default)]
pub(crate) struct Watchers {
    /// The watches at etcd, by the number that etcd knows them by.
    watches: HashMap<i64, Watch>,
    /// The same by what they show.
    by_range: HashMap<WatchKey, i64>,
    last: i64,
    /// The cluster, and its greatest raft term, as far as streams have shown.
    cluster: Option<(u64, u64)>,
    /// Watches at a member that has not reached what they have seen.
    behind: HashSet<i64>,
}

/// A watch at etcd.
struct Watch {
    /// `from` is the next revision of which nothing has come yet.
    range: WatchRange,
    subscribers: HashMap<u64, Subscriber>,
}

/// A receiver of a watch's events.
struct Subscriber {
    /// From which revision on.
    from: i64,
    content: Option<u64>,
    to: mpsc::UnboundedSender<WatchEvent>,
}

/// What is to be sent to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchRequest {
    Watch(i64),
    Cancel(i64),
}

/// What a message means for the stream that it came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageEffect {
    Applied,
    /// etcd refuses a watch on this stream: the login that it was opened with is over. It reads no
    /// more requests then, and may not say which it refused.
    Refused,
    /// Other data are there than those that were watched.
    Restored,
}

impl Watchers {
    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    pub(crate) fn range(&self, number: i64) -> Option<&WatchRange> {
        self.watches.get(&number).map(|watch| &watch.range)
    }

    pub(crate) fn numbers(&self) -> Vec<i64> {
        self.watches.keys().copied().collect()
    }

    /// Takes a command; returns what has to be sent to etcd for it.
    pub(crate) fn note(&mut self, command: WatchCommand) -> Option<WatchRequest> {
        match command {
            WatchCommand::Watch(id, range, to) => self.add(id, range, to),
            WatchCommand::Stop(id, shown) => self.remove(id, &shown),
        }
    }

    fn add(
        &mut self,
        id: u64,
        range: WatchRange,
        to: mpsc::UnboundedSender<WatchEvent>,
    ) -> Option<WatchRequest> {
        let subscribers = Subscriber { from: range.from, content: range.content, to };
        let shared = self.by_range.get(&range.watch_key());
        if let Some(watch) = shared.and_then(|number| self.watches.get_mut(number)) {
            if range.from < watch.range.from {
                // What came before is gone from here.
                subscribers.miss();
                return None;
            }
            watch.subscribers.insert(id, subscribers);
            return None;
        }
        self.last += 1;
        self.by_range.insert(range.watch_key(), self.last);
        self.watches
            .insert(self.last, Watch { range, subscribers: HashMap::from([(id, subscribers)]) });
        Some(WatchRequest::Watch(self.last))
    }

    fn remove(&mut self, id: u64, shown: &WatchKey) -> Option<WatchRequest> {
        let number = *self.by_range.get(shown)?;
        let watch = self.watches.get_mut(&number)?;
        watch.subscribers.remove(&id)?;
        if !watch.subscribers.is_empty() {
            return None;
        }
        self.forget(number);
        Some(WatchRequest::Cancel(number))
    }

    /// Nothing more comes of this watch: its subscribers have to read. It gets no new subscribers,
    /// either.
    fn miss(&mut self, number: i64) {
        if let Some(watch) = self.forget(number) {
            watch.subscribers.values().for_each(Subscriber::miss);
        }
    }

    pub(crate) fn miss_all(&mut self) {
        self.numbers().into_iter().for_each(|number| self.miss(number));
    }

    fn forget(&mut self, number: i64) -> Option<Watch> {
        let watch = self.watches.remove(&number)?;
        self.by_range.remove(&watch.range.watch_key());
        self.behind.remove(&number);
        Some(watch)
    }

    /// Sends the events of a message to the subscribers.
    pub(crate) fn tell(&mut self, message: &WatchResponse) -> MessageEffect {
        let number = message.watch_id();
        if message.canceled() {
            self.miss(number);
            return match message.created() && message.compact_revision() == 0 {
                true => MessageEffect::Refused,
                false => MessageEffect::Applied,
            };
        }
        if message.created()
            && let Some(header) = message.header()
            && !self.is_opened(number, header)
        {
            return MessageEffect::Restored;
        }
        let Some(watch) = self.watches.get_mut(&number) else {
            return MessageEffect::Applied;
        };
        for event in message.events() {
            let Some(kv) = event.kv() else {
                continue;
            };
            watch.tell(event.event_type(), kv);
            // (The header's revision may be that of changes which a later message brings.)
            watch.range.from = watch.range.from.max(kv.mod_revision() + 1);
        }
        MessageEffect::Applied
    }

    /// Notes that a member has taken a watch; `false` where it cannot have the data of before.
    fn is_opened(&mut self, number: i64, header: &ResponseHeader) -> bool {
        let now = (header.cluster_id(), header.raft_term());
        let before = self.cluster.replace(now);
        if before.is_some_and(|(cluster, term)| cluster != now.0 || term > now.1) {
            self.miss_all();
            return false;
        }
        if self.range(number).is_some_and(|range| header.revision() < range.from - 1) {
            self.behind.insert(number);
        }
        true
    }

    /// A key to ask for the revision that a majority has reached, if a watch is at a member that has
    /// not reached what the watch has seen; and up to which watch the answer will count.
    pub(crate) fn to_be_confirmed(&self) -> Option<(Vec<u8>, i64)> {
        let range = self.behind.iter().find_map(|number| self.range(*number))?;
        Some((range.key.clone(), self.last))
    }

    /// A read that was sent when there were watches up to `last` showed that a majority has reached
    /// this revision, and no later one.
    pub(crate) fn reached(&mut self, revision: i64, last: i64) -> Vec<WatchRequest> {
        let lags = |range: &WatchRange| range.from - 1 <= revision;
        let mut missed = Vec::new();
        for number in std::mem::take(&mut self.behind) {
            match self.range(number) {
                None => {}
                Some(range) if lags(range) => {}
                Some(_) if number <= last => {
                    self.miss(number);
                    missed.push(WatchRequest::Cancel(number));
                }
                // It may have seen what was written after that read.
                Some(_) => drop(self.behind.insert(number)),
            }
        }
        missed
    }

    /// The watches of states.
    pub(crate) fn states(&self) -> Vec<(i64, WatchRange)> {
        let states = self.watches.iter().filter(|(_, watch)| watch.is_of_a_state());
        states.map(|(number, watch)| (*number, watch.range.clone())).collect()
    }

    /// The range of this watch has these contents now; `None` where they could not be read.
    pub(crate) fn compare_state(
        &mut self,
        number: i64,
        content: Option<u64>,
    ) -> Option<WatchRequest> {
        let watch = self.watches.get_mut(&number)?;
        watch.subscribers.retain(|_, subscribers| {
            let same = subscribers.content.is_none() || subscribers.content == content;
            if !same {
                subscribers.miss();
            }
            same
        });
        if !watch.subscribers.is_empty() {
            return None;
        }
        self.forget(number);
        Some(WatchRequest::Cancel(number))
    }
}

impl Watch {
    fn is_of_a_state(&self) -> bool {
        self.subscribers.values().any(|subscribers| subscribers.content.is_some())
    }

    fn tell(&self, what: EventType, kv: &KeyValue) {
        for Subscriber { from, to, .. } in self.subscribers.values() {
            if kv.mod_revision() < *from {
                continue;
            }
            let events = match what {
                EventType::Delete => WatchEvent::Deleted(kv.key().to_vec()),
                EventType::Put => WatchEvent::Changed(kv.clone()),
            };
            let _ = to.send(events);
        }
    }
}

impl Subscriber {
    fn miss(&self) {
        let _ = self.to.send(WatchEvent::Missed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &str, from: i64, content: Option<u64>) -> WatchRange {
        WatchRange { key: key.into(), end: Vec::new(), from, changes: true, content }
    }

    type Heard = mpsc::UnboundedReceiver<WatchEvent>;

    fn watch(watchers: &mut Watchers, id: u64, range: WatchRange) -> (Option<WatchRequest>, Heard) {
        let (to, heard) = mpsc::unbounded_channel();
        (watchers.note(WatchCommand::Watch(id, range, to)), heard)
    }

    fn has_missed(heard: &mut Heard) -> bool {
        matches!(heard.try_recv(), Ok(WatchEvent::Missed))
    }

    #[test]
    fn a_member_that_lags_costs_no_look_and_a_backup_costs_one() {
        let mut watchers = Watchers::default();
        let (word, mut old) = watch(&mut watchers, 1, range("a", 105, None));
        assert_eq!(word, Some(WatchRequest::Watch(1)));
        watchers.behind.insert(1);
        let (_, last) = watchers.to_be_confirmed().unwrap();
        assert!(watchers.reached(104, last).is_empty() && !has_missed(&mut old), "it lagged");
        assert!(watchers.to_be_confirmed().is_none());
        watchers.behind.insert(1);
        // This one came after the read was sent, and may have seen more.
        let (_, mut new) = watch(&mut watchers, 2, range("b", 200, None));
        watchers.behind.insert(2);
        assert_eq!(watchers.reached(103, last), [WatchRequest::Cancel(1)]);
        assert!(has_missed(&mut old) && !has_missed(&mut new));
        assert_eq!(watchers.to_be_confirmed(), Some((b"b".to_vec(), 2)));
        // A subscriber that read and watches again gets no second event.
        let (word, mut again) = watch(&mut watchers, 3, range("a", 4, None));
        assert_eq!((word, has_missed(&mut again)), (Some(WatchRequest::Watch(3)), false));
    }

    #[test]
    fn contents_that_are_others_are_told_to_those_who_saw_the_old_ones() {
        let mut watchers = Watchers::default();
        let (_, mut state) = watch(&mut watchers, 1, range("a", 5, Some(7)));
        let (_, mut newer) = watch(&mut watchers, 2, range("a", 6, Some(8)));
        let (_, mut waiter) = watch(&mut watchers, 3, range("b", 5, None));
        let states = watchers.states();
        assert_eq!(states.len(), 1, "one read a range");
        assert_eq!(watchers.compare_state(states[0].0, Some(8)), None);
        assert!(has_missed(&mut state) && !has_missed(&mut newer) && !has_missed(&mut waiter));
        assert_eq!(watchers.compare_state(states[0].0, None), Some(WatchRequest::Cancel(1)));
        assert!(has_missed(&mut newer), "what cannot be read may be anything");
        // The first one stops, and another one has begun meanwhile.
        let (word, _other) = watch(&mut watchers, 4, range("a", 5, Some(7)));
        assert_eq!(word, Some(WatchRequest::Watch(3)));
        assert_eq!(watchers.note(WatchCommand::Stop(1, range("a", 5, None).watch_key())), None);
        assert_eq!(watchers.numbers().len(), 2);
    }
}
