//! etcd that lets no client in without a login or a certificate: users, passwords, tokens that run out,
//! TLS, rights on one prefix only, and the program's own client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use lockkit_core::driver::{Acquire, Batch, LockDriver, Patience};
use lockkit_core::{Claim, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, Identity, Permission, TlsOptions,
};
use lockkit_lab::{EtcdDemands, Server, ServerKind};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

const PATIENCE: Duration = Duration::from_secs(60);
const ROOT: (&str, &str) = ("root", "the root's own");
/// What it means as a URL: `shop:p%40ss%2Fw%3A%25`.
const SHOP: (&str, &str) = ("shop", "p@ss/w:%");

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

/// From now on no client gets in without a login, and `shop` may read and write below `prefix` alone.
async fn demand_logins(server: &Server, prefix: &str) -> Client {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    client.user_add(ROOT.0, ROOT.1, None).await.unwrap();
    client.user_grant_role(ROOT.0, "root").await.unwrap();
    client.role_add("locks").await.unwrap();
    let below = Permission::read_write(prefix).with_prefix();
    client.role_grant_permission("locks", below).await.unwrap();
    client.user_add(SHOP.0, SHOP.1, None).await.unwrap();
    client.user_grant_role(SHOP.0, "locks").await.unwrap();
    client.auth_enable().await.unwrap();
    let login = ConnectOptions::new().with_user(ROOT.0, ROOT.1);
    Client::connect([server.addr().to_string()], Some(login)).await.unwrap()
}

fn url(server: &Server, login: &str, root: &str) -> String {
    format!("etcd://{login}@{}{root}", server.addr())
}

async fn manager(url: &str) -> LockManager {
    let driver = soon("a connection", EtcdDriver::connect(url)).await.expect("the login is right");
    let settings = Settings::default().ttl(PATIENCE * 4).wait_ttl(PATIENCE * 4);
    LockManager::with(Arc::new(driver), settings).unwrap()
}

