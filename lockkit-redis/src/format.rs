//! The version of the format in which lockkit's keys are written. It has one key in each database, for all
//! namespaces and, in a cluster, for all slots; it is read when a driver connects, and not again.

use lockkit_core::Error;

use crate::inner::RedisInner;
use crate::{decode, keys, script};

/// The format that this crate reads and writes.
const VERSION: &str = "3";

/// Refuses a database whose keys have another format. One without a version gets this one.
pub(crate) async fn check(inner: &RedisInner) -> Result<(), Error> {
    let answer = match inner.run(&script::FORMAT, &[keys::FORMAT], &[VERSION]).await {
        // A replica, or full memory, takes no new key; in a cluster a node may be down that has no other
        // key in use. The next driver that connects looks again.
        Err(error) if error.is_retryable() => {
            tracing::debug!(%error, "the format of the keys was not checked");
            return Ok(());
        }
        answer => answer?,
    };
    match decode::text(&answer) {
        Some(VERSION) => Ok(()),
        Some(other) => Err(Error::Config(format!(
            "this database has lockkit's keys in format {other}, and this program knows format \
             {VERSION} only: use the version of lockkit that wrote them, or another database"
        ))),
        None => Err(decode::unexpected(&answer)),
    }
}
