//! One request of HTTP over a connection of its own.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{in_time, unexpected};

/// What a server answers.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers as they came, in lines.
    pub head: String,
    /// All that follows them.
    pub body: Vec<u8>,
}

/// Sends a request with further headers, each as a line. It is one of HTTP/1.0, so that the body of the answer
/// comes in one piece.
///
/// # Errors
/// If there is no answer.
pub async fn ask(
    addr: SocketAddr,
    method: &str,
    target: &str,
    headers: &[&str],
    body: &[u8],
) -> io::Result<HttpAnswer> {
    let mut stream = super::connect(addr).await?;
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!(
        "{method} {target} HTTP/1.0\r\nhost: {addr}\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    let request = [head.as_bytes(), body].concat();
    in_time(stream.write_all(&request)).await?;
    let mut read = Vec::new();
    in_time(stream.read_to_end(&mut read)).await?;
    let end = read.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or_else(|| unexpected("an answer without an end of its headers"))?;
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| unexpected(head.clone()))?;
    Ok(HttpAnswer { status, head, body: read[end + 4..].to_vec() })
}
