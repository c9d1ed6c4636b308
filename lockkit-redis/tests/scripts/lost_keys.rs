//! A queue or its counter is gone, by hand or by an eviction: every operation answers, and the lock works again.

use std::sync::Arc;

use lockkit_core::driver::{LockDriver, Patience, Renewal};
use lockkit_core::{Claim, Mode};
use lockkit_lab::Server;
use lockkit_redis::RedisDriver;

use super::{PERMIT, ask, claim, holds, queue, start, take};
use lockkit_lab::raw::resp::RespReply;

struct Scene {
    server: Server,
    driver: RedisDriver,
    holder: Arc<Claim>,
    waiters: [Arc<Claim>; 2],
}

/// One holds all of it, and two wait.
async fn scene(mode: Mode) -> Scene {
    let (server, driver) = start().await;
    let holder = match mode {
        Mode::Permits { limit, .. } => claim(Mode::Permits { permits: limit, limit }),
        other => claim(other),
    };
    let other = if mode == Mode::Shared { Mode::Exclusive } else { mode };
    let waiters = [claim(other), claim(other)];
    take(&driver, &holder).await;
    for waiter in &waiters {
        queue(&driver, waiter).await;
    }
    Scene { server, driver, holder, waiters }
}

async fn keys(server: &Server) -> Vec<String> {
    let RespReply::Array(keys) = ask(server, &["KEYS", "*"]).await else { panic!("KEYS") };
    let keys = keys.iter().map(|key| key.text().to_owned());
    keys.filter(|key| key != "lockkit:format").collect()
}

async fn lose(server: &Server, word: &str) {
    let all = keys(server).await;
    let key = all.iter().find(|key| key.contains(word)).unwrap_or_else(|| panic!("{all:?}"));
    ask(server, &["DEL", key]).await;
}

#[tokio::test]
async fn whichever_key_of_a_queue_is_gone_every_verb_answers_and_the_lock_works_again() {
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        for word in [":{", ":tokens:"] {
            let scene = scene(mode).await;
            let word = match word {
                ":{" => format!("lockkit:{}:{{", if mode == PERMIT { "sem" } else { "lock" }),
                other => other.to_owned(),
            };
            let all = [&scene.holder, &scene.waiters[0], &scene.waiters[1]];
            for verb in 0..5 {
                if keys(&scene.server).await.iter().any(|key| key.contains(&word)) {
                    lose(&scene.server, &word).await;
                }
                verbs(&scene, all[verb % 3], verb).await;
            }
            for claim in all {
                scene.driver.release(claim).await.unwrap();
            }
            let last = claim(mode);
            take(&scene.driver, &last).await;
            holds(&scene.driver, &last).await;
        }
    }
}

/// The verbs that read a list, one after the other.
async fn verbs(scene: &Scene, about: &Arc<Claim>, verb: usize) {
    let driver = &scene.driver;
    match verb {
        0 => drop(driver.renew_single(about).await.unwrap()),
        1 => {
            let newcomer = claim(about.mode);
            driver.acquire(&newcomer, Patience::Wait).await.unwrap();
            driver.release(&newcomer).await.unwrap();
        }
        2 => drop(driver.acquire(&claim(about.mode), Patience::Try).await.unwrap()),
        3 => drop(driver.shorten(about, super::LONG).await.unwrap()),
        _ => {
            let renewed = driver.downgrade(about).await.unwrap();
            assert!(!matches!(renewed, Renewal::Ended(lockkit_core::driver::ClaimEnd::Broken(_))));
        }
    }
    driver.inspect(&about.key).await.unwrap();
}
