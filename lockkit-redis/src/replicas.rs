//! The option that a grant or a renewal counts only when replicas have it: `WAIT`, on a connection of
//! its own, since it holds up everything behind it.
//!
//! Since Redis 7.2, and in every Valkey, `WAIT` covers only what its own connection wrote. So each claim
//! is renewed over that connection, which always writes, with `WAIT` in the same pipeline.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::Renewal;
use lockkit_core::{Claim, Error};
use redis::Value;

use crate::decode::{self, ClaimRenewal};
use crate::error::to_error;
use crate::peer::Response;
use crate::publisher::Publisher;
use crate::script::{self, Call};
use crate::transport::Transport;
use crate::{BACKEND, keys};

/// Waits for replicas.
pub(crate) struct Replicas {
    least: u32,
    transport: Transport,
    limit: Duration,
}

impl Replicas {
    /// `transport` is for nothing else: what goes over it may be held up.
    pub(crate) fn new(least: u32, transport: Transport, limit: Duration) -> Self {
        Self { least, transport, limit }
    }

    /// Renews these claims, and says of each that holds whether enough replicas have that, and so all
    /// that was written before at its server. In a cluster, claims of one slot.
    pub(crate) async fn renew(
        &self,
        publisher: &Publisher,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<ClaimRenewal, Error>>, Error> {
        let (locks, args) = keys::renewal_args(claims);
        let Some(key) = locks.first() else { return Ok(Vec::new()) };
        let never = match self.transport {
            Transport::Cluster(_) => keys::never(key),
            _ => None,
        };
        let (call, text) = (Call::new(&locks, &args), script::RENEW.text(publisher.is_muted()));
        let (mut answers, mut peer) = (Vec::new(), None);
        for whole in [false, true] {
            let mut pipe = redis::pipe();
            pipe.add_command(call.command(text, whole, never.as_deref(), false));
            pipe.cmd("WAIT").arg(self.least).arg((self.limit / 2).as_millis() as u64);
            Response { value: answers, peer, .. } = self.transport.send_all(&pipe, 2, key).await?;
            let error = answers.first().and_then(|answer| answer.clone().extract_error().err());
            if !error.is_some_and(|error| script::is_unknown(&error)) {
                break;
            }
        }
        let [renewed, have] = <[Value; 2]>::try_from(answers)
            .map_err(|answers| decode::unexpected(&Value::Array(answers)))?;
        let confirmed = self.is_enough(&have);
        let renewed = match renewed {
            Value::ServerError(error) => return Err(to_error(error.into())),
            renewed => {
                let response = Response::new(publisher.read(renewed), peer);
                decode::renewals(claims, response)?
            }
        };
        let each = renewed.into_iter().map(|renewed| {
            let renewed = renewed?;
            if let Renewal::Holds(_) = renewed.renewal {
                confirmed.clone()?;
            }
            Ok(renewed)
        });
        Ok(each.collect())
    }

    fn is_enough(&self, have: &Value) -> Result<(), Error> {
        let have = match have {
            Value::ServerError(error) => return Err(to_error(error.clone().into())),
            have => decode::number(have).unwrap_or_default(),
        };
        if have >= i64::from(self.least) {
            return Ok(());
        }
        let message = format!(
            "{have} of the {} replicas that min_replicas asks for acknowledged it in time",
            self.least
        );
        Err(Error::retryable(BACKEND, message))
    }
}
