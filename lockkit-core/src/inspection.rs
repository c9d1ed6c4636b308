//! Inspection: one lock, all locks, the changes of one, the health of the backend. Reading changes
//! nothing, so it is repeated after a retryable error.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::Stream;

use crate::name::is_reserved;
use crate::promises::Promises;
use crate::shared::{Core, WATCH, with_offset};
use crate::state::{
    Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use crate::{Error, LockAdmin, LockManager, Namespace, Outage, Space};

/// How long a look is repeated that fails: a restart of a server is over by then.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much is asked for at once.
const PAGE: usize = 200;

impl LockManager {
    /// The state of a lock: its holders and waiters. Changes nothing. One round trip.
    ///
    /// Where the backend fails in a way that may pass, this asks again for 5 seconds.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn inspect(&self, space: Space, name: impl AsRef<str>) -> Result<LockState, Error> {
        let core = self.core();
        let key = core.key(space, name.as_ref())?;
        core.repeat("inspect", Some(PATIENCE), || core.state(&key)).await
    }

    /// How long the backend has not answered the requests of this manager, if it does not: what its
    /// warnings say, without I/O. Only what is asked for can go ambiguous: a claim that waits is
    /// renewed every few seconds, while nothing is asked for a [`Latch`](crate::sync::Latch) that the
    /// backend tells of.
    pub fn outage(&self) -> Option<Outage> {
        self.core().registry.outages.current()
    }
}

impl LockAdmin {
    /// The locks and semaphores in use whose names begin with `prefix`, taken literally. Asks for
    /// a page at a time, for each as [`inspect`](LockManager::inspect) does.
    ///
    /// What is in use for the whole time is shown once; what comes or goes meanwhile may be shown
    /// or not.
    pub fn list(
        &self,
        prefix: impl AsRef<str>,
    ) -> impl Stream<Item = Result<LockState, Error>> + Send + 'static {
        let prefix = prefix.as_ref().to_owned();
        paged(self.core(), move |core, after| {
            let prefix = prefix.clone();
            async move {
                let base = core.namespace_counter().await?;
                let namespace = core.namespace.clone();
                let request = ListRequest { namespace, space: None, prefix, after, limit: PAGE };
                let Page { states, next } = core.driver().list(&request).await?;
                Ok((states.into_iter().map(|state| with_offset(state, base)).collect(), next))
            }
        })
    }

    /// The registers that have a value and whose names begin with `prefix`, taken literally; not
    /// those in which latches, elections and the like keep their state. Their values are loaded by
    /// their names.
    ///
    /// What has a value for the whole time is shown once. Asks for pages of 200, for each as
    /// [`inspect`](LockManager::inspect) does.
    ///
    /// # Round trips
    /// One a page on SQLite, PostgreSQL, MySQL and a lock service. On Redis the first page scans all
    /// keys of the server, 1,000 in a request, and each page asks for its registers in one round trip.
    /// ZooKeeper lists all names for each page and reads its registers, values included, 64 in a
    /// round trip. etcd reads them with their values, 32 in a request.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there are no registers.
    pub fn registers(
        &self,
        prefix: impl AsRef<str>,
    ) -> impl Stream<Item = Result<RegisterState, Error>> + Send + 'static {
        let prefix = prefix.as_ref().to_owned();
        paged(self.core(), move |core, after| {
            let prefix = prefix.clone();
            async move {
                let namespace = core.namespace.clone();
                let request = RegisterRequest { namespace, prefix, after, limit: PAGE };
                let driver = core.driver();
                let registers = driver.registers();
                let registers = registers.ok_or_else(|| driver.unsupported("registers"))?;
                let ListPage { mut items, more } = registers.page(&request).await?;
                let last = items.last().filter(|_| more).map(|last| last.name.clone());
                items.retain(|register| !is_reserved(&register.name));
                Ok((items, last))
            }
        })
    }

    /// The namespaces of this backend in which a lock is in use or a register has a value,
    /// whatever namespace this manager has. May also show some in which nothing is any more. A
    /// manager of each, over the same connections, is made with
    /// [`with`](LockManager::with)`(manager.`[`driver`](LockManager::driver)`().clone(), settings.namespace(…))`.
    ///
    /// # Round trips
    /// One for each page of 200 on SQLite, PostgreSQL, MySQL, ZooKeeper and a lock service. Redis is
    /// scanned as for [`registers`](Self::registers). etcd is read in pages of 500 keys, one for each
    /// namespace that has more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where [`Capabilities::namespaces`] is false. An error of the backend
    /// where this user may not read all of it.
    ///
    /// [`Capabilities::namespaces`]: crate::Capabilities::namespaces
    pub fn namespaces(&self) -> impl Stream<Item = Result<Namespace, Error>> + Send + 'static {
        paged(self.core(), |core: Arc<Core>, after: Option<Namespace>| async move {
            let ListPage { items, more } = core.driver().namespaces(after.as_ref(), PAGE).await?;
            let last = items.last().filter(|_| more).cloned();
            Ok((items, last))
        })
    }
}

impl LockManager {
    /// The states of a lock: first as it is now, then whenever a claim comes, goes, begins to
    /// hold, or is broken gracefully. States that passed quickly may be left out.
    ///
    /// The first is asked for as [`inspect`](Self::inspect) does. While the backend is out of reach
    /// after that, this goes on trying, and then tells what is there by then.
    pub fn watch(
        &self,
        space: Space,
        name: impl AsRef<str>,
    ) -> impl Stream<Item = Result<LockState, Error>> + Send + 'static {
        let core = self.core().clone();
        let key = core.key(space, name.as_ref());
        async_stream::try_stream! {
            let key = key?;
            let base = core.repeat("namespace_counter", Some(PATIENCE), || core.namespace_counter()).await?;
            let mut state = core.repeat("inspect", Some(PATIENCE), || core.driver().inspect(&key)).await?;
            loop {
                yield with_offset(state.clone(), base);
                state = core.repeat(WATCH, None, || core.driver().changed(&key, &state)).await?;
            }
        }
    }

    /// What is kept under each fault as the servers' settings are now, and why; see
    /// [`LockDriver::promises`](crate::driver::LockDriver::promises). Asks once.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn promises(&self) -> Result<Promises, Error> {
        self.core().check_open()?;
        self.core().driver().promises().await
    }

    /// Asks the backend for a sign of life, and for what an operator should know. Asks once: that
    /// there was no answer is one.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn health(&self) -> Result<Health, Error> {
        self.core().check_open()?;
        self.core().driver().health().await
    }
}

/// The items of a listing, page by page: each is asked for after the end of the one before.
fn paged<T, K, F>(
    core: &Arc<Core>,
    page: impl Fn(Arc<Core>, Option<K>) -> F + Send + Sync + 'static,
) -> impl Stream<Item = Result<T, Error>> + Send + 'static
where
    T: Send + 'static,
    K: Clone + Send + Sync + 'static,
    F: Future<Output = Result<(Vec<T>, Option<K>), Error>> + Send,
{
    let core = core.clone();
    async_stream::try_stream! {
        let mut after = None;
        loop {
            let (items, next) = core.repeat("list", Some(PATIENCE), || page(core.clone(), after.clone())).await?;
            for item in items {
                yield item;
            }
            if next.is_none() {
                break;
            }
            after = next;
        }
    }
}
