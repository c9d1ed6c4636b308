//! lockkit on Redis: its rate beside bare scripts and beside other crates, what it costs the
//! server, how fast a lock is handed over, what many who wait and many who hold cost.
//!
//! One server of the lab, without a file on disk. An argument picks the measurements whose names
//! it is part of; `profile` runs lockkit alone for a while.

mod bare;
mod crowds;
mod hand_over;
mod rates;
mod server_time;

use std::net::SocketAddr;

use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Server, ServerKind};
use tokio::runtime::{Builder, Runtime};

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w));
    let rt = threads();
    let server = rt.block_on(server());
    if is_wanted("rates") {
        println!("-- one thread");
        one_thread().block_on(rates::all(&server));
        println!("-- a thread for each core");
        threads().block_on(rates::all(&server));
    }
    if wanted.iter().any(|word| word == "profile") {
        one_thread().block_on(rates::lockkit_alone(&server));
    }
    if is_wanted("server_time") {
        one_thread().block_on(server_time::pairs(&server));
    }
    if is_wanted("hand_over") {
        rt.block_on(hand_over::behind_latency(&server));
    }
    if is_wanted("at_once") {
        rt.block_on(crowds::at_once(&server));
    }
    if is_wanted("waiters") {
        rt.block_on(crowds::waiters(&server));
    }
    if is_wanted("holders") {
        rt.block_on(crowds::holders(&server));
    }
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn threads() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}

async fn server() -> Server {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    ask(server.addr(), &["CONFIG", "SET", "appendonly", "no"]).await;
    let info = info(server.addr(), "server").await;
    println!("redis {}", field(&info, "redis_version"));
    server
}

/// Seconds of CPU that the server has spent.
async fn cpu(addr: SocketAddr) -> f64 {
    let info = info(addr, "cpu").await;
    let part = |name| field(&info, name).parse::<f64>().unwrap();
    part("used_cpu_user") + part("used_cpu_sys")
}

async fn ask(addr: SocketAddr, words: &[&str]) -> RespReply {
    resp::ask(addr, words).await.unwrap()
}

async fn info(addr: SocketAddr, section: &str) -> String {
    ask(addr, &["INFO", section]).await.text().to_owned()
}

/// A line of what `INFO` said, without its name.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}"))
}