/// Waits until so many claims are in the queue.
async fn in_line(client: &mut Client, name: &str, claims: i64) {
    soon("a place in line", async {
        let all = || Some(GetOptions::new().with_prefix().with_count_only());
        let list = format!("lockkit/lock//{name}/");
        while client.get(list.clone(), all()).await.unwrap().count() != claims {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_login_that_etcd_forgot_is_made_anew_for_calls_and_for_streams() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let mut root = demand_logins(&server, "lockkit/").await;
    let (ours, theirs) = (
        manager(&url(&server, "shop:p%40ss%2Fw%3A%25", "")).await,
        manager(&url(&server, "shop:p%40ss%2Fw%3A%25", "")).await,
    );
    let guard = ours.mutex("a").lock().await.unwrap();
    let wait_in_line = |locks: &LockManager| {
        let lock = locks.mutex("a");
        tokio::spawn(async move { lock.lock().await })
    };
    let first = wait_in_line(&theirs);
    in_line(&mut root, "a", 2).await;
    // That throws away all tokens of this user, and leaves the streams open.
    root.user_change_password(SHOP.0, SHOP.1).await.unwrap();
    let second = wait_in_line(&theirs);
    in_line(&mut root, "a", 3).await;
    assert!(guard.verify().await.is_ok());
    guard.release().await.unwrap();
    for waiting in [first, second] {
        let guard = soon("its turn", waiting).await.unwrap().expect("its watch goes on");
        guard.release().await.unwrap();
    }
    // And after a restart, at which etcd forgets all of them and all streams break.
    let guard = ours.mutex("a").lock().await.unwrap();
    server.restart(lockkit_lab::Data::Keep).await.unwrap();
    soon("an answer", async {
        while guard.verify().await.is_err() {
            assert!(guard.is_valid(), "{:?}", guard.loss());
        }
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_token_that_ran_out_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let papers = Papers::make(folder.path());
    let (server, _) = Server::start_demanding_etcd(&papers.demands()).await.unwrap();
    let mut root = demand_logins(&server, "lockkit/").await;
    let locks = manager(&url(&server, "shop:p%40ss%2Fw%3A%25", "")).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    // Longer than a token lasts that is not used: a second, which etcd looks at once a second.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert!(guard.verify().await.is_ok());
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    let waiting = tokio::spawn({
        let lock = locks.mutex("a");
        async move { lock.lock().await }
    });
    let mut fresh = Client::connect(
        [server.addr().to_string()],
        Some(ConnectOptions::new().with_user(ROOT.0, ROOT.1)),
    )
    .await
    .unwrap();
    in_line(&mut fresh, "a", 2).await;
    guard.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(root.auth_disable().await);
}

#[tokio::test]
async fn a_wrong_login_is_an_error_at_once_that_shows_no_password() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let _root = demand_logins(&server, "lockkit/").await;
    for login in ["shop:wrong-secret", "nobody:wrong-secret"] {
        let error = EtcdDriver::connect(&url(&server, login, "")).await.expect_err("it is refused");
        assert!(!error.is_retryable(), "{error}");
        let said = format!("{error} {error:?}");
        assert!(!said.contains("wrong-secret"), "{said}");
    }
    let error = EtcdDriver::connect(&server.url()).await.expect_err("nobody is let in without");
    assert!(!error.is_retryable(), "{error}");
    let driver = EtcdDriver::connect(&url(&server, "shop:p%40ss%2Fw%3A%25", "")).await.unwrap();
    let said = format!("{driver:?}");
    assert!(!said.contains(SHOP.1) && !said.contains("p%40ss"), "{said}");
}

#[tokio::test]
async fn rights_on_one_prefix_are_enough_and_beyond_it_all_is_refused() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let mut root = demand_logins(&server, "team/locks/").await;
    let login = "shop:p%40ss%2Fw%3A%25";
    let locks = manager(&url(&server, login, "/team/locks")).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert!(guard.verify().await.is_ok());
    let permit = locks.semaphore("s", 2).acquire().await.unwrap();
    permit.release().await.unwrap();
    locks.health().await.expect("it is answered as far as it goes");
    let there = root.get("team/locks/lock//a/", Some(GetOptions::new().with_prefix())).await;
    assert_eq!(there.unwrap().count(), 1);
    let namespaces: Vec<_> = locks.admin().namespaces().try_collect().await.unwrap();
    assert_eq!(namespaces, [Namespace::default()]);
    guard.release().await.unwrap();
    let elsewhere = EtcdDriver::connect(&url(&server, login, "")).await;
    let error = elsewhere.expect_err("it may not read there");
    assert!(matches!(error, Error::Backend { .. }) && !error.is_retryable(), "{error:?}");
}

/// A user that may not touch the list of one name. Where etcd checks the rights to what a batch
/// compares only, an operation of it must not do along what that user could not write by itself.
#[tokio::test]
async fn a_batch_with_an_operation_beyond_the_rights_is_refused_and_costs_the_others_nothing() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let mut root = demand_logins(&server, "lockkit/base/").await;
    let ranges = [("lockkit/", "lockkit/lock//theirs/"), ("lockkit/lock//theirs0", "lockkit0")];
    for (from, to) in ranges {
        let range = Permission::read_write(from).with_range_end(to);
        root.role_grant_permission("locks", range).await.unwrap();
    }
    let driver = EtcdDriver::connect(&url(&server, "shop:p%40ss%2Fw%3A%25", "")).await.unwrap();
    let me = Arc::new(lockkit_core::ClientIdentity::of_this_process());
    let acquire = |name: &str| {
        let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
        let claim = Claim::new(key, Mode::Exclusive, PATIENCE, PATIENCE, me.clone());
        Acquire { claim: Arc::new(claim), patience: Patience::Wait }
    };
    let acquires = [acquire("mine"), acquire("theirs")];
    let refused = driver.submit(Batch { releases: &[], acquires: &acquires }).await;
    let refused = refused.expect_err("it is refused");
    let error = refused.error;
    assert!(matches!(error, Error::Backend { .. }) && !error.is_retryable(), "{error:?}");
    assert_eq!(refused.ambiguous, 0, "nothing of it was carried out");
    let count = GetOptions::new().with_prefix().with_count_only();
    let all = root.get("lockkit/lock/", Some(count)).await.unwrap();
    assert_eq!(all.count(), 0, "nothing of it was carried out");

    // Tasks of one manager share a batch, and each gets its own answer.
    let locks = LockManager::new(driver);
    let (a, b, theirs) = (locks.mutex("a"), locks.mutex("b"), locks.mutex("theirs"));
    let (a, b, theirs) = tokio::join!(a.lock(), b.lock(), theirs.lock());
    assert!(matches!(theirs, Err(Error::Backend { .. })), "{theirs:?}");
    for guard in [a, b] {
        guard.expect("it may be written").release().await.unwrap();
    }

    // Which namespaces there are only those learn who may read all.
    let namespaces = locks.admin().namespaces().try_collect::<Vec<_>>().await;
    let error = namespaces.expect_err("it may not read the keys of one list");
    let says = "its user needs the right to read all keys under \"lockkit/\"";
    assert!(error.to_string().contains(says) && !error.is_retryable(), "{error}");
}

#[tokio::test]
async fn clients_with_a_certificate_are_let_in_over_tls_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let papers = Papers::make(folder.path());
    let (server, tls) = Server::start_demanding_etcd(&papers.demands()).await.unwrap();
    let at = |name: &str| papers.file(name);
    let good = format!("?ca={}&cert={}&key={}", at("ca"), at("client"), at("client-key"));
    // Beside a member that is down, and by another name than that of the host.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("etcds://{dead},{tls}/{good}&domain=etcd.test");
    let locks = manager(&url).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let near = manager(&server.url()).await;
    let waiting = tokio::spawn(async move { near.mutex("a").lock().await.map(|g| (g, near)) });
    let mut plain = Client::connect([server.addr().to_string()], None).await.unwrap();
    in_line(&mut plain, "a", 2).await;
    assert!(guard.verify().await.is_ok());
    guard.release().await.unwrap();
    let (guard, _near) = soon("its turn", waiting).await.unwrap().unwrap();
    let lock = locks.mutex("a");
    let back = tokio::spawn(async move { lock.lock().await });
    in_line(&mut plain, "a", 2).await;
    guard.release().await.unwrap();
    soon("its turn, told over TLS", back).await.unwrap().unwrap().release().await.unwrap();

    for (what, options) in [
        ("no certificate", format!("?ca={}&domain=etcd.test", at("ca"))),
        ("an authority that did not sign the server", format!("?ca={}", at("other"))),
        ("a certificate of another authority", {
            let (cert, key) = (at("other"), at("other-key"));
            format!("?ca={}&cert={cert}&key={key}&domain=etcd.test", at("ca"))
        }),
    ] {
        let url = format!("etcds://{tls}/{options}");
        let refused = soon(what, EtcdDriver::connect(&url)).await;
        assert!(refused.is_err(), "{what}");
    }
}

#[tokio::test]
async fn the_programs_own_client_may_have_a_login_and_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let papers = Papers::make(folder.path());
    let (server, tls) = Server::start_demanding_etcd(&papers.demands()).await.unwrap();
    let _root = demand_logins(&server, "mine/").await;
    let read = |name: &str| std::fs::read(papers.file(name)).unwrap();
    let tls_options = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read("ca")))
        .identity(Identity::from_pem(read("client"), read("client-key")))
        .domain_name("etcd.test");
    let options = ConnectOptions::new()
        .with_user(SHOP.0, SHOP.1)
        .with_auto_token_refresh(true)
        .with_require_leader(true)
        .with_tls(tls_options);
    let client = Client::connect([format!("https://{tls}")], Some(options)).await.unwrap();
    let driver = EtcdDriver::with_client(client, "mine");
    let said = format!("{driver:?}");
    assert!(!said.contains(SHOP.1), "{said}");
    assert!(driver.health().await.is_ok());
    let locks = LockManager::new(driver);
    let guard = locks.mutex("a").lock().await.unwrap();
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
}

/// Certificates of an authority, and of another one that no client trusts.
struct Papers<'a>(&'a Path);

impl<'a> Papers<'a> {
    fn make(folder: &'a Path) -> Self {
        let papers = Self(folder);
        let authority = |name: &str| {
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            papers.write(name, &pem);
            papers.write(&format!("{name}-key"), &key.serialize_pem());
            Issuer::new(params, key)
        };
        authority("other");
        let issuer = authority("ca");
        for (name, host) in [("server", "etcd.test"), ("client", "client.test")] {
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let key = KeyPair::generate().unwrap();
            papers.write(name, &params.signed_by(&key, &issuer).unwrap().pem());
            papers.write(&format!("{name}-key"), &key.serialize_pem());
        }
        papers
    }

    fn write(&self, name: &str, pem: &str) {
        std::fs::write(self.file(name), pem).unwrap();
    }

    fn file(&self, name: &str) -> String {
        self.0.join(format!("{name}.pem")).to_str().unwrap().to_owned()
    }

    fn demands(&self) -> EtcdDemands {
        EtcdDemands {
            login_lasts: Duration::from_secs(1),
            authority: self.file("ca").into(),
            certificate: self.file("server").into(),
            key: self.file("server-key").into(),
        }
    }
}
