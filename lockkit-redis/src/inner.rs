//! What the driver, its batches, renewals and background tasks share, and how a script is called.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{BatchError, KnownBases, Writes};
use lockkit_core::{Capabilities, Error, Namespace};
use redis::Value;

use crate::error::{RequestError, is_about_rights, to_error};
use crate::locator::ServerLocator;
use crate::neighbours::{self, RedisNeighbours};
use crate::peer::Response;
use crate::publisher::{Publisher, missing_rights};
use crate::replicas::Replicas;
use crate::scan::ScanCache;
use crate::script::{self, Call, Script};
use crate::server::Priority;
use crate::tokens::HighestTokens;
use crate::transport::Transport;
use crate::waiters::WaiterRegistry;
use crate::{BACKEND, decode, keys};

pub(crate) struct RedisInner {
    pub(crate) transport: Transport,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) waiters: WaiterRegistry,
    pub(crate) tokens: HighestTokens,
    pub(crate) bases: KnownBases,
    pub(crate) writes: Writes,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) listing: ScanCache,
    pub(crate) locator: Arc<ServerLocator>,
    /// How long one command may take.
    pub(crate) limit: Duration,
    pub(crate) capabilities: Capabilities,
    pub(crate) neighbours: Option<RedisNeighbours>,
}

/// A request whose answer may be lost: it may have been carried out, and the answer alone says which waiting
/// claims of this client hold by then. So those of its locks are asked about when this is dropped, also in
/// the middle of the request.
struct Unanswered<'a, K: AsRef<str>> {
    waiters: &'a WaiterRegistry,
    keys: &'a [K],
    is_due: bool,
}

impl<K: AsRef<str>> Drop for Unanswered<'_, K> {
    fn drop(&mut self) {
        if self.is_due {
            self.waiters.ask_about(self.keys);
        }
    }
}

impl RedisInner {
    /// Calls a script, for its value alone.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[impl AsRef<str> + Sync],
        args: &[impl AsRef<[u8]> + Sync],
    ) -> Result<Value, Error> {
        let response = self.call(script, &Call::new(keys, args)).await;
        response.map(|response| response.value).map_err(|failed| failed.error)
    }

    /// The token base of a namespace. Refuses one that shares its locks with others than this client does; a
    /// namespace without neighbours gets this client's.
    pub(crate) async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let base = keys::base(namespace);
        let counter = match self.transport {
            // Its keys are on several nodes, and it has no neighbours.
            Transport::Cluster(_) => self.run(&script::BASE, &[&base], &[b"0"]).await?,
            _ => {
                let own = self.neighbours.map_or("", RedisNeighbours::as_str);
                let keys = [base, keys::neighbours(namespace)];
                let answer = decode::array(self.run(&script::BASE, &keys, &["0", own]).await?)?;
                let [counter, stored] = &answer[..] else {
                    return Err(decode::unexpected(&Value::Array(answer)));
                };
                for error in [counter, stored] {
                    if let Value::ServerError(error) = error {
                        return Err(to_error(error.clone().into()));
                    }
                }
                let stored = decode::text(stored).ok_or_else(|| decode::unexpected(stored))?;
                neighbours::check(namespace, self.neighbours, stored)?;
                counter.clone()
            }
        };
        let number = decode::text(&counter).and_then(|text| text.parse().ok());
        number.ok_or_else(|| decode::unexpected(&counter))
    }

    /// Calls a script: one round trip, and a second one when the server has forgotten the script. When
    /// the connection turns out to be dead, once more over a new one.
    pub(crate) async fn call<K: AsRef<str> + Sync, A: AsRef<[u8]> + Sync>(
        &self,
        script: &Script,
        call: &Call<'_, K, A>,
    ) -> Result<Response<Value>, BatchError> {
        let text = script.text(self.publisher.is_muted());
        let key = call.keys[0].as_ref();
        let never = match self.transport {
            Transport::Cluster(_) => keys::never(key),
            _ => None,
        };
        let (mut whole, mut repeated, mut ambiguous) = (false, false, 0);
        let mut unanswered = Unanswered { waiters: &self.waiters, keys: call.keys, is_due: false };
        let failed = loop {
            let command = call.command(text, whole, never.as_deref(), ambiguous > 0);
            // Of this very attempt: the leases that it sets count from here.
            let sent = SteadyClock.now();
            unanswered.is_due = true;
            let failed = match self.transport.send(&command, key, script.priority).await {
                Ok(mut response) => {
                    response.ambiguous = ambiguous;
                    let answer = self.publisher.read(response.value);
                    response.value = self.waiters.take_grants(answer, sent);
                    unanswered.is_due = ambiguous > 0;
                    match response.value {
                        Value::ServerError(error) => RequestError::of(error.into()),
                        _ => return Ok(response),
                    }
                }
                Err(failed) => failed,
            };
            if script::is_unknown(&failed.error) && !whole {
                whole = true;
                continue;
            }
            ambiguous += failed.ambiguous;
            unanswered.is_due = ambiguous > 0;
            if repeated || !failed.retry {
                break failed.error;
            }
            (whole, repeated) = (false, true);
        };
        let error = match is_about_rights(&failed) {
            true => Box::pin(self.forbidden(failed, key)).await,
            false => to_error(failed),
        };
        Err(BatchError::refused(error).after(ambiguous))
    }

    /// The error for a call that the server refused to this user: it says which right is missing, where
    /// the server can tell.
    async fn forbidden(&self, error: redis::RedisError, key: &str) -> Error {
        let none: [&str; 0] = [];
        let command =
            Call::new(&[key], &none).command(script::RIGHTS.text(true), true, None, false);
        let rights = self.transport.send(&command, key, Priority::First).await;
        match rights.ok().and_then(|rights| missing_rights(&rights.value)) {
            Some(names) => Error::permanent(BACKEND, format!("the user may not call {names}")),
            None => to_error(error),
        }
    }
}
