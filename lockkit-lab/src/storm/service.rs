//! A storm on a lock service: clients in Rust and in Python through two servers of it, and past them,
//! on one backend. Faults strike the servers of the service; the backend is left alone.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::processes::PYTHON;
use super::{FaultInjector, StormSetup, Target};
use crate::service::ServiceProcess;
use crate::{Server, ServerKind};

/// Strikes at the servers in turn.
struct ServiceInjector {
    servers: [ServiceProcess; 2],
    turn: AtomicUsize,
    backend: Server,
}

impl ServiceInjector {
    fn next(&self) -> &ServiceProcess {
        &self.servers[self.turn.load(Ordering::Relaxed) % 2]
    }
}

#[async_trait]
impl FaultInjector for ServiceInjector {
    fn faults(&self) -> Vec<Fault> {
        vec![Fault::ServerRestarts, Fault::ServerPaused]
    }

    async fn aim(&self, _: Fault, _: &[String]) -> Target {
        Target::whole(self.next().address().to_string())
    }

    async fn inject(&self, fault: Fault, lasts: Duration, _: &Target) {
        let server = self.next();
        self.turn.fetch_add(1, Ordering::Relaxed);
        if fault == Fault::ServerPaused {
            server.freeze();
            tokio::time::sleep(lasts).await;
            return server.thaw();
        }
        server.kill();
        tokio::time::sleep(lasts).await;
        if let Err(error) = server.start_again() {
            // The storm goes on; its report shows what did not work afterwards.
            eprintln!("storm: {error}");
        }
    }

    fn log(&self) -> String {
        self.backend.log_tail()
    }
}

impl StormSetup {
    /// Two servers of a service on a Redis server, each as `PROGRAM service BACKEND ADDRESS`. Of four
    /// client processes, two are in Python, and one goes past the service.
    ///
    /// # Errors
    /// When a server does not start.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn service(program: &Path) -> io::Result<Self> {
        let backend = Server::start(ServerKind::Redis).await.map_err(io::Error::other)?;
        let direct = backend.url();
        let start = || ServiceProcess::start(program, &direct);
        let servers = [start()?, start()?];
        let [first, second] = servers.each_ref().map(ServiceProcess::address);
        let through = |a, b| format!("http://{a},{b}?timeout=300ms");
        let urls = [
            format!("{PYTHON}{}", through(first, second)),
            through(second, first),
            format!("{PYTHON}{}", through(second, first)),
            direct.clone(),
        ];
        let turn = AtomicUsize::new(0);
        let injector = Arc::new(ServiceInjector { servers, turn, backend });
        Ok(Self { url: urls.join("\n"), direct, injector })
    }
}
