//! All cases on NATS, DynamoDB and S3; those about mutexes, semaphores and registers on Azure and Google, whose
//! driver is that of S3, and in a bucket of NATS with three replicas. Azure is Azurite, DynamoDB is DynamoDB
//! Local, and the buckets of S3 and Google are the lab's.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::{ClaimId, LockDriver};
use lockkit_core::{Error, Namespace};
use lockkit_lab::raw::azure;
use lockkit_lab::s3::S3Server;
use lockkit_lab::{LabError, Layout, ServerKind, SharedServer, create_table};
use tokio::sync::OnceCell;

use crate::{leftovers, stores};

#[derive(Clone, Copy)]
enum Service {
    Azurite,
    DynamoDb,
    Gcs,
    Nats,
    NatsCluster,
    S3,
}

impl Service {
    /// The URL of a store. Where cases that run at the same time would be in each other's way, each has a
    /// container or a table of its own.
    async fn store(self) -> Result<String, LabError> {
        let name = format!("case-{}", ClaimId::random().to_hex());
        match self {
            Self::Azurite => {
                let server = SharedServer::server(ServerKind::Azurite).await?.addr();
                let created = azure::create_container(server, &name).await;
                created.map_err(|error| LabError::Answer(error.to_string()))?;
                let account = azure::ACCOUNT;
                let place = format!("account={account}&endpoint=http://{server}/{account}");
                Ok(format!("az://{name}/test?{place}"))
            }
            Self::DynamoDb => {
                let server = SharedServer::server(ServerKind::DynamoDb).await?.addr();
                let created = create_table(server, &name).await;
                created.map_err(|error| LabError::Answer(error.to_string()))?;
                Ok(format!("dynamodb://{name}?region=us-east-1&endpoint=http://{server}"))
            }
            Self::Gcs => Ok(format!("gs://locks/test?endpoint={}", buckets().endpoint())),
            Self::S3 => Ok(format!("s3://locks/test?endpoint={}", buckets().endpoint())),
            Self::Nats => Ok(SharedServer::server(ServerKind::Nats).await?.url().to_owned()),
            Self::NatsCluster => {
                Ok(SharedServer::group(Layout::NatsCluster).await?.url().to_owned())
            }
        }
    }
}

/// The server of this process's cases.
fn buckets() -> &'static S3Server {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    SERVER.get_or_init(|| S3Server::start().expect("it listens"))
}

struct OnService {
    service: Service,
    url: OnceCell<String>,
}

impl OnService {
    fn new(service: Service) -> Self {
        Self { service, url: OnceCell::new() }
    }

    async fn url(&self) -> Result<&str, Error> {
        let url = self.url.get_or_try_init(|| self.service.store()).await;
        url.map(String::as_str).map_err(|error| Error::permanent("lab", error))
    }
}

#[async_trait]
impl Harness for OnService {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(stores::driver(self.url().await?).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let url = self.url.get()?.clone();
        Some(Worker { program: lockkit_lab::worker::example("store_worker"), url })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        leftovers::leftovers(&*stores::open(self.url().await?).await?, namespace).await
    }
}

mod on_azurite {
    use super::*;
    lockkit_conformance::suite!(groups: OnService::new(Service::Azurite), exclusion order modes resize release token register);
}

mod on_dynamodb {
    use super::*;
    lockkit_conformance::suite!(OnService::new(Service::DynamoDb));
}

mod on_gcs {
    use super::*;
    lockkit_conformance::suite!(groups: OnService::new(Service::Gcs), exclusion order modes resize release token register);
}

mod on_nats {
    use super::*;
    lockkit_conformance::suite!(OnService::new(Service::Nats));
}

mod on_nats_cluster {
    use super::*;
    lockkit_conformance::suite!(groups: OnService::new(Service::NatsCluster), exclusion modes resize release);
}

mod on_s3 {
    use super::*;
    lockkit_conformance::suite!(OnService::new(Service::S3));
}
