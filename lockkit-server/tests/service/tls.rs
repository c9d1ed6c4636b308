//! TLS, certificates of clients, and addresses that other hosts reach.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkit_core::LockManager;
use lockkit_core::memory::MemoryDriver;
use lockkit_http::HttpDriver;
use lockkit_server::{AccessTokens, Listen, Service, ServiceSettings, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::served::Served;

const TOKEN: &str = "token-of-a-test";

/// An authority, and files with what it signed.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let it = Self { issuer, folder: tempfile::tempdir().unwrap() };
        std::fs::write(it.file("ca.pem"), it.issuer.pem()).unwrap();
        it
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for this name, and its key.
    pub(crate) fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        std::fs::write(&files.0, certificate.pem()).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    pub(crate) fn service(&self) -> Service {
        let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
        let tokens = self.file("tokens");
        std::fs::write(&tokens, format!("test {hash} read,lock@*\n")).unwrap();
        std::fs::write(self.file("token"), format!("{TOKEN}\n")).unwrap();
        let settings = ServiceSettings::new().tokens(AccessTokens::load(tokens).unwrap());
        Service::with(Arc::new(MemoryDriver::new()), settings).unwrap()
    }

    /// The URL of a client that trusts this authority.
    pub(crate) fn url(&self, served: &Served, options: &str) -> String {
        let port = served.address.rsplit(':').next().unwrap();
        let file = |name| self.file(name).display().to_string();
        let (ca, token) = (file("ca.pem"), file("token"));
        format!("https://localhost:{port}?ca={ca}&token_file={token}{options}")
    }

    /// A connection that trusts this authority.
    pub(crate) async fn client(&self, served: &Served) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(&served.address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

fn pair(files: &(PathBuf, PathBuf)) -> String {
    format!("&cert={}&key={}", files.0.display(), files.1.display())
}

#[tokio::test]
async fn a_lock_is_taken_over_tls_with_a_token() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let tls = Tls::load(certificate, key, None).unwrap();
    let served = Served::of(authority.service(), Some(&tls)).await;
    let driver = HttpDriver::connect(&authority.url(&served, "")).await.unwrap();
    let locks = LockManager::new(driver);
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    // Without the authority, or without the token, nobody is trusted.
    let url = authority.url(&served, "");
    let others = authority.file("other.pem");
    std::fs::write(&others, Authority::new().issuer.pem()).unwrap();
    let stranger = url.replace("ca.pem", "other.pem");
    HttpDriver::connect(&stranger).await.expect_err("a certificate of somebody else's");
    let without = url.split("&token_file").next().unwrap();
    let error = HttpDriver::connect(without).await.expect_err("no token").to_string();
    assert!(error.contains("send a token"), "{error}");
}

#[tokio::test]
async fn with_an_authority_for_clients_only_those_with_its_certificate_are_answered() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let client = authority.sign("client");
    let tls = Tls::load(certificate, key, Some(authority.file("ca.pem"))).unwrap();
    let served = Served::of(authority.service(), Some(&tls)).await;
    HttpDriver::connect(&authority.url(&served, &pair(&client))).await.expect("a client of ours");
    HttpDriver::connect(&authority.url(&served, "")).await.expect_err("no certificate");
    let other = Authority::new().sign("client");
    HttpDriver::connect(&authority.url(&served, &pair(&other)))
        .await
        .expect_err("a certificate of another authority");
}

#[tokio::test]
async fn a_certificate_is_replaced_for_new_connections() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let tls = Tls::load(&certificate, &key, None).unwrap();
    let served = Served::of(authority.service(), Some(&tls)).await;
    let url = authority.url(&served, "");
    std::fs::write(&key, "nonsense").unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("localhost.key"), "{error}");
    HttpDriver::connect(&url).await.expect("the old one stays");
    let other = authority.sign("other.example");
    std::fs::copy(other.0, certificate).unwrap();
    std::fs::copy(other.1, key).unwrap();
    tls.reload().unwrap();
    HttpDriver::connect(&url).await.expect_err("it is not for this name any more");
}

#[tokio::test]
async fn an_address_that_other_hosts_reach_is_served_with_tls_and_tokens_only() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let tls = Tls::load(certificate, key, None).unwrap();
    let open = || Service::new(Arc::new(MemoryDriver::new())).unwrap();
    let anywhere: Listen = "0.0.0.0:0".parse().unwrap();
    // A server that is let off ends at once, well.
    let now = || std::future::ready(());
    for (with_tls, service, served) in [
        (false, open(), false),
        (true, open(), false),
        (false, authority.service(), false),
        (true, authority.service(), true),
    ] {
        let mut listener = anywhere.open().await.unwrap();
        if with_tls {
            listener = listener.with_tls(&tls);
        }
        let ended = lockkit_server::serve(listener, service, now()).await;
        assert_eq!(
            ended.map_err(|e| e.kind()),
            served.then_some(()).ok_or(ErrorKind::PermissionDenied)
        );
    }
}

#[test]
fn files_that_are_no_certificate_are_named() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let none = Path::new("/none");
    for (certificate, key, ca) in [
        (none, &*key, None),
        (&*certificate, none, None),
        (&*certificate, &*key, Some(none.to_owned())),
    ] {
        let error = Tls::load(certificate, key, ca).unwrap_err().to_string();
        assert!(error.contains("/none"), "{error}");
    }
    Tls::load(&key, &certificate, None).expect_err("the wrong way round");
}
