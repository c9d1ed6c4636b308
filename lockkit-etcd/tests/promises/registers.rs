//! What writes of registers cost, and what those say that had to be sent again.

use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Attempted, LockDriver, Patience, Precondition, RegisterKey, Registers, Write,
    WriteId, WriteResult,
};
use lockkit_core::{Error, Name, Namespace, Token};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::proxy::{Counts, Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};

use crate::stage::{claim, driver, soon};

fn register(name: &str) -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() }
}

fn store(value: &str, expect: Precondition, token: Option<u64>) -> Write {
    Write {
        value: Some(value.into()),
        expect,
        token: token.and_then(Token::new),
        write_id: WriteId::random(),
        repeated: false,
        ttl: None,
    }
}

fn delete() -> Write {
    Write::of(None)
}

fn stored(answer: Result<Attempted<WriteResult>, Error>) -> Precondition {
    match answer.unwrap().result {
        WriteResult::Stored(version) => Precondition::Version(version),
        other => panic!("it is written: {other:?}"),
    }
}

async fn counted<T>(proxy: &Proxy, what: impl Future<Output = T>) -> (T, Counts) {
    proxy.reset();
    let done = what.await;
    (done, proxy.counts())
}

#[tokio::test]
async fn a_write_takes_one_round_trip_unless_somebody_else_wrote_since() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let ours = driver(&server.url_at(proxy.addr())).await;
    let near = driver(&server.url()).await;
    // Warm, the lease of what is deleted too.
    stored(ours.write(&register("warm"), &store("v", Precondition::Absent, None)).await);
    stored(ours.write(&register("warm"), &delete()).await);
    proxy.latency(Duration::from_millis(10));
    let at = register("r");
    let write = async |what: &str, trips: u64, store: Write| {
        let (answer, cost) = counted(&proxy, ours.write(&at, &store)).await;
        assert_eq!(cost.round_trips, trips, "{what}: {cost:?}");
        stored(answer)
    };
    let first = write("a new one", 1, store("1", Precondition::Absent, None)).await;
    let second = write("from a version", 1, store("2", first, None)).await;
    write("with a token", 1, store("3", Precondition::Anything, Some(5))).await;
    write("with a greater one", 1, store("4", Precondition::Anything, Some(6))).await;
    let (answer, cost) = counted(&proxy, ours.write(&at, &store("5", second, None))).await;
    assert_eq!((answer.unwrap().result, cost.round_trips), (WriteResult::Conflict, 1), "{cost:?}");
    stored(near.write(&at, &store("6", Precondition::Anything, Some(7))).await);
    write("after somebody else", 2, store("7", Precondition::Anything, Some(8))).await;
    stored(near.write(&at, &store("8", Precondition::Anything, Some(9))).await);
    let entry = ours.load(&at).await.unwrap().unwrap();
    write("after a look", 1, store("9", Precondition::Version(entry.version), None)).await;
    let brief =
        Write { ttl: Some(Duration::from_secs(60)), ..store("b", Precondition::Anything, None) };
    write("with a ttl", 2, brief).await;
    let (answer, cost) = counted(&proxy, ours.write(&at, &delete())).await;
    stored(answer);
    assert_eq!(cost.round_trips, 1, "a deletion: {cost:?}");
    let entry = near.load(&at).await.unwrap();
    assert!(entry.is_none());
    let stale = near.write(&at, &store("x", Precondition::Anything, Some(8))).await.unwrap().result;
    assert_eq!(stale, WriteResult::Stale { highest: Token::new(9).unwrap() });
}

/// A server behind two ways, of which one is in use and the other one stuck.
struct Fork {
    near: std::sync::Arc<EtcdDriver>,
    ours: std::sync::Arc<EtcdDriver>,
    first: Proxy,
    second: Proxy,
    _server: Server,
}

impl Fork {
    async fn new() -> Self {
        let server = Server::start(ServerKind::Etcd).await.unwrap();
        let first = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
        let second = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
        let ours = driver(&format!("etcd://{},{}", first.addr(), second.addr())).await;
        let near = driver(&server.url()).await;
        Self { near, ours, first, second, _server: server }
    }

    /// The first request is carried out and its answer lost; before it is sent again this happens.
    async fn lost<T>(
        &self,
        request: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        self.second.fault(ProxyFault::BlackHole, When::Now);
        let mut struck = self.first.fault(ProxyFault::Cut, When::Answer(1));
        let change = async {
            struck.struck().await;
            meanwhile.await;
            self.second.heal().await.unwrap();
        };
        soon("an answer", async { tokio::join!(request, change).0 }).await
    }
}

#[tokio::test]
async fn a_write_that_was_applied_and_lost_its_answer_is_not_applied_over_a_later_one() {
    for (expect, token) in [
        (Precondition::Absent, None),
        (Precondition::Anything, Some(5)),
        (Precondition::Version(lockkit_core::driver::Version(0)), None),
    ] {
        let fork = Fork::new().await;
        let at = register("r");
        let expect = match expect {
            Precondition::Version(_) => {
                stored(fork.ours.write(&at, &store("before", Precondition::Absent, None)).await)
            }
            other => other,
        };
        let later = async {
            match expect {
                Precondition::Absent => {
                    stored(fork.near.write(&at, &delete()).await);
                }
                _ => {
                    let theirs = store("theirs", Precondition::Anything, token);
                    stored(fork.near.write(&at, &theirs).await);
                }
            }
        };
        let ours = store("ours", expect, token);
        let answer = fork.lost(fork.ours.write(&at, &ours), later).await.unwrap();
        assert_eq!(answer.result, WriteResult::Conflict, "{expect:?}");
        assert!(answer.ambiguous > 0, "{expect:?}: it may have been applied");
        let value = fork.near.load(&at).await.unwrap().map(|entry| entry.value);
        let theirs = (expect != Precondition::Absent).then(|| b"theirs".to_vec());
        assert_eq!(value, theirs, "{expect:?}");
    }
}

#[tokio::test]
async fn a_write_that_was_applied_and_lost_its_answer_is_told_as_stored() {
    let fork = Fork::new().await;
    let at = register("r");
    let ours = store("ours", Precondition::Absent, None);
    let answer = fork.lost(fork.ours.write(&at, &ours), async {}).await.unwrap();
    assert!(matches!(answer.result, WriteResult::Stored(_)), "{answer:?}");
    assert!(answer.ambiguous > 0);
}

#[tokio::test]
async fn an_acquire_that_was_sent_again_says_so() {
    for patience in [Patience::Wait, Patience::Try] {
        let fork = Fork::new().await;
        let warm = claim("warm", 60, 60);
        fork.ours.acquire(&warm, Patience::Wait).await.unwrap();
        let one = claim("a", 60, 60);
        let answer = fork.lost(fork.ours.acquire(&one, patience), async {}).await.unwrap();
        assert!(matches!(answer.result, Acquisition::Granted(_)), "{answer:?}");
        assert!(answer.ambiguous > 0, "{patience:?}");
    }
}
