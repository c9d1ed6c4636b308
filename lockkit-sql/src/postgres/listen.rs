//! The subscription of one process: one connection that listens on a channel of its own, and has
//! proved that it can.
//!
//! Behind a [pooler](super::pooler) messages would go to another client, which did not ask and fails.
//! So nothing is listened for before it is known that the server itself is at the other end. And then a
//! message to itself has to arrive.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::timeout;

use super::pooler;
use crate::server::dialect::Heard;

/// How long a message to oneself may take before the subscription counts as broken.
const PROOF: Duration = Duration::from_secs(5);
/// How often a subscription on which nothing came has to prove itself again.
const SILENCE: Duration = Duration::from_secs(15);
const SELF: &str = "self";

pub(super) async fn listen(
    options: &PgConnectOptions,
    channel: &str,
    heard: &Heard<'_>,
) -> Result<(), sqlx::Error> {
    let mark = pooler::mark();
    // sqlx listens through a pool: one of a single connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(PROOF)
        .connect_lazy_with(pooler::marked(options, &mark));
    let ended = subscription(&pool, &mark, channel, heard).await;
    let _ = timeout(Duration::from_secs(1), pool.close()).await;
    ended
}

async fn subscription(
    pool: &sqlx::PgPool,
    mark: &str,
    channel: &str,
    heard: &Heard<'_>,
) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.ignore_pool_close_event(true);
    listener.eager_reconnect(false);
    if !pooler::is_server(&mut listener, mark).await? {
        return Err(sqlx::Error::Protocol("there is a pooler before the server".into()));
    }
    listener.listen(channel).await?;
    prove(&mut listener, channel, heard).await?;
    heard(None);
    loop {
        match timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(message))) => heard(Some(message.payload())),
            Ok(Ok(None)) => return Err(sqlx::Error::Protocol("the connection broke".into())),
            Ok(Err(error)) => return Err(error),
            Err(_) => prove(&mut listener, channel, heard).await?,
        }
    }
}

/// Sends itself a message and waits for it; hands on what comes before.
async fn prove(
    listener: &mut PgListener,
    channel: &str,
    heard: &Heard<'_>,
) -> Result<(), sqlx::Error> {
    let lost = || sqlx::Error::Protocol("messages are not delivered on this connection".into());
    let proof = async {
        // As text: what is prepared may not outlive the message behind a pooler. The channel is
        // made of letters and digits.
        let notify = format!("SELECT pg_notify('{channel}', '{SELF}')");
        sqlx::raw_sql(sqlx::AssertSqlSafe(notify)).execute(&mut *listener).await?;
        loop {
            match listener.try_recv().await? {
                Some(message) if message.payload() == SELF => return Ok(()),
                Some(message) => heard(Some(message.payload())),
                None => return Err(lost()),
            }
        }
    };
    timeout(PROOF, proof).await.map_err(|_| lost())?
}
