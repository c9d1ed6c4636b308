//! What the store remembers of names that are not in use: nothing, but for stated times.

use futures_util::FutureExt;

use super::*;
use crate::driver::{Acquisition, Patience, Precondition, RegisterKey, Write, WriteId};
use crate::{ClientIdentity, Mode, Name, Space};

const TTL: Duration = Duration::from_secs(30);

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, identity))
}

impl MemoryDriver {
    fn remembered(&self) -> usize {
        let queues = self.shared.queues.state.lock().unwrap().remembered();
        queues + self.shared.registers.state.lock().unwrap().remembered()
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_of_locks_that_were_released_nor_of_who_waited_or_watched() {
    let driver = MemoryDriver::new();
    let free = driver.inspect(&claim("a").key).await.unwrap();
    for n in 0..100 {
        let (one, other) = (claim(&n.to_string()), claim(&n.to_string()));
        driver.acquire(&one, Patience::Wait).await.unwrap();
        driver.acquire(&other, Patience::Wait).await.unwrap();
        assert!(driver.granted(&other).now_or_never().is_none());
        let key = claim("a").key.clone();
        let watched = LockDriver::changed(&driver, &key, &free).now_or_never();
        assert!(watched.is_none());
        driver.release(&other).await.unwrap();
        driver.release(&one).await.unwrap();
    }
    assert_eq!(driver.remembered(), 0);
}

#[tokio::test(start_paused = true)]
async fn locks_whose_holders_died_and_that_nobody_asks_for_go_as_others_come() {
    let driver = MemoryDriver::new();
    for n in 0..1000 {
        let dead = claim(&format!("dead {n}"));
        driver.acquire(&dead, Patience::Try).await.unwrap();
    }
    assert_eq!(driver.remembered(), 1000);
    tokio::time::advance(TTL).await;
    for n in 0..1100 {
        let live = claim(&format!("live {n}"));
        driver.acquire(&live, Patience::Try).await.unwrap();
        driver.release(&live).await.unwrap();
    }
    assert_eq!(driver.remembered(), 0);
}

#[tokio::test(start_paused = true)]
async fn breaks_and_deleted_registers_are_forgotten_after_their_time() {
    let driver = MemoryDriver::new();
    let broken = claim("a");
    let Acquisition::Granted(grant) = driver.acquire(&broken, Patience::Try).await.unwrap().result
    else {
        panic!("it is free")
    };
    let record = BreakRecord::from_parts(ClientIdentity::of_this_process(), 0, None, true);
    driver.break_claim(&broken.key, grant.token, BreakMode::Forced, &record).await.unwrap();
    let at = RegisterKey { namespace: Namespace::default(), name: Name::new("r").unwrap() };
    let store = Write {
        value: Some(Vec::new()),
        expect: Precondition::Anything,
        token: None,
        write_id: WriteId::random(),
        ttl: Some(TTL),
        repeated: false,
    };
    driver.write(&at, &store).await.unwrap();
    assert!(driver.remembered() > 0);
    tokio::time::advance(Duration::from_secs(91)).await;
    driver.release(&broken).await.unwrap();
    driver.load(&at).await.unwrap();
    assert_eq!(driver.remembered(), 0);
}

#[test]
fn the_driver_shows_nothing_of_what_it_keeps() {
    assert_eq!(format!("{:?}", MemoryDriver::new()), "MemoryDriver { .. }");
}
