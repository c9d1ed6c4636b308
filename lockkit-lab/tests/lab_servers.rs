//! The lab's single servers: each kind starts, answers, is killed, frozen, started
//! again with and without its data, lives with another time, and leaves nothing.

mod lab_memory;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab_memory::{now_of, recalls, remember};
use lockkit_lab::{Data, LabError, Server, ServerKind, SharedServer, Shift, processes_in};
use tokio::time::{sleep, timeout};

const HOUR: Duration = Duration::from_secs(3600);

async fn lives_through_everything(kind: ServerKind) {
    let mut clock = Stopwatch::new(kind.name());
    let server = Server::start(kind).await.unwrap();
    clock.lap("start");
    let (addr, folder) = (server.addr(), server.folder().to_owned());
    assert!(server.url().contains(&addr.to_string()));
    remember(kind, addr).await.unwrap();
    assert!(recalls(kind, addr).await.unwrap());

    server.freeze().await;
    let asked = timeout(Duration::from_millis(300), recalls(kind, addr)).await;
    assert!(asked.is_err(), "a frozen server answered: {asked:?}");
    assert!(!server.is_awake());
    server.thaw();
    server.ready().await.unwrap();
    assert!(recalls(kind, addr).await.unwrap());
    clock.lap("freeze and thaw");

    server.kill().await;
    assert!(server.processes().is_empty());
    assert!(recalls(kind, addr).await.is_err());
    server.restart(Data::Keep).await.unwrap();
    assert!(recalls(kind, addr).await.unwrap(), "what was written is lost");
    clock.lap("kill, restart with data");

    server.restart(Data::Lose).await.unwrap();
    assert!(!recalls(kind, addr).await.unwrap(), "what was written is still there");
    clock.lap("restart without data");

    // A frozen server, too, can be ended.
    server.freeze().await;
    drop(server);
    assert!(is_gone(&folder));
    clock.lap("end");
}

#[tokio::test]
async fn redis_lives_through_everything() {
    lives_through_everything(ServerKind::Redis).await;
}

#[tokio::test]
async fn postgres_lives_through_everything() {
    lives_through_everything(ServerKind::Postgres).await;
}

#[tokio::test]
async fn mariadb_lives_through_everything() {
    lives_through_everything(ServerKind::MariaDb).await;
}

#[tokio::test]
async fn zookeeper_lives_through_everything() {
    lives_through_everything(ServerKind::ZooKeeper).await;
}

#[tokio::test]
async fn etcd_lives_through_everything() {
    lives_through_everything(ServerKind::Etcd).await;
}

#[tokio::test]
async fn clocks_move_while_servers_run_except_for_etcds() {
    for kind in ServerKind::ALL.into_iter().filter(|kind| kind.has_movable_clock()) {
        let mut clock = Stopwatch::new(&format!("{kind} with a clock"));
        let server = Server::start_with_clock(kind).await.unwrap();
        clock.lap("start");
        for (shift, hours) in [
            (Shift::NONE, 0),
            (Shift::Ahead(HOUR), 1),
            (Shift::Behind(2 * HOUR), -2),
            (Shift::NONE, 0),
        ] {
            server.move_clock(shift).unwrap();
            let off = now_of(&server).await.unwrap() - now();
            assert!((off - hours * 3600).abs() < 60, "{kind}: {off} s after {shift:?}");
        }
        clock.lap("three steps");
    }
    let refused = Server::start_with_clock(ServerKind::Etcd).await;
    assert!(matches!(refused, Err(LabError::Unsupported { .. })));
    let server = Server::start(ServerKind::Redis).await.unwrap();
    assert!(matches!(server.move_clock(Shift::NONE), Err(LabError::Unsupported { .. })));
}

#[tokio::test]
async fn an_own_server_is_another_one_than_the_shared_one() {
    let shared = SharedServer::server(ServerKind::Redis).await.unwrap();
    let again = SharedServer::server(ServerKind::Redis).await.unwrap();
    let own = Server::start(ServerKind::Redis).await.unwrap();
    assert_eq!(shared.url(), again.url());
    assert_ne!(shared.addr(), own.addr());
    remember(ServerKind::Redis, shared.addr()).await.unwrap();
    assert!(!recalls(ServerKind::Redis, own.addr()).await.unwrap());
}

