//! From the sending of a release until the next holder knows, with 10 ms each way between clients
//! and server; beside a `PING`, which is one way in and one way out.

use std::time::{Duration, Instant};

use lockkit::{LockManager, Space};
use lockkit_bench::median;
use lockkit_lab::Server;
use lockkit_lab::proxy::{Protocol, Proxy};
use lockkit_lab::raw::resp::RespConnection;

const ROUNDS: usize = 40;

pub(crate) async fn behind_latency(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    proxy.latency(Duration::from_millis(10));
    let url = server.url_at(proxy.addr());
    let (a, b) = (lockkit::connect(&url).await.unwrap(), lockkit::connect(&url).await.unwrap());
    let mut pinging = RespConnection::open(proxy.addr()).await.unwrap();
    let (mut ours, mut pings) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(hand_over(&a, &b).await);
        let begun = Instant::now();
        pinging.call(&["PING"]).await.unwrap();
        pings.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let (ours, ping) = (median(ours), median(pings));
    println!(
        "hand-over, 10 ms each way: {ours:.2} ms; {:.2} of 20 ms; {:.2} of a PING's {ping:.2} ms",
        ours / 20.0,
        ours / ping
    );
}

/// In milliseconds.
async fn hand_over(a: &LockManager, b: &LockManager) -> f64 {
    let held = a.mutex("turn").lock().await.unwrap();
    let next = b.mutex("turn");
    let waiting = tokio::spawn(async move {
        let guard = next.lock().await.unwrap();
        (Instant::now(), guard)
    });
    while a.inspect(Space::Lock, "turn").await.unwrap().queue.len() < 2 {}
    // Its answer is on its way to the one who waits.
    tokio::time::sleep(Duration::from_millis(40)).await;
    let begun = Instant::now();
    held.release().await.unwrap();
    let (at, guard) = waiting.await.unwrap();
    guard.release().await.unwrap();
    at.duration_since(begun).as_secs_f64() * 1e3
}
