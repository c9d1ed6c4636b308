//! One operation, asked of the database: within its time, and again where that is harmless. What an error
//! means is the dialect's to say.

use std::sync::OnceLock;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{BatchError, Writes};
use lockkit_core::waiting::Waiters;
use lockkit_core::{Claim, Error, Result};
use rand::Rng;
use tokio::time::{Instant, timeout_at};

use super::SqlServerInner;
use super::dialect::{Arg, Arguments, Dialect, ErrorClass, Operation, Row, StatementId};
use super::pool::PooledConnection;
use crate::waiters::ClaimTag;

/// An answer, and how many earlier attempts got none and may have acted, or may act yet.
pub(crate) struct StatementResult {
    pub(crate) rows: Vec<Row>,
    pub(crate) ambiguous: u32,
    /// When the attempt was sent that was answered.
    pub(crate) sent: Moment,
}

impl StatementResult {
    /// The row of an operation that always gives one.
    pub(crate) fn row<D: Dialect>(&self) -> Result<&Row> {
        let none = || Error::permanent(D::BACKEND, "the database gave no answer to a statement");
        self.rows.first().ok_or_else(none)
    }
}

/// Why there is no answer.
struct RequestError {
    error: sqlx::Error,
    /// What a server is that takes no writes.
    role: &'static str,
}

/// An attempt to submit, until it is answered. The claims of this driver that it makes holders are not
/// notified, as its answer names them: without an answer they are asked about.
struct Unanswered<'a> {
    waiters: &'a Waiters<ClaimTag>,
    operations: &'a [Operation<'a>],
}

impl<'a> Unanswered<'a> {
    fn new(waiters: &'a Waiters<ClaimTag>, arguments: Arguments<'a>) -> Self {
        match arguments {
            Arguments::Batch(operations, _) => Self { waiters, operations },
            _ => Self { waiters, operations: &[] },
        }
    }

