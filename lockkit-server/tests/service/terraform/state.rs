//! GET, POST and DELETE.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lockkit_server::{ServiceSettings, TerraformSettings};

use super::client::{Subject, state};

fn md5(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(*md5::compute(bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_comes_back_as_it_was_sent_with_its_sum() {
    for subject in Subject::each().await {
        assert_eq!(subject.get().await.status, 404);
        subject.lock("one").await;
        assert_eq!(subject.get().await.status, 404, "a lock is no state");
        for bytes in [1, 50_000, 60_000, 1_000_000] {
            let sent = state(1, bytes);
            assert_eq!(subject.post("one", &sent).await.status, 200);
            let answer = subject.get().await;
            assert_eq!((answer.status, answer.body.as_bytes()), (200, &*sent));
            let sum = format!("\r\ncontent-md5: {}\r\n", md5(&sent).to_ascii_lowercase());
            assert!(answer.head.contains(&sum), "{} {sum}", answer.head);
            assert!(answer.head.contains("\r\ncache-control: no-store\r\n"));
        }
        let (head, names) = (subject.head().await, subject.names().await);
        let parts = head["current"]["parts"].as_u64().unwrap();
        assert!(parts > 10, "{parts}");
        let previous = head["previous"]["parts"].as_u64().unwrap();
        assert_eq!(names.len() as u64, 1 + parts + previous, "nothing else is left: {names:?}");
        for name in &names {
            let entry = subject.load(name).await.unwrap();
            let is_head = name == "lockkit.terraform/network";
            assert_eq!(entry.token.is_some(), is_head, "only the head has a token: {name}");
            assert!(entry.value.len() <= 60_000);
        }
        assert_eq!(subject.unlock("one").await.status, 200);
    }
}

#[tokio::test]
async fn a_state_is_written_under_its_own_lock_only() {
    for subject in Subject::each().await {
        let refused = [("no lock", "&ID=one"), ("no ID", "")];
        for (what, query) in refused {
            assert_eq!(subject.send("POST", query, b"{}").await.status, 409, "{what}");
        }
        subject.lock("one").await;
        for (what, query) in [("another ID", "&ID=two"), ("no ID", ""), ("an empty ID", "&ID=")] {
            assert_eq!(subject.send("POST", query, b"{}").await.status, 409, "{what}");
        }
        assert_eq!(subject.get().await.status, 404, "nothing was stored");
        assert_eq!(subject.names().await.len(), 1);
        subject.unlock("one").await;
        assert_eq!(subject.post("one", b"{}").await.status, 409, "after its end");
        subject.lock("two").await;
        subject.break_holder().await;
        assert_eq!(subject.post("two", b"{}").await.status, 409, "after a break");
        assert_eq!(subject.get().await.status, 404);
    }
}

#[tokio::test]
async fn a_repeated_post_is_done_already_and_writes_nothing() {
    for subject in Subject::each().await {
        subject.lock("one").await;
        assert_eq!(subject.post("one", b"{\"serial\":1}").await.status, 200);
        let before = subject.load(subject.key().name.as_str()).await.unwrap();
        assert_eq!(subject.post("one", b"{\"serial\":1}").await.status, 200);
        let after = subject.load(subject.key().name.as_str()).await.unwrap();
        assert_eq!(before, after);
        subject.unlock("one").await;
        assert_eq!(subject.post("one", b"{\"serial\":1}").await.status, 409, "not the same lock");
    }
}

#[tokio::test]
async fn the_sum_and_the_length_of_a_body_are_checked() {
    let subject = Subject::new(ServiceSettings::new()).await;
    subject.lock("one").await;
    let path = subject.path("&ID=one");
    for (sum, expected) in [(md5(b"{}"), 200), (md5(b"{ }"), 400), ("?".to_owned(), 400)] {
        let header = format!("content-md5: {sum}\r\n");
        let answer = subject.ask("POST", &path, &header, b"{}").await;
        assert_eq!(answer.status, expected, "{sum}");
    }
    assert_eq!(subject.post("one", b"").await.status, 400, "an empty body");
    let plain = subject.raw("POST", &path, "content-type: text/plain\r\n", b"{ }").await;
    assert_eq!(plain.status, 400, "a form of another site");
    // A body that ends early.
    let mut client = subject.served.client().await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{\"serial\":2}}"
    );
    client.send(head.as_bytes()).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.0).await.unwrap();
    // Its sender may be gone, so an answer is not owed.
    assert!(client.answer().await.is_none_or(|answer| answer.status == 400));
    assert_eq!(subject.get().await.body, "{}");
}

#[tokio::test]
async fn a_state_is_deleted_under_no_lock_but_its_own_for_a_moment() {
    for subject in Subject::each().await {
        assert_eq!(subject.send("DELETE", "", b"").await.status, 200, "there is none");
        subject.lock("one").await;
        subject.post("one", b"{}").await;
        assert_eq!(subject.send("DELETE", "", b"").await.status, 409);
        assert_eq!(subject.get().await.body, "{}");
        subject.unlock("one").await;
        let deleted = subject.send("DELETE", "", b"").await;
        assert_eq!((deleted.status, &*deleted.body), (200, ""));
        assert_eq!(subject.get().await.status, 404);
        assert!(subject.holder().await.is_none());
        assert_eq!(subject.send("DELETE", "", b"").await.status, 200);
        assert_eq!(subject.send("GET", "&version=previous", b"").await.body, "{}");
    }
}

#[tokio::test]
async fn a_write_without_a_lock_is_an_option_and_takes_one_for_itself() {
    let terraform = TerraformSettings { unlocked_writes: true, ..TerraformSettings::default() };
    let subject = Subject::new(ServiceSettings::new().terraform(terraform)).await;
    assert_eq!(subject.send("POST", "", b"{\"serial\":1}").await.status, 200);
    assert!(subject.holder().await.is_none());
    assert_eq!(subject.get().await.body, "{\"serial\":1}");
    subject.lock("one").await;
    assert_eq!(subject.send("POST", "", b"{\"serial\":2}").await.status, 409);
    assert_eq!(subject.post("one", b"{\"serial\":3}").await.status, 200);
    subject.unlock("one").await;
    assert_eq!(subject.head().await["ended"], serde_json::json!(["one"]));
}

#[tokio::test]
async fn names_of_states_are_any_text_in_one_segment() {
    let mut subject = Subject::new(ServiceSettings::new()).await;
    let longest = "x".repeat(400);
    for name in ["a/b", "a%2Fb", "á ?#&=+", "..", "{name}", &longest] {
        name.clone_into(&mut subject.name);
        assert_eq!(subject.lock("one").await.status, 200, "{name}");
        let sent = format!("{{\"name\":{name:?}}}");
        assert_eq!(subject.post("one", sent.as_bytes()).await.status, 200, "{name}");
        assert_eq!(subject.get().await.body, sent);
        assert_eq!(subject.head().await["lock"]["id"], "one");
    }
    let part = format!("network/{}/0000", "0".repeat(32));
    for name in ["", "x\u{0}", &"x".repeat(401), &part] {
        name.clone_into(&mut subject.name);
        let expected = if name.is_empty() { 404 } else { 400 };
        assert_eq!(subject.lock("one").await.status, expected, "{name}");
    }
    for path in ["/v1/terraform/a/b", "/v1/terraform/%ff", "/v1/terraform/a?version=1"] {
        let status = subject.ask("GET", path, "", b"").await.status;
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
}
