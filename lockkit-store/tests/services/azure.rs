//! A container of Azure as a store: what each answer means, how many requests operations take, what is refused,
//! and that locks hold when connections are cut. The server is Azurite, the emulator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkit_core::LockManager;
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::raw::azure;
use lockkit_lab::{Proxy, ServerKind, SharedServer};
use lockkit_store::object_store::azure::MicrosoftAzureBuilder;
use lockkit_store::{AzureStore, DocumentVersion, PutOutcome, Store, StoreDriver};
use tokio::time::sleep;

use crate::contract::{self, counting, stored, text};

/// A store in a container at this address.
fn store_at(address: SocketAddr, container: &str) -> AzureStore {
    let url = format!("az://{container}/some/locks?{}", place(address));
    AzureStore::open(&url).expect("the URL is valid")
}

fn place(address: SocketAddr) -> String {
    let account = azure::ACCOUNT;
    format!("account={account}&endpoint=http://{address}/{account}")
}

/// The same with settings as an environment may have them.
fn store_of(address: SocketAddr) -> AzureStore {
    let url = format!("az://locks?{}", place(address));
    let repeats = lockkit_store::object_store::RetryConfig::default();
    let store = AzureStore::open_with(&url, |client: MicrosoftAzureBuilder| {
        client.with_retry(repeats).with_use_emulator(true)
    });
    store.expect("the URL is valid")
}

