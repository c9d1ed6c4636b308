//! The trials catch what they are there for: one wrong driver for each, around the driver for
//! Redis, which passes them all.

mod wrong_driver;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Outcome;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_lab::raw::resp;
use lockkit_lab::trials::{Trial, trial};
use lockkit_lab::{Concerns, Deployment, RefusalMode};
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::RedisDriver;
use wrong_driver::{InjectedBug, Wrong};

struct WrongRedis(InjectedBug);

#[async_trait]
impl Deployment for WrongRedis {
    fn kind(&self) -> ServerKind {
        ServerKind::Redis
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        let right = RedisDriver::connect(url).await?;
        Ok(Arc::new(Wrong::new(self.0, Arc::new(right))))
    }

    fn refusals(&self) -> Vec<RefusalMode> {
        vec![RefusalMode {
            what: "the memory is full",
            retryable: true,
            concerns: Concerns::Claims,
            begin: |server| Box::pin(limit_memory(server, "1")),
            end: |server| Box::pin(limit_memory(server, "0")),
        }]
    }
}

async fn limit_memory(server: &Server, bytes: &'static str) -> io::Result<()> {
    let set = ["CONFIG", "SET", "maxmemory", bytes];
    resp::ask(server.addr(), &set).await.map(drop)
}

/// The trial must fail, and must say why in these words.
async fn convicts(bug: InjectedBug, name: &str, words: &str) {
    convicts_one_way(bug, name, &[words]).await;
}

/// With one of these sentences: which comes first depends on what runs beside.
async fn convicts_one_way(bug: InjectedBug, name: &str, words: &[&str]) {
    let tried = Trial::named(name).expect("there is such a trial");
    let report = trial(Arc::new(WrongRedis(bug)), tried).await;
    match report.outcome {
        Outcome::Failed(why) => {
            assert!(words.iter().any(|words| why.contains(words)), "{bug:?}, {name}: {why}")
        }
        other => panic!("{bug:?} is not caught by {name}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_round_trip_too_many_is_counted() {
    let bug = InjectedBug::LooksFirst;
    let name = "cost_01_a_free_lock_is_acquired_within_the_budget";
    convicts(bug, name, "over or under the budget").await;
    let name = "cost_03_a_refused_try_is_within_the_budget";
    convicts(bug, name, "over or under the budget").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_in_several_turns_are_counted() {
    let name = "cost_04_a_thousand_claims_are_renewed_in_one_round_trip";
    convicts(InjectedBug::RenewsInTurns, name, "renewing 1,000 claims").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_ask_are_heard() {
    let name = "cost_05_a_thousand_waiters_are_silent";
    convicts(InjectedBug::WaitersAsk, name, "are never silent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_take_longer_in_crowds_are_timed() {
    let name = "cost_08_many_waiters_at_one_name_delay_no_other";
    convicts(InjectedBug::SlowInCrowds, name, "grew more than 3 times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_leaks_when_its_answer_is_lost_is_found() {
    let name = "robust_01_an_answer_is_lost_after_the_server_acted_at_any_message";
    let leaks = ["it is free: Busy", "left: [(Shared, true), (Shared, true)]"];
    convicts_one_way(InjectedBug::ForgetsIds, name, &leaks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_never_reconnects_is_found() {
    let name = "robust_02_the_connection_is_cut_at_any_message";
    convicts(InjectedBug::NeverReconnects, name, "it fails and fails").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_despairs_is_found() {
    let name = "robust_03_the_server_is_killed_and_restarted";
    convicts(InjectedBug::Despairs, name, "it may help to try again").await;
    let name = "robust_09_a_refusal_is_a_clear_error";
    convicts(InjectedBug::Despairs, name, "may trying again help?").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_trusts_its_lease_too_long_is_found() {
    let name = "robust_06_a_client_is_cut_off_for_longer_than_its_lease";
    convicts(InjectedBug::TrustsTooLong, name, "two hold").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_begin_again_are_found() {
    let bug = InjectedBug::CountsAnew;
    convicts(bug, "token_06_tokens_grow_across_a_restart", "a new client").await;
    let name = "token_07_tokens_grow_although_all_data_was_lost";
    convicts(bug, name, "a new client").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_conflict_with_itself_is_found() {
    let name = "register_06_a_write_whose_answer_was_lost_is_distinguished_from_a_conflict";
    convicts(InjectedBug::ForgetsWrites, name, "it should have been stored: Ok(Conflict)").await;
}
