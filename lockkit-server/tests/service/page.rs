//! The page, in a real browser.
//!
//! With `LOCKKIT_PICTURES=FOLDER` it leaves pictures of what it saw there.

use std::path::PathBuf;

use lockkit_lab::Browser;
use lockkit_server::{AccessTokens, ServiceSettings};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::served::{Served, id};

fn pictures() -> Option<PathBuf> {
    std::env::var_os("LOCKKIT_PICTURES").map(PathBuf::from)
}

/// Pictures of what is seen now: wide and as on a phone, in light and dark.
async fn pictures_of(browser: &mut Browser, what: &str) {
    for (width, scheme) in [(1280, "light"), (400, "light"), (1280, "dark"), (400, "dark")] {
        browser.set_appearance(width, scheme).await;
        let sideways = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(browser.evaluate(sideways).await, json!(false), "{what} is wider than {width}");
        if let Some(folder) = pictures() {
            browser.picture(&folder.join(format!("{what}-{width}-{scheme}.png"))).await;
        }
    }
    browser.set_appearance(1280, "light").await;
}

fn claim(number: u128, name: &str, note: &str) -> Value {
    let holder = json!({"host": "db-1", "pid": number as u32, "program": "backup"});
    json!({"claim": {"id": id(number), "name": name, "holder": holder, "note": note}})
}

async fn acquire(served: &Served, number: u128, name: &str) -> Value {
    served.ask(None, "/v1/acquire", claim(number, name, "nightly run")).await.json()
}

async fn release(served: &Served, number: u128, name: &str) {
    served.ask(None, "/v1/release", claim(number, name, "nightly run")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_seen_to_come_to_wait_and_to_go_and_is_broken() {
    let served = Served::new(ServiceSettings::new()).await;
    let mut browser = Browser::start().await;
    let text = |id: &str| format!("document.getElementById('{id}').innerText");
    let row = |name: &str| format!("document.getElementById('row-lock-{name}')");

    browser.open(&format!("http://{}/", served.address)).await;
    browser.sees(&format!("{}.includes('No lock is in use')", text("none"))).await;
    browser.sees(&format!("{}.includes('memory')", text("server"))).await;
    let faults = lockkit_core::capabilities::Fault::ALL.len();
    browser.sees(&format!("document.getElementById('faults').children.length === {faults}")).await;

    let forced = format!("{}.textContent", "document.getElementById('fault-broken_by_force')");
    browser.sees(&format!("{forced}.includes('tokens grow; two may hold at once')")).await;

    // It comes, another waits behind it, and a lock with markup for a name is shown as it is.
    let markup = "<img src=x onerror=alert(1)>/\u{e1}";
    acquire(&served, 1, "invoice").await;
    acquire(&served, 2, "invoice").await;
    acquire(&served, 3, markup).await;
    browser.sees(&format!("{}?.innerText.includes('backup[1] on db-1')", row("invoice"))).await;
    browser.sees(&format!("{}?.cells[4].innerText === '1'", row("invoice"))).await;
    browser.sees(&format!("{}.includes('<img src=x onerror')", text("list"))).await;
    pictures_of(&mut browser, "locks").await;

    // The filter is in the URL's fragment, and hides the other.
    browser.evaluate("document.querySelector('[name=text]').focus()").await;
    browser.write("inv").await;
    browser.sees("document.getElementById('list').children.length === 1").await;
    browser.sees("location.hash === '#text=inv'").await;

    // By keyboard to the lock's own page.
    browser.evaluate("document.querySelector('#row-lock-invoice a').focus()").await;
    browser.press("Enter").await;
    browser.sees("document.getElementById('line').rows.length === 2").await;
    browser.sees(&format!("{}.includes('waits')", text("line"))).await;
    acquire(&served, 4, "invoice").await;
    browser.sees(&format!("{}.includes('came and waits')", text("timeline"))).await;
    release(&served, 1, "invoice").await;
    let holds = "backup\\[2\\] on db-1, token [0-9]+: holds";
    browser.sees(&format!("/{holds}/.test({})", text("timeline"))).await;
    browser
        .sees(&format!("/backup\\[1\\] on db-1, token [0-9]+: left/.test({})", text("timeline")))
        .await;

    // It is broken by keyboard, not without a reason.
    let token = served.ask(None, "/v1/inspect", json!({"name": "invoice"})).await.json();
    let token = token["queue"][0]["token"].as_str().unwrap().to_owned();
    browser.evaluate(&format!("document.querySelector('#token-{token} button').focus()")).await;
    browser.press("Enter").await;
    let title = format!("Break token {token} of invoice?");
    browser.sees(&format!("{} === '{title}'", text("break-title"))).await;
    pictures_of(&mut browser, "break").await;
    browser.evaluate("document.querySelector('[name=force][value=yes]').click()").await;
    browser.evaluate("document.querySelector('[name=reason]').focus()").await;
    browser.press("Enter").await;
    let state = served.ask(None, "/v1/verify", claim(2, "invoice", "nightly run")).await.json();
    assert_eq!(state["state"], "held", "there is no reason yet");
    browser.write("it hangs").await;
    browser.press("Enter").await;
    browser.sees("!document.getElementById('break').open").await;
    browser.sees(&format!("!document.getElementById('token-{token}')")).await;
    browser.sees(&format!("{}.includes('it hangs')", text("last-break"))).await;
    let state = served.ask(None, "/v1/verify", claim(2, "invoice", "nightly run")).await.json();
    assert_eq!(state["break"]["reason"], "it hangs", "{state}");
    browser.sees(&format!("{}.includes('backup[4]')", text("line"))).await;
    pictures_of(&mut browser, "lock").await;

    // It goes.
    release(&served, 4, "invoice").await;
    browser.sees("document.getElementById('line').rows.length === 0").await;
    browser.open(&format!("http://{}/", served.address)).await;
    browser.sees(&format!("{} === null", row("invoice"))).await;
    browser.sees("document.getElementById('list').children.length === 1").await;
    assert_eq!(browser.complaints, Vec::<String>::new(), "nothing was refused by the policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_the_page_asks_for_one_and_shows_what_it_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let hash: String = Sha256::digest("secret").iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(&file, format!("reader {hash} read,lock@\n")).unwrap();
    let settings = ServiceSettings::new().tokens(AccessTokens::load(&file).unwrap());
    let served = Served::new(settings).await;
    served.ask(Some("secret"), "/v1/acquire", claim(1, "invoice", "")).await;
    let mut browser = Browser::start().await;
    browser.open(&format!("http://{}/", served.address)).await;
    browser.sees("document.activeElement.name === 'token'").await;
    pictures_of(&mut browser, "login").await;
    browser.write("wrong").await;
    browser.press("Enter").await;
    let state = "document.getElementById('state').innerText";
    browser.sees(&format!("{state} === 'this token is not known'")).await;
    browser.write("secret").await;
    browser.press("Enter").await;
    browser.sees("document.getElementById('row-lock-invoice') !== null").await;
    browser.evaluate("location.hash = '#namespace=other'").await;
    browser.sees(&format!("{state}.includes('no right to read')")).await;
}
