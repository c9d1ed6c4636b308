//! Whether a pooler stands before the server. In transaction mode a pooler hands a connection of the
//! server from client to client. `LISTEN` and prepared statements belong to the server's connection, so
//! messages go to another client, and a client runs the statement that another one prepared under the
//! same name.
//!
//! A connection begins with a setting of its own value. The server keeps such a setting; poolers
//! refuse or drop it. A pooler in session mode is treated like one in transaction mode.

use lockkit_core::driver::ClaimId;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row};

use crate::server::dialect::hex;

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
