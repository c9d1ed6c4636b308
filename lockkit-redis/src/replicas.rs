//! The option that a grant counts only when replicas have it: `WAIT`, on a connection of its own,
//! since it holds up everything behind it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::{Claim, Error};
use redis::Value;

use crate::cluster::Cluster;
use crate::failure::{Failed, to_error};
use crate::own::Own;
use crate::source::Source;
use crate::{BACKEND, keys, reply};

/// Waits for replicas.
pub(crate) struct Replicas {
    least: u32,
    way: Way,
    limit: Duration,
}

enum Way {
    One(Box<Own>),
    Cluster(Cluster),
}

impl Replicas {
    pub(crate) fn new(least: u32, source: Arc<Source>, limit: Duration) -> Self {
        Self { least, way: Way::One(Box::new(Own::new(source, limit))), limit }
    }

    pub(crate) fn of_cluster(least: u32, cluster: Cluster, limit: Duration) -> Self {
        Self { least, way: Way::Cluster(cluster), limit }
    }

    /// Returns once enough replicas have everything that was written until now at the server that
    /// has this claim.
    pub(crate) async fn confirm(&self, claim: &Claim) -> Result<(), Error> {
        let (key, _) = keys::lock(&claim.key);
        let id = claim.id.to_hex();
        // WAIT waits for what its own connection wrote last; any command takes that up to now. The
        // commands ask for the claim, in either form of its list: after a failover it may be that
        // only another server had it.
        let mut pipe = redis::pipe();
        pipe.cmd("GETRANGE").arg(&key).arg(0).arg(id.len() - 1);
        pipe.cmd("HEXISTS").arg(&key).arg(&id);
        pipe.cmd("WAIT").arg(self.least).arg((self.limit / 2).as_millis() as u64);
        let answers = self.ask(&pipe, &key).await?;
        let [alone, in_line, have] = answers.as_slice() else {
            return Err(reply::unexpected(&Value::Array(answers)));
        };
        if reply::text(alone) != Some(id.as_str()) && *in_line != Value::Int(1) {
            let message = "another server took over before replicas had the grant";
            return Err(Error::retryable(BACKEND, message.to_owned()));
        }
        let have = match have {
            Value::ServerError(error) => return Err(to_error(error.clone().into())),
            have => reply::number(have).unwrap_or_default(),
        };
        if have >= i64::from(self.least) {
            return Ok(());
        }
        let message = format!(
            "{have} of the {} replicas that min_replicas asks for acknowledged the grant in time",
            self.least
        );
        Err(Error::retryable(BACKEND, message))
    }

    async fn ask(&self, pipe: &redis::Pipeline, key: &str) -> Result<Vec<Value>, Failed> {
        const COMMANDS: usize = 3;
        match &self.way {
            Way::One(own) => own.send_all(pipe, COMMANDS).await,
            Way::Cluster(cluster) => cluster.send_all(pipe, COMMANDS, key).await,
        }
    }
}
