//! PostgreSQL where messages do not arrive, or cannot be sent: locks are handed over all the same.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::PostgresDriver;
use sqlx::{Connection, Executor, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);
/// Shorter than the leases here and than the pause between two proofs of a subscription, and much longer
/// than what has to happen within it.
const SOON: Duration = Duration::from_secs(10);

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, me))
}

async fn take(driver: &PostgresDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Granted(_)), "{answer:?}");
}

async fn queue(driver: &PostgresDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Queued { .. }), "{answer:?}");
}

/// Has a waiter of `theirs` granted what a holder of `ours` releases.
async fn hand_over(ours: &PostgresDriver, theirs: &PostgresDriver, name: &str) {
    let (holder, waiter) = (claim(name), claim(name));
    take(ours, &holder).await;
    queue(theirs, &waiter).await;
    let waiting = tokio::spawn({
        let (theirs, waiter) = (theirs.clone(), waiter.clone());
        async move { theirs.granted(&waiter).await }
    });
    // A waiter looks once at the beginning; then it waits for a message, or polls.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ours.release(&holder).await.unwrap(), Released::Removed);
    let granted = timeout(SOON, waiting).await.expect("it is handed over").unwrap();
    granted.unwrap();
    theirs.release(&waiter).await.unwrap();
}

/// An address that leads to a server, and later to another one, as a virtual address does. Connections
/// to the first server can be cut, but for one that listens.
struct Address {
    addr: SocketAddr,
    leads_to: Arc<Mutex<SocketAddr>>,
    links: Links,
    _accepting: JoinHandle<()>,
}

/// Each with whether it listens.
type Links = Arc<Mutex<Vec<(Arc<Mutex<bool>>, JoinHandle<()>)>>>;

impl Address {
    async fn of(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (leads_to, links) = (Arc::new(Mutex::new(server)), Links::default());
        let accepting = tokio::spawn({
            let (leads_to, links) = (leads_to.clone(), links.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let to = *leads_to.lock().unwrap();
                    let listens = Arc::new(Mutex::new(false));
                    let link = tokio::spawn(link(client, to, listens.clone()));
                    links.lock().unwrap().push((listens, link));
                }
            }
        });
        Self { addr, leads_to, links, _accepting: accepting }
    }

    /// From now on the way leads to another server. The old one lives on.
    fn moves_to(&self, server: SocketAddr) {
        *self.leads_to.lock().unwrap() = server;
        let links = self.links.lock().unwrap();
        let listening = |link: &&(Arc<Mutex<bool>>, JoinHandle<()>)| *link.0.lock().unwrap();
        assert_eq!(links.iter().filter(listening).count(), 1, "one connection listens");
        links.iter().filter(|link| !listening(link)).for_each(|(_, link)| link.abort());
    }
}

async fn link(client: TcpStream, to: SocketAddr, listens: Arc<Mutex<bool>>) {
    let Ok(server) = TcpStream::connect(to).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_client.read(&mut buffer).await.unwrap_or(0);
            if buffer[..read].windows(7).any(|word| word == b"LISTEN ") {
                *listens.lock().unwrap() = true;
            }
            if read == 0 || to_server.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

#[tokio::test]
async fn a_subscription_that_stays_at_an_old_primary_is_noticed() {
    let (old, new) = (
        Server::start(ServerKind::Postgres).await.unwrap(),
        Server::start(ServerKind::Postgres).await.unwrap(),
    );
    let address = Address::of(old.addr()).await;
    let before = PostgresDriver::connect(&old.url()).await.unwrap();
    let other = PostgresDriver::connect(&new.url()).await.unwrap();
    // Last, so that little of the pause between its proofs is over when the address moves.
    let waits = PostgresDriver::connect(&old.url_at(address.addr)).await.unwrap();
    hand_over(&before, &waits, "before").await;
    address.moves_to(new.addr());
    hand_over(&other, &waits, "after").await;
}

/// The queue of messages is full when a client listens and does not read for long: then PostgreSQL fails
/// the commit of each transaction that sends one. Eight gigabytes are too many for a test, so here a
/// function that stands before the server's own makes the commit fail, with the server's own words.
#[tokio::test]
async fn what_cannot_be_told_happens_all_the_same() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    let full = "CREATE SCHEMA full_queue;
        CREATE TABLE full_queue.messages (channel text);
        CREATE FUNCTION full_queue.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          RAISE program_limit_exceeded USING MESSAGE = 'too many notifications in the NOTIFY queue';
        END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON full_queue.messages
          DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION full_queue.refuse();
        CREATE FUNCTION full_queue.pg_notify(text, text) RETURNS void LANGUAGE sql AS
          $$ INSERT INTO full_queue.messages VALUES ($1) $$;
        CREATE ROLE muted LOGIN SUPERUSER;
        ALTER ROLE muted SET search_path = full_queue, pg_catalog";
    let waits = PostgresDriver::connect(&server.url()).await.unwrap();
    admin.execute(sqlx::raw_sql(full)).await.unwrap();
    let login = server.url().replacen("//postgres@", "//muted@", 1);
    let muted = PostgresDriver::connect(&login).await.unwrap();
    // Nobody can be told of the release, but it is one, and a renewal of the waiter finds out.
    let (holder, waiter) = (claim("a"), claim("a"));
    take(&muted, &holder).await;
    queue(&waits, &waiter).await;
    assert_eq!(muted.release(&holder).await.unwrap(), Released::Removed);
    let renewed = waits.renew_single(&waiter).await.unwrap();
    assert!(matches!(renewed, lockkit_core::driver::Renewal::Holds(_)), "{renewed:?}");
    waits.release(&waiter).await.unwrap();
    // Where the one who waits cannot send itself a message either, it looks.
    let looks = PostgresDriver::connect(&login).await.unwrap();
    hand_over(&muted, &looks, "b").await;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM full_queue.messages")
        .fetch_one(&mut admin)
        .await
        .unwrap();
    assert_eq!(left, 0, "none of what was refused stays");
}
