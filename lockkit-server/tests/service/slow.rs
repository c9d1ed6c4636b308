//! Clients that are slow on purpose. The clock is paused: it moves on when nothing else can.

use std::time::Duration;

use lockkit_server::ServiceSettings;
use tokio::time::Instant;

use crate::served::Served;

/// What a client gets that sends this and no more, and how long that takes.
async fn sends(bytes: &[u8]) -> (Option<u16>, Duration) {
    let served = Served::new(ServiceSettings::new()).await;
    let mut client = served.client().await;
    let begun = Instant::now();
    client.send(bytes).await;
    let status = client.answer().await.map(|answer| answer.status);
    (status, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let head = b"POST /v1/inspect HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let (status, after) = sends(head).await;
    assert_eq!(status, Some(408));
    assert!(after >= Duration::from_secs(20) && after < Duration::from_secs(40), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_given_up() {
    let (status, after) = sends(b"GET /healthz HTTP/1.1\r\nhost: ").await;
    assert!(matches!(status, None | Some(408)), "{status:?}");
    assert!(after >= Duration::from_secs(40) && after < Duration::from_secs(60), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_given_up() {
    let (status, after) = sends(b"").await;
    assert_eq!(status, None);
    assert!(after >= Duration::from_secs(40) && after < Duration::from_secs(60), "{after:?}");
}
