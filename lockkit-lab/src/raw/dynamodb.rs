//! A few words to DynamoDB: one request over a connection of its own. DynamoDB Local reads who signs a
//! request, and no signature.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{in_time, unexpected};

/// Asks for an action, such as `GetItem`. A refusal is an error whose text has DynamoDB's code.
pub async fn ask(addr: SocketAddr, action: &str, body: &Value) -> io::Result<Value> {
    let mut stream = super::connect(addr).await?;
    let body = body.to_string();
    // HTTP/1.0: the answer ends where the connection ends, never in chunks.
    let request = format!(
        "POST / HTTP/1.0\r\nHost: {addr}\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: DynamoDB_20120810.{action}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=0\r\nX-Amz-Date: 20260101T000000Z\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    in_time(stream.write_all(request.as_bytes())).await?;
    let mut answer = String::new();
    in_time(stream.read_to_string(&mut answer)).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => {
            serde_json::from_str(body).map_err(|_| unexpected(body))
        }
        _ => Err(unexpected(answer)),
    }
}
