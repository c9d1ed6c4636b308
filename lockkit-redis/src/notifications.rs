//! The subscription of a driver, to a channel of its own: how waiting claims learn that they hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{ClaimId, Renewal};
use lockkit_core::waiting::{PolledDriver, Waiters};
use lockkit_core::{Claim, Error};
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::Notify;

use crate::error::{bounded, is_about_rights};
use crate::inner::RedisInner;
use crate::keys;
use crate::publisher::ALIVE;
use crate::server::Priority;
use crate::transport::Transport;

/// How often it is verified that messages arrive.
const VERIFY_EVERY: Duration = Duration::from_secs(5);
/// How long a message of a client to itself takes at most.
const VERIFY_LIMIT: Duration = Duration::from_secs(1);

/// Why a subscription ended.
type ListenError = Box<dyn std::error::Error + Send + Sync>;

impl PolledDriver for RedisInner {
    type Name = ClaimId;

    fn waiting(&self) -> &Waiters<ClaimId> {
        &self.waiters.claims
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<(Renewal, Option<Duration>), Error>> {
        let sent = SteadyClock.now();
        let answers = self.renew_all(claims, None).await.into_iter();
        answers.map(|answer| answer.map(|it| (it.renewal.counted_from(sent), it.lease))).collect()
    }

    async fn listen(driver: Weak<Self>) -> Result<(), ListenError> {
        let Some(inner) = driver.upgrade() else { return Ok(()) };
        let (limit, reconnected) = (inner.limit, inner.transport.reconnected());
        // Where messages about the claims are published: that is where commands go.
        let server = match inner.transport.server().await.map_err(|failed| failed.error)? {
            Some(server) => server,
            None => inner.locator.any()?,
        };
        let channel = keys::channel(&inner.publisher.client);
        drop(inner);
        let (mut sink, stream) = bounded(limit, server.get_async_pubsub()).await?.split();
        bounded(limit, sink.subscribe(&channel)).await?;
        if let Some(inner) = driver.upgrade() {
            if !inner.publisher.is_muted() {
                inner.waiters.claims.listening_started();
            }
            inner.waiters.registers.notify(None);
            inner.learn_nodes().await;
        }
        tokio::select! {
            () = receive(&driver, stream) => Ok(()),
            ended = verify(&driver, &server, &mut sink, &reconnected) => ended,
        }
    }
}

/// Passes messages on until the connection breaks, or the driver is gone.
async fn receive(driver: &Weak<RedisInner>, mut stream: PubSubStream) {
    while let Some(message) = stream.next().await
        && let Some(inner) = driver.upgrade()
    {
        inner.waiters.notify(&String::from_utf8_lossy(message.get_payload_bytes()));
    }
}

/// Verifies again and again that what is published where commands go arrives here; ends when it does not.
/// The subscription's own connection proves nothing: after a failover an old master that lives on
/// answers there, and no client publishes at it any more.
async fn verify(
    driver: &Weak<RedisInner>,
    server: &Client,
    sink: &mut PubSubSink,
    reconnected: &Notify,
) -> Result<(), ListenError> {
    for number in 1.. {
        let is_new = tokio::select! {
            () = tokio::time::sleep(VERIFY_EVERY) => false,
            () = reconnected.notified() => true,
        };
        let Some(inner) = driver.upgrade() else { return Ok(()) };
        if is_new && number > 1 {
            // Perhaps to another server: waiters poll until messages from there are seen to arrive.
            inner.waiters.claims.listening_ended();
        }
        let (limit, mut arrived) = (inner.limit, inner.waiters.alive.subscribe());
        if inner.publisher.is_muted() {
            // It cannot verify it: its waiters poll.
            inner.waiters.claims.listening_ended();
            drop(inner);
            bounded(limit, sink.ping::<redis::Value>()).await?;
            continue;
        }
        if let Ok(Some(now)) = inner.transport.server().await
            && now.get_connection_info().addr() != server.get_connection_info().addr()
        {
            return Err("commands go to another server by now".into());
        }
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(keys::channel(&inner.publisher.client)).arg(format!("{ALIVE} {number}"));
        let sent = inner.transport.send(&publish, &keys::counter(0), Priority::First).await;
        match sent {
            Ok(_) => {}
            Err(failed) if is_about_rights(&failed.error) => {
                inner.publisher.refused(&failed.error.to_string());
                inner.waiters.claims.listening_ended();
                continue;
            }
            // That verifies nothing; a new connection asks for the next try.
            Err(_) => continue,
        }
        drop(inner);
        let arrives = arrived.wait_for(|last| *last == number);
        if tokio::time::timeout(limit.min(VERIFY_LIMIT), arrives).await.is_err() {
            return Err("a message of this client to itself does not arrive".into());
        }
        if let Some(inner) = driver.upgrade()
            && !inner.waiters.claims.gets_notifications()
        {
            inner.waiters.claims.listening_started(); // it may publish again
        }
    }
    Ok(())
}

impl RedisInner {
    /// The nodes of a cluster come and go; the next subscription may be at any of them.
    async fn learn_nodes(&self) {
        if let Transport::Cluster(_) = self.transport
            && let Ok(nodes) = self.transport.masters().await
        {
            self.locator.learn(nodes.into_iter().flatten());
        }
    }
}
