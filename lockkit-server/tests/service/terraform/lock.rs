//! LOCK and UNLOCK.

use lockkit_core::driver::{Patience, WriteId};
use lockkit_core::{Claim, ClientIdentity, Lifetime, Mode};
use lockkit_server::{ServiceSettings, TerraformSettings};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

use super::client::{Subject, info};

#[tokio::test]
async fn the_second_lock_gets_the_first_ones_info_byte_for_byte() {
    for subject in Subject::each().await {
        // Terraform's own spelling: spaces and an escape survive, too.
        let sent = r#"{"ID": "one", "Who":"\u0061lice@build-7", "Operation":"OperationTypeApply","Info":"","Version":"0.15.0","Created":"2026-11-25T21:45:47Z","Path":""}"#;
        let answer = subject.send("LOCK", "", sent.as_bytes()).await;
        assert_eq!((answer.status, &*answer.body), (200, ""));
        let busy = subject.lock("two").await;
        assert_eq!((busy.status, &*busy.body), (423, sent));
        assert!(busy.head.contains("content-type: application/json"), "{}", busy.head);
        assert_eq!(subject.unlock("two").await.status, 409);
        assert_eq!(subject.lock("two").await.status, 423, "nothing was done");
        let unlocked = subject.send("UNLOCK", "", sent.as_bytes()).await;
        assert_eq!(unlocked.status, 200);
        assert_eq!(subject.lock("two").await.status, 200);
    }
}

#[tokio::test]
async fn the_holder_is_shown_with_who_and_operation_and_has_no_end() {
    for subject in Subject::each().await {
        subject.lock("one").await;
        let holder = subject.holder().await.unwrap();
        let note = holder.note.unwrap();
        assert!(
            note.starts_with(
                r#"{"ID":"one","Who":"alice@build-7","Operation":"OperationTypeApply""#
            )
        );
        assert_eq!(holder.identity.to_string(), "terraform[0]@build-7");
        let years = 365 * 24 * 60 * 60;
        assert!(holder.expires_in > Duration::from_secs(9 * years), "{:?}", holder.expires_in);
    }
}

#[tokio::test]
async fn a_repeated_lock_is_the_same_lock_and_a_repeated_unlock_is_no_error() {
    for subject in Subject::each().await {
        assert_eq!(subject.lock("one").await.status, 200);
        let token = subject.holder().await.unwrap().token;
        assert_eq!(subject.lock("one").await.status, 200);
        assert_eq!(subject.holder().await.unwrap().token, token);
        for _ in 0..2 {
            assert_eq!(subject.unlock("one").await.status, 200);
            assert!(subject.holder().await.is_none());
        }
        // None holds, and the id was never seen.
        assert_eq!(subject.unlock("other").await.status, 200);
    }
}

#[tokio::test]
async fn a_late_duplicate_of_a_lock_that_ended_takes_nothing() {
    for subject in Subject::each().await {
        subject.lock("one").await;
        subject.unlock("one").await;
        assert_eq!(subject.lock("one").await.status, 409);
        assert!(subject.holder().await.is_none());
        // Also after a break, of which the head does not know.
        subject.lock("two").await;
        subject.break_holder().await;
        assert_eq!(subject.lock("two").await.status, 409);
        assert!(subject.holder().await.is_none());
        assert_eq!(subject.lock("two").await.status, 409);
        for number in 0..14 {
            let id = format!("id {number}");
            assert_eq!(subject.lock(&id).await.status, 200);
            assert_eq!(subject.unlock(&id).await.status, 200);
        }
        assert_eq!(subject.head().await["ended"].as_array().unwrap().len(), 16);
        for id in ["one", "two", "id 0", "id 13"] {
            assert_eq!(subject.lock(id).await.status, 409, "{id}");
        }
        assert!(subject.holder().await.is_none());
    }
}

#[tokio::test]
async fn a_service_that_ended_between_the_claim_and_the_head_left_who_holds() {
    for subject in Subject::each().await {
        subject.lock("one").await;
        // As if the second half had not happened.
        let name = subject.key().name;
        subject.store(name.as_str(), None, None).await;
        let busy = subject.lock("two").await;
        assert_eq!(busy.status, 423);
        let shown = busy.json();
        assert_eq!((&shown["ID"], &shown["Who"]), (&json!("one"), &json!("alice@build-7")));
        assert_eq!(shown["Created"], "2026-11-25T21:45:47.123456789Z");
        // Its client asks again, as Terraform does, and has it.
        assert_eq!(subject.lock("one").await.status, 200);
        assert_eq!(subject.head().await["lock"]["id"], "one");
        subject.store(name.as_str(), None, None).await;
        assert_eq!(subject.unlock("one").await.status, 200);
        assert!(subject.holder().await.is_none());
        assert_eq!(subject.lock("one").await.status, 409);
    }
}

