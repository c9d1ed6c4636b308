//! The quorum over real Redis servers that know nothing of each other, three of them and five: all
//! cases about the driver that apply.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Server, ServerKind};
use tokio::sync::OnceCell;

struct Quorum(usize);

/// Longer leases than any case asks for. A machine that is busy with other tests answers late, and
/// no case here is about members that do not answer.
/// Behind every member: a machine that stands still for a moment is not a server that is away.
const PATIENT: &str = "?timeout=30s";
const OPTIONS: &str = "&max_ttl=3650d&member_limit=30s";

/// Servers for all cases of a process: none of them disturbs them.
async fn servers(count: usize) -> Result<&'static [Server], Error> {
    static THREE: OnceCell<Vec<Server>> = OnceCell::const_new();
    static FIVE: OnceCell<Vec<Server>> = OnceCell::const_new();
    let cell = if count == 3 { &THREE } else { &FIVE };
    let starting = || try_join_all((0..count).map(|_| Server::start(ServerKind::Redis)));
    let all = cell.get_or_try_init(starting).await;
    all.map(Vec::as_slice).map_err(|e| Error::permanent("lab", e))
}

async fn url(count: usize) -> Result<String, Error> {
    let patient = |server: &Server| format!("{}{PATIENT}", server.url());
    let urls: Vec<_> = servers(count).await?.iter().map(patient).collect();
    Ok(format!("quorum:{}{OPTIONS}", urls.join(",")))
}

#[async_trait]
impl Harness for Quorum {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let locks = lockkit::connect(&url(self.0).await?).await?;
        Ok(locks.driver().clone())
    }

    fn worker(&self) -> Option<Worker> {
        let servers =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(url(self.0)));
        let program = lockkit_lab::worker::example("compose_worker");
        Some(Worker { program, url: servers.ok()? })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let mut count = 0;
        for server in servers(self.0).await? {
            let keys = resp::ask(server.addr(), &["KEYS", &format!("*{namespace}*")]).await;
            match keys.map_err(|e| Error::permanent("lab", e))? {
                // Records of breaks are kept for as long as the trait asks, and then go.
                RespReply::Array(keys) => {
                    let records = |key: &&RespReply| key.text().starts_with("lockkit:lock.broken");
                    count += keys.iter().filter(|key| !records(key)).count() as u64;
                }
                other => return Err(Error::permanent("lab", format!("KEYS: {other:?}"))),
            }
        }
        Ok(Some(count))
    }
}

mod of_three {
    use super::*;
    lockkit_conformance::suite!(driver: Quorum(3));
}

mod of_five {
    use super::*;
    lockkit_conformance::suite!(driver: Quorum(5));
}
