//! What differs between the database servers: a small table. Statements, how they are sent, and
//! what an error means; no rule of the queue, no time, no connection of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::Gate;
use lockkit_core::promises::Promises;
use lockkit_core::state::Finding;
use lockkit_core::{Capabilities, Claim, Error, Key, Mode, Name, Result};
use sqlx::{ConnectOptions, Connection, Database};

use super::options::{ServerDurability, ShedLockTable, Tables};
use crate::rows::{columns, micros};
use crate::waiters::ClaimTag;

/// The options by which sqlx connects to a kind of server.
pub(crate) type OptionsOf<D> = <ConnectionOf<D> as Connection>::Options;
/// A connection of sqlx's.
pub(crate) type ConnectionOf<D> = <<D as Dialect>::Db as Database>::Connection;

/// A kind of database server. Sealed: the implementations are this crate's.
#[async_trait]
pub trait Dialect: fmt::Debug + Send + Sync + Sized + 'static {
    /// As sqlx calls it.
    type Db: Database;

    /// The backend's name, and what the URL begins with.
    const BACKEND: &'static str;

    /// Where the tables are unless the user says otherwise.
    const TABLES: &'static str;

    /// What [`TABLES`](Self::TABLES) is.
    const TABLES_ARE: &'static str;

    /// What it can do, apart from what its durability changes.
    const CAPABILITIES: Capabilities;

    /// The version of the tables and functions that this version of lockkit uses.
    const VERSION: i64;

    /// What a server is to people for which [`StatementId::Standby`] says 1.
    const STANDBY: &'static str;

    /// Whether waiters are notified ([`Dialect::listen`]); otherwise they poll.
    const PUSHES: bool;

    /// The statements, with the tables where `tables` and `shedlock` say.
    fn new(tables: &Tables, durability: ServerDurability, shedlock: &ShedLockTable) -> Self;

    /// Where the tables are: what [`new`](Self::new) was told.
    fn tables(&self) -> &str;

    /// The table of what [`StatementId::Counter`] reads.
    fn counters(&self) -> String;

    /// Reads a URL without lockkit's options. The error does not contain the password.
    fn parse(url: &str) -> Result<OptionsOf<Self>>;

    /// The statements that make the tables and functions, for people.
    fn schema(&self) -> String;

    /// Makes what is missing of them, safely when many do it at once; fails where they have another
    /// version.
    async fn install(&self, connection: &mut ConnectionOf<Self>) -> Result<(), sqlx::Error>;

    /// Opens a connection of lockkit's own, and makes sure that it serves.
    async fn open(&self, options: &OptionsOf<Self>) -> Result<ConnectionOf<Self>, sqlx::Error> {
        options.connect().await
    }

    /// Finds out what is at the other end of connections that a pool of the caller's opens.
    async fn meet(&self, options: &OptionsOf<Self>) {
        let _ = options;
    }

    /// Runs a verb: one round trip, one transaction, whole or not at all.
    async fn run(
        &self,
        connection: &mut ConnectionOf<Self>,
        id: StatementId,
        arguments: Arguments<'_>,
    ) -> Result<Vec<Row>, sqlx::Error>;

    /// What the settings that [`StatementId::Settings`] reads leave of the promises.
    fn judge(settings: &[(String, String)], promises: &mut Promises);

    /// What an error means.
    fn class(&self, error: &sqlx::Error) -> ErrorClass;

    /// Listens for wake-ups until the connection breaks, or messages are found not to arrive. Never
    /// returns where there is no such thing. `channel` is this client's; `heard` is called with every
    /// message, and with `None` once the subscription stands and is known to work. Only a message that
    /// was sent by `commands` shows that it does: the two may lead to different servers.
    async fn listen(
        options: &OptionsOf<Self>,
        channel: &str,
        on_message: &MessageHandler<'_>,
        commands: &dyn CommandConnections,
    ) -> Result<(), sqlx::Error>;

    /// The gate of advisory locks, of a server that has what that needs. No operation of it takes longer than
    /// `timeout`.
    async fn advisory(
        &self,
        options: &OptionsOf<Self>,
        timeout: Duration,
    ) -> Result<Box<dyn NeighbourGate>> {
        let _ = (options, timeout);
        Err(Error::Config(format!("neighbours=advisory is not for {}", Self::BACKEND)))
    }

    /// What the server takes for one name in ShedLock's table.
    fn shedlock_name(name: &str) -> String;

    /// The statement that gives a user the right for want of which there was this error, where that is
    /// known.
    fn missing_grant(&self, error: &sqlx::Error, options: &OptionsOf<Self>) -> Option<String> {
        let _ = (error, options);
        None
    }
}

