//! The option that a grant counts only when replicas have it: `WAIT`, on a connection of its own,
//! since it holds up everything behind it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;

use crate::BACKEND;
use crate::link::{Own, Source, to_error};
use crate::reply;

/// Waits for replicas.
pub(crate) struct Replicas {
    least: u32,
    connection: Own,
    patience: Duration,
}

impl Replicas {
    pub(crate) fn new(least: u32, source: Arc<Source>, limit: Duration) -> Self {
        Self { least, connection: Own::new(source, limit), patience: limit / 2 }
    }

    /// Returns once enough replicas have everything that was written until now.
    pub(crate) async fn confirm(&self) -> Result<(), Error> {
        // WAIT waits for what its own connection wrote last; any command takes that up to now.
        let mut pipe = redis::pipe();
        pipe.cmd("PING");
        pipe.cmd("WAIT").arg(self.least).arg(self.patience.as_millis() as u64);
        let answers = self.connection.send_all(&pipe, 2).await.map_err(to_error)?;
        let have = answers.get(1).and_then(reply::number).unwrap_or_default();
        if have >= i64::from(self.least) {
            return Ok(());
        }
        let message = format!(
            "{have} of the {} replicas that min_replicas asks for acknowledged the grant in time",
            self.least
        );
        Err(Error::retryable(BACKEND, message))
    }
}