#[tokio::test]
async fn twenty_servers_that_start_at_once_get_ports_of_their_own() {
    let started = (0..20).map(|_| Server::start(ServerKind::Redis));
    let servers = futures_util::future::try_join_all(started).await.unwrap();
    let mut addrs: Vec<_> = servers.iter().map(Server::addr).collect();
    addrs.sort_unstable();
    addrs.dedup();
    assert_eq!(addrs.len(), 20);
}

#[tokio::test]
async fn a_server_is_gone_after_a_panic_of_its_holder() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let folder = server.folder().to_owned();
    let failed = tokio::spawn(async move {
        let _held = server;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(failed.await.unwrap_err().is_panic());
    assert!(is_gone(&folder));
}

#[tokio::test]
async fn servers_are_gone_after_their_holder_was_killed() {
    let (mut holder, folders) = holder();
    let held: usize = folders.iter().map(|folder| processes_in(folder).len()).sum();
    assert!(held >= 5, "{held} processes");
    let since = Instant::now();
    holder.kill().unwrap();
    holder.wait().unwrap();
    all_gone(&folders).await;
    eprintln!("{held} processes of 5 servers gone {:?} after SIGKILL", since.elapsed());
}

#[tokio::test]
async fn servers_are_gone_after_ctrl_c() {
    let (mut holder, folders) = holder();
    let group = rustix::process::Pid::from_child(&holder);
    rustix::process::kill_process(group, rustix::process::Signal::INT).unwrap();
    assert!(holder.wait().unwrap().success());
    all_gone(&folders).await;
}

#[tokio::test]
async fn postgres_leaves_no_shared_memory_behind() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let mine = segment(server.folder());
    assert!(segments().contains(&mine));
    server.restart(Data::Lose).await.unwrap();
    assert!(!segments().contains(&mine));
    let mine = segment(server.folder());
    drop(server);
    assert!(!segments().contains(&mine));
}

/// Another process that holds a server of each kind, and the servers' folders.
fn holder() -> (std::process::Child, Vec<PathBuf>) {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_lockkit-lab"));
    let kinds: Vec<_> =
        ServerKind::ALL.into_iter().filter(|kind| kind.missing().is_none()).collect();
    holder.args(kinds.iter().map(|kind| kind.name())).stdout(Stdio::piped()).stdin(Stdio::null());
    for kind in &kinds {
        holder.env_remove(kind.variable());
    }
    let mut holder = holder.spawn().unwrap();
    let said = BufReader::new(holder.stdout.take().unwrap());
    let folders = said
        .lines()
        .take(kinds.len())
        .map(|line| line.unwrap().rsplit_once("# ").unwrap().1.into())
        .collect();
    (holder, folders)
}

async fn all_gone(folders: &[PathBuf]) {
    timeout(Duration::from_secs(30), async {
        while !folders.iter().all(|folder| is_gone(folder)) {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a server or its folder remains");
}

fn is_gone(folder: &Path) -> bool {
    processes_in(folder).is_empty() && !folder.exists()
}

fn segment(folder: &Path) -> String {
    let note = std::fs::read_to_string(folder.join("postgres/data/postmaster.pid")).unwrap();
    note.lines().nth(6).unwrap().split_whitespace().last().unwrap().into()
}

/// Ids of all segments of System V shared memory.
fn segments() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    table.lines().filter_map(|line| line.split_whitespace().nth(1)).map(Into::into).collect()
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Prints how long things take.
struct Stopwatch {
    name: String,
    since: Instant,
}

impl Stopwatch {
    fn new(name: &str) -> Self {
        Self { name: name.into(), since: Instant::now() }
    }

    fn lap(&mut self, what: &str) {
        eprintln!("{}: {what} {:.0?}", self.name, self.since.elapsed());
        self.since = Instant::now();
    }
}
