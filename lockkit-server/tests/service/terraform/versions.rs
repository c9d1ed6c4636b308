//! What readers and later writers meet when a write was left half done.

use std::sync::Arc;

use serde_json::{Value, json};

use super::client::{Subject, state};

fn parts_of(head: &Value, version: &str) -> Vec<String> {
    let version = &head[version];
    let write = version["write"].as_str().unwrap();
    let parts = version["parts"].as_u64().unwrap();
    (0..parts).map(|n| format!("lockkit.terraform/network/{write}/{n:04}")).collect()
}

#[tokio::test]
async fn the_version_before_is_kept_and_the_one_before_that_is_deleted() {
    for subject in Subject::each().await {
        subject.lock("one").await;
        assert_eq!(subject.send("GET", "&version=previous", b"").await.status, 404);
        for serial in 1..=5 {
            let sent = format!("{{\"serial\":{serial}}}");
            assert_eq!(subject.post("one", sent.as_bytes()).await.status, 200);
            let previous = subject.send("GET", "&version=previous", b"").await;
            match serial {
                1 => assert_eq!(previous.status, 404),
                _ => assert_eq!(previous.body, format!("{{\"serial\":{}}}", serial - 1)),
            }
        }
        assert_eq!(subject.names().await.len(), 3, "the head and two versions");
    }
}

#[tokio::test]
async fn what_a_writer_left_half_done_is_never_served_and_the_next_lock_deletes_it() {
    half_done(true).await;
}

#[tokio::test]
async fn what_a_writer_left_half_done_is_deleted_when_its_client_asks_again() {
    half_done(false).await;
}

/// Has a write end after half of it, and another one follow: under the next lock, or under the same.
async fn half_done(next_lock: bool) {
    for subject in Subject::each().await {
        subject.lock("one").await;
        subject.post("one", b"{\"serial\":1}").await;
        // A service that ended after the first of two parts.
        let mut head = subject.head().await;
        let write = "a".repeat(32);
        head["pending"] =
            json!({"write": write, "parts": 2, "length": 9, "sha256": "0".repeat(64)});
        let part = format!("lockkit.terraform/network/{write}/0000");
        subject.store(&part, Some(b"half".to_vec()), None).await;
        let token = subject.holder().await.unwrap().token;
        let name = subject.key().name;
        let bytes = head.to_string().into_bytes();
        subject.store(name.as_str(), Some(bytes), Some(token)).await;
        assert_eq!(subject.get().await.body, "{\"serial\":1}");
        let id = if next_lock { "two" } else { "one" };
        if next_lock {
            subject.break_holder().await;
            assert_eq!(subject.lock(id).await.status, 200);
        }
        assert_eq!(subject.get().await.body, "{\"serial\":1}");
        assert_eq!(subject.post(id, b"{\"serial\":2}").await.status, 200);
        assert!(subject.load(&part).await.is_none(), "it is deleted");
        assert_eq!(subject.names().await.len(), 3);
    }
}

#[tokio::test]
async fn a_part_that_is_missing_or_damaged_is_an_error_that_passes() {
    let subject = Subject::new(lockkit_server::ServiceSettings::new()).await;
    subject.lock("one").await;
    subject.post("one", &state(1, 200_000)).await;
    let parts = parts_of(&subject.head().await, "current");
    assert!(parts.len() > 2);
    let whole = subject.load(&parts[1]).await.unwrap().value;
    for other in [None, Some(b"other".to_vec()), Some(vec![]), Some(whole[1..].to_vec())] {
        subject.store(&parts[1], other, None).await;
        let answer = subject.get().await;
        assert_eq!(answer.status, 503);
        assert!(!answer.body.contains("text"), "no half of it is served");
    }
    subject.store(&parts[1], Some(whole), None).await;
    assert_eq!(subject.get().await.status, 200);
}

#[tokio::test]
async fn a_head_that_another_program_wrote_is_an_error_and_stays() {
    let subject = Subject::new(lockkit_server::ServiceSettings::new()).await;
    let name = subject.key().name;
    for other in [&b"no JSON"[..], b"{}", b"{\"lock\":null,\"later\":1}"] {
        subject.store(name.as_str(), Some(other.to_vec()), None).await;
        assert_eq!(subject.get().await.status, 502);
        assert_eq!(subject.lock("one").await.status, 502);
        assert_eq!(subject.post("one", b"{}").await.status, 502);
        assert_eq!(subject.load(name.as_str()).await.unwrap().value, other);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_see_one_whole_version_while_another_is_written() {
    for subject in Subject::each().await {
        let subject = Arc::new(subject);
        subject.lock("one").await;
        let states: Vec<_> = (0..6).map(|seed| state(seed, 150_000)).collect();
        assert_eq!(subject.post("one", &states[0]).await.status, 200);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let reader = {
            let (subject, states) = (subject.clone(), states.clone());
            tokio::spawn(async move {
                let mut reads = 0;
                while !*stopped.borrow() || reads < 3 {
                    let read = subject.get().await;
                    assert_eq!(read.status, 200, "{}", read.body);
                    assert!(states.iter().any(|state| read.body.as_bytes() == state));
                    reads += 1;
                }
            })
        };
        for sent in &states[1..] {
            assert_eq!(subject.post("one", sent).await.status, 200);
        }
        stop.send(true).unwrap();
        reader.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_one_lock_at_once_leave_one_of_them_and_nothing_else() {
    for subject in Subject::each().await {
        let subject = Arc::new(subject);
        subject.lock("one").await;
        let writers: Vec<_> = (0..4)
            .map(|seed| {
                let subject = subject.clone();
                tokio::spawn(async move { subject.post("one", &state(seed, 150_000)).await.status })
            })
            .collect();
        let mut done = 0;
        for writer in writers {
            let status = writer.await.unwrap();
            assert!([200, 409].contains(&status), "{status}");
            done += u32::from(status == 200);
        }
        assert!(done > 0, "one of them is the last");
        let read = subject.get().await;
        assert!((0..4).any(|seed| read.body.as_bytes() == state(seed, 150_000)));
        subject.post("one", b"{}").await;
        let head = subject.head().await;
        let kept = parts_of(&head, "current").len() + parts_of(&head, "previous").len();
        assert_eq!(subject.names().await.len(), 1 + kept, "no part is left over");
    }
}
