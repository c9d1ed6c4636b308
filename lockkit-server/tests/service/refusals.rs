//! Requests that are refused before their body has come.

use std::time::Duration;

use lockkit_server::{AccessTokens, Service, ServiceSettings, Tls};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::served::{Answer, Client, Served};
use crate::tls::Authority;

/// What is wrong with a request, and the status of its refusal.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Token,
    ContentType,
    Path,
    Host,
}

const ALL: [(Wrong, u16); 4] =
    [(Wrong::Token, 401), (Wrong::ContentType, 400), (Wrong::Path, 404), (Wrong::Host, 403)];

fn head(wrong: Wrong, more: &str) -> String {
    let path = if matches!(wrong, Wrong::Path) { "/v1/nothing" } else { "/v1/inspect" };
    let host = if matches!(wrong, Wrong::Host) { "evil.example" } else { "localhost" };
    let kind = if matches!(wrong, Wrong::ContentType) { "text/plain" } else { "application/json" };
    format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {kind}\r\n{more}\r\n")
}

/// A service that has tokens where that is what is wrong.
async fn served(wrong: Wrong) -> Served {
    let settings = ServiceSettings::new();
    Served::new(match wrong {
        Wrong::Token => {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("tokens");
            std::fs::write(&file, format!("alice {} read@*\n", "0".repeat(64))).unwrap();
            settings.tokens(AccessTokens::load(&file).unwrap())
        }
        _ => settings,
    })
    .await
}

fn closes(answer: &Answer) -> bool {
    answer.head.contains("\r\nconnection: close\r\n")
}

/// Sends a head, and its body in a second write.
async fn send_in_two(client: &mut Client, wrong: Wrong, length: usize) {
    let head = head(wrong, &format!("content-length: {length}\r\n"));
    client.send(head.as_bytes()).await;
    // The server has the head by itself, as it does from clients that write twice.
    tokio::time::sleep(Duration::from_millis(1)).await;
    client.send(&vec![b' '; length]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_usable_after_a_refusal_whose_body_is_short() {
    for (wrong, status) in ALL {
        let served = served(wrong).await;
        let mut client = served.client().await;
        for length in [20, 20, 20, 60_000, 20, 20] {
            send_in_two(&mut client, wrong, length).await;
            let refused = client.answer().await.unwrap_or_else(|| panic!("{wrong:?}: an answer"));
            assert_eq!((refused.status, closes(&refused)), (status, false), "{wrong:?} {length}");
            assert_eq!(client.get("/healthz", "").await.status, 200, "{wrong:?} {length}");
        }
        let chunked = head(wrong, "transfer-encoding: chunked\r\n");
        client.send(chunked.as_bytes()).await;
        client.send(b"2\r\n{}\r\n0\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().status, status, "{wrong:?}, chunked");
        assert_eq!(client.get("/healthz", "").await.status, 200, "{wrong:?}, chunked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_whose_body_is_long_arrives_and_says_that_it_is_the_last() {
    for (wrong, status) in ALL {
        let served = served(wrong).await;
        for length in [70_000, 2 << 20] {
            for _ in 0..10 {
                let mut client = served.client().await;
                send_in_two(&mut client, wrong, length).await;
                let refused = client.answer().await;
                let refused = refused.unwrap_or_else(|| panic!("{wrong:?} {length}: an answer"));
                assert_eq!((refused.status, closes(&refused)), (status, true), "{wrong:?}");
                assert_eq!(client.0.read(&mut [0]).await.unwrap(), 0, "its end, and no reset");
            }
        }
        let mut client = served.client().await;
        client.send(head(wrong, "transfer-encoding: chunked\r\n").as_bytes()).await;
        client.send(format!("{:x}\r\n{}\r\n", 70_000, " ".repeat(70_000)).as_bytes()).await;
        let refused = client.answer().await.expect("an answer");
        assert_eq!((refused.status, closes(&refused)), (status, true), "{wrong:?}, chunked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_before_it_sends_a_body_is_not_invited_to() {
    let served = served(Wrong::Token).await;
    let mut client = served.client().await;
    let more = "content-length: 20\r\nexpect: 100-continue\r\n";
    client.send(head(Wrong::Token, more).as_bytes()).await;
    let refused = client.answer().await.expect("an answer");
    assert_eq!((refused.status, closes(&refused)), (401, true), "{}", refused.head);
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_token_is_not_waited_for() {
    let served = served(Wrong::Token).await;
    let mut client = served.client().await;
    let begun = Instant::now();
    client.send(head(Wrong::Token, "content-length: 100\r\n").as_bytes()).await;
    let refused = client.answer().await.expect("an answer");
    let took = begun.elapsed();
    assert_eq!((refused.status, closes(&refused)), (401, true));
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "{took:?}");
    // It still has the connection; the server does not wait for that when it stops.
    let begun = Instant::now();
    served.stop().await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_on_and_on_is_cut_off() {
    let served = served(Wrong::Token).await;
    let mut client = served.client().await;
    let head = head(Wrong::Token, "content-length: 1000000000\r\n");
    client.send(head.as_bytes()).await;
    let mut sent = 0;
    while client.0.get_mut().write_all(&[0; 64 << 10]).await.is_ok() {
        sent += 64 << 10;
        assert!(sent < 64 << 20, "it reads 4 MiB at most, and the sockets hold some");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_a_refusal_arrives_as_well() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("localhost");
    let tls = Tls::load(certificate, key, None).unwrap();
    let service: Service = authority.service();
    let served = Served::of(service, Some(&tls)).await;
    for _ in 0..5 {
        let mut stream = authority.client(&served).await;
        let length = 2 << 20;
        let head = head(Wrong::Token, &format!("content-length: {length}\r\n"));
        let answer = whole_answer(&mut stream, head.as_bytes(), length).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
}

/// Sends all, and reads until the end of the stream.
async fn whole_answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    head: &[u8],
    length: usize,
) -> String {
    stream.write_all(head).await.unwrap();
    stream.write_all(&vec![b' '; length]).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("close_notify, and no reset");
    String::from_utf8(answer).unwrap().to_ascii_lowercase().replacen("http", "HTTP", 1)
}
