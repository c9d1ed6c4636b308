//! How much of one kind is asked of a backend at once. A backend that is asked everything at once
//! answers late, and what is answered too late is asked again.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::Error;

/// Requests of one kind under way at once. On a connection with a millisecond of latency this is a
/// quarter of a million requests a second, more than any backend answers; and a server that works
/// 40 µs on each one has answered the last of them after 10 ms.
const AT_ONCE: usize = 256;

/// A request that has no answer after this makes room for another: one node that does not answer
/// must not hold up what others would answer. Drivers end their attempts after some seconds, so
/// that there are a few times [`AT_ONCE`] under way at most.
const SLOW: Duration = Duration::from_secs(1);

/// Requests of one kind, first come, first served.
pub(crate) struct Lane(Semaphore);

/// The turn of one request.
pub(crate) struct Turn<'a> {
    place: SemaphorePermit<'a>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }

    /// Waits for the turn; [`Error::Closed`] when there will be none.
    ///
    /// # Cancel safety
    /// Dropping it gives the place up.
    pub(crate) async fn turn(&self) -> Result<Turn<'_>, Error> {
        let place = self.0.acquire().await.map_err(|_| Error::Closed)?;
        Ok(Turn { place })
    }

    /// Nobody gets a turn any more.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl Turn<'_> {
    /// Waits for the answer to a request.
    ///
    /// # Cancel safety
    /// That of the request.
    pub(crate) async fn ask<T>(self, request: impl Future<Output = T>) -> T {
        let mut request = std::pin::pin!(request);
        if let Ok(answer) = tokio::time::timeout(SLOW, request.as_mut()).await {
            return answer;
        }
        drop(self.place);
        request.await
    }
}
