//! What a client's driver makes of servers that are no lock service, or not reachable.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquire, Batch, BatchError, LockDriver, Patience};
use lockkit_core::{Claim, ClientIdentity, Error, Key, Mode, Name, Namespace, Space};
use lockkit_http::HttpDriver;
use lockkit_http::wire::Problem;
use lockkit_server::{ServiceSettings, Tls};

use crate::served::Served;
use crate::tls::Authority;

async fn refused(url: &str) -> Error {
    HttpDriver::connect(url).await.expect_err(url)
}

/// A server that reads a little of what comes and then says this; where it listens.
fn says(bytes: &'static [u8]) -> String {
    says_at("127.0.0.1:0", bytes)
}

fn says_at(address: &str, bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 16]);
            let _ = client.write_all(bytes);
        }
    });
    address
}

/// Where nobody listens.
fn closed() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

async fn with_tls(authority: &Authority, name: &str) -> Served {
    let (certificate, key) = authority.sign(name);
    let tls = Tls::load(certificate, key, None).unwrap();
    Served::of(authority.service(), Some(&tls)).await
}

fn port(served: &Served) -> &str {
    served.address.rsplit(':').next().unwrap()
}

#[tokio::test]
async fn a_certificate_or_protocol_that_does_not_fit_is_permanent() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let secure = with_tls(&ours, "localhost").await;
    let plain = Served::new(ServiceSettings::new()).await;
    let ca = |authority: &Authority| authority.file("ca.pem").display().to_string();
    let cases = [
        (
            "an authority that is not trusted",
            format!("https://localhost:{}?ca={}", port(&secure), ca(&theirs)),
        ),
        (
            "a certificate for another name",
            format!("https://127.0.0.1:{}?ca={}", port(&secure), ca(&ours)),
        ),
        ("TLS at a plain port", format!("https://localhost:{}?ca={}", port(&plain), ca(&ours))),
        ("plain HTTP at a TLS port", format!("http://localhost:{}", port(&secure))),
        ("another protocol", format!("http://{}", says(b"-ERR unknown command\r\n"))),
        ("another protocol, cut short", format!("http://{}", says(b"HT\x00"))),
    ];
    for (what, url) in cases {
        let error = refused(&url).await;
        assert!(!error.is_retryable(), "{what}: {error}");
        let server = url.split('?').next().unwrap();
        assert!(error.to_string().contains(server), "{what} names {server}: {error}");
    }
}

#[tokio::test]
async fn what_may_pass_is_retryable() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("refused", format!("http://{}", closed())),
        ("an empty answer", format!("http://{}", says(b""))),
        ("an answer that is cut", format!("http://{}", says(b"HTTP/1.1 20"))),
        ("no socket", format!("http+unix:{}", folder.path().join("none.sock").display())),
        ("no such name", "http://no-such-host.invalid".to_owned()),
    ];
    for (what, url) in cases {
        let error = refused(&url).await;
        assert!(error.is_retryable(), "{what}: {error}");
        assert!(error.to_string().contains(&url), "{what} names {url}: {error}");
    }
}

#[tokio::test]
async fn one_server_with_a_wrong_certificate_is_passed_over() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (wrong, right) = (with_tls(&theirs, "localhost").await, with_tls(&ours, "localhost").await);
    let options = ours.url(&right, "");
    let (_, options) = options.split_once('?').unwrap();
    let both = format!("https://localhost:{},localhost:{}?{options}", port(&wrong), port(&right));
    HttpDriver::connect(&both).await.expect("the second one answers");
    // It is not known whether the second one would have been right.
    let closed = closed();
    let port_of_none = closed.rsplit(':').next().unwrap();
    let none = format!("https://localhost:{},localhost:{port_of_none}?{options}", port(&wrong));
    let error = refused(&none).await;
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn once_there_was_an_answer_a_wrong_certificate_is_asked_again() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let served = with_tls(&ours, "localhost").await;
    let driver = HttpDriver::connect(&ours.url(&served, "")).await.unwrap();
    let address = served.address.clone();
    served.stop().await.unwrap().unwrap();
    let (certificate, key) = theirs.sign("localhost");
    let tls = Tls::load(certificate, key, None).unwrap();
    let _other = Served::at(&address, theirs.service(), Some(&tls)).await;
    let error = driver.health().await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn only_a_request_that_was_sent_and_not_answered_is_ambiguous() {
    let served = Served::new(ServiceSettings::new()).await;
    let driver = HttpDriver::connect(&format!("http://{}", served.address)).await.unwrap();
    let error = async |permits, limit| {
        let key = Key::new(Namespace::default(), Space::Semaphore, Name::new("s").unwrap());
        let (mode, ttl) = (Mode::Permits { permits, limit }, Duration::from_secs(30));
        let identity = Arc::new(ClientIdentity::of_this_process());
        let claim = Arc::new(Claim::new(key, mode, ttl, ttl, identity));
        let acquires = [Acquire { claim, patience: Patience::Try }];
        match driver.submit(Batch { releases: &[], acquires: &acquires }).await {
            Ok(mut outcome) => outcome.acquired.remove(0).err(),
            Err(error) => Some(error),
        }
    };
    assert!(error(1, 3).await.is_none());
    let refused = error(1, 4).await.unwrap();
    assert!(matches!(refused.error, Error::LimitMismatch { in_use: 3, .. }), "{refused}");
    assert_eq!(refused.ambiguous, 0);
    let address = served.address.clone();
    served.stop().await.unwrap().unwrap();
    let unreachable = error(1, 3).await.unwrap();
    assert!(unreachable.error.is_retryable() && unreachable.ambiguous == 0, "{unreachable:?}");
    says_at(&address, b"");
    let unanswered = error(1, 3).await.unwrap();
    assert!(unanswered.error.is_retryable() && unanswered.ambiguous == 1, "{unanswered:?}");
}

#[test]
fn an_error_that_may_have_acted_says_so_to_clients_that_are_not_of_this_library() {
    let may_have_acted = Error::retryable("redis", "the connection was cut");
    assert_eq!(Problem::of(&may_have_acted).ambiguous, 1);
    let refused = BatchError::refused(may_have_acted);
    assert_eq!(Problem::of_batch(&refused).ambiguous, 0);
    assert_eq!(Problem::of_batch(&refused.after(2)).batch_error().ambiguous, 2);
    assert_eq!(Problem::of(&Error::config("no such name")).ambiguous, 0);
}

#[test]
fn a_problem_does_not_tell_where_the_backend_is() {
    for (cause, told) in [
        ("redis://a:6379: connection refused", "… connection refused"),
        ("tcp connect error: 10.0.0.3:6379 refused", "tcp connect error: … refused"),
        ("no route to (10.0.0.3)", "no route to …"),
        ("[::1]:5432: refused", "… refused"),
        ("db.internal:5432, refused", "… refused"),
        ("denied to user 'locker'@'10.0.0.5' for t", "denied to user … for t"),
        ("http+unix:/run/a.sock: gone", "… gone"),
        ("NOPERM no permissions: publish", "NOPERM no permissions: publish"),
    ] {
        let problem = Problem::of(&Error::permanent("redis", cause));
        assert_eq!(problem.detail, format!("redis: {told}"));
    }
}

#[test]
fn what_is_unsupported_and_by_whom_gets_through_and_nothing_else_does() {
    let error = Error::unsupported("semaphores", "redis");
    assert_eq!(Problem::of(&error).error().to_string(), error.to_string());
    let mut foreign = Problem::of(&error);
    (foreign.operation, foreign.backend) = (Some("anything".to_owned()), None);
    assert_eq!(foreign.error().to_string(), "http does not support this");
}
