//! What a lock and its release cost the server: by its own clock (`INFO commandstats`), and in CPU
//! (`INFO cpu`), which counts what it reads and writes, too.

use lockkit_bench::{Way, median};
use lockkit_lab::Server;

use crate::{ask, cpu, field, info, rates};

const ROUNDS: usize = 25;

pub(crate) async fn pairs(server: &Server) {
    for (tasks, times) in [(1, 1_000), (64, 12_800)] {
        let ways = [rates::lockkit(server, tasks).await, rates::bare(server, tasks).await];
        let (mut scripts, mut all) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
        for way in &ways {
            way.round(times).await;
        }
        for _ in 0..ROUNDS {
            for (i, way) in ways.iter().enumerate() {
                let (script, cpu) = micros(server, way, times).await;
                scripts[i].push(script);
                all[i].push(cpu);
            }
        }
        for (what, [ours, bare]) in [("in scripts", scripts), ("of CPU", all)] {
            let (ours, bare) = (median(ours), median(bare));
            let ratio = ours / bare;
            println!(
                "server's time, {tasks} at a time: {ours:.2} µs {what} a pair beside {bare:.2} µs \
                 bare, ratio {ratio:.2}"
            );
        }
    }
}

async fn micros(server: &Server, way: &Way, times: usize) -> (f64, f64) {
    ask(server.addr(), &["CONFIG", "RESETSTAT"]).await;
    let before = cpu(server.addr()).await;
    way.round(times).await;
    let cpu = cpu(server.addr()).await - before;
    let stats = info(server.addr(), "commandstats").await;
    let usec = field(&stats, "cmdstat_evalsha").split(',').find_map(|f| f.strip_prefix("usec="));
    (usec.unwrap().parse::<f64>().unwrap() / times as f64, cpu * 1e6 / times as f64)
}
