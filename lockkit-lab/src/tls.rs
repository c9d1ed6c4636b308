//! Certificates for both ends, and where a server listens for TLS: a Redis that gets them while
//! it runs, or a server that was started with them. May not know who connects.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use super::error::{Doing, LabError, Result};
use super::port::Port;
use super::program;
use super::raw::resp;

/// Where a server speaks TLS, and the certificates of both ends. They go when this is
/// dropped; the server may go before.
#[derive(Debug)]
pub struct TestCertificates {
    port: Port,
    folder: TempDir,
}

/// Whether clients have to show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// Anybody may come.
    Anybody,
    /// Only who shows one of the same authority.
    WithCertificate,
}

impl TestCertificates {
    /// Has the Redis at this address listen for TLS, too, until it is restarted.
    ///
    /// # Errors
    ///
    /// [`LabError::Missing`] if openssl is not installed; if it or the server refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may listen already.
    pub async fn begin(redis: SocketAddr, clients: Clients) -> Result<Self> {
        let tls = Self::issue().await?;
        let text = |path: PathBuf| path.display().to_string();
        let (cert, key, ca) =
            (text(tls.certificate("server")), text(tls.key("server")), tls.authority());
        let ask = if clients == Clients::WithCertificate { "yes" } else { "no" };
        let (ca, port) = (text(ca), tls.port.number().to_string());
        let set = [
            "CONFIG",
            "SET",
            "tls-cert-file",
            &cert,
            "tls-key-file",
            &key,
            "tls-ca-cert-file",
            &ca,
            "tls-auth-clients",
            ask,
            "tls-port",
            &port,
        ];
        let done = resp::ask(redis, &set).await;
        done.map_err(|error| LabError::Answer(format!("listening for TLS: {error}")))?;
        Ok(tls)
    }

    /// Certificates, and a port for a server that is still to be started.
    ///
    /// # Errors
    ///
    /// [`LabError::Missing`] if openssl is not installed; if it refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing remains.
    pub async fn issue() -> Result<Self> {
        let folder = tempfile::tempdir().doing("making a folder for certificates")?;
        let tls = Self { port: Port::take()?, folder };
        for authority in ["authority", "stranger"] {
            tls.self_signed(authority).await?;
        }
        for end in ["server", "client"] {
            tls.signed(end).await?;
        }
        Ok(tls)
    }

    /// The server's key and certificate in one text of PEM.
    pub(crate) fn server(&self) -> Result<String> {
        let read = |file: PathBuf| std::fs::read_to_string(file).doing("reading certificates");
        Ok(read(self.key("server"))? + &read(self.certificate("server"))?)
    }

    /// The server's certificate and its key, for servers that take them in their configuration.
    pub fn server_files(&self) -> (PathBuf, PathBuf) {
        (self.certificate("server"), self.key("server"))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Who vouches for the server and for the client.
    pub fn authority(&self) -> PathBuf {
        self.certificate("authority")
    }

    /// An authority that vouches for neither.
    pub fn stranger(&self) -> PathBuf {
        self.certificate("stranger")
    }

    /// A client's certificate and its key.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.certificate("client"), self.key("client"))
    }

    fn certificate(&self, of: &str) -> PathBuf {
        self.folder.path().join(format!("{of}.pem"))
    }

    fn key(&self, of: &str) -> PathBuf {
        self.folder.path().join(format!("{of}.key"))
    }

    async fn self_signed(&self, name: &str) -> Result<()> {
        let (subject, key, out) =
            (format!("/CN={name}"), format!("{name}.key"), format!("{name}.pem"));
        let new = ["req", "-x509", "-days", "30", "-subj", &subject, "-keyout", &key, "-out", &out];
        self.openssl(&[&new[..], &NEW_KEY[..]].concat()).await
    }

    async fn signed(&self, name: &str) -> Result<()> {
        let names = self.folder.path().join("names");
        std::fs::write(&names, "subjectAltName=IP:127.0.0.1,DNS:localhost\n")
            .doing("writing what a certificate is for")?;
        let (subject, key) = (format!("/CN={name}"), format!("{name}.key"));
        let (request, out) = (format!("{name}.csr"), format!("{name}.pem"));
        let ask = ["req", "-subj", &subject, "-keyout", &key, "-out", &request];
        self.openssl(&[&ask[..], &NEW_KEY[..]].concat()).await?;
        let sign = [
            "x509",
            "-req",
            "-days",
            "30",
            "-in",
            &request,
            "-CA",
            "authority.pem",
            "-CAkey",
            "authority.key",
            "-CAcreateserial",
            "-extfile",
            "names",
            "-out",
            &out,
        ];
        self.openssl(&sign).await
    }

    async fn openssl(&self, args: &[&str]) -> Result<()> {
        let mut command = tokio::process::Command::new(program::find("openssl")?);
        command.args(args).current_dir(Path::new(self.folder.path())).stdin(Stdio::null());
        let done = command.kill_on_drop(true).output().await.doing("running openssl")?;
        match done.status.success() {
            true => Ok(()),
            false => Err(LabError::Answer(String::from_utf8_lossy(&done.stderr).into_owned())),
        }
    }
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