#[tokio::test]
async fn a_put_is_one_request_on_the_wire_whatever_becomes_of_it() {
    let version = DocumentVersion::opaque("\"0\"");
    // Without the service's own word, these are a proxy's.
    let further = [
        "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 412 Precondition Failed\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 503 Server Busy\r\ncontent-length: 60\r\n\r\n\
         <Error><Code>ServerBusy</Code><Message>later</Message></Error>",
    ];
    let open = |address| Arc::new(store_of(address)) as Arc<dyn Store>;
    contract::a_put_is_one_request(open, &version, &further).await;
    for conflict in [
        "HTTP/1.1 412 It fails\r\ncontent-length: 39\r\n\r\n<Error><Code>ConditionNotMet</Code></Error>",
        "HTTP/1.1 409 It exists\r\ncontent-length: 41\r\n\r\n<Error><Code>BlobAlreadyExists</Code></Error>",
    ] {
        let (address, requests) = counting(conflict).await;
        let put = store_of(address).put_if("l/1", b"END", Some(&version)).await;
        assert!(matches!(put, PutOutcome::Conflict(_)), "{put:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_retryable_error() {
    contract::a_server_that_is_not_there_is_retryable(|address| Arc::new(store_of(address))).await;
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_before_any_request() {
    let urls = [
        ("az://", "az://CONTAINER/PREFIX"),
        ("az:container?account=a", "az://CONTAINER/PREFIX"),
        ("az://some_container?account=a", "az://CONTAINER/PREFIX"),
        ("az://account:secret@container", "put them into AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://container/a//b?account=a", "single slashes"),
        ("az://container?endpoint=127.0.0.1:9000", "endpoint= begins with https://"),
        ("az://container?account=a&region=x", "region is no option of an Azure container"),
        ("az://container?account=a&pace=soon", "soon"),
        ("az://container/locks", "Name it as account= in the URL"),
    ];
    contract::refused_before_any_request(async |url| AzureStore::open(url), &urls).await;
}

#[test]
fn the_schema_names_the_container_the_account_and_the_least_rights() {
    let commands = AzureStore::schema("az://locks/a?account=mine").expect("the URL is valid");
    for part in ["--account-name mine --name locks", "blobs/read", "blobs/write", "blobs/delete"] {
        assert!(commands.contains(part), "{commands}");
    }
    assert!(!commands.contains('{') || !commands.contains("{account}"), "{commands}");
}

mod on_azurite {
    use super::*;

    /// A container of its own on the server that tests share.
    async fn container(name: &str) -> (AzureStore, SocketAddr) {
        let server = SharedServer::server(ServerKind::Azurite).await.expect("it starts");
        azure::create_container(server.addr(), name).await.expect("it answers");
        (store_at(server.addr(), name), server.addr())
    }

    #[tokio::test]
    async fn writes_are_conditional_and_reads_show_them() {
        let (store, _) = container("contract").await;
        contract::writes_are_conditional(&store).await;
    }

    #[tokio::test]
    async fn listings_are_in_order_and_over_all_pages() {
        let (store, _) = container("listings").await;
        contract::listings_are_in_order(&store).await;
    }

    #[tokio::test]
    async fn the_probe_passes() {
        let (_, address) = container("probe").await;
        let stores = (0..10).map(|_| Arc::new(store_at(address, "probe")) as _);
        contract::the_probe_passes(stores.collect()).await;
    }

    #[tokio::test]
    async fn what_will_not_work_is_a_permanent_error_that_says_what_to_do() {
        let (_, address) = container("refusals").await;
        let missing = contract::refusal(Arc::new(store_at(address, "nowhere"))).await;
        assert!(missing.contains("there is no container nowhere: create it"), "{missing}");
        let url = format!("az://refusals?{}", place(address));
        let wrong = AzureStore::open_with(&url, |client| client.with_access_key("c2VjcmV0"));
        let wrong = contract::refusal(Arc::new(wrong.expect("the URL is valid"))).await;
        assert!(wrong.contains("failed to authenticate"), "{wrong}");
        assert!(!wrong.contains("c2VjcmV0"), "{wrong}");
    }

    #[tokio::test]
    async fn a_container_that_is_deleted_is_no_conflict() {
        let (store, address) = container("deleted").await;
        let version = stored(&store, "l/1", "one").await;
        let deleted = azure::ask(address, "DELETE", "deleted?restype=container", &[]).await;
        assert_eq!(deleted.expect("it answers"), 202);
        contract::a_missing_bucket_is_no_conflict(&store, &version).await;
    }

    #[tokio::test]
    async fn a_blob_with_a_lease_of_azures_own_is_no_conflict() {
        let (store, address) = container("leased").await;
        let version = stored(&store, "l/1", "one").await;
        let lease = ["x-ms-lease-action: acquire", "x-ms-lease-duration: -1"];
        let leased = azure::ask(address, "PUT", "leased/some/locks/l/1?comp=lease", &lease).await;
        assert_eq!(leased.expect("it answers"), 201);
        let put = store.put_if("l/1", b"two", Some(&version)).await;
        let PutOutcome::Forbidden(why) = put else { panic!("{put:?}") };
        assert!(why.to_string().contains("break it"), "{why}");
        assert_eq!(text(&store, "l/1").await.as_deref(), Some("one"));
    }

    #[tokio::test]
    async fn a_swap_whose_answer_is_lost_is_unknown_and_was_sent_once() {
        let (direct, address) = container("lost").await;
        let proxy = Proxy::start(address, Protocol::Unknown).await.expect("a port is free");
        let store = store_at(proxy.addr(), "lost");
        let first = stored(&store, "l/1", "one").await;
        let long = "two".repeat(3_000);
        proxy.fault(ProxyFault::Mute, When::Now);
        let before = proxy.counts().bytes_to_server;
        let put = store.put_if("l/1", long.as_bytes(), Some(&first)).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
        sleep(Duration::from_secs(2)).await;
        let sent = proxy.counts().bytes_to_server - before;
        assert!((9_000..18_000).contains(&sent), "{sent} bytes were sent");
        assert_eq!(text(&direct, "l/1").await, Some(long));
    }

    #[tokio::test]
    async fn locks_hold_while_connections_are_cut() {
        let (_, address) = container("turns").await;
        let proxy = Proxy::start(address, Protocol::Unknown).await.expect("a port is free");
        let proxy = Arc::new(proxy);
        let stores = (0..3).map(|_| Arc::new(store_at(proxy.addr(), "turns")) as _).collect();
        let disturbed = proxy.clone();
        let disturb = move || {
            drop(tokio::spawn(async move {
                loop {
                    sleep(Duration::from_millis(150)).await;
                    disturbed.fault(ProxyFault::Cut, When::Now);
                }
            }));
        };
        contract::take_turns(stores, disturb).await;
    }

    #[tokio::test]
    async fn a_hold_in_a_container_that_is_deleted_ends_in_time_with_the_reason() {
        let (store, address) = container("holds").await;
        let delete = async || {
            let deleted = azure::ask(address, "DELETE", "holds?restype=container", &[]).await;
            deleted.expect("it answers");
        };
        contract::a_hold_ends_in_time(Arc::new(store), delete, "there is no container holds").await;
    }

    #[tokio::test]
    async fn a_driver_is_opened_by_a_url_alone() {
        let (_, address) = container("urls").await;
        let url = format!("az://urls/locks?{}&pace=50ms", place(address));
        let driver = StoreDriver::connect_url(&url).await.expect("it works");
        let locks = LockManager::new(driver);
        let guard = locks.mutex("a").lock().await.expect("it is free");
        assert!(locks.mutex("a").try_lock().await.expect("it answers").is_none());
        guard.release().await.expect("it works");
        locks.shutdown().await;
    }
}
