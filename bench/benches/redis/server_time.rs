//! What a lock and its release cost the server, by its own clock (`INFO commandstats`).

use lockkit_bench::{Way, median};
use lockkit_lab::Server;

use crate::{ask, field, info, rates};

const ROUNDS: usize = 25;
const TIMES: usize = 1_000;

pub(crate) async fn pairs(server: &Server) {
    let ways = [rates::lockkit(server, 1).await, rates::bare(server, 1).await];
    let mut spent = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (way, spent) in ways.iter().zip(&mut spent) {
            spent.push(micros(server, way).await);
        }
    }
    let [ours, bare] = spent.map(median);
    println!(
        "server's time: {ours:.2} µs a pair beside {bare:.2} µs bare, ratio {:.2}",
        ours / bare
    );
}

async fn micros(server: &Server, way: &Way) -> f64 {
    ask(server.addr(), &["CONFIG", "RESETSTAT"]).await;
    way.round(TIMES).await;
    let stats = info(server.addr(), "commandstats").await;
    let usec = field(&stats, "cmdstat_evalsha").split(',').find_map(|f| f.strip_prefix("usec="));
    usec.unwrap().parse::<f64>().unwrap() / TIMES as f64
}
