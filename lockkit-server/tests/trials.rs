//! A service whose backend is killed, frozen, cut off from it, robbed of its data and given another
//! time, and whose requests to the backend get lost: it keeps what the backend keeps.

mod site;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_lab::raw::resp;
use lockkit_lab::{Deletion, Server, ServerKind};
use lockkit_redis::RedisDriver;
use site::Site;

/// Each client has two servers of its own, with the network that is struck behind them.
struct Served;

#[async_trait]
impl lockkit_lab::Deployment for Served {
    fn kind(&self) -> ServerKind {
        ServerKind::Redis
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        let backend = || async { Ok(Arc::new(RedisDriver::connect(url).await?) as Arc<_>) };
        Site::default().driver(backend).await
    }

    fn deletions(&self) -> Vec<Deletion> {
        let (what, fault) = ("FLUSHALL", Some(Fault::DataLost));
        vec![Deletion { what, fault, act: |server| Box::pin(flush(server)) }]
    }
}

async fn flush(server: &Server) -> io::Result<()> {
    resp::ask(server.addr(), &["FLUSHALL"]).await.map(drop)
}

lockkit_lab::trials!(Served);
