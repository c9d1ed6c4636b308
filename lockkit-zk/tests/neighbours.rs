//! Others who lock the same path of ZooKeeper: kazoo's `Lock`, and the same with nodes that are
//! named as those of Curator's `InterProcessMutex`.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use lockkit_core::driver::ClaimId;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_zk::zookeeper_client::{Acls, Client, CreateMode, Error as ZkError};
use lockkit_zk::{Neighbours, ZkDriver, ZkOptions};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Debian's own interpreter, which finds Debian's own kazoo.
const PYTHON: &str = "/usr/bin/python3";
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/recipe/lock.py";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kazoo/lock.py");
const PATIENCE: Duration = Duration::from_secs(90);

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

/// A path of its own in a shared server, and lockkit's view of it.
struct Place {
    server: SharedServer,
    style: &'static str,
    chroot: String,
    client: Client,
    locks: LockManager,
}

impl Place {
    async fn new(style: &'static str) -> Self {
        assert!(
            Path::new(PYTHON).exists() && Path::new(KAZOO).exists(),
            "kazoo is missing, which judges here: run `cargo xtask install`, \
             or `apt-get install python3-kazoo`"
        );
        let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
        let chroot = format!("/neighbours-{}", &ClaimId::random().to_hex()[..8]);
        let client = Client::connect(&server.addr().to_string()).await.unwrap();
        let url = format!("zk://{}{chroot}?neighbours={style}&tick=500ms", server.addr());
        let locks = LockManager::new(ZkDriver::connect(&url).await.unwrap());
        Self { server, style, chroot, client, locks }
    }

    fn path(&self) -> String {
        format!("{}/daily.report", self.chroot)
    }

