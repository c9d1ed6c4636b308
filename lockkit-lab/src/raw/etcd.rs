//! A few words to etcd through its JSON gateway, over plain HTTP/1.1. Keys and
//! values are base64 there; numbers of 64 bits are strings.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{in_time, unexpected};

/// Posts a question to `/v3/PATH` and returns the answer.
pub async fn ask(addr: SocketAddr, path: &str, body: &Value) -> io::Result<Value> {
    let answer = exchange(addr, "POST", &format!("/v3/{path}"), &body.to_string()).await?;
    serde_json::from_str(&answer).map_err(|_| unexpected(answer))
}

/// Reads `/metrics`: the server's own statistics.
pub async fn metrics(addr: SocketAddr) -> io::Result<String> {
    exchange(addr, "GET", "/metrics", "").await
}

async fn exchange(addr: SocketAddr, verb: &str, path: &str, body: &str) -> io::Result<String> {
    let mut stream = super::connect(addr).await?;
    // HTTP/1.0: the answer ends where the connection ends, never in chunks.
    let request = format!(
        "{verb} {path} HTTP/1.0\r\nHost: {addr}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    in_time(stream.write_all(request.as_bytes())).await?;
    let mut answer = String::new();
    in_time(stream.read_to_string(&mut answer)).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.into()),
        _ => Err(unexpected(answer)),
    }
}
