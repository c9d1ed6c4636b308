//! One verb, asked of the database: within its time, and again where that is harmless. What an error
//! means is the dialect's to say.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::driver::{BatchError, Writes};
use rand::Rng;
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::dialect::{Arg, Arguments, Dialect, Row, Verb, Verdict};
use super::pool::Lease;

/// An answer, and how many earlier attempts got none and may have acted, or may act yet.
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) ambiguous: u32,
}

impl Answer {
    /// The row of a verb that always gives one.
    pub(crate) fn row<D: Dialect>(&self) -> Result<&Row, Error> {
        let none = || Error::permanent(D::BACKEND, "the database gave no answer to a statement");
        self.rows.first().ok_or_else(none)
    }
}

/// Why there is no answer.
struct Failure {
    error: sqlx::Error,
    /// What a server is that takes no writes.
    role: &'static str,
}

/// What became of the attempts so far.
#[derive(Default)]
struct Tries {
    /// A connection was lost.
    lost: bool,
    /// A connection was read-only.
    refused: bool,
    /// How many got no answer and may have acted.
    ambiguous: u32,
}

/// The arguments of a write that follows one without an answer.
fn repeated<'a>(args: &[Arg<'a>]) -> Vec<Arg<'a>> {
    let mut args = args.to_vec();
    if let Some(repeated) = args.last_mut() {
        *repeated = Arg::Int(1);
    }
    args
}

/// Whether a request that was answered so did nothing: the server refused it, or it was not sent.
fn is_certain(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(_) | sqlx::Error::Configuration(_))
}

