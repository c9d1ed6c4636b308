//! What requests that wait cost a server: `cargo run --release -p lockkit-server --example waiting
//! [NUMBER]`, after `cargo build --release -p lockkit-server --examples`. Starts Redis and a server on
//! it, has so many requests (5,000) wait for locks that are held, each on a connection of its own, and
//! prints the server's memory for each, and its time on a CPU for 30 s in which each is asked again
//! once, as clients do.

use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use lockkit_lab::service::ServiceProcess;
use lockkit_lab::{Server, ServerKind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// Each has a holder and a line.
const LOCKS: usize = 50;

const REST: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let number = std::env::args().nth(1).map_or(Ok(5_000), |word| word.parse())?;
    // The server inherits it.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let backend = Server::start(ServerKind::Redis).await?;
    let worker = std::env::current_exe()?.with_file_name("http_worker");
    let server = ServiceProcess::start(&worker, &backend.url())?;
    let connect = async || TcpStream::connect(server.address()).await;

    let mut first = connect().await?;
    for lock in 0..LOCKS {
        ask(&mut first, "acquire", lock, lock, 0).await?;
    }
    let before = memory(server.pid())?;
    let mut clients = JoinSet::new();
    for client in LOCKS..LOCKS + number {
        let mut stream = connect().await?;
        clients.spawn(async move {
            // It is in line before it waits, so that the line is complete early.
            let mut answer = ask(&mut stream, "acquire", client % LOCKS, client, 0).await;
            while answer.is_ok() {
                answer = ask(&mut stream, "wait", client % LOCKS, client, 25_000).await;
            }
            eprintln!("a client ends: {answer:?}");
        });
    }
    let metric = format!("lockkit_http_waiting_requests{{backend=\"redis\"}} {number}\n");
    while !metrics(&mut first).await?.contains(&metric) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let after = memory(server.pid())?;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    println!(
        "{number} requests wait: {:.1} MiB before, {:.1} MiB now, {:.1} KiB for each",
        kib(before) / 1024.0,
        kib(after) / 1024.0,
        kib(after - before) / number as f64
    );
    let (begun, spent) = (Instant::now(), time(server.pid())?);
    tokio::time::sleep(REST).await;
    let spent = time(server.pid())? - spent;
    let share = spent.as_secs_f64() / begun.elapsed().as_secs_f64();
    println!("in {REST:?} the server was on a CPU for {spent:?}: {:.1} % of one", share * 100.0);
    println!("{:.1} KiB for each at the end", kib(memory(server.pid())? - before) / number as f64);
    clients.shutdown().await;
    Ok(())
}

/// One request about a claim, and its answer.
async fn ask(
    stream: &mut TcpStream,
    path: &str,
    lock: usize,
    id: usize,
    wait_ms: u64,
) -> Result<(), Failure> {
    let claim = json!({
        "id": format!("{id:032x}"), "name": format!("lock/{lock}"),
        "ttl_ms": 600_000, "wait_ttl_ms": 600_000,
    });
    let body = json!({"claim": claim, "wait_ms": wait_ms}).to_string();
    let head = format!(
        "POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len(),
    );
    let answer = exchange(stream, &head).await?;
    let expected = answer.starts_with("HTTP/1.1 20");
    if expected { Ok(()) } else { Err(answer.into()) }
}

async fn metrics(stream: &mut TcpStream) -> Result<String, Failure> {
    exchange(stream, "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await
}

async fn exchange(stream: &mut TcpStream, request: &str) -> Result<String, Failure> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err("the server closed a connection".into());
        }
        let text = std::str::from_utf8(&answer)?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.ok_or("no length")?.parse::<usize>()? <= body.len() {
            return Ok(text.to_owned());
        }
    }
}

/// The resident memory of a process, in bytes.
fn memory(pid: u32) -> Result<u64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// How long a process has been on a CPU.
fn time(pid: u32) -> Result<Duration, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name, which may have anything in it: the 14th and 15th field, in hundredths.
    let (_, rest) = stat.rsplit_once(')').ok_or("no stat")?;
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(Duration::from_millis(ticks.sum::<Result<u64, _>>()? * 10))
}
