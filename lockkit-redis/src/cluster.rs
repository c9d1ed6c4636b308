//! The way to a cluster: the client crate's connection to all of its nodes, replaced as a whole
//! when a node stops answering. What is sent, and what an answer means, is not known here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::RoutingInfo;
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::link::bounded;

/// Connections to the nodes of a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    /// Who makes another connection; nobody does when it is the user's.
    client: Option<ClusterClient>,
    limit: Duration,
    live: Mutex<Live>,
    replacing: AtomicBool,
}

#[derive(Clone)]
struct Live {
    connection: ClusterConnection,
    number: u64,
}

impl Cluster {
    pub(crate) fn over(
        connection: ClusterConnection,
        client: Option<ClusterClient>,
        limit: Duration,
    ) -> Self {
        let live = Mutex::new(Live { connection, number: 0 });
        Self(Arc::new(Inner { client, limit, live, replacing: AtomicBool::new(false) }))
    }

    pub(crate) async fn connect(client: ClusterClient, limit: Duration) -> RedisResult<Self> {
        let connection = bounded(2 * limit, client.get_async_connection()).await?;
        Ok(Self::over(connection, Some(client), limit))
    }

    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut live = self.live().clone();
        let answer = live.connection.req_packed_command(cmd);
        self.noting(live.number, answer).await.and_then(Value::extract_error)
    }

    pub(crate) async fn send_to(&self, cmd: Cmd, to: RoutingInfo) -> RedisResult<Value> {
        let mut live = self.live().clone();
        let answer = live.connection.route_command(cmd, to);
        self.noting(live.number, answer).await.and_then(Value::extract_error)
    }

    /// Commands that leave at once, to the master of the first one's key.
    pub(crate) async fn send_all(&self, pipe: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let mut live = self.live().clone();
        let answers = live.connection.req_packed_commands(pipe, 0, count);
        self.noting(live.number, answers).await
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client crate asks again on the same connection when a node does not answer, and never
    /// looks whether another node has taken its place. So whoever got no answer has everything
    /// connected anew, once for all who notice.
    async fn noting<T>(
        &self,
        number: u64,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let answer = bounded(self.0.limit, answer).await;
        if answer.as_ref().is_err_and(redis::RedisError::is_timeout)
            && let Some(client) = &self.0.client
            && self.live().number == number
            && !self.0.replacing.swap(true, Ordering::AcqRel)
        {
            tokio::spawn(replace(self.0.clone(), client.clone()));
        }
        answer
    }
}

async fn replace(cluster: Arc<Inner>, client: ClusterClient) {
    match bounded(2 * cluster.limit, client.get_async_connection()).await {
        Ok(connection) => {
            let mut live = cluster.live.lock().unwrap_or_else(PoisonError::into_inner);
            *live = Live { connection, number: live.number + 1 };
        }
        // The next one that gets no answer tries again.
        Err(error) => tracing::debug!(%error, "the cluster was not connected anew"),
    }
    cluster.replacing.store(false, Ordering::Release);
}
