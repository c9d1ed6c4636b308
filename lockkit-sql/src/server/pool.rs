//! A few connections, opened when they are needed. sqlx's own pool asks a connection for a sign of
//! life whenever it is given back, which is a round trip beside every operation; this one finds out
//! by using it. No statements here.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkit_core::driver::locked;
use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions, Connection, Pool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::dialect::{ConnectionOf, Dialect, OptionsOf};

/// Connections that were not used for so long are closed.
const IDLE: Duration = Duration::from_secs(300);

/// Where connections come from.
pub(crate) enum Connections<D: Dialect> {
    OwnPool(Arc<OwnPool<D>>),
    /// The user's.
    Pool(Pool<D::Db>),
}

/// Connections of our own.
pub(crate) struct OwnPool<D: Dialect> {
    options: OptionsOf<D>,
    idle: Mutex<Idle<D>>,
    /// How many more may be in use; closed with the driver.
    free: Arc<Semaphore>,
    most: usize,
}

/// Connections that are not in use.
struct Idle<D: Dialect> {
    connections: Vec<(ConnectionOf<D>, Instant)>,
    /// Counts up when all connections are forgotten, those in use as well.
    generation: u64,
}

impl<D: Dialect> Connections<D> {
    pub(crate) fn own(options: OptionsOf<D>, most: usize) -> Self {
        let idle = Mutex::new(Idle { connections: Vec::new(), generation: 0 });
        let free = Arc::new(Semaphore::new(most));
        let options = options.disable_statement_logging();
        Self::OwnPool(Arc::new(OwnPool { options, idle, free, most }))
    }

    /// A connection that may be dead: the last one that was given back, or a new one.
    pub(crate) async fn get(&self, dialect: &D) -> Result<PooledConnection<D>, sqlx::Error> {
        let own = match self {
            Self::OwnPool(own) => own,
            Self::Pool(pool) => {
                return Ok(PooledConnection(Some(Origin::Pool(pool.acquire().await?))));
            }
        };
        let permit = own.free.clone().acquire_owned().await;
        let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
        let (kept, generation) = {
            let mut idle = locked(&own.idle);
            (idle.connections.pop(), idle.generation)
        };
        let connection = match kept {
            Some((connection, since)) if since.elapsed() < IDLE => connection,
            _ => {
                // Whatever lies below has been idle for longer.
                locked(&own.idle).connections.clear();
                dialect.open(&own.options).await?
            }
        };
        Ok(PooledConnection(Some(Origin::OwnPool(connection, own.clone(), generation, permit))))
    }

    /// A connection was found dead, or to lead to the wrong server: the others are likely to be, those in
    /// use too. The next one resolves the server's name again.
    pub(crate) fn forget(&self) {
        match self {
            Self::OwnPool(own) => {
                let mut idle = locked(&own.idle);
                idle.connections.clear();
                idle.generation += 1;
            }
            Self::Pool(pool) => {
                while let Some(connection) = pool.try_acquire() {
                    drop(connection.detach());
                }
            }
        }
    }

    /// How many there are at once.
    pub(crate) fn most(&self) -> usize {
        match self {
            Self::OwnPool(own) => own.most,
            Self::Pool(pool) => pool.options().get_max_connections() as usize,
        }
    }

    /// How connections of its own are made, as those that listen.
    pub(crate) fn options(&self) -> OptionsOf<D> {
        match self {
            Self::OwnPool(own) => own.options.clone(),
            Self::Pool(pool) => pool.connect_options().as_ref().clone(),
        }
    }

    pub(crate) async fn close(&self) {
        if let Self::OwnPool(own) = self {
            own.free.close();
            let connections = std::mem::take(&mut locked(&own.idle).connections);
            for (connection, _) in connections {
                let _ = tokio::time::timeout(Duration::from_secs(1), connection.close()).await;
            }
        }
    }
}

/// A connection for one operation. Unless it is [given back](Self::put_back) it is closed: what
/// was dropped in the middle of an answer would hold up the next one to use it.
pub(crate) struct PooledConnection<D: Dialect>(Option<Origin<D>>);

enum Origin<D: Dialect> {
    OwnPool(ConnectionOf<D>, Arc<OwnPool<D>>, u64, OwnedSemaphorePermit),
    Pool(PoolConnection<D::Db>),
}

impl<D: Dialect> PooledConnection<D> {
    pub(crate) fn connection(&mut self) -> &mut ConnectionOf<D> {
        match self.0.as_mut().expect("it is taken only when the lease ends") {
            Origin::OwnPool(connection, ..) => connection,
            Origin::Pool(connection) => connection,
        }
    }

    /// The answer came in full: the next one may use it.
    pub(crate) fn put_back(mut self) {
        match self.0.take() {
            Some(Origin::OwnPool(connection, own, generation, _permit))
                if !own.free.is_closed() =>
            {
                let mut idle = locked(&own.idle);
                if idle.generation == generation {
                    idle.connections.push((connection, Instant::now()));
                }
            }
            // A pool takes its connection back when it is dropped.
            _ => {}
        }
    }
}

impl<D: Dialect> Drop for PooledConnection<D> {
    fn drop(&mut self) {
        if let Some(Origin::Pool(connection)) = self.0.take() {
            drop(connection.detach());
        }
    }
}
