//! Something to remember in each kind of server, by raw requests.
#![allow(dead_code, unreachable_pub)] // each test program uses a part of it

use std::io;
use std::net::SocketAddr;

use lockkit_lab::raw::{etcd, mysql, postgres, resp, zookeeper};
use lockkit_lab::{Server, ServerKind};
use serde_json::json;

/// `lab` in base64.
const KEY: &str = "bGFi";

pub async fn remember(kind: ServerKind, addr: SocketAddr) -> io::Result<()> {
    match kind {
        ServerKind::Redis => resp::ask(addr, &["SET", "lab", "1"]).await.map(drop),
        ServerKind::Postgres => postgres::PostgresConnection::open(addr)
            .await?
            .query("CREATE TABLE lab ()")
            .await
            .map(drop),
        ServerKind::MariaDb => {
            let create = "CREATE TABLE lockkit.lab (a INT)";
            mysql::MySqlClient::open(addr).await?.query(create).await.map(drop)
        }
        ServerKind::ZooKeeper => zookeeper::ZkConnection::open(addr).await?.create("/lab").await,
        _ => etcd::ask(addr, "kv/put", &json!({ "key": KEY, "value": KEY })).await.map(drop),
    }
}

pub async fn recalls(kind: ServerKind, addr: SocketAddr) -> io::Result<bool> {
    match kind {
        ServerKind::Redis => {
            resp::ask(addr, &["EXISTS", "lab"]).await.map(|n| n == resp::RespReply::Number(1))
        }
        ServerKind::Postgres => {
            let find = "SELECT 1 FROM pg_tables WHERE tablename = 'lab'";
            postgres::PostgresConnection::open(addr)
                .await?
                .query(find)
                .await
                .map(|rows| rows.len() == 1)
        }
        ServerKind::MariaDb => {
            let find = "SHOW TABLES FROM lockkit LIKE 'lab'";
            mysql::MySqlClient::open(addr).await?.query(find).await.map(|rows| rows.len() == 1)
        }
        ServerKind::ZooKeeper => {
            zookeeper::ZkConnection::open(addr).await?.exists("/lab", false).await
        }
        _ => {
            let found = etcd::ask(addr, "kv/range", &json!({ "key": KEY })).await?;
            Ok(found["count"] == "1")
        }
    }
}

/// What time the server believes it is, in seconds.
pub async fn now_of(server: &Server) -> io::Result<i64> {
    let addr = server.addr();
    let text = match server.kind() {
        ServerKind::Redis => match resp::ask(addr, &["TIME"]).await? {
            resp::RespReply::Array(parts) => parts[0].text().to_owned(),
            other => panic!("{other:?}"),
        },
        ServerKind::Postgres => {
            let ask = "SELECT extract(epoch FROM clock_timestamp())::bigint";
            postgres::PostgresConnection::open(addr)
                .await?
                .query(ask)
                .await?
                .remove(0)
                .remove(0)
                .unwrap()
        }
        ServerKind::MariaDb => {
            let ask = "SELECT UNIX_TIMESTAMP()";
            mysql::MySqlClient::open(addr).await?.query(ask).await?.remove(0).remove(0).unwrap()
        }
        ServerKind::ZooKeeper => {
            let mut session = zookeeper::ZkConnection::open(addr).await?;
            let path = format!("/at-{}", std::process::id());
            session.create(&path).await?;
            let made = session.made_at(&path).await?;
            session.delete(&path).await?;
            (made / 1000).to_string()
        }
        other => panic!("{other} does not say"),
    };
    text.parse().map_err(io::Error::other)
}
