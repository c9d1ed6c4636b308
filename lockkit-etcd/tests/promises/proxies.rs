//! etcd behind its own `grpc-proxy`, which answers keep-alives at times of its own.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::Client;
use lockkit_lab::proxy::Protocol;
use lockkit_lab::{Proxy, Server, ServerKind};

use crate::stage::{soon, until};

struct GrpcProxy {
    process: Child,
    addr: SocketAddr,
}

impl GrpcProxy {
    async fn start(member: SocketAddr) -> Self {
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = Command::new("etcd")
            .args(["grpc-proxy", "start", "--endpoints", &member.to_string()])
            .args(["--listen-addr", &addr.to_string()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let it = Self { process, addr };
        until("the proxy", || async { tokio::net::TcpStream::connect(addr).await.is_ok() }).await;
        it
    }
}

impl Drop for GrpcProxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_proxy_is_refused_and_the_members_are_asked_for() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = GrpcProxy::start(server.addr()).await;
    let error = EtcdDriver::connect(&server.url_at(proxy.addr)).await.unwrap_err();
    assert!(error.to_string().contains("grpc-proxy"), "{error}");
    assert!(!error.is_retryable());
    EtcdDriver::connect(&server.url()).await.unwrap();
}

/// Why it is refused. The member's answers take three seconds, and yet a keep-alive is answered
/// sooner: by the answer to another, which was sent before it. The term in it is the right one.
#[tokio::test]
async fn a_proxy_answers_a_keep_alive_before_the_member_can_have() {
    const WAY: Duration = Duration::from_secs(3);
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let way = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let proxy = GrpcProxy::start(way.addr()).await;
    let mut client = Client::connect([proxy.addr.to_string()], None).await.unwrap();
    let term = client.get("k", None).await.unwrap().header().unwrap().raft_term();
    let lease = client.lease_grant(6, None).await.unwrap().id();
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await.unwrap();
    way.latencies(Duration::ZERO, WAY);
    soon("an answer before its time", async {
        loop {
            let sent = Instant::now();
            keeper.keep_alive().await.unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            if sent.elapsed() < WAY && answer.ttl() > 0 {
                break assert_eq!(answer.header().unwrap().raft_term(), term);
            }
        }
    })
    .await;
}
