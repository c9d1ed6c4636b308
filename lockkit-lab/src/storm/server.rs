//! A fault injector for a server of the lab, with a proxy between it and its clients.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::{FaultInjector, Target};
use crate::proxy::{self, When};
use crate::{Data, Proxy, Server};

/// Strikes at a server and at the network before it.
#[derive(Debug)]
pub struct ServerInjector {
    server: Server,
    proxy: Proxy,
    faults: Vec<Fault>,
}

impl ServerInjector {
    /// Strikes at this server, whose clients go through this proxy, with these faults out of
    /// `ConnectionCut`, `Partition`, `ServerPaused`, `ServerRestarts`, `WritesLost` and
    /// `DataLost`.
    pub fn new(server: Server, proxy: Proxy, faults: Vec<Fault>) -> Self {
        Self { server, proxy, faults }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    async fn restart(&self, data: Data) {
        if let Err(error) = self.server.restart(data).await {
            complain(&format!("the server was not restarted: {error}"));
        }
    }
}

/// The storm goes on when a strike fails; its report shows what did not work afterwards.
fn complain(what: &str) {
    eprintln!("storm: {what}");
}

#[async_trait]
impl FaultInjector for ServerInjector {
    fn faults(&self) -> Vec<Fault> {
        self.faults.clone()
    }

    fn log(&self) -> String {
        self.server.log_tail()
    }

    async fn inject(&self, fault: Fault, lasts: Duration, _: &Target) {
        match fault {
            Fault::ServerPaused => {
                self.server.freeze().await;
                tokio::time::sleep(lasts).await;
                self.server.thaw();
            }
            Fault::ServerRestarts => self.restart(Data::Keep).await,
            Fault::WritesLost => {
                if let Err(error) = self.server.sync().await {
                    complain(&format!("the server's data was not kept: {error}"));
                }
                tokio::time::sleep(lasts).await;
                self.restart(Data::LoseUnsynced).await;
            }
            Fault::DataLost => self.restart(Data::Lose).await,
            Fault::ConnectionCut => {
                self.proxy.fault(proxy::Fault::Cut, When::Now);
            }
            _ => {
                self.proxy.fault(proxy::Fault::BlackHole, When::Now);
                tokio::time::sleep(lasts).await;
                if let Err(error) = self.proxy.heal().await {
                    complain(&format!("the network was not healed: {error}"));
                }
            }
        }
    }
}
