//! Streams of states.

use lockkit_server::{Limits, ServiceSettings};
use serde_json::{Value, json};

use crate::served::{Client, Served, id};

async fn watch(served: &Served, what: Value) -> Client {
    let mut client = served.client().await;
    let answer = client.post(None, "/v1/watch", &what).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.head.contains("\r\ncontent-type: application/x-ndjson\r\n"), "{answer:?}");
    client
}

/// The next state, and that nothing in it counts time.
async fn state(client: &mut Client) -> Value {
    let line = client.line().await.unwrap();
    assert!(line.ends_with("}\n") && !line.contains("_ms"), "{line}");
    serde_json::from_str(&line).unwrap()
}

fn claim(number: u128) -> Value {
    let holder = json!({"host": "h", "pid": 7, "program": "backup"});
    json!({"claim": {"id": id(number), "name": "a", "holder": holder, "note": "why"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_shown_at_once_and_after_each_change() {
    let served = Served::new(ServiceSettings::new()).await;
    let mut client = watch(&served, json!({"lock": {"name": "a"}})).await;
    assert_eq!(state(&mut client).await, json!({"queue": []}));
    let held = served.ask(None, "/v1/acquire", claim(1)).await.json();
    let now = state(&mut client).await;
    let holder = json!({"host": "h", "pid": 7, "program": "backup"});
    let first = json!({
        "token": held["token"], "mode": "exclusive", "holds": true, "broken": false,
        "holder": holder, "note": "why",
    });
    assert_eq!(now, json!({"queue": [first]}));
    served.ask(None, "/v1/acquire", claim(2)).await;
    let now = state(&mut client).await;
    assert_eq!((&now["queue"][0], &now["queue"][1]["holds"]), (&first, &json!(false)));
    served.ask(None, "/v1/release", claim(1)).await;
    let now = state(&mut client).await;
    assert_eq!(
        (now["queue"].as_array().unwrap().len(), &now["queue"][0]["holds"]),
        (1, &json!(true))
    );
    let unknown = served.ask(None, "/v1/watch", json!({"lok": {"name": "a"}})).await;
    assert_eq!(unknown.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_register_is_shown_at_once_and_after_each_change() {
    let served = Served::new(ServiceSettings::new()).await;
    let mut client = watch(&served, json!({"register": {"name": "a"}})).await;
    assert_eq!(state(&mut client).await, json!({"entry": null}));
    let write = json!({"write_id": id(1)});
    let store = json!({"register": {"name": "a"}, "value": {"text": "1"}, "write": write});
    let stored = served.ask(None, "/v1/registers/store", store).await.json();
    let now = state(&mut client).await;
    assert_eq!(now["entry"]["value"], json!({"text": "1"}));
    assert_eq!(now["entry"]["version"], stored["version"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_a_place_among_those_that_wait_until_it_ends_and_ends_with_the_server() {
    let limits = Limits { waiting: 1, ..Limits::default() };
    let served = Served::new(ServiceSettings::new().limits(limits)).await;
    let what = json!({"lock": {"name": "a"}});
    let mut client = watch(&served, what.clone()).await;
    state(&mut client).await;
    assert_eq!(served.ask(None, "/v1/watch", what.clone()).await.status, 429);
    drop(client);
    let mut client = loop {
        let mut client = served.client().await;
        if client.post(None, "/v1/watch", &what).await.status == 200 {
            break client;
        }
    };
    state(&mut client).await;
    let stopped = served.stop();
    assert_eq!(client.line().await, None, "no state, and no problem");
    stopped.await.unwrap().unwrap();
}

/// The clock is paused: it moves on when nothing else can.
#[tokio::test(start_paused = true)]
async fn a_stream_in_which_nothing_happens_says_that_it_goes_on_and_ends_after_ten_minutes() {
    let served = Served::new(ServiceSettings::new()).await;
    let begun = tokio::time::Instant::now();
    let mut client = watch(&served, json!({"lock": {"name": "a"}})).await;
    state(&mut client).await;
    let mut empty = 0;
    while let Some(line) = client.line().await {
        assert_eq!(line, "\n");
        empty += 1;
    }
    let seconds = begun.elapsed().as_secs();
    assert!((600..630).contains(&seconds), "{seconds}");
    assert_eq!(empty, 39);
}
