//! Values under keys of lockkit's that lockkit did not write: they are left as they are, and whoever
//! needs the key gets an error that names it. Claims that hold or wait are told at once that they are
//! gone.

use std::sync::Arc;

use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BreakMode, ClaimEnd, LockDriver, Patience,
    Precondition, RegisterKey, Registers, Released, Renewal, SetLimit, Write, WriteId,
};
use lockkit_core::state::{ListRequest, RegisterRequest, Severity};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, Mode, Name, Namespace, Token};
use lockkit_lab::Server;
use lockkit_lab::raw::resp::RespReply;
use lockkit_redis::RedisDriver;

use super::{PERMIT, ask, claim, connect, named, queue, start, take};

/// How the value comes there, and its type.
type Form = (&'static [&'static str], &'static str);

/// Values that are no list of claims.
const FORMS: [Form; 8] = [
    (&["RPUSH", "KEY", "a", "b"], "list"),
    (&["SADD", "KEY", "a"], "set"),
    (&["ZADD", "KEY", "1", "a"], "zset"),
    (&["HSET", "KEY", "colour", "red"], "hash"),
    // A queue of format 1.
    (
        &["HSET", "KEY", "holders", "1", "weight", "1", "capacity", "1", "next", "2", "at", "1"],
        "hash",
    ),
    (&["SET", "KEY", "garbage"], "string"),
    (&["SET", "KEY", "v2:5f0c 0001 30000 10000 9ad3 1"], "string"),
    (&["SET", "KEY", ""], "string"),
];

async fn put(server: &Server, key: &str, form: Form) -> String {
    ask(server, &["DEL", key]).await;
    let words: Vec<_> = form.0.iter().map(|word| if *word == "KEY" { key } else { word }).collect();
    ask(server, &words).await;
    dump(server, key).await
}

async fn dump(server: &Server, key: &str) -> String {
    format!("{:?} for {:?}", ask(server, &["DUMP", key]).await, ask(server, &["PTTL", key]).await)
}

/// The key of the lock (or of what is beside it) of a claim, as it is while somebody uses it.
async fn key_of(server: &Server, driver: &RedisDriver, about: &Arc<Claim>, beside: &str) -> String {
    let held = claim(about.mode);
    take(driver, &held).await;
    let word = if about.mode == PERMIT { "sem" } else { "lock" };
    let found = ask(server, &["KEYS", &format!("lockkit:{word}:*:a")]).await;
    let RespReply::Array(keys) = found else { panic!("keys") };
    driver.release(&held).await.unwrap();
    let [key] = keys.as_slice() else { panic!("{keys:?}") };
    key.text().replacen(&format!(":{word}:"), &format!(":{word}{beside}:"), 1)
}

fn names(error: &Error, key: &str, form: Form) {
    let told = error.to_string();
    let says = told.contains(key) && told.contains(form.1);
    assert!(says && !error.is_retryable(), "{key}, {form:?}: {error}");
}

async fn try_to_break(driver: &RedisDriver, about: &Arc<Claim>) -> Result<bool, Error> {
    let by = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(by, 0, None, true);
    let token = Token::new(1).unwrap();
    driver.break_claim(&about.key, token, BreakMode::Forced, &record).await
}

/// Each verb but renewals and releases, of a claim that is not in line.
async fn refused(driver: &RedisDriver, about: &Arc<Claim>) -> Vec<Error> {
    let mut errors = vec![
        driver.acquire(about, Patience::Wait).await.unwrap_err(),
        driver.acquire(about, Patience::Try).await.unwrap_err(),
        driver.downgrade(about).await.unwrap_err(),
        driver.shorten(about, super::LONG).await.unwrap_err(),
        try_to_break(driver, about).await.unwrap_err(),
        driver.resize(&about.key, SetLimit::To(3)).await.unwrap_err(),
        driver.resize(&about.key, SetLimit::IfUnset(3)).await.unwrap_err(),
        driver.inspect(&about.key).await.unwrap_err(),
    ];
    if about.mode != PERMIT {
        errors.push(driver.raise(about, Token::new(9).unwrap()).await.unwrap_err());
    }
    errors
}

