//! Lists of folders that all waiters of a folder share, so that a thousand of them cost one request
//! for each change and not a thousand.
//!
//! A list is shared only with the waiters that asked for it before it was sent. One that was sent
//! earlier may not show the node of a claim that has come since, which would then seem to be gone.
//! At most one list of a folder is under way; those who come meanwhile share the next. (Who watches
//! a list that was sent is in it, so it may share any that was sent later.)

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, Weak};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use lockkit_core::driver::locked;
use lockkit_core::queue::RuleResult;
use lockkit_core::{Error, Result, Token};
use zookeeper_client::{EventType, OneshotWatcher};

use crate::errors::{BACKEND, failed, if_there};
use crate::paths::Child;
use crate::queue_snapshot::QueueSnapshot;
use crate::session::Session;
use crate::session::{LOOK_EVERY, WatchReservation};

/// An event of a watch, as the session's end where there will be none.
pub(crate) type Event = BoxFuture<'static, EventType>;

type Reading = Shared<BoxFuture<'static, Result<Arc<Listing>>>>;

/// What one request showed of a folder.
pub(crate) struct Listing {
    /// Its number among the lists of the folder, in the order of their sending.
    number: u64,
    snapshot: QueueSnapshot,
    /// The position of each claim in it.
    positions: HashMap<String, usize>,
    /// Resolves when the folder may have changed, if that was asked for.
    changed: Shared<Event>,
    _room: Option<WatchReservation>,
}

impl Listing {
    /// The rule_result on the claim whose node has this name, and the claim this token; `None` when it
    /// is not there.
    pub(crate) fn rule_result(&self, name: &str, token: Token) -> Option<RuleResult<'_, Child>> {
        let position = *self.positions.get(name)?;
        Some(self.snapshot.queue().rule_for(position, token.get()))
    }

    /// Returns when the folder has changed since, or may have.
    pub(crate) async fn changed(&self) -> EventType {
        self.changed.clone().await
    }
}

/// The folders that are listed by several at once.
#[derive(Default)]
pub(crate) struct Lists(Mutex<HashMap<(i64, String, bool), Weak<SharedList>>>);

impl Lists {
    /// The lists of this folder, with a watch of its children or without one.
    pub(crate) fn of(
        &self,
        session: &Arc<Session>,
        folder: &str,
        watched: bool,
    ) -> Arc<SharedList> {
        let key = (session.id(), folder.to_owned(), watched);
        let mut all = locked(&self.0);
        if let Some(shared) = all.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        if all.len() > 64 && all.len() == all.capacity() {
            all.retain(|_, shared| shared.strong_count() > 0);
        }
        let (session, folder) = (session.clone(), folder.to_owned());
        let shared = SharedList { session, folder, watched, readings: Mutex::default() };
        let shared = Arc::new(shared);
        all.insert(key, Arc::downgrade(&shared));
        shared
    }
}

/// The lists of one folder over one session.
pub(crate) struct SharedList {
    session: Arc<Session>,
    folder: String,
    watched: bool,
    readings: Mutex<Readings>,
}

#[derive(Default)]
struct Readings {
    sent: u64,
    /// The one that was sent last.
    last: Option<(u64, Reading)>,
    /// One that is not sent yet.
    next: Option<Reading>,
}

impl SharedList {
    /// A list that is sent after this call; or after `seen` was sent, by one that is in that list.
    pub(crate) async fn read(self: &Arc<Self>, seen: Option<&Listing>) -> Result<Arc<Listing>> {
        let reading = self.reading(seen.map(|listing| listing.number));
        reading.await
    }

    fn reading(self: &Arc<Self>, after: Option<u64>) -> Reading {
        let mut readings = locked(&self.readings);
        if let (Some(after), Some((number, last))) = (after, &readings.last)
            && *number > after
        {
            return last.clone();
        }
        if let Some(next) = &readings.next {
            return next.clone();
        }
        let before = readings.last.as_ref().map(|(_, last)| last.clone());
        let next = list(Arc::downgrade(self), before).boxed().shared();
        readings.next = Some(next.clone());
        next
    }

    /// The next one is sent now: later waiters do not share it. Returns its number.
    fn sent(&self) -> u64 {
        let mut readings = locked(&self.readings);
        readings.sent += 1;
        let number = readings.sent;
        readings.last = readings.next.take().map(|reading| (number, reading));
        number
    }
}

/// Lists a folder once the list `before` has come.
async fn list(of: Weak<SharedList>, before: Option<Reading>) -> Result<Arc<Listing>> {
    if let Some(before) = before {
        let _ = before.await;
    }
    let (session, folder, watched, number) = {
        // A client that waits for this has it. It is not kept: it has this future in turn.
        let ended = || Error::retryable(BACKEND, "nobody waits for this list");
        let of = of.upgrade().ok_or_else(ended)?;
        (of.session.clone(), of.folder.clone(), of.watched, of.sent())
    };
    let (session, folder) = (&*session, &*folder);
    let room = if watched { session.room_for_folder(folder) } else { None };
    let (names, changed) = match room {
        Some(_) => {
            let listed = session.answer(session.client.list_and_watch_children(folder)).await;
            let listed = if_there(listed)?.map(|(names, watcher)| (names, event(watcher)));
            listed.unwrap_or_else(|| (Vec::new(), later()))
        }
        None => {
            let listed = session.answer(session.client.list_children(folder)).await;
            (if_there(listed)?.unwrap_or_default(), later())
        }
    };
    let snapshot = snapshot_of(session, folder, names).await?;
    let names = snapshot.claims().iter().map(|child| child.name.clone());
    let positions = names.enumerate().map(|(position, name)| (name, position)).collect();
    Ok(Arc::new(Listing { number, snapshot, positions, changed: changed.shared(), _room: room }))
}

/// For waiters that cannot watch, since very much is watched in their session.
fn later() -> Event {
    tokio::time::sleep(LOOK_EVERY).map(|()| EventType::NodeChildrenChanged).boxed()
}

/// The client panics when its runtime ends before the watch does.
pub(crate) fn event(watcher: OneshotWatcher) -> Event {
    let changed = AssertUnwindSafe(watcher.changed()).catch_unwind();
    changed.map(|event| event.map_or(EventType::Session, |event| event.event_type)).boxed()
}

/// The claims of a folder, in order, whose children have these names.
pub(crate) async fn snapshot_of(
    session: &Session,
    folder: &str,
    names: Vec<String>,
) -> Result<QueueSnapshot> {
    let mut snapshot = QueueSnapshot::of(names);
    if !snapshot.is_unsure() {
        return Ok(snapshot);
    }
    let stats = session.stats(&snapshot.paths(folder)).await?;
    let mut made = HashMap::with_capacity(stats.len());
    for (child, stat) in snapshot.claims().iter().zip(stats) {
        made.insert(child.name.clone(), stat.map_err(failed)?.map(|stat| stat.czxid));
    }
    snapshot.put_in_order(&made);
    Ok(snapshot)
}
