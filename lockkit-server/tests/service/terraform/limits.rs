//! What is too long, too much at once, or on the wrong backend.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::driver::{
    Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver, Registers, Renewal,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, MemoryDriver, Token};
use lockkit_server::{ServiceSettings, TerraformSettings};
use serde_json::json;

use super::client::{Subject, info, state};

#[tokio::test]
async fn a_state_that_is_too_long_is_refused_before_anything_is_stored() {
    for terraform in [
        TerraformSettings { body: 10_000, ..TerraformSettings::default() },
        TerraformSettings { stored: Some(10_000), ..TerraformSettings::default() },
    ] {
        let subject = Subject::new(ServiceSettings::new().terraform(terraform)).await;
        subject.lock("one").await;
        assert_eq!(subject.post("one", &state(1, 5_000)).await.status, 200);
        let (before, names) = (subject.head().await, subject.names().await);
        let refused = subject.post("one", &state(2, 50_000)).await;
        assert_eq!((refused.status, &refused.json()["code"]), (413, &json!("too_large")));
        assert!(refused.body.contains("10000"), "it names the limit: {}", refused.body);
        assert_eq!((subject.head().await, subject.names().await), (before, names));
        assert_eq!(subject.get().await.body.as_bytes(), state(1, 5_000));
        // The same of a body whose length is not said before.
        let mut client = subject.served.client().await;
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\n\r\n",
            subject.path("&ID=one")
        );
        let long = state(2, 50_000);
        let chunk = [format!("{:x}\r\n", long.len()).as_bytes(), &long, b"\r\n0\r\n\r\n"].concat();
        client.send(&[head.as_bytes(), &chunk].concat()).await;
        assert_eq!(client.answer().await.unwrap().status, 413);
    }
}

#[tokio::test]
async fn a_lock_info_is_short() {
    let subject = Subject::new(ServiceSettings::new()).await;
    let long = format!(r#"{{"ID":"one","Info":"{}"}}"#, "x".repeat(5_000));
    assert_eq!(subject.send("LOCK", "", long.as_bytes()).await.status, 413);
    for bad in ["", "null", "{}", "{\"ID\":\"\"}", "\u{0}"] {
        assert_eq!(subject.send("LOCK", "", bad.as_bytes()).await.status, 400, "{bad}");
    }
    let plain = subject
        .raw("LOCK", &subject.path(""), "content-type: text/plain\r\n", info("one").as_bytes())
        .await;
    assert_eq!(plain.status, 400);
    assert!(subject.holder().await.is_none());
}

#[tokio::test]
async fn so_many_states_are_received_at_once_and_no_more() {
    let terraform = TerraformSettings { uploads: 2, ..TerraformSettings::default() };
    let subject = Subject::new(ServiceSettings::new().terraform(terraform)).await;
    subject.lock("one").await;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 12\r\n\r\n",
        subject.path("&ID=one")
    );
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut client = subject.served.client().await;
        client.send(head.as_bytes()).await;
        slow.push(client);
    }
    // Both are being received once a third one is refused.
    let refused = loop {
        let answer = subject.post("one", b"{\"serial\":1}").await;
        if answer.status != 200 {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("too_many")));
    assert!(refused.head.contains("\r\nretry-after: 1\r\n"), "{}", refused.head);
    for mut client in slow {
        client.send(b"{\"serial\":2}").await;
        assert_eq!(client.answer().await.unwrap().status, 200);
    }
    assert_eq!(subject.post("one", b"{\"serial\":3}").await.status, 200);
}

#[tokio::test]
async fn a_page_of_another_site_and_another_host_are_refused() {
    let subject = Subject::new(ServiceSettings::new()).await;
    let path = subject.path("&ID=one");
    for method in ["LOCK", "UNLOCK", "POST", "DELETE"] {
        for header in ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
            let body = info("one");
            let answer = subject.ask(method, &path, header, body.as_bytes()).await;
            assert_eq!(answer.status, 403, "{method} {header}");
        }
    }
    let mut client = subject.served.client().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\n\r\n");
    client.send(request.as_bytes()).await;
    assert_eq!(client.answer().await.unwrap().status, 403);
    for method in ["PUT", "PATCH", "OPTIONS", "lock", "PROPFIND"] {
        assert_eq!(subject.ask(method, &path, "", b"").await.status, 404, "{method}");
    }
    assert!(subject.holder().await.is_none());
}

/// The memory backend under another name, or without registers.
#[derive(Debug)]
struct Altered(MemoryDriver, Capabilities);

impl Altered {
    fn new(alter: impl FnOnce(&mut Capabilities)) -> Arc<Self> {
        let driver = MemoryDriver::new();
        let mut capabilities = *driver.capabilities();
        alter(&mut capabilities);
        Arc::new(Self(driver, capabilities))
    }
}

#[async_trait]
impl LockDriver for Altered {
    fn capabilities(&self) -> &Capabilities {
        &self.1
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.1.registers.then(|| self.0.registers())?
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        self.0.submit(batch).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.0.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        self.0.renew(claims).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.0.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.0.break_claim(key, token, mode, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.0.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.0.list(request).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.0.health().await
    }
}

#[tokio::test]
async fn etcd_takes_four_megabytes_of_a_compressed_state_and_other_backends_more() {
    // Text of this kind compresses by a quarter.
    let long = state(1, 6_000_000);
    let settings = ServiceSettings::new;
    let etcd = Altered::new(|capabilities| capabilities.backend = "etcd");
    let subject = Subject::on(etcd, settings(), None).await;
    subject.lock("one").await;
    let (before, names) = (subject.head().await, subject.names().await);
    let refused = subject.post("one", &long).await;
    assert_eq!((refused.status, &refused.json()["code"]), (413, &json!("too_large")));
    assert!(refused.body.contains("4000000"), "it names the limit: {}", refused.body);
    assert_eq!((subject.head().await, subject.names().await), (before, names), "nothing is stored");
    assert_eq!(subject.post("one", &state(1, 4_000_000)).await.status, 200);
    let terraform = TerraformSettings { stored: Some(8_000_000), ..TerraformSettings::default() };
    for (backend, settings) in [("memory", settings()), ("etcd", settings().terraform(terraform))] {
        let driver = Altered::new(|capabilities| capabilities.backend = backend);
        let subject = Subject::on(driver, settings, None).await;
        subject.lock("one").await;
        assert_eq!(subject.post("one", &long).await.status, 200, "{backend}");
    }
}

#[tokio::test]
async fn a_backend_without_registers_says_so_with_a_status_that_is_not_retried() {
    let driver = Altered::new(|capabilities| capabilities.registers = false);
    let subject = Subject::on(driver, ServiceSettings::new(), None).await;
    assert!(!subject.served.service.keeps_terraform_states());
    for method in ["GET", "LOCK", "UNLOCK", "POST", "DELETE"] {
        let answer = subject.send(method, "&ID=one", b"{}").await;
        assert_eq!((answer.status, &answer.json()["code"]), (501, &json!("unsupported")));
    }
    assert!(subject.holder().await.is_none());
}