#[tokio::test]
async fn a_lock_whose_key_has_another_form_is_an_error_to_each_verb_and_stays_as_it_is() {
    let (server, driver) = start().await;
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let about = claim(mode);
        let key = key_of(&server, &driver, &about, "").await;
        for form in FORMS {
            let before = put(&server, &key, form).await;
            for error in refused(&driver, &about).await {
                names(&error, &key, form);
                assert_eq!(dump(&server, &key).await, before, "{form:?}");
            }
            assert_eq!(driver.release(&about).await.unwrap(), Released::NotFound, "{form:?}");
            let renewed = driver.renew_single(&about).await.unwrap();
            assert_eq!(renewed, Renewal::Ended(ClaimEnd::NotFound), "{form:?}");
            assert_eq!(dump(&server, &key).await, before, "{form:?}");
        }
        ask(&server, &["DEL", &key]).await;
    }
}

#[tokio::test]
async fn who_holds_or_waits_is_told_that_it_is_gone_when_its_key_gets_another_form() {
    for form in FORMS {
        let (server, driver) = start().await;
        let (holder, waiter) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
        let key = key_of(&server, &driver, &holder, "").await;
        take(&driver, &holder).await;
        queue(&driver, &waiter).await;
        let before = put(&server, &key, form).await;
        for it in [&holder, &waiter] {
            let renewed = driver.renew_single(it).await.unwrap();
            assert_eq!(renewed, Renewal::Ended(ClaimEnd::NotFound), "{form:?}");
        }
        assert_eq!(driver.release(&holder).await.unwrap(), Released::NotFound, "{form:?}");
        assert_eq!(dump(&server, &key).await, before, "{form:?}");
    }
}

#[tokio::test]
async fn a_key_beside_the_lock_of_another_form_is_named_and_stays_as_it_is() {
    let (server, driver) = start().await;
    let string = (&["SET", "KEY", "no set"][..], "string");
    let held = claim(Mode::Exclusive);
    let key = key_of(&server, &driver, &held, ".broken").await;
    let token = take(&driver, &held).await;
    let before = put(&server, &key, string).await;
    let by = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(by, 0, None, true);
    let broken = driver.break_claim(&held.key, token, BreakMode::Forced, &record).await;
    names(&broken.unwrap_err(), &key, string);
    assert_eq!(dump(&server, &key).await, before);
    assert!(matches!(driver.renew_single(&held).await.unwrap(), Renewal::Holds(_)), "it holds");
    let about = claim(PERMIT);
    let key = key_of(&server, &driver, &about, ".limit").await;
    let before = put(&server, &key, string).await;
    names(&driver.acquire(&about, Patience::Try).await.unwrap_err(), &key, string);
    names(&driver.resize(&about.key, SetLimit::To(3)).await.unwrap_err(), &key, string);
    assert_eq!(dump(&server, &key).await, before);
}

/// What is no counter of tokens.
const COUNTERS: [Form; 4] = [
    (&["SET", "KEY", "5"], "string"),
    (&["SET", "KEY", "00000000000000000x9"], "string"),
    (&["RPUSH", "KEY", "a"], "list"),
    (&["HSET", "KEY", "a", "b"], "hash"),
];

#[tokio::test]
async fn a_counter_of_another_form_fails_its_own_locks_alone_and_leaves_none_of_them_taken() {
    let (server, driver) = start().await;
    // Of so many names some have the same bucket as the first, and most have not.
    let claims: Vec<_> = (0..32).map(|i| named(&format!("n{i}"), Mode::Exclusive)).collect();
    take(&driver, &claims[0]).await;
    let RespReply::Array(keys) = ask(&server, &["KEYS", "lockkit:tokens:*"]).await else {
        panic!()
    };
    let counter = keys[0].text().to_owned();
    driver.release(&claims[0]).await.unwrap();
    for form in COUNTERS {
        let before = put(&server, &counter, form).await;
        let acquire = |it: &Arc<Claim>| Acquire { claim: it.clone(), patience: Patience::Try };
        let acquires: Vec<_> = claims.iter().map(acquire).collect();
        let batch = Batch { releases: &[], acquires: &acquires };
        let mut taken = 0;
        let acquired = driver.submit(batch).await.unwrap().acquired;
        for (claim, acquired) in claims.iter().zip(acquired) {
            match acquired {
                Ok(Attempted { result: Acquisition::Granted(_), .. }) => {
                    taken += 1;
                    driver.release(claim).await.unwrap();
                }
                Err(failed) => {
                    assert_eq!(failed.ambiguous, 0, "it is a refusal");
                    names(&failed.error, &counter, form);
                }
                other => panic!("{other:?}"),
            }
            assert!(driver.inspect(&claim.key).await.unwrap().is_free(), "{claim:?}");
        }
        assert!((16..32).contains(&taken), "{taken} of 32");
        assert_eq!(dump(&server, &counter).await, before, "{form:?}");
        // The slow path as well.
        let shared = Claim::new(
            claims[0].key.clone(),
            Mode::Shared,
            super::LONG,
            super::LONG,
            ClientIdentity::of_this_process().into(),
        );
        let error = driver.acquire(&Arc::new(shared), Patience::Wait).await.unwrap_err();
        names(&error, &counter, form);
        assert!(driver.inspect(&claims[0].key).await.unwrap().is_free());
        let findings = driver.health().await.unwrap().findings;
        let problem = findings.iter().find(|it| it.severity == Severity::Problem);
        assert!(problem.is_some_and(|it| it.what.contains(&counter)), "{findings:?}");
    }
}