impl<D: Dialect> Shared<D> {
    pub(crate) async fn call(&self, verb: Verb, args: &[Arg<'_>]) -> Result<Answer, BatchError> {
        self.request(verb, Arguments::List(args)).await
    }

    /// Asks, and asks again where the database could not do it, until the time limit is over.
    pub(crate) async fn request(
        &self,
        verb: Verb,
        arguments: Arguments<'_>,
    ) -> Result<Answer, BatchError> {
        let until = Instant::now() + self.timeout;
        let again = match (verb, arguments) {
            (Verb::Store, Arguments::List(args)) => repeated(args),
            _ => Vec::new(),
        };
        let mut tries = Tries::default();
        let mut last = None;
        for attempt in 0_u32.. {
            let is_repeated = tries.ambiguous > 0 && !again.is_empty();
            let arguments = if is_repeated { Arguments::List(&again) } else { arguments };
            let sent = AtomicBool::new(false);
            let answer = timeout_at(until, self.ask(verb, arguments, &sent)).await;
            let sent = sent.into_inner();
            let Failure { error, role } = match answer {
                Ok(Ok(rows)) => {
                    if verb.writes() {
                        self.writes.done();
                    }
                    return Ok(Answer { rows, ambiguous: tries.ambiguous });
                }
                Ok(Err(failure)) => failure,
                Err(_) => {
                    let late = BatchError::refused(self.late(last));
                    return Err(late.after(tries.ambiguous + u32::from(sent)));
                }
            };
            let failed = |error| BatchError::refused(error).after(tries.ambiguous);
            match self.dialect.verdict(&error) {
                // Other operations wait for the connection: core submits these again, each by itself.
                Verdict::HeldUp if matches!(verb, Verb::Acquire | Verb::Release | Verb::Carry) => {
                    let mut blocked = failed(Error::retryable(D::BACKEND, error));
                    blocked.would_block = true;
                    return Err(blocked);
                }
                Verdict::Again | Verdict::HeldUp => {}
                verdict @ (Verdict::Gone | Verdict::Closed) => {
                    self.forget_connections();
                    tries.ambiguous += u32::from(sent && verdict == Verdict::Gone);
                    // A server that is down is core's to wait for.
                    if tries.lost {
                        let error = BatchError::refused(Error::retryable(D::BACKEND, error));
                        return Err(error.after(tries.ambiguous));
                    }
                    tries.lost = true;
                    last = Some(error);
                    continue;
                }
                Verdict::InParts => {
                    tries.ambiguous += u32::from(sent);
                    last = Some(error);
                    continue;
                }
                Verdict::NoTables if attempt < 3 => {
                    let installed = timeout_at(until, self.install()).await;
                    installed.map_err(|_| failed(self.late(None)))?.map_err(failed)?;
                    continue;
                }
                // A connection may be read-only for good while the server is not any more.
                Verdict::ReadOnly if !tries.refused => {
                    self.forget_connections();
                    tries.refused = true;
                    continue;
                }
                Verdict::ReadOnly => {
                    let error = Writes::refused(D::BACKEND, role, error);
                    return Err(failed(match verb {
                        // A claim that holds or is in its queue is kept by asking again.
                        Verb::Renew | Verb::Release | Verb::Amend => error,
                        _ => self.writes.judge(error),
                    }));
                }
                Verdict::Forbidden => return Err(failed(self.forbidden(&error))),
                verdict @ (Verdict::Later
                | Verdict::Never
                | Verdict::TooLarge
                | Verdict::NoTables) => {
                    let unanswered = u32::from(sent && !is_certain(&error));
                    return Err(failed(verdict.told(D::BACKEND, error)).after(unanswered));
                }
            }
            last = Some(error);
            let pause = rand::rng().random_range(0..=(1_u64 << attempt.min(6)));
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Err(BatchError::refused(self.late(last)).after(tries.ambiguous))
    }

    /// One attempt; `sent` says whether the request may have left when this is dropped or fails.
    async fn ask(
        &self,
        verb: Verb,
        arguments: Arguments<'_>,
        sent: &AtomicBool,
    ) -> Result<Vec<Row>, Failure> {
        // One connection is always left for renewals.
        let _place = match verb {
            Verb::Renew => None,
            _ => self.others.acquire().await.ok(),
        };
        let lease = self.connections.lease(&self.dialect).await;
        let mut lease = lease.map_err(|error| Failure { error, role: "" })?;
        sent.store(true, Ordering::Relaxed);
        let answer = self.dialect.run(lease.connection(), verb, arguments).await;
        let mut role = "";
        match &answer {
            Err(error) if self.closes(error) => {
                if self.dialect.verdict(error) == Verdict::ReadOnly {
                    role = self.role(&mut lease).await;
                }
            }
            _ => lease.give_back(),
        }
        answer.map_err(|error| Failure { error, role })
    }

    /// Which kind of server takes no writes.
    async fn role(&self, lease: &mut Lease<D>) -> &'static str {
        match self
            .dialect
            .run(lease.connection(), Verb::Standby, Arguments::List(&[]))
            .await
            .as_deref()
        {
            Ok([row]) if row.int(0) == Some(1) => D::STANDBY,
            _ => "the login has a read-only role",
        }
    }

    /// Whether another connection may do better.
    fn closes(&self, error: &sqlx::Error) -> bool {
        matches!(
            self.dialect.verdict(error),
            Verdict::Gone
                | Verdict::Closed
                | Verdict::InParts
                | Verdict::TooLarge
                | Verdict::ReadOnly
        )
    }

    /// Makes the tables, or tells who should.
    pub(crate) async fn install(&self) -> Result<(), Error> {
        let made = async {
            let mut lease = self.connections.lease(&self.dialect).await?;
            self.dialect.install(lease.connection()).await?;
            lease.give_back();
            Ok::<_, sqlx::Error>(())
        };
        made.await.map_err(|error| match self.dialect.verdict(&error) {
            Verdict::ReadOnly => {
                let role = "lockkit's tables are not there";
                self.writes.judge(Writes::refused(D::BACKEND, role, error))
            }
            Verdict::Forbidden => Error::permanent(
                D::BACKEND,
                format!(
                    "lockkit's tables are not there, and this user may not make them ({error}); \
                     `lockkit schema` prints the statements for who may"
                ),
            ),
            verdict => verdict.told(D::BACKEND, error),
        })
    }

    /// A connection was found dead, or to lead to the wrong server.
    fn forget_connections(&self) {
        self.connections.forget();
        self.lost.notify_one();
    }

    fn forbidden(&self, error: &sqlx::Error) -> Error {
        let grant = self.dialect.missing_grant(error, &self.connections.options());
        let missing = grant.map_or(String::new(), |grant| format!("; {grant} is missing"));
        let told = format!(
            "this user has no right to use lockkit's tables ({error}){missing}; `lockkit schema` prints \
             the GRANTs that are missing"
        );
        Error::permanent(D::BACKEND, told)
    }

    fn late(&self, last: Option<sqlx::Error>) -> Error {
        let limit = self.timeout;
        let told = match last {
            Some(error) => format!("no answer within {limit:?}; before that: {error}"),
            None => format!("no answer within {limit:?}"),
        };
        Error::retryable(D::BACKEND, told)
    }
}