/// A gate with what it has open at the server.
#[async_trait]
pub trait NeighbourGate: Gate {
    /// What other programs have of the locks of these names.
    async fn examine(&self, names: &[Name]) -> Result<Vec<Finding>>;

    /// Gives up all at the server.
    async fn close(&self);
}

/// The connections that carry this client's verbs, as [`Dialect::listen`] uses them.
#[async_trait]
pub trait CommandConnections: Send + Sync {
    /// Sends a message to this channel.
    async fn notify(&self, channel: &str) -> Result<()>;

    /// Returns when one of them was lost after the last return: the next may lead to another server.
    async fn lost(&self);
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    digits.map(char::from).collect()
}

/// A statement as it is sent: its header is for readers.
pub(crate) fn without_header(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("--")).collect();
    lines.join("\n")
}

/// What [`Dialect::listen`] calls.
pub type MessageHandler<'a> = dyn Fn(Option<&str>) + Send + Sync + 'a;

/// What can be asked of the database. The lists say the arguments in their order and the columns
/// of the answer: `n` a number, `b` bytes, `[]` a list, `?` may be missing. Times are in
/// microseconds. A key is three arguments: `b` namespace, `n` space, `b` name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatementId {
    /// Key, `b` id, `n` weight, `n` capacity, `n` hold ttl, `n` wait ttl, `b` client, `b` identity,
    /// `b?` note, `n` 1 for a try.
    ///
    /// One row: `n` outcome (0 busy, 1 holds, 2 waits, 3 another limit, 4 it is in the queue and was broken), `n?`
    /// token (or the limit in use), `n?` ttl, `n?` how many are ahead, `n?` poll after, `b?` woken.
    ///
    /// Everywhere, *woken* is the last column, the claims that the verb made holders, 16 bytes each: the tag,
    /// which is the first half of SHA-256 of the id, cut again in half; and the token, or 0 when the claim was broken
    /// while it waited: then it is polled for.
    Acquire,
    /// Key, `b` id, `b` client. One row: `n` outcome (1 removed, 2 not in the queue, 3 no such lock), `b?` woken.
    Release,
    /// Many operations: [`Arguments::Batch`].
    ///
    /// A row an operation, in any order: `n` index from 0, then the row of `Acquire` or `Release`. Never
    /// waits for another transaction: an operation whose queue, or the row of whose claim, is locked by one has the
    /// outcome 9, *left out*, and nothing was done. All operations of a locked queue are left out.
    Submit,
    /// A release and an acquire of one lock, both exclusive: [`Arguments::Batch`]. Rows as of `Submit`, the
    /// second with all new holders. May wait for the row of the queue.
    Pass,
    /// [`Arguments::Claims`]. A row a claim, in any order: `n` index from 0,
    /// `n` state (0 not queued, 1 holds, 2 waits, 3 broken, 9 left out), `n?` token, `n?` ttl, `n?` how many
    /// are ahead, `n?` poll after, `b?` record of its break, `b?` woken (all of them, in one
    /// of the rows), and in one or more of the rows evidence where the server gives it: `n?` its clock, `b?`
    /// run, `n?` position, `n?` connection.
    ///
    /// One claim waits for its rows. Of several, one whose row another transaction has locked is left out, and
    /// nothing was done for it.
    Renew,
    /// As `Renew`, but changes nothing and takes no lock: an `n` of 0 in *poll after* says
    /// that a claim ahead has ended, so that a renewal would move the queue on.
    Poll,
    /// Key, `b` id, `n` what (0 shorten, 1 downgrade, 2 raise, 3 anchor), `n` ttl or token. One
    /// row as of `Renew`.
    Amend,
    /// Key, `n` token, `n` 1 for force, `b` record, `n` for how long to keep it. One row: `n` 1 when
    /// there was one, `b?` woken.
    Break,
    /// Key (of a semaphore), `n` 1 to set the limit whatever was before, `n` limit. One row: `n` the
    /// limit that it has now, `b?` woken.
    Resize,
    /// Key. Rows of the list in order: the columns of `line` in `inspect.rs`, one with a null token
    /// when the queue is empty.
    Inspect,
    /// `b` namespace, `n` space or -1, `b` prefix, `n` space and `b` name to begin after, `n` how
    /// many lists. Rows as of `Inspect`, list by list.
    List,
    /// `b` namespace, `b` name. No row, or one: `b` value, `n` version, `n?` highest token.
    Load,
    /// `b` namespace, `b` name, `b?` value (none deletes), `n` expectation (0 anything, 1 absent, 2
    /// a version), `n` that version, `n` token or 0, `b` write id, `n` ttl or 0, `n` 1 when an earlier
    /// attempt of this write may have been applied. One row: `n` outcome (0 conflict, 1 stored, 2 stale),
    /// `n?` version or highest token.
    Write,
    /// `b` namespace, `b` name to begin with, `b` greater than any name that is wanted, `n` how many.
    /// Rows of registers that have a value, by their names: `b` name, `n` version, `n?` highest token,
    /// `n` length of the value.
    Registers,
    /// `b` namespace to begin with, `n` how many. Rows in order: `b` namespace of a list or a register.
    Namespaces,
    /// `b` namespace, `b?` its neighbours from now on, unless it has some. No row, or one: `n?` base, `b?` neighbours.
    Counter,
    /// `b` namespace, `n` base. No row.
    RaiseCounter,
    /// No argument. One row: `n` version of the tables, `b` the server's name and version, `n` 1
    /// when it takes writes, `n` 1 when a commit waits for the disk.
    Health,
    /// No argument. Rows: `b` a setting that decides what a crash may take, `b` its value now.
    Settings,
    /// No argument. One row: `b` identity of the server and its history, `b` its start, `n` 1 when a
    /// crash loses no commit.
    Run,
    /// Key behind which to begin, space -1 at the beginning; `n` how many names at most. Removes what has ended and
    /// what was not used for a day. One row: the key of the last name, `b?`, `n?`, `b?`: none where there are no more.
    Sweep,
    /// `b` channel. Sends it a message, where the server has such a thing.
    Notify,
    /// No argument. One row: `n` 1 when the server as a whole takes no writes, 0 when others than this login
    /// may write.
    Standby,
    /// `b` name, `b` owner, `n` lease: takes the row of ShedLock's table. One row: `n` 1 when it is this owner's, `n`
    /// what is left of its lease. No row: it was removed meanwhile.
    GateTake,
    /// `b[]` names, `b[]` their owners, `n[]` leases. Rows: `n` index from 0 of each row that is still its owner's.
    GateKeep,
    /// `b` name, `b` owner. No row.
    GateGive,
    /// No argument. Rows: `n` what is wrong (0 a column that cannot be used, 1 a row that begins in the future, 2 one
    /// whose lease is very long), `b` column or name, `n` how many seconds.
    GateExamine,
}

