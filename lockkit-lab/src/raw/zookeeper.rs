//! A few words of ZooKeeper's protocol: sessions, nodes, and the four letter words.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{in_time, unexpected};

/// `xid` of a ping and of its answer.
pub const PING: i32 = -2;
/// `xid` of the event of a watch.
pub const EVENT: i32 = -1;
/// "There is no such node."
pub const NO_NODE: i32 = -101;

const OP_CREATE: i32 = 1;
const OP_DELETE: i32 = 2;
const OP_EXISTS: i32 = 3;
const OP_PING: i32 = 11;
const OP_CLOSE: i32 = -11;

/// Sends a four letter word (`ruok`, `srvr`, `mntr`) and reads the answer.
pub async fn four_letters(addr: SocketAddr, word: &str) -> io::Result<String> {
    let mut stream = super::connect(addr).await?;
    in_time(stream.write_all(word.as_bytes())).await?;
    let mut answer = String::new();
    in_time(stream.read_to_string(&mut answer)).await?;
    Ok(answer)
}

/// A connection with a session of its own.
#[derive(Debug)]
pub struct ZkConnection {
    stream: BufReader<TcpStream>,
    last_xid: i32,
}

/// An answer or an event.
#[derive(Debug)]
pub struct ZkResponse {
    /// Which request it answers, [`PING`] or [`EVENT`].
    pub xid: i32,
    /// 0, or what went wrong.
    pub error: i32,
}

impl ZkConnection {
    /// Connects and opens a session of 10 s.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let mut connection =
            Self { stream: BufReader::new(super::connect(addr).await?), last_xid: 0 };
        let mut hello = vec![0; 12]; // protocol version, last zxid seen
        hello.extend_from_slice(&10_000_i32.to_be_bytes());
        hello.extend_from_slice(&[0; 8]); // no session yet
        hello.extend_from_slice(&16_i32.to_be_bytes());
        hello.extend_from_slice(&[0; 17]); // no password yet; not read-only
        connection.send(&[&hello]).await?;
        let welcome = connection.frame().await?;
        match welcome.get(4..8) {
            Some([0, 0, 0, 0]) | None => Err(unexpected("the server gave no session")),
            Some(_) => Ok(connection),
        }
    }

    /// Whether the node exists; leaves a watch if asked to.
    pub async fn exists(&mut self, path: &str, watch: bool) -> io::Result<bool> {
        let request = self.exists_request(path, watch);
        match self.call(&request).await?.error {
            0 => Ok(true),
            NO_NODE => Ok(false),
            error => Err(unexpected(format!("exists {path}: error {error}"))),
        }
    }

    /// When the node was made, by the server's clock, in milliseconds.
    pub async fn made_at(&mut self, path: &str) -> io::Result<i64> {
        let request = self.exists_request(path, false);
        self.send(&[&request]).await?;
        let frame = self.frame().await?;
        let made = frame.get(32..40).and_then(|bytes| bytes.try_into().ok());
        made.map(i64::from_be_bytes).ok_or_else(|| unexpected("no such node"))
    }

    /// Makes a node without data that everybody may change.
    pub async fn create(&mut self, path: &str) -> io::Result<()> {
        let request = self.create_request(path);
        self.call(&request).await?.done("create", path)
    }

    /// Deletes a node, whatever its version.
    pub async fn delete(&mut self, path: &str) -> io::Result<()> {
        let mut request = self.request(OP_DELETE);
        put(&mut request, path.as_bytes());
        request.extend_from_slice(&(-1_i32).to_be_bytes());
        self.call(&request).await?.done("delete", path)
    }

    /// Ends the session.
    pub async fn close(mut self) -> io::Result<()> {
        let request = self.request(OP_CLOSE);
        self.call(&request).await?.done("close", "the session")
    }

    /// Bytes of an `exists`, to be sent later.
    pub fn exists_request(&mut self, path: &str, watch: bool) -> Vec<u8> {
        let mut request = self.request(OP_EXISTS);
        put(&mut request, path.as_bytes());
        request.push(u8::from(watch));
        request
    }

    /// Bytes of a `create`, to be sent later.
    pub fn create_request(&mut self, path: &str) -> Vec<u8> {
        let mut request = self.request(OP_CREATE);
        put(&mut request, path.as_bytes());
        put(&mut request, b"");
        request.extend_from_slice(&1_i32.to_be_bytes()); // one rule:
        request.extend_from_slice(&31_i32.to_be_bytes()); // everything
        put(&mut request, b"world");
        put(&mut request, b"anyone");
        request.extend_from_slice(&0_i32.to_be_bytes()); // an ordinary node
        request
    }

    /// Bytes of a ping, to be sent later.
    pub fn ping_request(&self) -> Vec<u8> {
        [PING.to_be_bytes(), OP_PING.to_be_bytes()].concat()
    }

    /// Sends requests in one piece.
    pub async fn send(&mut self, requests: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| put(&mut bytes, request));
        in_time(self.stream.write_all(&bytes)).await
    }

    /// Reads the next answer or event.
    pub async fn read(&mut self) -> io::Result<ZkResponse> {
        let frame = self.frame().await?;
        let number = |at: usize| Some(i32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        match (number(0), number(12)) {
            (Some(xid), Some(error)) => Ok(ZkResponse { xid, error }),
            _ => Err(unexpected("odd answer")),
        }
    }

    async fn call(&mut self, request: &[u8]) -> io::Result<ZkResponse> {
        self.send(&[request]).await?;
        self.read().await
    }

    fn request(&mut self, operation: i32) -> Vec<u8> {
        self.last_xid += 1;
        [self.last_xid.to_be_bytes(), operation.to_be_bytes()].concat()
    }

    async fn frame(&mut self) -> io::Result<Vec<u8>> {
        in_time(async {
            let length = self.stream.read_u32().await?;
            let mut frame = vec![0; length as usize];
            self.stream.read_exact(&mut frame).await?;
            Ok(frame)
        })
        .await
    }
}

impl ZkResponse {
    fn done(&self, what: &str, path: &str) -> io::Result<()> {
        match self.error {
            0 => Ok(()),
            error => Err(unexpected(format!("{what} {path}: error {error}"))),
        }
    }
}

/// Strings, buffers and whole requests all begin with their length.
fn put(bytes: &mut Vec<u8>, piece: &[u8]) {
    bytes.extend_from_slice(&u32::try_from(piece.len()).unwrap_or(0).to_be_bytes());
    bytes.extend_from_slice(piece);
}
