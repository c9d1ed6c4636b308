//! One verb, asked of the database: within its time, and again where that is harmless. What an error
//! means is the dialect's to say.

use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::driver::LockDriver as _;
use rand::Rng;
use tokio::time::{Instant, timeout_at};

use super::ServerDriver;
use super::dialect::{Arg, Dialect, Row, Verb, Verdict};

/// An answer, and whether an earlier attempt may have acted without one.
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) repeated: bool,
}

impl Answer {
    /// The row of a verb that always gives one.
    pub(crate) fn row<D: Dialect>(&self) -> Result<&Row, Error> {
        let none = || Error::permanent(D::BACKEND, "the database gave no answer to a statement");
        self.rows.first().ok_or_else(none)
    }
}

impl<D: Dialect> ServerDriver<D> {
    /// Asks, and asks again where the database could not do it, until the time limit is over.
    pub(crate) async fn call(&self, verb: Verb, args: &[Arg<'_>]) -> Result<Answer, Error> {
        let until = Instant::now() + self.inner.timeout;
        let mut repeated = false;
        let mut last = None;
        for attempt in 0_u32.. {
            let error = match timeout_at(until, self.ask(verb, args)).await {
                Ok(Ok(rows)) => return Ok(Answer { rows, repeated }),
                Ok(Err(error)) => error,
                Err(_) => return Err(self.late(last)),
            };
            match self.inner.dialect.verdict(&error) {
                Verdict::Again => {}
                Verdict::Gone => {
                    self.inner.connections.forget();
                    // A server that is down is core's to wait for.
                    if repeated {
                        return Err(Error::retryable(D::BACKEND, error));
                    }
                    repeated = true;
                    last = Some(error);
                    continue;
                }
                Verdict::NoTables if attempt < 3 => {
                    let installed = timeout_at(until, self.install()).await;
                    installed.map_err(|_| self.late(None))??;
                    continue;
                }
                Verdict::Later => return Err(Error::retryable(D::BACKEND, error)),
                Verdict::Never | Verdict::NoTables => {
                    return Err(Error::permanent(D::BACKEND, error));
                }
            }
            last = Some(error);
            let pause = rand::rng().random_range(0..=(1_u64 << attempt.min(6)));
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Err(self.late(last))
    }

    async fn ask(&self, verb: Verb, args: &[Arg<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        let mut lease = self.inner.connections.lease().await?;
        let answer = self.inner.dialect.run(lease.connection(), verb, args).await;
        match &answer {
            Err(error) if self.inner.dialect.verdict(error) == Verdict::Gone => {}
            _ => lease.give_back(),
        }
        answer
    }

    /// Makes the tables, or tells who should.
    pub(crate) async fn install(&self) -> Result<(), Error> {
        let made = async {
            let mut lease = self.inner.connections.lease().await?;
            self.inner.dialect.install(lease.connection()).await?;
            lease.give_back();
            Ok::<_, sqlx::Error>(())
        };
        made.await.map_err(|error| match self.inner.dialect.verdict(&error) {
            Verdict::Gone | Verdict::Again | Verdict::Later => Error::retryable(D::BACKEND, error),
            Verdict::NoTables | Verdict::Never => Error::permanent(
                D::BACKEND,
                format!(
                    "lockkit's tables are not there, or older, and this user may not make them ({error}); \
                     `lockkit schema` prints the statements for who may"
                ),
            ),
        })
    }

    fn late(&self, last: Option<sqlx::Error>) -> Error {
        let limit = self.inner.timeout;
        let told = match last {
            Some(error) => format!("no answer within {limit:?}; before that: {error}"),
            None => format!("no answer within {limit:?}"),
        };
        Error::retryable(self.capabilities().backend, told)
    }
}
