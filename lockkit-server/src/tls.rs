//! TLS: the server's certificate, and which clients' certificates it asks for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use lockkit_core::Error;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key. Cheap to clone; all clones are reloaded together.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Files>);

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    now: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the certificate chain and the key, both PEM. With `client_ca`, only clients with a
    /// certificate that one of these authorities signed are answered; what they may do is a matter
    /// of their tokens all the same.
    pub fn load(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        client_ca: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let (certificate, key) = (certificate.into(), key.into());
        let now = RwLock::new(read(&certificate, &key, client_ca.as_deref())?);
        Ok(Self(Arc::new(Files { certificate, key, client_ca, now })))
    }

    /// Reads the files again, for new connections. Files that do not fit together change nothing.
    pub fn reload(&self) -> Result<(), Error> {
        let Files { certificate, key, client_ca, now } = &*self.0;
        let new = read(certificate, key, client_ca.as_deref())?;
        *now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.now.read().unwrap_or_else(PoisonError::into_inner).clone().into()
    }
}

fn read(certificate: &Path, key: &Path, ca: Option<&Path>) -> Result<Arc<ServerConfig>, Error> {
    // Named, not the process's default: a program may have installed another one.
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, e))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(certificate, e))?;
    let builder = match ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|e| wrong(path, e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|e| wrong(path, e))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| wrong(certificate, e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_file_iter(path).map_err(|e| wrong(path, e))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|e| wrong(path, e))?;
    match all.is_empty() {
        true => Err(wrong(path, "it has no certificate in PEM")),
        false => Ok(all),
    }
}

/// The parser's messages name kinds of errors, never content.
fn wrong(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Config(format!("TLS: {}: {what}", path.display()))
}
