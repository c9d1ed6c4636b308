//! A service over the memory driver for tests, and a client that sends whatever it is told to.

use std::sync::Arc;

use lockkit_core::memory::MemoryDriver;
use lockkit_server::{Listen, Listener, Service, ServiceSettings, Tls};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server that runs until it is told to stop.
pub(crate) struct Served {
    pub(crate) service: Service,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub(crate) async fn new(settings: ServiceSettings) -> Self {
        let service = Service::with(Arc::new(MemoryDriver::new()), settings).unwrap();
        Self::of(service, None).await
    }

    pub(crate) async fn of(service: Service, tls: Option<&Tls>) -> Self {
        Self::at("127.0.0.1:0", service, tls).await
    }

    pub(crate) async fn at(address: &str, service: Service, tls: Option<&Tls>) -> Self {
        let listen: Listen = address.parse().unwrap();
        let mut listener: Listener = listen.open().await.unwrap();
        if let Some(tls) = tls {
            listener = listener.with_tls(tls);
        }
        let Listen::Tcp(address) = listener.address().unwrap() else { unreachable!() };
        let (stop, stopped) = oneshot::channel();
        let stopped = async { drop(stopped.await) };
        let ended = tokio::spawn(lockkit_server::serve(listener, service.clone(), stopped));
        Self { service, address: address.to_string(), stop, ended }
    }

    pub(crate) async fn client(&self) -> Client {
        Client(BufStream::new(TcpStream::connect(&self.address).await.unwrap()))
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, token: Option<&str>, path: &str, body: Value) -> Answer {
        self.client().await.post(token, path, &body).await
    }

    /// Has it stop; the result is there once it has.
    pub(crate) fn stop(self) -> JoinHandle<std::io::Result<()>> {
        self.stop.send(()).unwrap();
        self.ended
    }
}

/// A connection.
pub(crate) struct Client(pub(crate) BufStream<TcpStream>);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

impl Client {
    pub(crate) async fn post(&mut self, token: Option<&str>, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{}\r\n",
            body.len(),
            token.unwrap_or_default(),
        );
        self.send(format!("{head}{body}").as_bytes()).await;
        self.answer().await.expect("an answer")
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        self.send(request.as_bytes()).await;
        self.answer().await.expect("an answer")
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        // A server that refuses a request early closes: its answer is there all the same.
        let _ = self.0.write_all(bytes).await;
        let _ = self.0.flush().await;
    }

    /// The next answer; `None` when the connection ends without one.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match self.0.read_line(&mut head).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).await.ok()?;
        // A state of Terraform is given back as it came, whatever its bytes are.
        Some(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
    }
}

impl Client {
    /// The next line of an answer that is a stream, which has each in a chunk of its own; `None` at
    /// its end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let mut size = String::new();
        self.0.read_line(&mut size).await.unwrap();
        let size = usize::from_str_radix(size.trim_end(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).await.unwrap();
        chunk.truncate(size);
        (size > 0).then(|| String::from_utf8(chunk).unwrap())
    }
}

/// A claim's id.
pub(crate) fn id(number: u128) -> String {
    format!("{number:032x}")
}
