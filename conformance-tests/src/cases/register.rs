//! Named values that refuse old tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use lockkit_core::driver::{BreakMode, MAX_REGISTER_BYTES, Precondition, Write, WriteResult};
use lockkit_core::state::RegisterState;
use lockkit_core::{Error, Space};

use super::stored::{Register, two_tokens, write, write_with};
use crate::context::{CaseContext, MustSucceed};
use crate::faulty::{Faulty, InjectedFault, InjectionPoint};
use crate::listing;
use crate::wrap::Tampered;

pub async fn register_01_what_is_stored_is_loaded_byte_for_byte(context: CaseContext) {
    let register = Register::new(&context, "r").await;
    assert_eq!(register.load().await, None, "absent");
    let every_byte: Vec<u8> = (0..=255).collect();
    let large = (0..MAX_REGISTER_BYTES).map(|i| (i * 31 % 251) as u8).collect();
    let values = [every_byte, b"a\0b'\"\\".to_vec(), Vec::new(), large];
    let mut last = None;
    for value in values {
        let version = register.must_store(write(&value)).await;
        assert!(Some(version) > last, "versions grow: {version:?} after {last:?}");
        let entry = register.load().await.expect("it was stored");
        assert!(entry.value == value, "{} bytes came back changed", value.len());
        assert_eq!(entry.version, version);
        last = Some(version);
    }
    let elsewhere = Register::new(&context, "r").await;
    assert_eq!(elsewhere.load().await, register.load().await, "others see it");
    let other = Register::new(&context, "R").await;
    assert_eq!(other.load().await, None, "another name");

    let deletion = Write::of(None);
    let deleted = register.delete(deletion).await;
    assert!(matches!(deleted, WriteResult::Stored(_)), "{deleted:?}");
    assert_eq!(register.load().await, None, "deleted");
    let version = register.must_store(write(b"again")).await;
    assert!(Some(version) > last, "versions grow across deletion");
    ends_by_its_ttl(&context).await;
}

async fn ends_by_its_ttl(context: &CaseContext) {
    let register = Register::new(context, "short").await;
    let mut store = write(b"for a while");
    store.ttl = Some(context.short());
    let clock = register.driver.clock();
    let asked = clock.now();
    register.must_store(store).await;
    let gone = || async { register.load().await.is_none().then_some(()) };
    context.until(context.after(context.short()), "the value ends", gone).await;
    let passed = clock.now().since(asked);
    assert!(passed >= context.short(), "it stayed {passed:?} only");
}

