//! The lab's S3 server as a process: prints its address, and ends when its standard input does, so also
//! when the test that started it is killed.

use std::io::{Write, stdout};

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(stdout(), "{}", listener.local_addr()?)?;
    let (mut input, mut nothing) = (tokio::io::stdin(), [0; 1]);
    tokio::select! {
        failed = lockkit_lab::s3::serve(listener) => failed.map(drop),
        ended = input.read(&mut nothing) => ended.map(drop),
    }
}
