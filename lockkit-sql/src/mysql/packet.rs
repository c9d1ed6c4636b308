//! How much fits into one request: the server refuses what is larger than its `max_allowed_packet`, and closes
//! the connection. No I/O.

use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::mysql::MySqlDatabaseError;

use super::TOO_LARGE;

/// What a request has beside its arguments, and what a procedure makes of them: the texts of statements that
/// it prepares must fit as well.
const BESIDE: usize = 4_096;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Packet {
    /// As the server said when it was asked last.
    whole: AtomicUsize,
    /// The arguments of a request that can be parted.
    part: AtomicUsize,
}

impl Default for Packet {
    fn default() -> Self {
        Self { whole: AtomicUsize::new(usize::MAX), part: AtomicUsize::new(usize::MAX) }
    }
}

impl Packet {
    pub(super) fn learn(&self, bytes: usize) {
        self.whole.store(bytes, Ordering::Relaxed);
        self.part.store(bytes.saturating_sub(BESIDE).max(bytes / 2), Ordering::Relaxed);
    }

    /// How many bytes the arguments of a part may have.
    pub(super) fn part(&self) -> usize {
        self.part.load(Ordering::Relaxed)
    }

    /// Refuses what no connection takes.
    pub(super) fn check(&self, bytes: usize) -> Result<(), sqlx::Error> {
        let whole = self.whole.load(Ordering::Relaxed);
        if bytes <= whole {
            return Ok(());
        }
        let told =
            format!("this has {bytes} bytes, and the server's max_allowed_packet is {whole}");
        Err(sqlx::Error::Configuration(told.into()))
    }

    /// An error of a request of so many bytes that can be parted: connections made since may take less than
    /// the server said.
    pub(super) fn parted(&self, error: sqlx::Error, bytes: usize) -> sqlx::Error {
        let number = error.as_database_error().and_then(|error| {
            error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
        });
        if number != Some(TOO_LARGE) {
            return error;
        }
        self.part.fetch_min(bytes / 2, Ordering::Relaxed);
        sqlx::Error::Configuration(Box::new(InParts(error)))
    }
}

/// A request was too large; what is asked again goes in smaller parts.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct InParts(sqlx::Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_the_server_takes_is_refused_and_names_the_variable() {
        let packet = Packet::default();
        assert!(packet.check(usize::MAX).is_ok(), "nothing is known yet");
        packet.learn(100_000);
        assert!(packet.check(100_000).is_ok());
        let refused = packet.check(100_001).unwrap_err().to_string();
        assert!(refused.contains("max_allowed_packet is 100000"), "{refused}");
        assert_eq!(packet.part(), 100_000 - BESIDE);
        packet.learn(1_024);
        assert_eq!(packet.part(), 512);
    }
}
