//! Notices what other processes did, and that leases end: one task a driver, alive only while
//! claims of this driver wait. It reads what is new and the fronts of the lists concerned, so its
//! cost does not depend on how many wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::line::Step;
use lockkit_core::{Error, Key, Name, Namespace};
use rusqlite::params;
use tokio::task::JoinHandle;

use super::Inner;
use super::claims::{id_of, place_of};
use super::flight::Flight;
use super::hub::lock;
use crate::rows::space_of;

/// The pause between two looks. What another process did is known within this, the time of a look
/// and what the machine adds: 50 ms are promised.
const TICK: Duration = Duration::from_millis(15);

/// The lists in which claims of a driver wait.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    lists: HashMap<Key, Watched>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    waiters: usize,
    /// When to look at the list's front next, on the driver's clock: when the first of it ends, or
    /// at once.
    due: i64,
}

/// Keeps a list watched for as long as it lives.
#[derive(Debug)]
pub(crate) struct Watching {
    inner: Arc<Inner>,
    key: Key,
}

/// Watches a list for one waiter.
pub(crate) fn watch(inner: &Arc<Inner>, key: &Key) -> Watching {
    let mut watch = lock(&inner.watch);
    let list = watch.lists.entry(key.clone()).or_insert(Watched { waiters: 0, due: 0 });
    list.waiters += 1;
    list.due = 0;
    // A task whose runtime has ended is finished as well.
    if watch.task.as_ref().is_none_or(JoinHandle::is_finished) {
        watch.task = Some(tokio::spawn(poll(inner.clone())));
    }
    Watching { inner: inner.clone(), key: key.clone() }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watch = lock(&self.inner.watch);
        if let Some(list) = watch.lists.get_mut(&self.key) {
            list.waiters -= 1;
            if list.waiters == 0 {
                watch.lists.remove(&self.key);
            }
        }
    }
}

/// Looks until nobody waits.
async fn poll(inner: Arc<Inner>) {
    let mut seen = None;
    loop {
        {
            let mut watch = lock(&inner.watch);
            if watch.lists.is_empty() {
                // Under the lock: who comes now finds no task and starts one.
                watch.task = None;
                return;
            }
        }
        let begun = tokio::time::Instant::now();
        if let Err(error) = tick(&inner, &mut seen).await {
            tracing::debug!(%error, "looking for news failed; looking again");
        }
        // A look that takes long takes a tenth of one core at most.
        tokio::time::sleep(TICK.max(begun.elapsed() * 9)).await;
    }
}

async fn tick(inner: &Arc<Inner>, seen: &mut Option<i64>) -> Result<(), Error> {
    let news = read_news(inner, *seen).await?;
    {
        let mut watch = lock(&inner.watch);
        if news.complete {
            for key in &news.lists {
                if let Some(list) = watch.lists.get_mut(key) {
                    list.due = 0;
                }
            }
        } else {
            watch.lists.values_mut().for_each(|list| list.due = 0);
        }
    }
    *seen = Some(news.last);
    let now = inner.now();
    let due: Vec<Key> = lock(&inner.watch)
        .lists
        .iter()
        .filter(|(_, list)| list.due <= now)
        .map(|(key, _)| key.clone())
        .collect();
    for key in due {
        look_at(inner, &key).await?;
    }
    Ok(())
}

/// What happened since the last look.
struct News {
    /// The number of the last piece.
    last: i64,
    lists: Vec<Key>,
    /// Whether nothing was removed before it was read.
    complete: bool,
}

async fn read_news(inner: &Inner, seen: Option<i64>) -> Result<News, Error> {
    let read = move |flight: &mut Flight<'_>| {
        let rows = flight.all(include_str!("sql/news.sql"), [seen.unwrap_or(-1)], |row| {
            let list: (String, i64, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
            Ok((row.get::<_, i64>(0)?, list))
        })?;
        Ok(Ok(rows))
    };
    let rows = inner.reader.call(false, read).await?;
    let mut news = News { last: seen.unwrap_or(0), lists: Vec::new(), complete: seen.is_some() };
    for (index, (n, (namespace, space, name))) in rows.into_iter().enumerate() {
        if index == 0 && n > news.last + 1 {
            news.complete = false;
        }
        news.last = n;
        news.lists.push(Key::new(Namespace::new(&namespace)?, space_of(space), Name::new(&name)?));
    }
    Ok(news)
}

/// Wakes the holders of a list, lets it move on if its first have ended, and notes when to look
/// again.
async fn look_at(inner: &Arc<Inner>, key: &Key) -> Result<(), Error> {
    let mut front = read_front(inner, key).await?;
    if front.ends <= inner.now() {
        inner.settle(key).await?;
        front = read_front(inner, key).await?;
    }
    if let Some(list) = lock(&inner.watch).lists.get_mut(key) {
        list.due = front.ends;
    }
    inner.site.hub.wake(front.holders);
    if let Some(waiter) = front.waiter {
        // It may be gone: its owner finds out by looking.
        inner.site.hub.wake([waiter]);
    }
    Ok(())
}

struct Front {
    holders: Vec<ClaimId>,
    waiter: Option<ClaimId>,
    ends: i64,
}

async fn read_front(inner: &Inner, key: &Key) -> Result<Front, Error> {
    let key = key.clone();
    let read = move |flight: &mut Flight<'_>| {
        let list = place_of(&key);
        let rows =
            flight.all(include_str!("sql/front.sql"), params![list.0, list.1, list.2], |row| {
                let holds = row.get::<_, Option<i64>>(1)?.is_some();
                Ok((id_of(row.get_ref(0)?.as_blob()?), holds, row.get::<_, i64>(2)?))
            })?;
        Ok(Ok(rows))
    };
    let rows = inner.reader.call(false, read).await?;
    let mut front = Front { holders: Vec::new(), waiter: None, ends: i64::MAX };
    for (id, holds, ends) in rows {
        front.ends = front.ends.min(ends);
        match holds {
            true => front.holders.push(id),
            false => front.waiter = Some(id),
        }
    }
    Ok(front)
}

impl Inner {
    /// Lets a list move on.
    async fn settle(&self, key: &Key) -> Result<(), Error> {
        let key = key.clone();
        let look = move |flight: &mut Flight<'_>| {
            flight.step(&key, &Step::Look, None)?;
            Ok(Ok(()))
        };
        self.writer.call(false, look).await
    }
}
