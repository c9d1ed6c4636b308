//! Requests about one state, on each of several backends.

use std::sync::Arc;

use lockkit_core::driver::{
    BreakMode, LockDriver, RegisterEntry, RegisterKey, Registers, Write, WriteResult,
};
use lockkit_core::state::{ClaimState, RegisterRequest};
use lockkit_core::{BreakRecord, ClientIdentity, Key, MemoryDriver, Name, Namespace, Space, Token};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_redis::RedisDriver;
use lockkit_server::{Service, ServiceSettings};
use lockkit_sql::{PostgresDriver, SqliteDriver};
use serde_json::{Value, json};

use crate::served::{Answer, Served};

/// A state of a service, and the backend behind it.
pub(crate) struct Subject {
    pub(crate) served: Served,
    pub(crate) driver: Arc<dyn LockDriver>,
    /// Its own namespace: others use the same servers.
    pub(crate) namespace: String,
    pub(crate) name: String,
    _folder: Option<tempfile::TempDir>,
}

impl Subject {
    pub(crate) async fn new(settings: ServiceSettings) -> Self {
        Self::on(Arc::new(MemoryDriver::new()), settings, None).await
    }

    pub(crate) async fn on(
        driver: Arc<dyn LockDriver>,
        settings: ServiceSettings,
        folder: Option<tempfile::TempDir>,
    ) -> Self {
        let service = Service::with(driver.clone(), settings).unwrap();
        let served = Served::of(service, None).await;
        let namespace = format!("p{:x}", rand::random::<u64>());
        Self { served, driver, namespace, name: "network".to_owned(), _folder: folder }
    }

    /// One on each backend.
    pub(crate) async fn each() -> Vec<Self> {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
        let redis = SharedServer::server(ServerKind::Redis).await.unwrap();
        let postgres = SharedServer::server(ServerKind::Postgres).await.unwrap();
        vec![
            Self::new(ServiceSettings::new()).await,
            Self::on(
                Arc::new(SqliteDriver::connect(&sqlite).await.unwrap()),
                ServiceSettings::new(),
                Some(folder),
            )
            .await,
            Self::on(
                Arc::new(RedisDriver::connect(redis.url()).await.unwrap()),
                ServiceSettings::new(),
                None,
            )
            .await,
            Self::on(
                Arc::new(PostgresDriver::connect(postgres.url()).await.unwrap()),
                ServiceSettings::new(),
                None,
            )
            .await,
        ]
    }

    /// The path with this query behind the namespace's.
    pub(crate) fn path(&self, query: &str) -> String {
        let name =
            percent_encoding::utf8_percent_encode(&self.name, percent_encoding::NON_ALPHANUMERIC);
        format!("/v1/terraform/{name}?namespace={}{query}", self.namespace)
    }

    pub(crate) async fn send(&self, method: &str, query: &str, body: &[u8]) -> Answer {
        self.ask(method, &self.path(query), "", body).await
    }

    /// Any request, with JSON as its body where it has one.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        self.raw(method, path, &format!("{kind}{headers}"), body).await
    }

    pub(crate) async fn raw(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n"
        );
        let mut client = self.served.client().await;
        client.send(&[head.as_bytes(), body].concat()).await;
        client.answer().await.expect("an answer")
    }

    pub(crate) async fn lock(&self, id: &str) -> Answer {
        self.send("LOCK", "", info(id).as_bytes()).await
    }

    pub(crate) async fn unlock(&self, id: &str) -> Answer {
        self.send("UNLOCK", "", info(id).as_bytes()).await
    }

    pub(crate) async fn post(&self, id: &str, state: &[u8]) -> Answer {
        self.send("POST", &format!("&ID={id}"), state).await
    }

    pub(crate) async fn get(&self) -> Answer {
        self.send("GET", "", b"").await
    }

    pub(crate) fn namespace(&self) -> Namespace {
        Namespace::new(&self.namespace).unwrap()
    }

    pub(crate) fn key(&self) -> Key {
        let name = Name::new(format!("lockkit.terraform/{}", self.name)).unwrap();
        Key::new(self.namespace(), Space::Lock, name)
    }

    /// The claim that holds, as `lockkit show` would show it.
    pub(crate) async fn holder(&self) -> Option<ClaimState> {
        let state = self.driver.inspect(&self.key()).await.unwrap();
        state.queue.into_iter().find(ClaimState::holds)
    }

    /// Breaks the claim that holds, as `lockkit break` does at the backend itself.
    pub(crate) async fn break_holder(&self) {
        let token = self.holder().await.expect("a holder").token;
        let by = ClientIdentity::of_this_process();
        let record = BreakRecord::new(by, BreakMode::Forced, None);
        let key = self.key();
        let broken = self.driver.break_claim(&key, token, BreakMode::Forced, &record).await;
        assert!(broken.unwrap());
    }

    pub(crate) fn registers(&self) -> &dyn Registers {
        self.driver.registers().unwrap()
    }

    fn register(&self, name: &str) -> RegisterKey {
        RegisterKey { namespace: self.namespace(), name: Name::new(name).unwrap() }
    }

    pub(crate) async fn load(&self, name: &str) -> Option<RegisterEntry> {
        self.registers().load(&self.register(name)).await.unwrap()
    }

    pub(crate) async fn store(&self, name: &str, value: Option<Vec<u8>>, token: Option<Token>) {
        let write = Write { token, ..Write::of(value) };
        let written = self.registers().write(&self.register(name), &write).await.unwrap();
        assert!(matches!(written.result, WriteResult::Stored(_)));
    }

    /// The head, as it is stored.
    pub(crate) async fn head(&self) -> Value {
        let entry = self.load(self.key().name.as_str()).await.expect("a head");
        serde_json::from_slice(&entry.value).unwrap()
    }

    /// The names of all registers.
    pub(crate) async fn names(&self) -> Vec<String> {
        let (namespace, prefix) = (self.namespace(), String::new());
        let request = RegisterRequest { namespace, prefix, after: None, limit: 10_000 };
        let page = self.registers().page(&request).await.unwrap();
        page.items.into_iter().map(|it| it.name.as_str().to_owned()).collect()
    }
}

/// The lock info that Terraform sends.
pub(crate) fn info(id: &str) -> String {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": "alice@build-7",
        "Version": "0.15.0", "Created": "2026-11-25T21:45:47.123456789Z", "Path": "",
    })
    .to_string()
}

/// A state of so many bytes, which hardly compress.
pub(crate) fn state(seed: u8, bytes: usize) -> Vec<u8> {
    use rand::{Rng, SeedableRng};
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed.into());
    let text: Vec<u8> = (0..bytes).map(|_| rng.random_range(b'#'..=b'[')).collect();
    [b"{\"text\":\"", &*text, b"\"}"].concat()
}
