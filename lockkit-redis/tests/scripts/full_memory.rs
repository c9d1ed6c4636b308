//! A server at its `maxmemory`, with the policy that lockkit asks for: it evicts nothing. What is held
//! stays held, moves on and goes; what is new is refused with a word about why.

use std::sync::Arc;

use lockkit_core::driver::{
    BreakMode, LockDriver, Patience, Precondition, RegisterKey, Registers, Released, Renewal,
    Write, WriteId, WriteResult,
};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, Mode, Name, Namespace, Token};
use lockkit_lab::Server;
use lockkit_redis::RedisDriver;

use super::{PERMIT, ask, claim, granted, holds, queue, start, take, waits};

async fn fill(server: &Server) {
    ask(server, &["CONFIG", "SET", "maxmemory", "1"]).await;
}

/// Two that hold where the mode allows it, and one that waits.
async fn occupy(driver: &RedisDriver, mode: Mode) -> (Vec<Arc<Claim>>, Arc<Claim>) {
    let holders = match mode {
        Mode::Exclusive => vec![claim(mode)],
        _ => vec![claim(mode), claim(mode)],
    };
    for holder in &holders {
        take(driver, holder).await;
    }
    let waiter = claim(if mode == Mode::Shared { Mode::Exclusive } else { mode });
    queue(driver, &waiter).await;
    (holders, waiter)
}

fn says_why(error: &Error) {
    assert!(error.is_retryable() && error.to_string().contains("maxmemory"), "{error}");
}

async fn is_refused(driver: &RedisDriver, mode: Mode) {
    for patience in [Patience::Wait, Patience::Try] {
        says_why(&driver.acquire(&claim(mode), patience).await.unwrap_err());
    }
}

#[tokio::test]
async fn with_full_memory_holders_and_waiters_are_renewed_and_locks_move_on() {
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let (server, driver) = start().await;
        let (holders, waiter) = occupy(&driver, mode).await;
        fill(&server).await;
        for holder in &holders {
            holds(&driver, holder).await;
        }
        waits(&driver, &waiter).await;
        is_refused(&driver, mode).await;
        for holder in &holders {
            assert_eq!(driver.release(holder).await.unwrap(), Released::Removed, "{mode:?}");
        }
        let grant = granted(&driver, &waiter).await;
        assert_eq!(holds(&driver, &waiter).await, grant.token);
        is_refused(&driver, mode).await;
        assert_eq!(driver.release(&waiter).await.unwrap(), Released::Removed);
        is_refused(&driver, mode).await;
        ask(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
        take(&driver, &claim(mode)).await;
    }
}

#[tokio::test]
async fn with_full_memory_a_lock_without_waiters_is_renewed_changed_and_released() {
    let (server, driver) = start().await;
    let held = claim(Mode::Exclusive);
    let token = take(&driver, &held).await;
    fill(&server).await;
    assert_eq!(holds(&driver, &held).await, token);
    let raised = Token::new(token.get() + 1_000).unwrap();
    assert!(matches!(driver.raise(&held, raised).await.unwrap(), Renewal::Holds(_)));
    assert!(matches!(driver.shorten(&held, super::LONG).await.unwrap(), Renewal::Holds(_)));
    assert!(matches!(driver.downgrade(&held).await.unwrap(), Renewal::Holds(_)));
    let raised = Token::new(token.get() + 2_000).unwrap();
    assert!(matches!(driver.raise(&held, raised).await.unwrap(), Renewal::Holds(_)));
    assert!(matches!(driver.shorten(&held, super::LONG).await.unwrap(), Renewal::Holds(_)));
    assert_eq!(driver.release(&held).await.unwrap(), Released::Removed);
}

#[tokio::test]
async fn with_full_memory_a_lock_is_broken_and_the_next_one_holds() {
    for force in [BreakMode::Graceful, BreakMode::Forced] {
        let (server, driver) = start().await;
        let (holder, waiter) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
        let token = take(&driver, &holder).await;
        queue(&driver, &waiter).await;
        fill(&server).await;
        let by = ClientIdentity::of_this_process();
        let record = BreakRecord::from_parts(by, 0, None, false);
        assert!(driver.break_claim(&holder.key, token, force, &record).await.unwrap());
        assert!(matches!(driver.renew_single(&holder).await.unwrap(), Renewal::Ended(_)));
        driver.release(&holder).await.unwrap();
        granted(&driver, &waiter).await;
    }
}

#[tokio::test]
async fn with_full_memory_a_register_is_deleted_but_not_written() {
    let (server, driver) = start().await;
    let at = RegisterKey { namespace: Namespace::default(), name: Name::new("r").unwrap() };
    let store = || Write {
        value: Some(vec![1; 1_000]),
        expect: Precondition::Anything,
        token: None,
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    };
    driver.write(&at, &store()).await.unwrap();
    fill(&server).await;
    says_why(&driver.write(&at, &store()).await.unwrap_err());
    assert!(driver.load(&at).await.unwrap().is_some(), "it was left as it is");
    let (expect, write_id) = (Precondition::Anything, WriteId::random());
    let delete = Write { expect, write_id, ..Write::of(None) };
    assert!(matches!(driver.write(&at, &delete).await.unwrap().result, WriteResult::Stored(_)));
    assert!(driver.load(&at).await.unwrap().is_none());
}
