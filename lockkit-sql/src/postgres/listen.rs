//! The subscription of one process: one connection that listens on a channel of its own, and that a
//! message which the process's other connections send is known to reach.
//!
//! Behind a [pooler](super::pooler) messages would go to another client, which did not ask and fails.
//! So nothing is listened for before it is known that the server itself is at the other end. And then a
//! message has to arrive, at first and ever again: behind a virtual address the subscription may be left
//! at an old primary that lives on, while the verbs go to the new one.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::timeout;

use super::pooler;
use crate::server::dialect::{Commands, Heard};

/// How long opening the connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a message may take, after it was sent, before the subscription counts as broken.
const PROOF: Duration = Duration::from_secs(1);
/// How often a subscription has to prove itself again.
const INTERVAL: Duration = Duration::from_secs(15);
/// The message, as `Verb::Notify` sends it.
const SELF: &str = "self";

pub(super) async fn listen(
    options: &PgConnectOptions,
    channel: &str,
    heard: &Heard<'_>,
    commands: &dyn Commands,
) -> Result<(), sqlx::Error> {
    let mark = pooler::mark();
    // sqlx listens through a pool: one of a single connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT)
        .connect_lazy_with(pooler::marked(options, &mark));
    let ended = match subscribe(&pool, &mark, channel).await {
        Ok(listener) => Subscription { listener, channel, heard, commands }.follow().await,
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
    if !pooler::is_server(&mut listener, mark).await? {
        return Err(sqlx::Error::Protocol("there is a pooler before the server".into()));
    }
    listener.listen(channel).await?;
    Ok(listener)
}

struct Subscription<'a> {
    listener: PgListener,
    channel: &'a str,
    heard: &'a Heard<'a>,
    commands: &'a dyn Commands,
}

impl Subscription<'_> {
    /// Hands on messages until the connection breaks, or one does not arrive.
    async fn follow(mut self) -> Result<(), sqlx::Error> {
        self.prove().await?;
        (self.heard)(None);
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
            (self.heard)(Some(message.payload()));
        }
        Ok(is_own)
    }

    /// Has a message sent by a connection that carries verbs, and waits for it. What comes before goes
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