pub async fn register_02_of_16_racing_writers_one_wins(context: CaseContext) {
    let register = Register::new(&context, "r").await;
    let mut version = None;
    for round in 0..4 {
        let expect = version.map_or(Precondition::Absent, Precondition::Version);
        let mut writers = tokio::task::JoinSet::new();
        for i in 0..16 {
            let register = match i % 2 {
                0 => register.clone(),
                _ => Register::new(&context, "r").await,
            };
            let mut store = write(format!("{round}/{i}").as_bytes());
            store.expect = expect;
            writers.spawn(async move { (store.value.clone(), register.store(store).await) });
        }
        let mut winners = Vec::new();
        for (value, outcome) in context.soon("all are answered", writers.join_all()).await {
            match outcome {
                WriteResult::Stored(version) => winners.push((value, version)),
                WriteResult::Conflict => {}
                other => panic!("neither stored nor a conflict: {other:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "exactly one wins: {winners:?}");
        let entry = register.load().await.expect("it was stored");
        assert_eq!((Some(entry.value), entry.version), winners.remove(0), "and it is the winner's");
        version = Some(entry.version);
    }
    let mut store = write(b"x");
    store.expect = Precondition::Absent;
    assert_eq!(register.store(store).await, WriteResult::Conflict, "it is not absent");
}

pub async fn register_03_a_store_with_an_older_token_is_refused(context: CaseContext) {
    let register = Register::new(&context, "r").await;
    let (old, new) = two_tokens(&context).await;
    register.must_store(write_with(b"old", old)).await;
    register.must_store(write_with(b"new", new)).await;
    let stale = WriteResult::Stale { highest: new };
    let late = register.store(write_with(b"late", old)).await;
    assert_eq!(late, stale, "an older token is refused and told the highest");
    let deletion = Write { token: Some(old), ..Write::of(None) };
    assert_eq!(register.delete(deletion).await, stale);
    let entry = register.load().await.expect("it was stored");
    assert_eq!((entry.value.as_slice(), entry.token), (b"new".as_slice(), Some(new)));
    register.must_store(write_with(b"equal", new)).await;
    // Stale comes before a conflict: a holder that is fenced off must know that.
    let mut both = write_with(b"both", old);
    both.expect = Precondition::Absent;
    assert_eq!(register.store(both).await, stale);
}

pub async fn register_04_tokens_are_remembered_across_overwriting(context: CaseContext) {
    let register = Register::new(&context, "r").await;
    let (old, new) = two_tokens(&context).await;
    let stale = WriteResult::Stale { highest: new };
    register.must_store(write_with(b"fenced", new)).await;
    register.must_store(write(b"by hand")).await;
    assert_eq!(register.store(write_with(b"late", old)).await, stale, "after overwriting");
    let entry = register.load().await.expect("it was stored");
    assert_eq!(entry.token, Some(new));
    let deletion = Write { expect: Precondition::Version(entry.version), ..Write::of(None) };
    let deleted = register.delete(deletion).await;
    assert!(matches!(deleted, WriteResult::Stored(_)), "{deleted:?}");
    assert_eq!(register.store(write_with(b"late", old)).await, stale, "after deletion");
    let elsewhere = Register::new(&context, "r").await;
    assert_eq!(elsewhere.store(write_with(b"late", old)).await, stale, "on another connection");
    let mut brief = write_with(b"brief", new);
    brief.ttl = Some(context.short());
    register.must_store(brief).await;
    let gone = || async { register.load().await.is_none().then_some(()) };
    context.until(context.after(context.short()), "the value ends", gone).await;
    assert_eq!(register.store(write_with(b"late", old)).await, stale, "after the value's end");
}

pub async fn register_05_changed_wakes_on_a_store_and_misses_none(context: CaseContext) {
    let register = Register::new(&context, "r").await;
    let elsewhere = Register::new(&context, "r").await;
    let mut seen = None;
    for i in 0..5 {
        let waiting = tokio::spawn({
            let register = register.clone();
            async move { register.changed(seen).await }
        });
        tokio::task::yield_now().await;
        let version = elsewhere.must_store(write(format!("{i}").as_bytes())).await;
        let entry = context.soon("the change is told", waiting).await.expect("no panic");
        assert_eq!(entry.map(|e| e.version), Some(version));
        // One that came before it asked.
        let entry = context.soon("a past change is told", register.changed(seen)).await;
        assert_eq!(entry.map(|e| e.version), Some(version));
        seen = Some(version);
    }
    let quiet = Duration::from_millis(300);
    let nothing = tokio::time::timeout(quiet, register.changed(seen)).await;
    assert!(nothing.is_err(), "nothing changed: {nothing:?}");
    let deletion = Write::of(None);
    let (told, _) = tokio::join!(
        context.soon("the deletion is told", register.changed(seen)),
        elsewhere.registers().write(&elsewhere.at, &deletion)
    );
    assert_eq!(told, None);
}

pub async fn register_06_a_lost_answer_is_distinguished_from_a_conflict(context: CaseContext) {
    let register = Register::new(&context, "r").await;
    let mut store = write(b"mine");
    store.expect = Precondition::Absent;
    let version = register.must_store(store.clone()).await;
    // The answer was lost: asked again, it is the same write.
    assert_eq!(register.store(store.clone()).await, WriteResult::Stored(version));
    assert_eq!(register.load().await.map(|e| e.version), Some(version), "and was done once");
    // Another client that expects the same is in conflict.
    let mut theirs = write(b"theirs");
    theirs.expect = Precondition::Absent;
    assert_eq!(register.store(theirs).await, WriteResult::Conflict);
    let deletion = Write { expect: Precondition::Version(version), ..Write::of(None) };
    for _ in 0..2 {
        let deleted = register.delete(deletion.clone()).await;
        assert!(matches!(deleted, WriteResult::Stored(_)), "{deleted:?}");
    }
    register.must_store(write(b"later")).await;
    assert_eq!(register.store(store).await, WriteResult::Conflict, "overwritten since");
}

pub async fn register_07_a_stale_holder_cannot_store(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let stalled = ours.mutex("lock").lock().await.expect("it is free");
    ours.register("state").store_with(&stalled, "first").await.expect("it is held");
    let token = stalled.token().expect("it holds");
    let broken =
        theirs.admin().break_lock(Space::Lock, "lock", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"), "there was such a holder");
    let successor = context.soon("the successor's turn", theirs.mutex("lock").lock()).await;
    let successor = successor.expect("it is free");
    let state = theirs.register("state");
    assert_eq!(state.load().await.expect("it works").expect("there is one").value, b"first");
    state.store_with(&successor, "second").await.expect("it is held");
    // Whether it has noticed or not.
    let late = ours.register("state").store_with(&stalled, "late").await;
    assert!(matches!(late, Err(Error::Stale { .. } | Error::Lost { .. })), "{late:?}");
    let late = ours.register("state").delete_with(&stalled).await;
    assert!(matches!(late, Err(Error::Stale { .. } | Error::Lost { .. })), "{late:?}");
    let entry = state.load().await.expect("it works").expect("there is one");
    assert_eq!(entry.value, b"second");
    assert_eq!(entry.token, successor.token().ok());
    let conflict = state.compare_and_store_with(&successor, Precondition::Absent, "third").await;
    assert!(matches!(conflict, Err(Error::Conflict { .. })), "{conflict:?}");
    state.compare_and_store_with(&successor, entry.version, "third").await.expect("as expected");
    let reader = ours.rwlock("another").read().await.expect("it is free");
    let shared = state.store_with(&reader, "shared").await;
    assert!(matches!(shared, Err(Error::Config(_))), "readers do not fence: {shared:?}");
}

pub async fn register_08_a_write_whose_answer_was_lost_is_done_once(context: CaseContext) {
    let theirs = context.manager().await;
    for place in [
        InjectionPoint::Before,
        InjectionPoint::Polls(1),
        InjectionPoint::Polls(2),
        InjectionPoint::After,
    ] {
        let faulty = Arc::new(Faulty::at(InjectedFault { call: 1, point: place }));
        let ours =
            context.manager_over(Arc::new(Tampered::new(context.driver().await, faulty.clone())));
        let name = format!("{place:?}");
        let register = ours.register(&name);
        assert_eq!(register.load().await.expect("it works"), None);
        let stored = register.compare_and_store(Precondition::Absent, "mine").await;
        assert!(faulty.struck(), "{place:?}");
        let version = stored.unwrap_or_else(|e| panic!("{place:?}: repeated, it is known: {e}"));
        let entry = theirs.register(&name).load().await.expect("it works");
        let entry = entry.unwrap_or_else(|| panic!("{place:?}: it was stored"));
        assert_eq!((entry.value, entry.version), (b"mine".to_vec(), version), "{place:?}");
    }
}

pub async fn register_09_a_watcher_sees_what_came_last(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let mut values = Box::pin(ours.register("watched").watch());
    let first = context.soon("the value now", values.next()).await.expect("it goes on");
    assert_eq!(first.expect("it works"), None);
    let watched = theirs.register("watched");
    let writing = async {
        let mut last = None;
        for i in 0..10_u8 {
            last = Some(watched.store([i]).await.expect("it works"));
        }
        last
    };
    let watching = async {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|(value, _)| *value < 9) {
            let entry = values.next().await.expect("it goes on").expect("it works");
            let entry = entry.expect("nobody deletes it");
            seen.push((entry.value[0], entry.version));
        }
        seen
    };
    let (last, seen) =
        context.soon("the last value", async { tokio::join!(writing, watching) }).await;
    assert!(seen.is_sorted(), "in order: {seen:?}");
    assert_eq!(seen.last().map(|(_, version)| *version), last);
}

pub async fn register_10_a_repeated_write_never_lands_over_a_later_one(context: CaseContext) {
    let again = |store: &Write| Write { repeated: true, ..store.clone() };
    let register = Register::new(&context, "deleted").await;
    let mut mine = write(b"mine");
    mine.expect = Precondition::Absent;
    // Its answer was lost, and so was the deletion's that another client made since.
    register.must_store(mine.clone()).await;
    let deletion = Write::of(None);
    register.delete(deletion).await;
    assert_eq!(register.store(again(&mine)).await, WriteResult::Conflict);
    assert_eq!(register.load().await, None, "what was deleted stays so");

    let register = Register::new(&context, "fenced").await;
    let (old, new) = two_tokens(&context).await;
    let mine = write_with(b"mine", old);
    register.must_store(mine.clone()).await;
    register.must_store(write_with(b"later", old)).await;
    assert_eq!(register.store(again(&mine)).await, WriteResult::Conflict);
    assert_eq!(register.load().await.map(|e| e.value), Some(b"later".to_vec()));

    // Where the first attempt was certainly not applied, the second one is.
    let version = register.must_store(again(&write_with(b"newer", new))).await;
    let mut compared = again(&write_with(b"compared", new));
    compared.expect = Precondition::Version(version);
    register.must_store(compared).await;
    let register = Register::new(&context, "untouched").await;
    let mut first = again(&write(b"first"));
    first.expect = Precondition::Absent;
    register.must_store(first).await;
    register.must_store(again(&write(b"whatever was there"))).await;
}

pub async fn register_11_registers_with_a_value_are_listed_in_pages(context: CaseContext) {
    let driver = context.driver().await;
    let odd = ["%", "*", "_", "a b", "a/b", "a%2Fb", "é", "lockkit.latch/x"];
    let plain = (0..23).map(|i| format!("n{i:02}"));
    let names: BTreeSet<String> = plain.chain(odd.map(str::to_owned)).collect();
    let (_, token) = two_tokens(&context).await;
    let mut stored = BTreeMap::new();
    for (length, name) in names.iter().enumerate() {
        let value = vec![b'x'; length * 100];
        let store = if length % 2 == 0 { write(&value) } else { write_with(&value, token) };
        let fence = store.token;
        let version = Register::new(&context, name).await.must_store(store).await;
        stored.insert(name.clone(), (version, fence, value.len()));
    }
    // Neither of these has a value, and one with a token is remembered for good.
    let gone = Register::new(&context, "n-deleted").await;
    gone.must_store(write_with(b"x", token)).await;
    let deletion = Write { token: Some(token), ..Write::of(None) };
    gone.delete(deletion).await;
    let over = Register::new(&context, "n-over").await;
    let mut brief = write(b"x");
    brief.ttl = Some(context.short());
    over.must_store(brief).await;
    let ended = || async { over.load().await.is_none().then_some(()) };
    context.until(context.after(context.short()), "the value ends", ended).await;
    // A lock is no register.
    driver.grant(&context.exclusive("n-lock")).await;

    let list = async |prefix: &str, limit: usize| {
        let listed = listing::registers(&driver, context.namespace(), prefix, limit).await;
        let listed = listed.expect("they can be listed");
        let many = listed.len();
        let shown = listed.into_iter().map(|it| {
            let RegisterState { name, version, token, bytes, .. } = it;
            (name.as_str().to_owned(), (version, token, bytes))
        });
        let shown: BTreeMap<_, _> = shown.collect();
        assert_eq!(shown.len(), many, "each is shown once, in pages of {limit}");
        shown
    };
    for limit in [1, 7, stored.len() - 1, stored.len(), 1_000] {
        assert_eq!(list("", limit).await, stored, "in pages of {limit}");
    }
    for prefix in ["n", "n0", "%", "*", "_", "a", "a/", "a%2", "zzz", "\u{e9}"] {
        let mut some = stored.clone();
        some.retain(|name, _| name.starts_with(prefix));
        assert_eq!(list(prefix, 4).await, some, "those that begin with {prefix:?}, literally");
    }
    let manager = context.manager().await;
    let all: Vec<_> =
        manager.admin().registers("").try_collect().await.expect("they can be listed");
    assert_eq!(all.len(), stored.len() - 1, "those of lockkit's own are not a user's");
}
