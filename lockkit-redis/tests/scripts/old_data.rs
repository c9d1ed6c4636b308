//! Older data that come back while clients are connected: an older file, or keys put back by hand (as
//! after a failover to a replica that lags). Locks taken since are lost, which their holders are told;
//! tokens go on above all that were given.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkit_core::driver::{ClaimEnd, LockDriver, Renewal};
use lockkit_core::{Claim, LockManager, Mode, Namespace, Token};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Data, Server};
use lockkit_redis::RedisDriver;

use super::{LONG, PERMIT, ask, claim, connect, queue, start, take};

/// What a server had, and how it gets that back.
trait Older {
    fn put_back<'a>(&'a self, server: &'a Server) -> BoxFuture<'a, ()>;
}

/// Its files.
struct Files {
    data: PathBuf,
    copy: PathBuf,
}

impl Files {
    fn of(server: &Server) -> Self {
        let data = find(server.folder(), "appendonlydir").expect("its data are in a file");
        let copy = server.folder().join("older");
        fs::create_dir_all(&copy).unwrap();
        copy_all(&data, &copy);
        Self { data, copy }
    }
}

impl Older for Files {
    fn put_back<'a>(&'a self, server: &'a Server) -> BoxFuture<'a, ()> {
        Box::pin(async {
            server.kill().await;
            fs::read_dir(&self.data).unwrap().for_each(|file| {
                fs::remove_file(file.unwrap().path()).unwrap();
            });
            copy_all(&self.copy, &self.data);
            server.restart(Data::Keep).await.unwrap();
        })
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (found, rest): (Vec<_>, Vec<_>) = entries.partition(|path| path.ends_with(name));
    let deeper = || rest.iter().filter(|path| path.is_dir()).find_map(|path| find(path, name));
    found.into_iter().next().or_else(deeper)
}

fn copy_all(from: &Path, to: &Path) {
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Its strings, as a replica has them that lags.
struct Strings(Vec<(String, String)>);

impl Strings {
    async fn of(server: &Server) -> Self {
        let RespReply::Array(keys) = ask(server, &["KEYS", "*"]).await else { panic!("keys") };
        let mut strings = Vec::new();
        for key in keys.iter().map(RespReply::text) {
            strings.push((key.to_owned(), ask(server, &["GET", key]).await.text().to_owned()));
        }
        Self(strings)
    }
}

impl Older for Strings {
    fn put_back<'a>(&'a self, server: &'a Server) -> BoxFuture<'a, ()> {
        Box::pin(async {
            let mut words = vec!["MSET"];
            words.extend(self.0.iter().flat_map(|(key, value)| [key.as_str(), value]));
            let mut connection = resp::RespConnection::open(server.addr()).await.unwrap();
            let both: [&[&str]; 2] = [&["FLUSHALL"], &words];
            connection.send(&both).await.unwrap();
            for _ in both {
                connection.read().await.unwrap();
            }
        })
    }
}

async fn older(server: &Server, files: bool) -> Box<dyn Older> {
    if files { Box::new(Files::of(server)) } else { Box::new(Strings::of(server).await) }
}

/// The greatest token in the line of this claim's lock.
async fn greatest(driver: &RedisDriver, about: &Arc<Claim>) -> Token {
    let state = driver.inspect(&about.key).await.unwrap();
    state.queue.iter().map(|it| it.token).max().expect("a claim is in the queue")
}

async fn is_gone(driver: &RedisDriver, claim: &Arc<Claim>) {
    let renewed = loop {
        // A connection that broke with the server fails once.
        match driver.renew_single(claim).await {
            Ok(renewed) => break renewed,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert_eq!(renewed, Renewal::Ended(ClaimEnd::NotFound));
}

async fn older_data_come_back(files: bool) {
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let (server, idle) = start().await;
        let first = claim(mode);
        take(&idle, &first).await;
        idle.release(&first).await.unwrap();
        let older = older(&server, files).await;

        let (holding, waiting) = (connect(&server).await, connect(&server).await);
        let all = match mode {
            Mode::Permits { limit, .. } => claim(Mode::Permits { permits: limit, limit }),
            mode => claim(mode),
        };
        let waiter = claim(if mode == Mode::Shared { Mode::Exclusive } else { mode });
        take(&holding, &all).await;
        queue(&waiting, &waiter).await;
        let before = greatest(&holding, &all).await;

        older.put_back(&server).await;
        is_gone(&holding, &all).await;
        is_gone(&waiting, &waiter).await;
        for (who, driver) in [("idle", &idle), ("held", &holding), ("new", &connect(&server).await)]
        {
            let next = claim(mode);
            let token = take(driver, &next).await;
            assert!(token > before, "{mode:?}, the client that was {who}: {token} after {before}");
            driver.release(&next).await.unwrap();
        }
        // Who asks anew.
        take(&waiting, &waiter).await;
        assert!(greatest(&waiting, &waiter).await > before);
    }
}

#[tokio::test]
async fn tokens_grow_for_every_client_when_an_older_file_comes_back() {
    older_data_come_back(true).await;
}

#[tokio::test]
async fn tokens_grow_for_every_client_when_older_keys_come_back() {
    older_data_come_back(false).await;
}

/// A base that was raised is forgotten with the rest; who knew it goes on above it.
#[tokio::test]
async fn managers_that_are_open_keep_the_token_base_that_older_data_do_not_have() {
    let ttl = Duration::from_secs(3);
    let (server, driver) = start().await;
    let first = claim(Mode::Exclusive);
    take(&driver, &first).await;
    driver.release(&first).await.unwrap();
    let older = Strings::of(&server).await;
    let raising = connect(&server).await;
    raising.raise_namespace_counter(&Namespace::default(), 1 << 52).await.unwrap();
    assert_eq!(raising.namespace_counter(&Namespace::default()).await.unwrap(), 1 << 52);
    let managers = [(); 3].map(|()| async { LockManager::new(connect(&server).await) });
    let [holding, waiting, idle] = managers;
    let (holding, waiting, idle) = (holding.await, waiting.await, idle.await);
    idle.mutex("warm").lock().await.unwrap().release().await.unwrap();
    let held = holding.mutex("a").ttl(ttl).lock().await.unwrap();
    let before = held.token().unwrap();
    assert!(before.get() > 1 << 52);
    let waits = tokio::spawn(async move {
        let guard = waiting.mutex("a").ttl(ttl).lock().await.unwrap();
        (guard.token().unwrap(), guard, waiting)
    });
    while holding.inspect(lockkit_core::Space::Lock, "a").await.unwrap().queue.len() < 2 {
        tokio::task::yield_now().await;
    }
    older.put_back(&server).await;
    let (token, guard, _waiting) = tokio::time::timeout(LONG, waits).await.unwrap().unwrap();
    assert!(token > before, "{token} after {before}");
    assert!(tokio::time::timeout(LONG, held.lost()).await.is_ok(), "it is told");
    guard.release().await.unwrap();
    let last = idle.mutex("a").lock().await.unwrap();
    assert!(last.token().unwrap() > token);
    // Who connects now reads a base that others are above: an administrator raises it again.
    let read = raising.namespace_counter(&Namespace::default()).await;
    assert!(read.is_err_and(|error| error.to_string().contains("base")), "it went back");
    raising.raise_namespace_counter(&Namespace::default(), 1 << 52).await.unwrap();
    assert_eq!(raising.namespace_counter(&Namespace::default()).await.unwrap(), 1 << 52);
}
