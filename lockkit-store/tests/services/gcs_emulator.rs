//! An emulator of Google Cloud Storage, which looks at the generation in multipart uploads, but not in media
//! uploads, and takes no writes of the XML API at all: the probe tells them apart.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::state::Finding;
use lockkit_lab::raw::http::{HttpAnswer, ask};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_store::{
    Document, DocumentVersion, GcsStore, PutOutcome, ReadOutcome, Store, StoreError, StoreFacts,
    probe,
};

/// How a client uploads by the JSON API.
#[derive(Clone, Copy, Debug)]
enum Upload {
    Media,
    Multipart,
}

#[derive(Debug)]
struct JsonStore {
    server: SocketAddr,
    upload: Upload,
    facts: StoreFacts,
}

impl JsonStore {
    async fn ask(&self, method: &str, target: &str) -> Result<HttpAnswer, StoreError> {
        let lost = |error| StoreError::Unavailable(Arc::new(error));
        ask(self.server, method, target, &[], b"").await.map_err(lost)
    }
}

/// The number behind a name in JSON that is simple.
fn generation(answer: &HttpAnswer) -> DocumentVersion {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let (_, rest) = text.split_once("\"generation\":\"").expect(&text);
    DocumentVersion::opaque(rest.split('"').next().unwrap_or_default())
}

#[async_trait]
impl Store for JsonStore {
    fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    async fn get(&self, key: &str, _: Option<&DocumentVersion>) -> Result<ReadOutcome, StoreError> {
        let name = key.replace('/', "%2F");
        let answer = self.ask("GET", &format!("/storage/v1/b/lockkit/o/{name}?alt=media")).await?;
        if answer.status == 404 {
            return Ok(ReadOutcome::Absent);
        }
        let head = answer.head.to_lowercase();
        let (_, rest) = head.split_once("x-goog-generation: ").expect(&head);
        let version = DocumentVersion::opaque(rest.lines().next().unwrap_or_default());
        Ok(ReadOutcome::Document(Document { bytes: answer.body, version }))
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        let expected = expected.map_or("0", DocumentVersion::as_str);
        let document = String::from_utf8_lossy(document).into_owned();
        let (kind, parameters, body) = match self.upload {
            Upload::Media => ("application/json", format!("media&name={key}"), document),
            Upload::Multipart => (
                "multipart/related; boundary=part",
                "multipart".to_owned(),
                format!(
                    "--part\r\ncontent-type: application/json\r\n\r\n{{\"name\":\"{key}\"}}\r\n--part\r\n\
                     content-type: application/json\r\n\r\n{document}\r\n--part--\r\n"
                ),
            ),
        };
        let target = format!(
            "/upload/storage/v1/b/lockkit/o?ifGenerationMatch={expected}&uploadType={parameters}"
        );
        let kind = format!("content-type: {kind}");
        match ask(self.server, "POST", &target, &[&kind], body.as_bytes()).await {
            Ok(answer) if answer.status == 200 => PutOutcome::Stored(generation(&answer)),
            Ok(answer) if answer.status == 412 => PutOutcome::Conflict(None),
            Ok(answer) => PutOutcome::Unknown(Arc::new(std::io::Error::other(answer.head))),
            Err(error) => PutOutcome::Unknown(Arc::new(error)),
        }
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let name = key.replace('/', "%2F");
        self.ask("DELETE", &format!("/storage/v1/b/lockkit/o/{name}")).await.map(drop)
    }

    async fn list(&self, _: &str, _: Option<&str>, _: usize) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

mod on_fake_gcs {
    use super::*;

    async fn store(upload: Upload) -> Arc<JsonStore> {
        let server = SharedServer::server(ServerKind::FakeGcs).await.expect("it starts").addr();
        Arc::new(JsonStore { server, upload, facts: StoreFacts::of("emulator") })
    }

    #[tokio::test]
    async fn the_probe_convicts_media_uploads_each_time() {
        for _ in 0..100 {
            let refused = probe(store(Upload::Media).await).await.expect_err("it is wrong");
            let says = "create of a key that exists: it succeeded";
            assert!(!refused.is_retryable() && refused.to_string().contains(says), "{refused}");
        }
    }

    #[tokio::test]
    async fn the_probe_passes_multipart_uploads() {
        for _ in 0..10 {
            probe(store(Upload::Multipart).await).await.expect("it compares and swaps");
        }
    }

    /// It has another word for each way to write, and none for this one.
    #[tokio::test]
    async fn writes_by_the_xml_api_are_not_taken_for_stored() {
        let server = SharedServer::server(ServerKind::FakeGcs).await.expect("it starts");
        let store = GcsStore::open_with(server.url(), |client| client.with_bearer_token("test"));
        let put = store.expect("the URL is valid").put_if("l/1", b"{}", None).await;
        assert!(matches!(put, PutOutcome::Unknown(_)), "{put:?}");
    }
}