#[tokio::test]
async fn a_register_of_another_form_is_named_and_stays_as_it_is() {
    let (server, driver) = start().await;
    let at = RegisterKey { namespace: Namespace::default(), name: Name::new("a").unwrap() };
    let write = |value: Option<Vec<u8>>| {
        let (expect, write_id) = (Precondition::Anything, WriteId::random());
        Write { expect, write_id, ..Write::of(value) }
    };
    driver.write(&at, &write(Some(vec![1]))).await.unwrap();
    let RespReply::Array(keys) = ask(&server, &["KEYS", "lockkit:register:*"]).await else {
        panic!()
    };
    let key = keys[0].text().to_owned();
    for form in FORMS {
        let before = put(&server, &key, form).await;
        let errors = [
            driver.write(&at, &write(Some(vec![2]))).await.unwrap_err(),
            driver.write(&at, &write(None)).await.unwrap_err(),
            driver.load(&at).await.unwrap_err(),
        ];
        for error in errors {
            names(&error, &key, form);
        }
        assert_eq!(dump(&server, &key).await, before, "{form:?}");
    }
    // Those who wait for its changes are beside it.
    ask(&server, &["DEL", &key]).await;
    let watchers = key.replacen(":register:", ":register.watchers:", 1);
    let string = (&["SET", "KEY", "no set"][..], "string");
    let before = put(&server, &watchers, string).await;
    names(&driver.write(&at, &write(Some(vec![1]))).await.unwrap_err(), &watchers, string);
    assert!(driver.load(&at).await.unwrap().is_none(), "nothing was written");
    assert_eq!(dump(&server, &watchers).await, before);
}

#[tokio::test]
async fn a_token_base_of_another_form_is_named_and_stays_as_it_is() {
    let (server, driver) = start().await;
    let namespace = Namespace::default();
    driver.raise_namespace_counter(&namespace, 5).await.unwrap();
    assert_eq!(driver.namespace_counter(&namespace).await.unwrap(), 5);
    for form in [FORMS[0], FORMS[5]] {
        let before = put(&server, "lockkit:base:", form).await;
        names(&driver.namespace_counter(&namespace).await.unwrap_err(), "lockkit:base:", form);
        names(
            &driver.raise_namespace_counter(&namespace, 9).await.unwrap_err(),
            "lockkit:base:",
            form,
        );
        assert_eq!(dump(&server, "lockkit:base:").await, before);
    }
}

#[tokio::test]
async fn a_listing_shows_what_is_damaged_and_goes_on() {
    let (server, driver) = start().await;
    let (good, bad) = (named("good", Mode::Exclusive), claim(Mode::Exclusive));
    let key = key_of(&server, &driver, &bad, "").await;
    take(&driver, &good).await;
    put(&server, &key, FORMS[0]).await;
    let request = ListRequest {
        namespace: Namespace::default(),
        space: None,
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    let states = connect(&server).await.list(&request).await.unwrap().states;
    let shown: Vec<_> =
        states.iter().map(|it| (it.name().as_str(), it.queue.len(), &it.damaged)).collect();
    let [("a", 0, Some(why)), ("good", 1, None)] = shown.as_slice() else { panic!("{shown:?}") };
    assert!(why.contains(&key), "{why}");
    let at = |name| RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() };
    driver.write(&at("good"), &Write::of(Some(vec![1]))).await.unwrap();
    driver.write(&at("bad"), &Write::of(Some(vec![1]))).await.unwrap();
    let RespReply::Array(keys) = ask(&server, &["KEYS", "lockkit:register:*:bad"]).await else {
        panic!("keys")
    };
    put(&server, keys[0].text(), FORMS[0]).await;
    let request = RegisterRequest {
        namespace: Namespace::default(),
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    let registers = connect(&server).await.page(&request).await.unwrap().items;
    let shown: Vec<_> =
        registers.iter().map(|it| (it.name.as_str(), it.damaged.is_some())).collect();
    assert_eq!(shown, [("bad", true), ("good", false)]);
}
