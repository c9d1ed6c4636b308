//! How a client shows who it is, and whom it trusts: the token, and TLS.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::HeaderValue;
use lockkit_core::Error;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// A bearer token. `Debug` does not show it.
///
/// ```
/// use lockkit_http::Secret;
///
/// let secret = Secret::new("correct-horse\n");
/// assert_eq!(secret, Secret::new("correct-horse"));
/// assert_eq!(format!("{secret:?}"), "***");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The token, without the white space around it.
    pub fn new(token: impl AsRef<str>) -> Self {
        Self(token.as_ref().trim().to_owned())
    }

    /// The token in a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path);
        text.map(Self::new)
            .map_err(|e| Error::Config(format!("cannot read the token in {}: {e}", path.display())))
    }

    /// The value of the header `authorization`.
    pub(crate) fn header(&self) -> Result<HeaderValue, Error> {
        let plain = !self.0.is_empty() && self.0.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::try_from(format!("Bearer {}", self.0)).ok().filter(|_| plain);
        let mut value = value.ok_or_else(|| {
            Error::config("the token of a lock service is one word of ASCII characters")
        })?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Files for `https://`, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The only authorities to trust, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// What to show to a server that asks for it.
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Certificates {
    /// Reads them.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for root in certificates(path)? {
                    roots.add(root).map_err(|e| wrong(path, e))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                let (good, _) = roots.add_parsable_certificates(found.certs);
                if good == 0 {
                    return Err(Error::config(
                        "this system trusts no certificate authority: name one with ?ca=FILE",
                    ));
                }
            }
        }
        // Named, not the process's default: a program may have installed another one.
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::permanent(crate::BACKEND, e))?
            .with_root_certificates(roots);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let private = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, e))?;
                builder
                    .with_client_auth_cert(certificates(cert)?, private)
                    .map_err(|e| wrong(cert, e))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_file_iter(path).map_err(|e| wrong(path, e))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|e| wrong(path, e))?;
    match all.is_empty() {
        true => Err(wrong(path, "it has no certificate in PEM")),
        false => Ok(all),
    }
}

fn wrong(path: &Path, what: impl fmt::Display) -> Error {
    Error::Config(format!("TLS: {}: {what}", path.display()))
}
