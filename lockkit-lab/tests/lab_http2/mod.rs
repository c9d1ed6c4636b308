//! As much of a gRPC client as it takes to send known frames to etcd.
#![allow(unreachable_pub)]

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

pub struct Http2 {
    stream: TcpStream,
}

impl Http2 {
    pub async fn open(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut client = Self { stream };
        client.frame(SETTINGS, 0, 0, &[]).await;
        client
    }

    /// Calls a method and waits for the end of its answer.
    pub async fn unary(&mut self, stream: u32, method: &str, message: &[u8]) {
        self.head(stream, method).await;
        self.message(stream, message, true).await;
        self.end_of_a_stream().await;
    }

    pub async fn head(&mut self, stream: u32, method: &str) {
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "lab"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            block.push(0); // literal, not to be remembered
            for text in [name, value] {
                block.push(u8::try_from(text.len()).unwrap());
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.frame(HEADERS, END_HEADERS, stream, &block).await;
    }

    pub async fn message(&mut self, stream: u32, message: &[u8], last: bool) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0], &length[..], message].concat();
        self.frame(DATA, if last { END_STREAM } else { 0 }, stream, &body).await;
    }

    pub async fn end_of_a_stream(&mut self) {
        loop {
            let (kind, flags, _) = self.read().await;
            if kind <= HEADERS && flags & END_STREAM != 0 {
                return;
            }
        }
    }

    /// Waits for data on this stream.
    pub async fn data(&mut self, stream: u32) {
        while !matches!(self.read().await, (DATA, _, of) if of == stream) {}
    }

    async fn read(&mut self) -> (u8, u8, u32) {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).await.unwrap();
        if head[3] == SETTINGS && head[4] & ACK == 0 {
            self.frame(SETTINGS, ACK, 0, &[]).await;
        }
        (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]))
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.stream.write_all(&[&head, body].concat()).await.unwrap();
    }
}
