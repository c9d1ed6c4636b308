//! A server whose clock has fewer digits than today's: that of a board without a battery.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkit_core::Mode;
use lockkit_core::driver::{LockDriver, Released};
use lockkit_lab::{Kind, Server, Shift};
use lockkit_redis::redis::Client;
use lockkit_redis::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use lockkit_redis::{RedisDriver, RedisOptions};

use super::{LONG, claim, connect, granted, holds, queue, take, waits};

/// The server's clock shows so much since 1970.
fn set_clock(server: &Server, since_1970: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    server.move_clock(Shift::Behind(now - since_1970)).unwrap();
}

/// A driver that leaves the choice of each token to the server's clock, as in a cluster.
async fn without_clock(server: &Server) -> RedisDriver {
    let client = Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = ConnectionManager::new_with_config(client.clone(), config).await.unwrap();
    RedisOptions::default().timeout(LONG).connection_manager(manager, client).await.unwrap()
}

#[tokio::test]
async fn in_1970_leases_are_renewed_and_locks_handed_over() {
    let server = Server::start_with_clock(Kind::Redis).await.unwrap();
    set_clock(&server, Duration::from_secs(5));
    for driver in [connect(&server).await, without_clock(&server).await] {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let (first, second) = (claim(mode), claim(Mode::Exclusive));
            let token = take(&driver, &first).await;
            assert_eq!(holds(&driver, &first).await, token);
            queue(&driver, &second).await;
            assert_eq!(holds(&driver, &first).await, token);
            waits(&driver, &second).await;
            let line = driver.inspect(&first.key).await.unwrap().line;
            assert_eq!(line[0].token, token, "{line:?}");
            assert_eq!(driver.release(&first).await.unwrap(), Released::Removed);
            let next = granted(&driver, &second).await.token;
            assert!(next > token, "{next} after {token}");
            assert_eq!(holds(&driver, &second).await, next);
            assert_eq!(driver.release(&second).await.unwrap(), Released::Removed);
        }
    }
}

#[tokio::test]
async fn tokens_grow_when_the_clock_goes_back_to_where_it_has_fewer_digits() {
    let server = Server::start_with_clock(Kind::Redis).await.unwrap();
    let driver = without_clock(&server).await;
    let mut last = None;
    let day = Duration::from_secs(86_400);
    // 1970, 1973, before and after September 2001, and 1970 again.
    for days in [20_000, 0, 1_100, 11_570, 11_580, 0] {
        set_clock(&server, day * days + Duration::from_secs(200));
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Exclusive] {
            let claim = claim(mode);
            let token = Some(take(&driver, &claim).await);
            assert!(token > last, "{token:?} after {last:?} on day {days}");
            last = token;
            driver.release(&claim).await.unwrap();
        }
    }
}
