//! A database server whose answer is lost after it acted. The driver asks again by itself, and says so: what
//! it is told then may be the doing of its own first attempt.

use std::sync::Arc;

use lockkit_core::driver::{
    Acquisition, Attempted, LockDriver, Patience, Precondition, RegisterKey, Registers, Released,
    Write, WriteId, WriteResult,
};
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space, Token,
};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver, ServerOptions};

const LONG: std::time::Duration = std::time::Duration::from_secs(120);

/// A server, one who reaches it, and one between whom and the server somebody cuts and holds up.
struct Scene {
    ours: Arc<dyn LockDriver>,
    others: Arc<dyn LockDriver>,
    proxy: Proxy,
    _server: Server,
}

impl Scene {
    async fn on(kind: ServerKind) -> Self {
        let server = Server::start(kind).await.unwrap();
        let protocol = match kind {
            ServerKind::Postgres => Protocol::Postgres,
            _ => Protocol::MySql,
        };
        let proxy = Proxy::start(server.addr(), protocol).await.unwrap();
        let others = connect(kind, &server.url()).await;
        let ours = connect(kind, &server.url_at(proxy.addr())).await;
        let scene = Self { ours, others, proxy, _server: server };
        // From here on each request is one message.
        let warm = claim("warm");
        scene.ours.acquire(&warm, Patience::Try).await.unwrap();
        scene.ours.release(&warm).await.unwrap();
        scene
            .registers()
            .write(&at("warm"), &write(b"", Precondition::Anything, None))
            .await
            .unwrap();
        scene
    }

    fn registers(&self) -> &dyn Registers {
        self.ours.registers().unwrap()
    }

    fn theirs(&self) -> &dyn Registers {
        self.others.registers().unwrap()
    }

    /// A write whose answer is lost. Before it is asked for again, `meanwhile` happens.
    async fn ambiguous(
        &self,
        at: &RegisterKey,
        mine: &Write,
        meanwhile: impl Future<Output = ()>,
    ) -> Attempted<WriteResult> {
        let mut cut = self.proxy.fault(ProxyFault::Cut, When::Answer(1));
        let mut held_up = self.proxy.fault(ProxyFault::BlackHole, When::Request(2));
        let elsewhere = async {
            cut.struck().await;
            held_up.struck().await;
            meanwhile.await;
            self.proxy.heal().await.unwrap();
        };
        let (outcome, ()) = tokio::join!(self.registers().write(at, mine), elsewhere);
        outcome.unwrap()
    }
}

async fn connect(kind: ServerKind, url: &str) -> Arc<dyn LockDriver> {
    let options = ServerOptions::default().connections(1).timeout(LONG);
    match kind {
        ServerKind::Postgres => Arc::new(PostgresDriver::connect_with(url, options).await.unwrap()),
        _ => Arc::new(MySqlDriver::connect_with(url, options).await.unwrap()),
    }
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, me))
}

fn at(name: &str) -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() }
}

fn write(value: &[u8], expect: Precondition, token: Option<u64>) -> Write {
    Write {
        value: Some(value.to_vec()),
        expect,
        token: token.and_then(Token::new),
        write_id: WriteId::random(),
        repeated: false,
        ttl: None,
    }
}

fn is_stored(outcome: &WriteResult) -> bool {
    matches!(outcome, WriteResult::Stored(_))
}

const KINDS: [ServerKind; 2] = [ServerKind::Postgres, ServerKind::MariaDb];

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_was_sent_twice_says_so() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let claim = claim("warm");
        let mut cut = scene.proxy.fault(ProxyFault::Cut, When::Answer(1));
        let answered = scene.ours.acquire(&claim, Patience::Try).await.unwrap();
        cut.struck().await;
        assert!(matches!(answered.result, Acquisition::Granted(_)), "{kind:?}: {answered:?}");
        assert_eq!(answered.ambiguous, 1, "{kind:?}");
        assert_eq!(scene.ours.release(&claim).await.unwrap(), Released::Removed);
        let once = scene.ours.acquire(&self::claim("warm"), Patience::Try).await.unwrap();
        assert_eq!(once.ambiguous, 0, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_applied_and_deleted_by_another_does_not_come_back() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let mine = write(b"mine", Precondition::Absent, None);
        let deletion = Write::of(None);
        let meanwhile = async {
            let seen = scene.theirs().load(&at("r")).await.unwrap().expect("it was applied");
            assert_eq!(seen.value, b"mine", "{kind:?}");
            let deleted = scene.theirs().write(&at("r"), &deletion).await.unwrap();
            assert!(is_stored(&deleted.result), "{kind:?}: {deleted:?}");
        };
        let outcome = scene.ambiguous(&at("r"), &mine, meanwhile).await;
        assert_eq!(outcome, Attempted::after(1, WriteResult::Conflict), "{kind:?}");
        assert_eq!(scene.theirs().load(&at("r")).await.unwrap(), None, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_write_that_was_applied_and_overwritten_does_not_come_back() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let mine = write(b"mine", Precondition::Anything, Some(7));
        let meanwhile = async {
            let later = write(b"later", Precondition::Anything, Some(7));
            let stored = scene.theirs().write(&at("r"), &later).await.unwrap();
            assert!(is_stored(&stored.result), "{kind:?}: {stored:?}");
        };
        let outcome = scene.ambiguous(&at("r"), &mine, meanwhile).await;
        assert_eq!(outcome, Attempted::after(1, WriteResult::Conflict), "{kind:?}");
        let there = scene.theirs().load(&at("r")).await.unwrap().unwrap();
        assert_eq!(there.value, b"later", "{kind:?}: an acknowledged write is lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_nobody_touched_is_stored_once() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let mine = write(b"mine", Precondition::Absent, Some(7));
        let seen = async { scene.theirs().load(&at("r")).await.unwrap().unwrap() };
        let version = std::cell::OnceCell::new();
        let meanwhile = async { version.set(seen.await.version).unwrap() };
        let outcome = scene.ambiguous(&at("r"), &mine, meanwhile).await;
        let stored = WriteResult::Stored(*version.get().unwrap());
        assert_eq!(outcome, Attempted::after(1, stored), "{kind:?}");
    }
}

/// What a program is told: that its own write may have been there.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_with_what_came_after_ones_own_write_says_that_it_may_have_been_applied() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let register =
            LockManager::with(scene.ours.clone(), Settings::default()).unwrap().register("r");
        let mut cut = scene.proxy.fault(ProxyFault::Cut, When::Answer(1));
        let mut held_up = scene.proxy.fault(ProxyFault::BlackHole, When::Request(2));
        let elsewhere = async {
            cut.struck().await;
            held_up.struck().await;
            let later = write(b"later", Precondition::Anything, None);
            scene.theirs().write(&at("r"), &later).await.unwrap();
            scene.proxy.heal().await.unwrap();
        };
        let (told, ()) =
            tokio::join!(register.compare_and_store(Precondition::Absent, b"mine"), elsewhere);
        let error = told.unwrap_err();
        assert!(
            matches!(error, Error::Conflict { maybe_applied: true, .. }),
            "{kind:?}: {error:?}"
        );
    }
}