    fn answered(mut self) {
        self.operations = &[];
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let is_of = |claim: &Claim| self.operations.iter().any(|one| one.claim.key == claim.key);
        if !self.operations.is_empty() {
            self.waiters.ask_about_those(is_of);
        }
    }
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

/// Whether a request that failed so may have been carried out, or part of it.
fn is_lost(class: ErrorClass, error: &sqlx::Error) -> bool {
    matches!(class, ErrorClass::ConnectionLost | ErrorClass::InParts) || !is_certain(error)
}

impl<D: Dialect> SqlServerInner<D> {
    pub(crate) async fn call(
        &self,
        id: StatementId,
        args: &[Arg<'_>],
    ) -> Result<StatementResult, Error> {
        self.request(id, Arguments::List(args)).await.map_err(|failed| failed.error)
    }

    /// Asks, and asks again where the database could not do it, until the time limit is over.
    pub(crate) async fn request(
        &self,
        id: StatementId,
        arguments: Arguments<'_>,
    ) -> Result<StatementResult, BatchError> {
        let until = Instant::now() + self.timeout;
        let again = match (id, arguments) {
            (StatementId::Write, Arguments::List(args)) => repeated(args),
            _ => Vec::new(),
        };
        let mut tries = Tries::default();
        let mut last = None;
        for attempt in 0_u32.. {
            let is_repeated = tries.ambiguous > 0 && !again.is_empty();
            let arguments = if is_repeated { Arguments::List(&again) } else { arguments };
            let sent = OnceLock::new();
            let answer = timeout_at(until, self.ask(id, arguments, &sent)).await;
            let sent = sent.into_inner();
            let RequestError { error, role } = match answer {
                Ok(Ok((rows, sent_at))) => {
                    if id.writes() {
                        self.writes.done();
                    }
                    // An attempt without an answer may have acted after its claims were asked about.
                    if tries.ambiguous > 0 {
                        drop(Unanswered::new(&self.waiters.claims, arguments));
                    }
                    return Ok(StatementResult { rows, ambiguous: tries.ambiguous, sent: sent_at });
                }
                Ok(Err(failure)) => failure,
                Err(_) => {
                    let late = BatchError::refused(self.late(last));
                    return Err(late.after(tries.ambiguous + u32::from(sent.is_some())));
                }
            };
            let failed = |error| BatchError::refused(error).after(tries.ambiguous);
            match self.dialect.class(&error) {
                // Other operations wait for the connection: core submits these again, each by itself. Other
                // claims wait for a renewal.
                ErrorClass::Blocked
                    if matches!(arguments, Arguments::Batch(..))
                        || matches!(
                            id,
                            StatementId::Renew | StatementId::GateTake | StatementId::GateKeep
                        ) =>
                {
                    let mut blocked = failed(Error::retryable(D::BACKEND, error));
                    blocked.would_block = true;
                    return Err(blocked);
                }
                ErrorClass::Again | ErrorClass::Blocked => {}
                class @ (ErrorClass::ConnectionLost | ErrorClass::Closed) => {
                    self.forget_connections();
                    tries.ambiguous +=
                        u32::from(sent.is_some() && class == ErrorClass::ConnectionLost);
                    // A server that is down is core's to wait for.
                    if tries.lost {
                        let error = BatchError::refused(Error::retryable(D::BACKEND, error));
                        return Err(error.after(tries.ambiguous));
                    }
                    tries.lost = true;
                    last = Some(error);
                    continue;
                }
                ErrorClass::InParts => {
                    tries.ambiguous += u32::from(sent.is_some());
                    last = Some(error);
                    continue;
                }
                ErrorClass::NoTables | ErrorClass::Forbidden if id.is_of_gate() => {
                    return Err(failed(Error::Config(format!(
                        "neighbours=shedlock needs ShedLock's table, as its documentation has it, and the rights \
                         SELECT, INSERT and UPDATE on it; lockkit does not make it: {error}"
                    ))));
                }
                ErrorClass::NoTables if attempt < 3 => {
                    let installed = timeout_at(until, self.install()).await;
                    installed.map_err(|_| failed(self.late(None)))?.map_err(failed)?;
                    continue;
                }
                // A connection may be read-only for good while the server is not any more.
                ErrorClass::ReadOnly if !tries.refused => {
                    self.forget_connections();
                    tries.refused = true;
                    continue;
                }
                ErrorClass::ReadOnly => {
                    let error = Writes::refused(D::BACKEND, role, error);
                    return Err(failed(match id {
                        // A claim that holds or is in its queue is kept by asking again.
                        StatementId::Renew
                        | StatementId::Release
                        | StatementId::Amend
                        | StatementId::GateKeep
                        | StatementId::GateGive => error,
                        _ => self.writes.judge(error),
                    }));
                }
                ErrorClass::Forbidden => return Err(failed(self.forbidden(&error))),
                class @ (ErrorClass::Later
                | ErrorClass::Never
                | ErrorClass::TooLarge
                | ErrorClass::NoTables) => {
                    let unanswered = u32::from(sent.is_some() && !is_certain(&error));
                    return Err(failed(class.into_error(D::BACKEND, error)).after(unanswered));
                }
            }
            last = Some(error);
            let pause = rand::rng().random_range(0..=(1_u64 << attempt.min(6)));
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Err(BatchError::refused(self.late(last)).after(tries.ambiguous))
    }

    /// One attempt; `sent` says when, if the request may have left when this is dropped or fails.
    async fn ask(
        &self,
        id: StatementId,
        arguments: Arguments<'_>,
        sent: &OnceLock<Moment>,
    ) -> Result<(Vec<Row>, Moment), RequestError> {
        // One connection is always left for renewals.
        let _place = match id {
            StatementId::Renew | StatementId::GateKeep => None,
            _ => self.others.acquire().await.ok(),
        };
        let lease = self.connections.get(&self.dialect).await;
        let mut lease = lease.map_err(|error| RequestError { error, role: "" })?;
        let sent = *sent.get_or_init(|| SteadyClock.now());
        let unanswered = Unanswered::new(&self.waiters.claims, arguments);
        let answer = self.dialect.run(lease.connection(), id, arguments).await;
        let is_lost = |error| is_lost(self.dialect.class(error), error);
        if !answer.as_ref().is_err_and(is_lost) {
            unanswered.answered();
        }
        let mut role = "";
        match &answer {
            Err(error) if self.closes(error) => {
                if self.dialect.class(error) == ErrorClass::ReadOnly {
                    role = self.role(&mut lease).await;
                }
            }
            _ => lease.put_back(),
        }
        answer.map(|rows| (rows, sent)).map_err(|error| RequestError { error, role })
    }

    /// Which kind of server takes no writes.
    async fn role(&self, lease: &mut PooledConnection<D>) -> &'static str {
        match self
            .dialect
            .run(lease.connection(), StatementId::Standby, Arguments::List(&[]))
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
            self.dialect.class(error),
            ErrorClass::ConnectionLost
                | ErrorClass::Closed
                | ErrorClass::InParts
                | ErrorClass::TooLarge
                | ErrorClass::ReadOnly
        )
    }

    /// Makes the tables, or tells who should.
    pub(crate) async fn install(&self) -> Result<()> {
        let made = async {
            let mut lease = self.connections.get(&self.dialect).await?;
            self.dialect.install(lease.connection()).await?;
            lease.put_back();
            Ok::<_, sqlx::Error>(())
        };
        made.await.map_err(|error| match self.dialect.class(&error) {
            ErrorClass::ReadOnly => {
                let role = "lockkit's tables are not there";
                self.writes.judge(Writes::refused(D::BACKEND, role, error))
            }
            ErrorClass::Forbidden => Error::permanent(
                D::BACKEND,
                format!(
                    "lockkit's tables are not there, and this user may not make them ({error}); \
                     `lockkit schema` prints the statements for who may"
                ),
            ),
            class => class.into_error(D::BACKEND, error),
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
