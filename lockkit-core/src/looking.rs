//! What a manager shows: one lock, all locks, the changes of one, how the backend is. Looking
//! disturbs nobody, so it is repeated after a failure that may pass.

use std::time::Duration;

use futures_util::stream::Stream;
use tokio::time::Instant;

use crate::deadline::backoff;
use crate::name::is_reserved;
use crate::shared::{Core, rebased};
use crate::state::{Health, ListRequest, Listed, LockState, RegisterRequest, RegisterState};
use crate::{Error, LockManager, Namespace, Space};

/// How long a look is repeated that fails: a restart of a server is over by then.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much is asked for at once.
const PAGE: usize = 200;

impl LockManager {
    /// Shows who holds a lock and who waits for it. Disturbs nobody. One round trip.
    ///
    /// Where the backend fails in a way that may pass, this asks again for 5 seconds.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn inspect(&self, space: Space, name: impl AsRef<str>) -> Result<LockState, Error> {
        let core = self.core();
        let key = core.key(space, name.as_ref())?;
        let ask = || async {
            let base = core.token_base().await?;
            Ok(rebased(core.driver().inspect(&key).await?, base))
        };
        repeat(core, Some(PATIENCE), ask).await
    }

    /// The locks and semaphores in use whose names begin with `prefix`, taken literally. Asks for
    /// a page at a time, for each as [`inspect`](Self::inspect) does.
    ///
    /// What is in use for the whole time is shown once; what comes or goes meanwhile may be shown
    /// or not.
    pub fn list(
        &self,
        prefix: impl AsRef<str>,
    ) -> impl Stream<Item = Result<LockState, Error>> + Send + 'static {
        let core = self.core().clone();
        let prefix = prefix.as_ref().to_owned();
        async_stream::try_stream! {
            let base = repeat(&core, Some(PATIENCE), || core.token_base()).await?;
            let namespace = core.namespace.clone();
            let mut request = ListRequest { namespace, space: None, prefix, after: None, limit: PAGE };
            loop {
                let page = repeat(&core, Some(PATIENCE), || core.driver().list(&request)).await?;
                for state in page.states {
                    yield rebased(state, base);
                }
                match page.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
        }
    }

    /// The registers that have a value and whose names begin with `prefix`, taken literally; not
    /// those in which latches, elections and the like keep their state. Their values are loaded by
    /// their names.
    ///
    /// What has a value for the whole time is shown once. Asks for pages of 200, for each as
    /// [`inspect`](Self::inspect) does.
    ///
    /// # Round trips
    /// One a page on SQLite, PostgreSQL, MySQL and a lock service. On Redis the first page scans all
    /// keys of the server, 1,000 in a request, and each page asks for its registers in one flight.
    /// ZooKeeper lists all names for each page and reads its registers, values included, 64 in a
    /// flight. etcd reads them with their values, 32 in a request.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there are no registers.
    pub fn registers(
        &self,
        prefix: impl AsRef<str>,
    ) -> impl Stream<Item = Result<RegisterState, Error>> + Send + 'static {
        let core = self.core().clone();
        let prefix = prefix.as_ref().to_owned();
        async_stream::try_stream! {
            let namespace = core.namespace.clone();
            let mut request = RegisterRequest { namespace, prefix, after: None, limit: PAGE };
            loop {
                let page = repeat(&core, Some(PATIENCE), || async {
                    let driver = core.driver();
                    let registers = driver.registers();
                    registers.ok_or_else(|| driver.unsupported("registers"))?.page(&request).await
                });
                let Listed { items, more } = page.await?;
                request.after = items.last().map(|last| last.name.clone());
                for register in items.into_iter().filter(|it| !is_reserved(&it.name)) {
                    yield register;
                }
                if !more || request.after.is_none() {
                    break;
                }
            }
        }
    }

    /// The prefixes of this backend under which a lock is in use or a register has a value,
    /// whatever prefix this manager has. May also show some under which nothing is any more. A
    /// manager of each, over the same connections, is made with
    /// [`with`](Self::with)`(manager.`[`driver`](Self::driver)`().clone(), settings.prefix(…))`.
    ///
    /// # Round trips
    /// One for each page of 200 on SQLite, PostgreSQL, MySQL, ZooKeeper and a lock service. Redis is
    /// scanned as for [`registers`](Self::registers). etcd is read in pages of 500 keys, one for each
    /// prefix that has more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where [`Capabilities::namespaces`] is false. An error of the backend
    /// where this user may not read all of it.
    ///
    /// [`Capabilities::namespaces`]: crate::Capabilities::namespaces
    pub fn prefixes(&self) -> impl Stream<Item = Result<Namespace, Error>> + Send + 'static {
        let core = self.core().clone();
        async_stream::try_stream! {
            let mut after: Option<Namespace> = None;
            loop {
                let ask = || core.driver().namespaces(after.as_ref(), PAGE);
                let Listed { items, more } = repeat(&core, Some(PATIENCE), ask).await?;
                after = items.last().cloned();
                for namespace in items {
                    yield namespace;
                }
                if !more || after.is_none() {
                    break;
                }
            }
        }
    }

    /// The states of a lock: first as it is now, then whenever somebody comes, goes, begins to
    /// hold, or is broken politely. States that passed quickly may be left out.
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
            let base = repeat(&core, Some(PATIENCE), || core.token_base()).await?;
            let mut seen = repeat(&core, Some(PATIENCE), || core.driver().inspect(&key)).await?;
            loop {
                yield rebased(seen.clone(), base);
                seen = repeat(&core, None, || core.driver().changed(&key, &seen)).await?;
            }
        }
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

/// Asks until there is an answer or an error that stays, for as long as this; `None`: for as long
/// as it takes.
async fn repeat<T, F>(
    core: &Core,
    patience: Option<Duration>,
    ask: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = patience.map(|patience| Instant::now() + patience);
    let mut failures = 0;
    loop {
        core.check_open()?;
        let error = match ask().await {
            Err(error) if error.is_retryable() => error,
            answer => return answer,
        };
        failures += 1;
        let pause = backoff(failures);
        if until.is_some_and(|until| Instant::now() + pause >= until) {
            return Err(error);
        }
        tracing::debug!(%error, "looking failed; looking again");
        tokio::time::sleep(pause).await;
    }
}
