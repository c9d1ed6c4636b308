//! A few words to NATS: one request over a connection of its own.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{in_time, unexpected};

/// Asks for an answer in JSON, such as one of JetStream's.
pub async fn ask(addr: SocketAddr, subject: &str, body: &Value) -> io::Result<Value> {
    let mut stream = BufReader::new(super::connect(addr).await?);
    let body = body.to_string();
    let asked = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true}}\r\nSUB lab 1\r\n\
         PUB {subject} lab {}\r\n{body}\r\n",
        body.len()
    );
    in_time(stream.write_all(asked.as_bytes())).await?;
    in_time(async {
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Err(unexpected("NATS has closed the connection"));
            }
            let words: Vec<_> = line.split_whitespace().collect();
            match words.first().copied() {
                Some("MSG") => {
                    let length = words.last().and_then(|word| word.parse().ok());
                    let mut answer = vec![0; length.ok_or_else(|| unexpected(line.as_str()))?];
                    stream.read_exact(&mut answer).await?;
                    return serde_json::from_slice(&answer).map_err(|_| unexpected(line));
                }
                Some("HMSG") => return Err(unexpected("no server takes the request")),
                Some("-ERR") => return Err(unexpected(line)),
                Some("PING") => stream.write_all(b"PONG\r\n").await?,
                _ => {}
            }
        }
    })
    .await
}
