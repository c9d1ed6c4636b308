//! The server in a process of its own, and the requests by which tests control it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::S3Faults;
use crate::worker;

/// An S3 server in a process of its own; it ends when this is dropped.
#[derive(Debug)]
pub struct S3Server {
    child: Child,
    address: SocketAddr,
}

impl S3Server {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not listen.
    ///
    /// # Panics
    /// When its program, the example `s3_server` of this crate, was not built.
    pub fn start() -> io::Result<Self> {
        let mut child = Command::new(worker::example("s3_server"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(said) = child.stdout.take() {
            BufReader::new(said).read_line(&mut line)?;
        }
        let address = line.trim().parse().map_err(io::Error::other)?;
        Ok(Self { child, address })
    }

    /// What URLs name as `endpoint=`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Misbehaves so from now on.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn set_faults(&self, faults: &S3Faults) -> io::Result<()> {
        self.ask("faults", &serde_json::to_string(faults)?).map(drop)
    }

    /// Every request since the last time, each as `ACTION KEY STATUS`, of clients that are not refused.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn take_log(&self) -> io::Result<Vec<String>> {
        Ok(self.ask("log", "")?.lines().map(str::to_owned).collect())
    }

    /// All objects of all buckets, as texts.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn objects(&self) -> io::Result<BTreeMap<String, String>> {
        Ok(serde_json::from_str(&self.ask("objects", "")?)?)
    }

    fn ask(&self, what: &str, body: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            stream,
            "POST /-/{what} HTTP/1.1\r\nhost: s3\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.starts_with("HTTP/1.1 200") {
            true => Ok(body.to_owned()),
            false => Err(io::Error::other(answer)),
        }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It can be gone already, and nothing else can go wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
