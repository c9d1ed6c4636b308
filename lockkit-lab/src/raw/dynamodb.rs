//! A few words to DynamoDB: one request over a connection of its own. DynamoDB Local reads who signs a
//! request, and no signature.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;

use super::{http, unexpected};

/// Asks for an action, such as `GetItem`. A refusal is an error whose text has DynamoDB's code.
///
/// # Errors
/// If there is no answer, or a refusal.
pub async fn ask(addr: SocketAddr, action: &str, body: &Value) -> io::Result<Value> {
    let headers = [
        "content-type: application/x-amz-json-1.0",
        &format!("x-amz-target: DynamoDB_20120810.{action}"),
        "x-amz-date: 20260101T000000Z",
        "authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=0",
    ];
    let answer = http::ask(addr, "POST", "/", &headers, body.to_string().as_bytes()).await?;
    let text = || String::from_utf8_lossy(&answer.body).into_owned();
    match answer.status {
        200 => serde_json::from_slice(&answer.body).map_err(|_| unexpected(text())),
        _ => Err(unexpected(text())),
    }
}