impl StatementId {
    /// Whether only a server that takes writes carries it out.
    pub(crate) fn writes(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::Release
                | Self::Submit
                | Self::Pass
                | Self::Renew
                | Self::Amend
                | Self::Break
                | Self::Resize
                | Self::Write
                | Self::RaiseCounter
                | Self::Sweep
                | Self::GateTake
                | Self::GateKeep
                | Self::GateGive
        )
    }

    /// Whether its table is ShedLock's, which lockkit does not make.
    pub(crate) fn is_of_gate(self) -> bool {
        matches!(self, Self::GateTake | Self::GateKeep | Self::GateGive | Self::GateExamine)
    }
}

/// What a statement is sent with.
#[derive(Clone, Copy, Debug)]
pub enum Arguments<'a> {
    /// One argument after the other.
    List(&'a [Arg<'a>]),
    /// Operations, sorted by their keys, those of one key in the order in which they are carried out;
    /// and the id of this client.
    Batch(&'a [Operation<'a>], &'a ClaimTag),
    /// Claims, sorted by their keys; and the id of this client.
    Claims(&'a [&'a Claim], &'a ClaimTag),
}

/// One operation of a batch.
#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub(crate) claim: &'a Arc<Claim>,
    pub(crate) kind: OperationKind,
    /// JSON.
    identity: String,
}