    fn neighbour(&self, work: &[&str]) -> Command {
        let mut command = Command::new(PYTHON);
        command.arg(SCRIPT).args([&*self.server.addr().to_string(), &*self.path(), self.style]);
        command.args(work).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Another process that takes the lock when it can.
    fn holder(&self) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut child = self.neighbour(&["hold"]).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, said)
    }

    async fn tries(&self) -> String {
        let output = soon("an answer", self.neighbour(&["try"]).output()).await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns when so many wait in the queue.
    async fn in_line(&self, count: usize) {
        soon("a place in line", async {
            loop {
                match self.client.list_children(&self.path()).await {
                    Ok(children) if children.len() == count => return,
                    Ok(_) | Err(ZkError::NoNode) => {}
                    Err(error) => panic!("{error}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

async fn word(said: &mut Lines<BufReader<ChildStdout>>) -> String {
    soon("a word", said.next_line()).await.unwrap().expect("it ended without a word")
}

async fn exclude_each_other_and_hand_over(style: &'static str) {
    let place = Place::new(style).await;
    let mutex = place.locks.mutex("daily.report");
    // The lock has never been in use: who comes first makes the folder.
    let guard = mutex.lock().await.unwrap();
    assert_eq!(place.tries().await, "busy");
    let (mut theirs, mut said) = place.holder();
    place.in_line(2).await;
    guard.release().await.unwrap();
    assert_eq!(word(&mut said).await, "held");

    assert!(mutex.try_lock().await.unwrap().is_none(), "they hold it");
    let readers = place.locks.rwlock("daily.report");
    assert!(readers.try_read().await.unwrap().is_none(), "they hold it");
    let state = place.locks.inspect(lockkit_core::Space::Lock, "daily.report").await.unwrap();
    assert_eq!(state.holders().count(), 1, "they are shown: {state:?}");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    place.in_line(2).await;
    drop(theirs.stdin.take());
    assert_eq!(word(&mut said).await, "released");
    let guard = soon("our turn", waiting).await.unwrap().unwrap();
    assert_eq!(place.tries().await, "busy");
    guard.release().await.unwrap();
    assert_eq!(place.tries().await, "held");
    soon("their end", theirs.wait()).await.unwrap();
}

#[tokio::test]
async fn kazoo_and_lockkit_exclude_each_other_and_hand_over() {
    exclude_each_other_and_hand_over("kazoo").await;
}

#[tokio::test]
async fn curators_nodes_and_lockkit_exclude_each_other_and_hand_over() {
    exclude_each_other_and_hand_over("curator").await;
}

#[tokio::test]
async fn readers_keep_a_neighbour_out_and_a_neighbour_in_line_keeps_readers_out() {
    let place = Place::new("kazoo").await;
    let lock = place.locks.rwlock("daily.report");
    let (one, two) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    assert_eq!(place.tries().await, "busy");
    let (_theirs, mut said) = place.holder();
    place.in_line(3).await;
    assert!(lock.try_read().await.unwrap().is_none(), "a writer waits");
    one.release().await.unwrap();
    two.release().await.unwrap();
    assert_eq!(word(&mut said).await, "held");
}

async fn nobody_is_ever_inside_twice(style: &'static str) {
    const ROUNDS: usize = 15;
    let place = Place::new(style).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0").unwrap();
    let rounds = ROUNDS.to_string();
    let work = ["count", file.path().to_str().unwrap(), &rounds];
    let mut theirs: Vec<_> =
        (0..2).map(|_| place.neighbour(&work).spawn().expect("it starts")).collect();
    let mut ours = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (mutex, path) = (place.locks.mutex("daily.report"), file.path().to_owned());
        ours.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.unwrap();
                let number: usize = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                tokio::task::yield_now().await;
                std::fs::write(&path, (number + 1).to_string()).unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    soon("the end of ours", async {
        while let Some(done) = ours.join_next().await {
            done.unwrap()
        }
    })
    .await;
    for child in &mut theirs {
        assert!(soon("the end of theirs", child.wait()).await.unwrap().success());
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), (4 * ROUNDS).to_string());
}

#[tokio::test]
async fn among_kazoo_and_lockkit_nobody_is_ever_inside_twice() {
    nobody_is_ever_inside_twice("kazoo").await;
}

#[tokio::test]
async fn among_curators_nodes_and_lockkit_nobody_is_ever_inside_twice() {
    nobody_is_ever_inside_twice("curator").await;
}

#[tokio::test]
async fn a_listing_of_namespaces_is_refused_since_a_folder_may_be_a_lock() {
    let place = Place::new("curator").await;
    let error =
        place.locks.admin().namespaces().try_collect::<Vec<_>>().await.expect_err("it is refused");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("shared with Curator or kazoo"), "{error}");
    place.locks.register("r").store("x").await.unwrap();
    let registers: Vec<_> = place.locks.admin().registers("").try_collect().await.unwrap();
    assert_eq!(registers.len(), 1, "registers have a folder of their own");
}

#[tokio::test]
async fn a_driver_that_has_neighbours_sweeps_its_own_nodes_and_nobody_elses() {
    let place = Place::new("kazoo").await;
    let (mut theirs, mut said) = place.holder();
    assert_eq!(word(&mut said).await, "held");
    // A renewal is when a driver looks for nodes that it has lost sight of.
    let options = ZkOptions::new(place.server.addr().to_string()).neighbours(Neighbours::Kazoo);
    let driver = ZkDriver::connect_with(options.chroot(&place.chroot).unwrap()).await.unwrap();
    lockkit_core::driver::LockDriver::renew(&driver, &[]).await.unwrap();
    place.in_line(1).await;
    drop(theirs.stdin.take());
    assert_eq!(word(&mut said).await, "released");
    soon("their end", theirs.wait()).await.unwrap();
}

/// Neighbours do not tell in the folder that they came; so a look is not enough.
#[tokio::test]
async fn a_neighbour_that_comes_while_a_try_is_under_way_is_not_overlooked() {
    let place = Place::new("kazoo").await;
    let proxy = Proxy::start(place.server.addr(), Protocol::ZooKeeper).await.unwrap();
    let options = ZkOptions::new(proxy.addr().to_string()).neighbours(Neighbours::Kazoo);
    let driver = ZkDriver::connect_with(options.chroot(&place.chroot).unwrap()).await.unwrap();
    let locks = LockManager::new(driver);
    let theirs = format!("{}/c1bdf4e9b0d04dfb9b9a4b2c3f1a7a55__lock__", place.path());
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let mutex = locks.mutex("daily.report");
    loop {
        let reader = place.locks.rwlock("daily.report").read().await.unwrap();
        // The folder was seen in use, so the next try looks before it comes.
        assert!(mutex.try_lock().await.unwrap().is_none());
        reader.release().await.unwrap();
        proxy.reset();
        let mut strike = proxy.fault(ProxyFault::BlackHole, When::Request(2));
        let trying = tokio::spawn({
            let mutex = locks.mutex("daily.report");
            async move { mutex.try_lock().await.map(|got| got.is_some()) }
        });
        soon("the second request", strike.struck()).await;
        let (_, sequence) = place.client.create(&theirs, b"", &ephemeral).await.unwrap();
        proxy.heal().await.unwrap();
        let got = soon("an answer", trying).await.unwrap();
        place.client.delete(&format!("{theirs}{sequence}"), None).await.unwrap();
        match got {
            Ok(got) => {
                assert!(!got, "they came first");
                return;
            }
            // All stood still for seconds: once more.
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// The root of what lockkit keeps has that name. A write to its node of the format would close the chroot to
/// all drivers that connect later.
#[tokio::test]
async fn locks_and_namespaces_that_are_named_as_the_root_leave_the_format_as_it_is() {
    let place = Place::new("kazoo").await;
    let url = format!("zk://{}{}?neighbours=kazoo", place.server.addr(), place.chroot);
    let settings = Settings::default().namespace("lockkit");
    let driver = ZkDriver::connect(&url).await.unwrap();
    let inside = LockManager::with(Arc::new(driver), settings).unwrap();
    for (locks, name) in [(&inside, "format"), (&inside, "clock"), (&place.locks, "lockkit")] {
        let guard = locks.mutex(name).lock().await.unwrap();
        let again = locks.mutex(name);
        assert!(again.try_lock().await.unwrap().is_none(), "{name} is held");
        let states: Vec<_> = locks.admin().list("").try_collect().await.unwrap();
        let held: Vec<_> = states.iter().map(|state| state.key.name.as_str()).collect();
        assert_eq!(held, [name]);
        guard.release().await.unwrap();
    }
    let format = format!("{}/lockkit/format", place.chroot);
    let (stored, stat) = place.client.get_data(&format).await.unwrap();
    assert_eq!((&*stored, stat.version), (&b"1"[..], 0));
    ZkDriver::connect(&url).await.unwrap();
}
