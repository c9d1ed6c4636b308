//! How waiting claims learn that they hold: one subscription a driver, to a channel of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, LeaseStart, Renewal};
use lockkit_core::waiting::{Attendant, RegisterBells, Waiters};
use lockkit_core::{Claim, Error, Token};
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{Notify, watch};

use crate::driver::Shared;
use crate::failure::bounded;
use crate::link::{Link, Turn};
use crate::voice::{ALIVE, Voice, is_about_rights};
use crate::{keys, nodes, reply};

/// How often it is proved that messages arrive.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a message of a client to itself takes at most.
const PROOF: Duration = Duration::from_secs(1);

/// Why nobody listens any more.
type Ended = Box<dyn std::error::Error + Send + Sync>;

/// Who waits through one driver.
#[derive(Debug)]
pub(crate) struct Wakes {
    pub(crate) voice: Arc<Voice>,
    pub(crate) claims: Waiters<ClaimId>,
    pub(crate) registers: RegisterBells,
    /// The number of the last message to itself that this client has got.
    alive: watch::Sender<u64>,
}

impl Wakes {
    pub(crate) fn new(voice: Arc<Voice>) -> Self {
        Self {
            voice,
            alive: watch::Sender::new(0),
            claims: Waiters::new(|id| *id),
            registers: RegisterBells::default(),
        }
    }

    fn heard(&self, message: &str) {
        let (verb, rest) = message.split_once(' ').unwrap_or((message, ""));
        match verb {
            "changed" => return self.registers.ring(Some(rest)),
            ALIVE => {
                if let Ok(number) = rest.parse() {
                    self.alive.send_replace(number);
                }
                return;
            }
            _ => {}
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
        let sent = SteadyClock.now();
        let answers = self.renew_all(claims, None).await.into_iter();
        let mut answers: Vec<_> = answers.map(|answer| answer.map(|(told, _)| told)).collect();
        for (renewal, _) in answers.iter_mut().flatten() {
            if let Renewal::Holds(grant) = renewal {
                *grant = Grant { start: LeaseStart::Sent(sent), ..*grant };
            }
        }
        answers
    }

    async fn listen(driver: Weak<Self>) -> Result<(), Ended> {
        let Some(shared) = driver.upgrade() else { return Ok(()) };
        let (limit, link) = (shared.limit, shared.link.connected_anew());
        // Where messages about the claims are published: that is where commands go.
        let server = match shared.link.server().await.map_err(|failed| failed.error)? {
            Some(server) => server,
            None => shared.source.any()?,
        };
        let channel = keys::channel(&shared.wakes.voice.client);
        drop(shared);
        let (mut sink, stream) = bounded(limit, server.get_async_pubsub()).await?.split();
        bounded(limit, sink.subscribe(&channel)).await?;
        if let Some(shared) = driver.upgrade() {
            if !shared.wakes.voice.is_mute() {
                shared.wakes.claims.is_listening();
            }
            shared.wakes.registers.ring(None);
            shared.learn_nodes().await;
        }
        tokio::select! {
            () = hear(&driver, stream) => Ok(()),
            ended = prove(&driver, &server, &mut sink, &link) => ended,
        }
    }
}

/// Passes messages on until the connection breaks, or the driver is gone.
async fn hear(driver: &Weak<Shared>, mut stream: PubSubStream) {
    while let Some(message) = stream.next().await
        && let Some(shared) = driver.upgrade()
    {
        shared.wakes.heard(&String::from_utf8_lossy(message.get_payload_bytes()));
    }
}

/// Sees again and again that what is published where commands go arrives here; ends when it does not.
/// The subscription's own connection proves nothing: after a failover an old master that lives on
/// answers there, and nobody publishes at it any more.
async fn prove(
    driver: &Weak<Shared>,
    server: &Client,
    sink: &mut PubSubSink,
    connected_anew: &Notify,
) -> Result<(), Ended> {
    for number in 1.. {
        let anew = tokio::select! {
            () = tokio::time::sleep(SILENCE) => false,
            () = connected_anew.notified() => true,
        };
        let Some(shared) = driver.upgrade() else { return Ok(()) };
        if anew && number > 1 {
            // Perhaps at another server: who waits polls until messages from there are seen to arrive.
            shared.wakes.claims.is_deaf();
        }
        let (limit, mut arrived) = (shared.limit, shared.wakes.alive.subscribe());
        if shared.wakes.voice.is_mute() {
            // It cannot prove it: its waiters poll.
            shared.wakes.claims.is_deaf();
            drop(shared);
            bounded(limit, sink.ping::<redis::Value>()).await?;
            continue;
        }
        if let Ok(Some(now)) = shared.link.server().await
            && now.get_connection_info().addr() != server.get_connection_info().addr()
        {
            return Err("commands go to another server by now".into());
        }
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(keys::channel(&shared.wakes.voice.client)).arg(format!("{ALIVE} {number}"));
        let sent = shared.link.send(&publish, &keys::counter(0), Turn::First).await;
        match sent {
            Ok(_) => {}
            Err(failed) if is_about_rights(&failed.error) => {
                shared.wakes.voice.refused(&failed.error.to_string());
                shared.wakes.claims.is_deaf();
                continue;
            }
            // Nothing is proved either way; a new connection asks for the next try.
            Err(_) => continue,
        }
        drop(shared);
        let arrives = arrived.wait_for(|last| *last == number);
        if tokio::time::timeout(limit.min(PROOF), arrives).await.is_err() {
            return Err("a message of this client to itself does not arrive".into());
        }
        if let Some(shared) = driver.upgrade()
            && !shared.wakes.claims.is_told()
        {
            shared.wakes.claims.is_listening(); // it may publish again
        }
    }
    Ok(())
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