/// What an operation is; the numbers are the servers'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum OperationKind {
    Release = 0,
    Acquire = 1,
    Try = 2,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(claim: &'a Arc<Claim>, kind: OperationKind) -> Self {
        let identity = match kind {
            OperationKind::Release => String::new(),
            _ => claim.identity.to_json(),
        };
        Self { claim, kind, identity }
    }

    /// Whether these are a release and an acquire that waits, of one lock, both exclusive.
    pub(crate) fn hands_over(operations: &[Self]) -> bool {
        let is_exclusive = |one: &Self| one.claim.mode == Mode::Exclusive;
        match operations {
            [release, acquire] => {
                let kinds = (release.kind, acquire.kind);
                kinds == (OperationKind::Release, OperationKind::Acquire)
                    && release.claim.key == acquire.claim.key
                    && is_exclusive(release)
                    && is_exclusive(acquire)
            }
            _ => false,
        }
    }

    pub(crate) fn id(&self) -> &'a [u8] {
        self.claim.id.as_bytes()
    }

    pub(crate) fn identity(&self) -> &[u8] {
        self.identity.as_bytes()
    }

    pub(crate) fn note(&self) -> Option<&'a [u8]> {
        self.claim.note.as_deref().map(str::as_bytes)
    }

    /// Weight, capacity, holding and waiting TTL.
    pub(crate) fn numbers(&self) -> [i64; 4] {
        let Claim { mode, hold_ttl, wait_ttl, .. } = &**self.claim;
        [mode.weight().into(), mode.capacity().into(), micros(*hold_ttl), micros(*wait_ttl)]
    }

    /// The arguments of [`StatementId::Acquire`] or [`StatementId::Release`].
    pub(crate) fn single<'b>(&'b self, client: &'b ClaimTag) -> Vec<Arg<'b>> {
        let mut args = key_args(&self.claim.key).to_vec();
        args.push(Arg::Bytes(self.id()));
        if self.kind != OperationKind::Release {
            args.extend(self.numbers().map(Arg::Int));
            args.extend([Arg::Bytes(client), Arg::Bytes(self.identity())]);
            args.push(self.note().map_or(Arg::Null, Arg::Bytes));
            args.push(Arg::Int((self.kind == OperationKind::Try).into()));
        } else {
            args.push(Arg::Bytes(client));
        }
        args
    }
}

/// The arguments of a key.
pub(crate) fn key_args(key: &Key) -> [Arg<'_>; 3] {
    let (namespace, space, name) = columns(key);
    [Arg::Bytes(namespace.as_bytes()), Arg::Int(space), Arg::Bytes(name.as_bytes())]
}

/// An argument of a verb.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Arg<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    /// Bytes that are not there.
    Null,
    /// A list; so are the next ones.
    Ints(Vec<i64>),
    Many(Vec<&'a [u8]>),
    /// Bytes, some of which are not there.
    Maybe(Vec<Option<&'a [u8]>>),
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Value {
    Null,
    Int(i64),
    Bytes(Vec<u8>),
}

/// A row of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// Of [`StatementId::Acquire`], by a claim in an empty queue.
    pub(crate) fn granted(token: i64, hold_ttl: i64) -> Self {
        let values = [1, token, hold_ttl, 0].map(Value::Int);
        Self(values.into_iter().chain([Value::Null, Value::Null]).collect())
    }

    /// Of [`StatementId::Release`], of a claim that was alone.
    pub(crate) fn released() -> Self {
        Self(vec![Value::Int(1), Value::Null])
    }

    /// The number in this column, if there is one.
    pub(crate) fn int(&self, column: usize) -> Option<i64> {
        match self.0.get(column) {
            Some(Value::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// The bytes in this column, if there are any.
    pub(crate) fn bytes(&self, column: usize) -> Option<&[u8]> {
        match self.0.get(column) {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// What an error of the database means for who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The transaction met another one, and did nothing: ask again at once.
    Again,
    /// Another transaction had locked what it needs, for longer than the server was told to wait. It did
    /// nothing.
    Blocked,
    /// The connection is gone; it may have acted. Another one may do.
    ConnectionLost,
    /// The connection was closed before the request came; it did not act. Another one may do.
    Closed,
    /// The request was too large as a whole, and the connection is closed; of its parts, some may have been
    /// carried out. Asked again, the dialect makes smaller parts.
    InParts,
    /// The request is too large, whatever is done. The connection is closed; nothing was done.
    TooLarge,
    /// The tables are not there, or not all of them.
    NoTables,
    /// The server refuses now, and may not later.
    Later,
    /// The server takes no writes, or this connection does not.
    ReadOnly,
    /// This user has not the right.
    Forbidden,
    /// It stays so until an administrator does something.
    Never,
}

impl ErrorClass {
    /// What an error means that is the client's, not the server's.
    pub(crate) fn of_client(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::PoolTimedOut => Self::ConnectionLost,
            _ => Self::Never,
        }
    }

    /// Whether the same may work when it is asked again.
    pub(crate) fn may_pass(self) -> bool {
        matches!(
            self,
            Self::Again | Self::Blocked | Self::ConnectionLost | Self::Closed | Self::Later
        )
    }

    /// The error for who asked, where nothing more is to be said.
    pub(crate) fn into_error(self, backend: &'static str, error: sqlx::Error) -> Error {
        match self.may_pass() {
            true => Error::retryable(backend, error),
            false => Error::permanent(backend, error),
        }
    }
}