#[tokio::test]
async fn another_programs_claim_on_the_lock_has_an_id_to_show() {
    let subject = Subject::new(ServiceSettings::new()).await;
    let ttl = Duration::from_secs(60);
    let me = Arc::new(ClientIdentity::of_this_process());
    let claim = Claim::new(subject.key(), Mode::Exclusive, ttl, ttl, me)
        .with_lifetime(Lifetime::Detached)
        .with_note(Some("maintenance".into()));
    subject.driver.acquire(&Arc::new(claim), Patience::Try).await.unwrap();
    let busy = subject.lock("one").await;
    assert_eq!(busy.status, 423);
    assert!(!busy.json()["ID"].as_str().unwrap().is_empty(), "{}", busy.body);
    assert_eq!(busy.json()["Info"], "maintenance");
    assert_eq!(subject.unlock("one").await.status, 409);
}

#[tokio::test]
async fn an_unlock_without_an_id_breaks_what_holds() {
    for subject in Subject::each().await {
        assert_eq!(subject.send("UNLOCK", "", b"").await.status, 200, "nothing holds");
        subject.lock("one").await;
        assert_eq!(subject.send("UNLOCK", "", b"").await.status, 200);
        let state = subject.driver.inspect(&subject.key()).await.unwrap();
        assert!(state.queue.is_empty());
        let record = state.last_break.expect("a record");
        assert!(record.forced && record.reason.unwrap().contains("force-unlock"));
        assert_eq!(subject.post("one", b"{}").await.status, 409);
        assert_eq!(subject.lock("one").await.status, 409);
        assert_eq!(subject.lock("two").await.status, 200);
    }
}

#[tokio::test]
async fn a_proxy_that_passes_no_other_methods_has_a_path_of_its_own() {
    let subject = Subject::new(ServiceSettings::new()).await;
    let path = format!("/v1/terraform-lock/network?namespace={}", subject.namespace);
    let one = info("one");
    assert_eq!(subject.ask("PUT", &path, "", one.as_bytes()).await.status, 200);
    assert_eq!(subject.lock("two").await.status, 423);
    assert_eq!(subject.post("one", b"{}").await.status, 200);
    assert_eq!(subject.ask("DELETE", &path, "", one.as_bytes()).await.status, 200);
    assert_eq!(subject.lock("two").await.status, 200);
    assert_eq!(subject.ask("DELETE", &path, "", b"").await.status, 200);
    assert_eq!(subject.get().await.body, "{}", "DELETE there is UNLOCK");
    for method in ["GET", "POST", "LOCK", "UNLOCK"] {
        assert_eq!(subject.ask(method, &path, "", b"").await.status, 404, "{method}");
    }
}

#[tokio::test]
async fn a_lock_with_a_longest_time_ends_by_itself() {
    let second = Some(Duration::from_secs(1));
    let terraform = TerraformSettings { longest: second, ..TerraformSettings::default() };
    let subject = Subject::new(ServiceSettings::new().terraform(terraform)).await;
    subject.lock("one").await;
    let until = Duration::from_secs(30);
    let locked = async {
        while subject.lock("two").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(until, locked).await.expect("the first lock ends");
    assert_eq!(subject.post("one", b"{}").await.status, 409);
    assert_eq!(subject.get().await.status, 404);
    assert_eq!(subject.lock("one").await.status, 409);
}

#[tokio::test]
async fn a_write_of_the_broken_holder_after_the_next_ones_get_is_refused() {
    for subject in Subject::each().await {
        subject.lock("one").await;
        assert_eq!(subject.post("one", b"{\"serial\":1}").await.status, 200);
        let token = subject.holder().await.unwrap().token;
        subject.break_holder().await;
        assert_eq!(subject.lock("two").await.status, 200);
        assert_eq!(subject.get().await.body, "{\"serial\":1}");
        assert_eq!(subject.post("one", b"{\"serial\":2}").await.status, 409);
        assert_eq!(subject.get().await.body, "{\"serial\":1}", "unchanged");
        // A write that had passed its checks before the break: the head has the later token.
        let key = subject.key();
        let at = lockkit_core::driver::RegisterKey { namespace: key.namespace, name: key.name };
        let late = lockkit_core::driver::Write {
            token: Some(token),
            write_id: WriteId::random(),
            ..lockkit_core::driver::Write::of(Some(b"{}".to_vec()))
        };
        let late = subject.registers().write(&at, &late).await.unwrap().result;
        assert!(matches!(late, lockkit_core::driver::WriteResult::Stale { .. }), "{late:?}");
    }
}
