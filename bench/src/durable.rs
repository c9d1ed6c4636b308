//! Servers as people run them: what the lab leaves out to be quick is on.

use lockkit_lab::raw::mysql::MySqlClient;
use lockkit_lab::raw::postgres::PostgresConnection;
use lockkit_lab::{LabError, Server, ServerKind, ZooKeeperDemands};

/// Starts a server whose answers wait for the disk, with buffers of the default size. Redis, which has
/// no such default, is as the lab starts it.
///
/// # Errors
///
/// As for [`Server::start`].
pub async fn start_durable(kind: ServerKind) -> Result<Server, LabError> {
    if kind == ServerKind::ZooKeeper {
        let demands = ZooKeeperDemands { durable: true, ..ZooKeeperDemands::default() };
        return Server::start_demanding_zookeeper(&demands).await;
    }
    let server = Server::start(kind).await?;
    match kind {
        ServerKind::Postgres => {
            let mut client = PostgresConnection::open(server.addr()).await.unwrap();
            for statement in ["ALTER SYSTEM SET fsync = on", "SELECT pg_reload_conf()"] {
                client.query(statement).await.unwrap();
            }
        }
        ServerKind::MariaDb => {
            let mut client = MySqlClient::open(server.addr()).await.unwrap();
            for setting in [
                "innodb_flush_log_at_trx_commit = 1",
                "innodb_buffer_pool_size = 128 * 1024 * 1024",
            ] {
                client.query(&format!("SET GLOBAL {setting}")).await.unwrap();
            }
        }
        _ => {}
    }
    Ok(server)
}
