//! Cases about mutexes, where the names exclude neighbours too: what they promise among lockkit's clients stays. A
//! gate's key is the name alone, so each case has a server of its own. Left out are cases that take shared locks,
//! permits or locks that are not renewed, which are refused, and those in which the next claim holds while the holder
//! of a lock that was broken by force knows nothing of it: its gate stays.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::RedisDriver;
use tokio::sync::OnceCell;

struct Beside {
    style: &'static str,
    server: OnceCell<Server>,
}

impl Beside {
    fn new(style: &'static str) -> Self {
        Self { style, server: OnceCell::new() }
    }
}

#[async_trait]
impl Harness for Beside {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let server = self.server.get_or_try_init(|| Server::start(ServerKind::Redis)).await;
        let server = server.map_err(|error| Error::permanent("lab", error))?;
        let url = format!("{}?neighbours={}&timeout=30s", server.url(), self.style);
        Ok(Arc::new(RedisDriver::connect(&url).await?))
    }
}

macro_rules! cases {
    ($style:literal) => {
        use super::*;
        lockkit_conformance::suite! {
            groups: Beside::new($style),
            exclusion order queue lease batch time release token reentrancy
            cancel names register latch multi election once model;
            except
            exclusion_09_the_lock_and_the_semaphore_of_one_name_do_not_meet
            lease_06_a_grant_that_arrives_after_its_own_end_is_an_error
            once_06_who_decides_late_changes_nothing
            order_07_no_claim_starves_under_a_mix_of_readers_and_writers
            reentrancy_05_what_cannot_be_re_entered_is_an_error
            reentrancy_06_a_detached_claim_is_resumed_from_its_ticket
            register_07_a_stale_holder_cannot_store
            release_02_releasing_an_ended_claim_says_so
            release_03_an_old_guard_never_frees_its_successor
            token_01_a_grant_has_a_token
        }
    };
}

mod set_nx {
    cases!("set-nx");
}

mod redisson {
    cases!("redisson");
}
