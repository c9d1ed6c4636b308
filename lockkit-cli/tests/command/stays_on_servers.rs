//! Slots, least hold and lock delay on real servers: what a process that ends leaves there.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkit_lab::{Server, ServerKind, SharedServer};
use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Running, Stage, code, stderr, stdout, wait_for};

async fn url(kind: ServerKind) -> String {
    SharedServer::server(kind).await.unwrap().url().to_owned()
}

fn holders(stage: &Stage, url: &str, name: &str) -> usize {
    let shown = stage.run(&["show", "--lock", "--json", "--url", url, name]);
    let shown: Value =
        serde_json::from_slice(&shown.stdout).unwrap_or_else(|_| panic!("{}", stderr(&shown)));
    shown["holders"].as_array().unwrap().len()
}

fn wait_for_holder(stage: &Stage, url: &str, name: &str) {
    wait_for("a holder", || (holders(stage, url, name) == 1).then_some(()));
}

fn free_after(stage: &Stage, url: &str, name: &str, since: Instant) -> Duration {
    wait_for("the lock is free", || (holders(stage, url, name) == 0).then_some(()));
    since.elapsed()
}

/// A name of this test's own.
fn named(test: &str) -> String {
    format!("{test}/{}", std::process::id())
}

async fn a_killed_holder_s_slot_is_free_after_its_lease(kind: ServerKind) {
    let (stage, url, name) = (Stage::new(), url(kind).await, named("slot"));
    let run = ["run", "--url", &url, "--ttl", "3s", "--slots", "1", &name];
    let holder = stage.start(&[&run[..], &["sleep", "1000"]].concat());
    wait_for_holder(&stage, &url, &format!("lockkit.slot/{name}/0"));
    let began = Instant::now();
    holder.signal(Signal::KILL);
    let next = stage.run(&[&run[..], &["sh", "-c", "echo $LOCKKIT_SLOT"]].concat());
    assert_eq!((code(&next), stdout(&next).trim()), (0, "0"), "{}", stderr(&next));
    // It was renewed a third of its ttl ago at most.
    assert!(began.elapsed() >= Duration::from_millis(1_500), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_killed_holder_s_slot_on_redis() {
    a_killed_holder_s_slot_is_free_after_its_lease(ServerKind::Redis).await;
}

#[tokio::test]
async fn a_killed_holder_s_slot_on_postgres() {
    a_killed_holder_s_slot_is_free_after_its_lease(ServerKind::Postgres).await;
}

#[tokio::test]
async fn a_killed_holder_s_slot_on_etcd() {
    a_killed_holder_s_slot_is_free_after_its_lease(ServerKind::Etcd).await;
}

#[tokio::test]
async fn a_killed_holder_s_slot_on_zookeeper() {
    a_killed_holder_s_slot_is_free_after_its_lease(ServerKind::ZooKeeper).await;
}

/// The command ends at once; where the backend cannot be left with the lock, so does lockkit at SIGTERM.
async fn a_lock_outlasts_its_command(kind: ServerKind, is_left: bool) {
    let (stage, url, name) = (Stage::new(), url(kind).await, named("least"));
    let began = Instant::now();
    let mut run = stage.start(&[
        "run",
        "--url",
        &url,
        "--ttl",
        "4s",
        "--at-least",
        "8s",
        "--progress=json",
        &name,
        "touch",
        "ran",
    ]);
    wait_for("the end of the command", || stage.path("ran").exists().then_some(()));
    if is_left {
        assert_eq!(run.code(), 0);
        assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
    } else {
        let said = stage.wait_for_file("stderr");
        let line: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(line["progress"]["phase"], "held", "{said}");
        run.signal(Signal::TERM);
        assert_eq!(run.code(), 143);
        assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
    }
    assert_eq!(holders(&stage, &url, &name), 1);
    let free = free_after(&stage, &url, &name, began);
    assert!(free >= Duration::from_secs(8), "free after {free:?}");
}

#[tokio::test]
async fn a_lock_outlasts_its_command_on_redis() {
    a_lock_outlasts_its_command(ServerKind::Redis, true).await;
}

#[tokio::test]
async fn a_lock_outlasts_its_command_on_postgres() {
    a_lock_outlasts_its_command(ServerKind::Postgres, true).await;
}

#[tokio::test]
async fn a_lock_outlasts_its_command_on_etcd() {
    a_lock_outlasts_its_command(ServerKind::Etcd, false).await;
}

#[tokio::test]
async fn a_lock_outlasts_its_command_on_zookeeper() {
    a_lock_outlasts_its_command(ServerKind::ZooKeeper, false).await;
}

/// Also where the connection of the process keeps its claims alive, and its end would end them.
async fn a_lost_lock_stays_closed(kind: ServerKind) {
    let (stage, url, name) = (Stage::new(), url(kind).await, named("delay"));
    let mut holder = stage.start(&[
        "run",
        "--url",
        &url,
        "--ttl",
        "4s",
        "--lock-delay",
        "8s",
        &name,
        "-c",
        "echo >up; exec sleep 1000",
    ]);
    // The backend shows it as a holder before `lockkit` knows, and a late grant is renewed.
    stage.wait_for_file("up");
    let stopped = Instant::now();
    holder.signal(Signal::STOP);
    // Its guard ends 3.6 s after its last renewal at most; the lease 12 s after it.
    std::thread::sleep(Duration::from_secs(4));
    holder.signal(Signal::CONT);
    assert_eq!(holder.code(), 74);
    let ended = stopped.elapsed();
    assert!(ended < Duration::from_secs(8), "it does not wait for the delay: {ended:?}");
    assert_eq!(holders(&stage, &url, &name), 1, "{ended:?} after the stop");
    // The last renewal was 4/3 s before the stop at most.
    let free = free_after(&stage, &url, &name, stopped);
    assert!(free >= Duration::from_secs(10), "open {free:?} after the stop");
}

#[tokio::test]
async fn a_lost_lock_stays_closed_on_redis() {
    a_lost_lock_stays_closed(ServerKind::Redis).await;
}

#[tokio::test]
async fn a_lost_lock_stays_closed_on_postgres() {
    a_lost_lock_stays_closed(ServerKind::Postgres).await;
}

#[tokio::test]
async fn a_lost_lock_stays_closed_on_etcd() {
    a_lost_lock_stays_closed(ServerKind::Etcd).await;
}

#[tokio::test]
async fn a_lost_lock_stays_closed_on_zookeeper() {
    a_lost_lock_stays_closed(ServerKind::ZooKeeper).await;
}

#[tokio::test]
async fn progress_shows_an_error_in_the_middle_of_waiting_and_the_place_again() {
    let (stage, server) = (Stage::new(), Server::start(ServerKind::Redis).await.unwrap());
    let url = server.url();
    let _holder = stage.start(&["run", "--url", &url, "--ttl", "2m", "a", "sleep", "1000"]);
    wait_for_holder(&stage, &url, "a");
    let wait = ["run", "--url", &url, "--ttl", "2m", "--progress=json", "a", "true"];
    let mut waiter = stage.start(&wait);
    let lines = || -> Vec<Value> {
        let said = std::fs::read_to_string(stage.path("stderr")).unwrap_or_default();
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let at_the_end = |what: &str, is_it: &dyn Fn(&Value) -> bool| {
        wait_for(what, || lines().pop().filter(|line| is_it(&line["progress"])))
    };
    at_the_end("the place", &|it| it["position"] == 1 && it["error"].is_null());
    server.freeze().await;
    let error = at_the_end("the error", &|it| it["error"].is_string());
    assert!(error["progress"]["error"].as_str().unwrap().contains("has not answered"), "{error}");
    server.thaw();
    at_the_end("the place again", &|it| it["position"] == 1 && it["error"].is_null());
    waiter.signal(Signal::INT);
    waiter.end();
    // Connecting is a part of the wait.
    let nowhere = "redis://127.0.0.1:1/?timeout=1s";
    let mut waiter =
        stage.start(&["run", "--url", nowhere, "--wait", "2s", "--progress=json", "a", "true"]);
    assert_eq!(waiter.code(), 69);
    assert!(lines()[0]["progress"]["error"].is_string(), "{:?}", lines());
}

/// Commands that hold a slot, some of which are killed together with their lockkit, never meet another one
/// of their number: the kernel's own lock of a file for each number is never found taken.
async fn no_two_hold_one_number_while_holders_are_killed(url: &str) {
    let (stage, name) = (Stage::new(), named("storm"));
    let script = "echo >>turns; flock -n -E 99 slot-$LOCKKIT_SLOT sleep 0.2; \
                  test $? = 99 && echo two in $LOCKKIT_SLOT >>bad; exit 0";
    let run = ["run", "--url", url, "--ttl", "1s", "--slots", "2", &name, "sh", "-c", script];
    let until = Instant::now() + Duration::from_secs(12);
    std::thread::scope(|scope| {
        for worker in 0..5_u64 {
            let (stage, run) = (&stage, &run);
            scope.spawn(move || {
                for turn in 0.. {
                    if Instant::now() > until {
                        return;
                    }
                    let mut command = stage.lockkit(run);
                    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                    let mut running = Running(command.spawn().unwrap());
                    if (worker + turn) % 3 == 0 {
                        std::thread::sleep(Duration::from_millis(
                            150 + (worker * 137 + turn * 61) % 400,
                        ));
                        let _ = running.0.kill();
                    }
                    running.end();
                }
            });
        }
    });
    let turns = std::fs::read_to_string(stage.path("turns")).unwrap_or_default().lines().count();
    assert!(turns >= 10, "{turns} turns");
    let bad = std::fs::read_to_string(stage.path("bad")).unwrap_or_default();
    assert_eq!(bad, "", "of {turns} turns");
}

#[tokio::test]
async fn no_two_hold_one_number_on_redis_while_holders_are_killed() {
    no_two_hold_one_number_while_holders_are_killed(&url(ServerKind::Redis).await).await;
}

#[tokio::test]
async fn no_two_hold_one_number_on_postgres_while_holders_are_killed() {
    no_two_hold_one_number_while_holders_are_killed(&url(ServerKind::Postgres).await).await;
}
