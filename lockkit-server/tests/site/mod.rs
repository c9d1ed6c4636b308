//! A service of two servers over one backend, for one case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_http::HttpDriver;
use lockkit_server::{Listen, Service};
use tokio::sync::OnceCell;

/// Two servers, each with a driver of its own.
#[derive(Default)]
pub(crate) struct Site {
    servers: OnceCell<[String; 2]>,
    turn: AtomicUsize,
}

impl Site {
    /// A client's driver. Every other client asks the other server first.
    pub(crate) async fn driver<F>(
        &self,
        backend: impl Fn() -> F,
    ) -> Result<Arc<dyn LockDriver>, Error>
    where
        F: Future<Output = Result<Arc<dyn LockDriver>, Error>>,
    {
        let both = self.servers.get_or_try_init(async || {
            Ok::<_, Error>([serve(backend().await?).await?, serve(backend().await?).await?])
        });
        both.await?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let url = self.url(turn).unwrap_or_default();
        Ok(Arc::new(HttpDriver::connect(&url).await?))
    }

    /// Where the service is, once a driver was made.
    pub(crate) fn url(&self, turn: usize) -> Option<String> {
        let both = self.servers.get()?;
        Some(format!("http://{},{}", both[turn % 2], both[(turn + 1) % 2]))
    }
}

async fn serve(driver: Arc<dyn LockDriver>) -> Result<String, Error> {
    let service = Service::new(driver)?;
    let io = |e| Error::permanent("lab", e);
    let listener = "127.0.0.1:0".parse::<Listen>()?.open().await.map_err(io)?;
    let place = listener.address().map_err(io)?.to_string();
    tokio::spawn(lockkit_server::serve(listener, service, std::future::pending()));
    Ok(place.trim_start_matches("http://").to_owned())
}
