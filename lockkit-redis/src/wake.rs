//! How waiting claims learn that they hold: one subscription a driver, to a channel of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{ClaimId, Grant, Renewal};
use lockkit_core::waiting::{Attendant, RegisterBells, Waiters};
use lockkit_core::{Claim, Error, Token};

use crate::driver::Shared;
use crate::failure::bounded;
use crate::link::Link;
use crate::{keys, nodes, reply};

/// How often a subscription on which nothing came is asked whether it is alive.
const SILENCE: Duration = Duration::from_secs(5);

/// Who waits through one driver.
#[derive(Debug)]
pub(crate) struct Wakes {
    /// The id of this client, which its channel and its claims bear.
    pub(crate) client: String,
    pub(crate) claims: Waiters<ClaimId>,
    pub(crate) registers: RegisterBells,
}

impl Wakes {
    pub(crate) fn new() -> Self {
        let id = ClaimId::random().to_hex();
        Self {
            client: id[..16].to_owned(),
            claims: Waiters::new(|id| *id),
            registers: RegisterBells::default(),
        }
    }

    fn heard(&self, message: &str) {
        let (verb, rest) = message.split_once(' ').unwrap_or((message, ""));
        if verb == "changed" {
            return self.registers.ring(Some(rest));
        }
        let (id, token) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some(id) = ClaimId::from_hex(id) else { return };
        match token.parse().ok().and_then(Token::new) {
            Some(token) if verb == "granted" => {
                self.claims.granted(&id, |claim| reply::grant(claim, token));
            }
            _ => self.claims.ring(&id),
        }
    }
}

impl Attendant for Shared {
    type Name = ClaimId;

    fn waiting(&self) -> &Waiters<ClaimId> {
        &self.wakes.claims
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<(Renewal, Option<Duration>), Error>> {
        let sent = BootClock.now();
        let mut answers = self.renew_all(claims).await;
        for (renewal, _) in answers.iter_mut().flatten() {
            if let Renewal::Holds(grant) = renewal {
                *grant = Grant { since: Some(sent), ..*grant };
            }
        }
        answers
    }

    async fn listen(driver: Weak<Self>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Some(shared) = driver.upgrade() else { return Ok(()) };
        let (source, limit) = (shared.source.clone(), shared.limit);
        let channel = keys::channel(&shared.wakes.client);
        drop(shared);
        let client = bounded(limit, source.client()).await?;
        let (mut sink, mut stream) = bounded(limit, client.get_async_pubsub()).await?.split();
        bounded(limit, sink.subscribe(&channel)).await?;
        if let Some(shared) = driver.upgrade() {
            shared.wakes.claims.is_listening();
            shared.wakes.registers.ring(None);
            shared.learn_nodes().await;
        }
        loop {
            tokio::select! {
                message = stream.next() => {
                    let (Some(message), Some(shared)) = (message, driver.upgrade()) else {
                        return Ok(());
                    };
                    shared.wakes.heard(&String::from_utf8_lossy(message.get_payload_bytes()));
                }
                () = tokio::time::sleep(SILENCE) => {
                    bounded(limit, sink.ping::<redis::Value>()).await?;
                }
            }
        }
    }
}

impl Shared {
    /// The nodes of a cluster come and go; the next subscription may be at any of them.
    async fn learn_nodes(&self) {
        if let Link::Cluster(_) = self.link
            && let Ok(nodes) = nodes::masters(self).await
        {
            self.source.learn(nodes.into_iter().flatten());
        }
    }
}
