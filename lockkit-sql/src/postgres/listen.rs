//! The subscription of one process: one connection that listens on a channel of its own, and that a
//! message which the process's other connections send is known to reach.
//!
//! Behind a pooler messages would go to another client, which did not ask and fails.
//! So nothing is listened for before it is known that the server itself is at the other end. And then a
//! message has to arrive, at first and ever again: behind a virtual address the subscription may be left
//! at an old primary that lives on, while the operations go to the new one.
//!
//! # Poolers
//! In transaction mode a pooler hands a connection of the server from client to client. `LISTEN` and
//! prepared statements belong to the server's connection, so messages go to another client, and a client
//! runs the statement that another one prepared under the same name. A connection begins with a setting
//! of its own value. The server keeps such a setting; poolers refuse or drop it. A pooler in session mode
//! is treated like one in transaction mode.

use std::time::Duration;

use lockkit_core::driver::ClaimId;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row};
use tokio::time::timeout;

use crate::server::dialect::{CommandConnections, MessageHandler, hex};

/// How long opening the connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a message may take, after it was sent, before the subscription counts as broken.
const PROOF: Duration = Duration::from_secs(1);
/// How often a subscription has to prove itself again.
const INTERVAL: Duration = Duration::from_secs(15);
/// The message, as `StatementId::Notify` sends it.
const SELF: &str = "self";

pub(super) async fn listen(
    options: &PgConnectOptions,
    channel: &str,
    on_message: &MessageHandler<'_>,
    commands: &dyn CommandConnections,
) -> Result<(), sqlx::Error> {
    let mark = mark();
    // sqlx listens through a pool: one of a single connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT)
        .connect_lazy_with(marked(options, &mark));
    let ended = match subscribe(&pool, &mark, channel).await {
        Ok(listener) => Subscription { listener, channel, on_message, commands }.follow().await,
        Err(error) => Err(error),
    };
    let _ = timeout(Duration::from_secs(1), pool.close()).await;
    ended
}

async fn subscribe(
    pool: &sqlx::PgPool,
    mark: &str,
    channel: &str,
) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.ignore_pool_close_event(true);
    listener.eager_reconnect(false);
    if !is_server(&mut listener, mark).await? {
        return Err(sqlx::Error::Protocol("there is a pooler before the server".into()));
    }
    listener.listen(channel).await?;
    Ok(listener)
}

struct Subscription<'a> {
    listener: PgListener,
    channel: &'a str,
    on_message: &'a MessageHandler<'a>,
    commands: &'a dyn CommandConnections,
}

impl Subscription<'_> {
    /// Hands on messages until the connection breaks, or one does not arrive.
    async fn follow(mut self) -> Result<(), sqlx::Error> {
        self.prove().await?;
        (self.on_message)(None);
        loop {
            let commands = self.commands;
            let due = async {
                tokio::select! {
                    () = tokio::time::sleep(INTERVAL) => {}
                    () = commands.lost() => {}
                }
            };
            tokio::pin!(due);
            loop {
                tokio::select! {
                    message = self.next() => drop(message?),
                    () = &mut due => break,
                }
            }
            self.prove().await?;
        }
    }

    /// Hands on the next message; says whether it was one of this client to itself.
    async fn next(&mut self) -> Result<bool, sqlx::Error> {
        let broke = || sqlx::Error::Protocol("the connection broke".into());
        let message = self.listener.try_recv().await?.ok_or_else(broke)?;
        let is_own = message.payload() == SELF;
        if !is_own {
            (self.on_message)(Some(message.payload()));
        }
        Ok(is_own)
    }

    /// Has a message sent by a connection that carries operations, and waits for it. What comes before goes
    /// on being handed on.
    async fn prove(&mut self) -> Result<(), sqlx::Error> {
        let (commands, channel) = (self.commands, self.channel);
        let sent = commands.notify(channel);
        tokio::pin!(sent);
        // It may be faster than the answer, which is waited for all the same: a request that is dropped
        // costs its connection.
        let mut arrived = false;
        loop {
            tokio::select! {
                sent = &mut sent => {
                    sent.map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
                    break;
                }
                is_own = self.next() => arrived |= is_own?,
            }
        }
        let arrives = async {
            while !arrived {
                arrived = self.next().await?;
            }
            Ok(())
        };
        let lost = || sqlx::Error::Protocol("messages are not delivered on this connection".into());
        timeout(PROOF, arrives).await.map_err(|_| lost())?
    }
}

/// The setting by which the server is known.
const SETTING: &str = "lockkit.client";
const READ_COMMITTED: &str = "read committed";

/// A value for one connection: letters and digits.
pub(super) fn mark() -> String {
    hex(ClaimId::random().as_bytes())
}

/// Options for a connection of lockkit's own. It begins with this mark, waits for no other transaction for
/// long, and reads what is committed: at a level with one snapshot its renewals would be among the
/// transactions on which a user's serializable one depends, and fail it.
pub(super) fn marked(options: &PgConnectOptions, mark: &str) -> PgConnectOptions {
    let level = ("default_transaction_isolation", READ_COMMITTED);
    options.clone().options([(SETTING, mark), ("lock_timeout", "1s"), level])
}

/// Asks a connection as a pool of the user's opens it whether statements may be prepared on it: whether
/// it is the server's own, and its transactions read what is committed.
pub(super) async fn prepares(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mark = mark();
    let mut connection = options.clone().options([(SETTING, &*mark)]).connect().await?;
    let question = format!("SELECT current_setting('transaction_isolation') = '{READ_COMMITTED}'");
    let level = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(question))).await?;
    let prepares = level.try_get(0)? && is_server(&mut connection, &mark).await?;
    let _ = connection.close().await;
    Ok(prepares)
}

/// Asks whether this connection still has its mark, which means that it is the server's own. One round
/// trip; as text, since it may be a pooler that is asked.
pub(super) async fn is_server<'c>(
    connection: impl Executor<'c, Database = sqlx::Postgres>,
    mark: &str,
) -> Result<bool, sqlx::Error> {
    let question = format!("SELECT current_setting('{SETTING}', true) = '{mark}'");
    let answer = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(question))).await?;
    Ok(answer.try_get::<Option<bool>, _>(0)? == Some(true))
}

/// Opens a connection and says whether it is the server's own. A pooler that refuses the mark is
/// connected to again, without it.
pub(super) async fn open(options: &PgConnectOptions) -> Result<(PgConnection, bool), sqlx::Error> {
    let mark = mark();
    match marked(options, &mark).connect().await {
        Ok(mut connection) => {
            let is_server = is_server(&mut connection, &mark).await?;
            Ok((connection, is_server))
        }
        Err(error) if may_refuse_the_mark(&error) => Ok((options.connect().await?, false)),
        Err(error) => Err(error),
    }
}

/// Whether the reason may be the setting: an answer that is about neither the login, nor the database,
/// nor the state of the server. PgBouncer says 08P01.
fn may_refuse_the_mark(error: &sqlx::Error) -> bool {
    let Some(code) = error.as_database_error().and_then(|error| error.code()) else {
        return false;
    };
    !["28", "3D", "53", "57", "58"].iter().any(|class| code.starts_with(class))
}
