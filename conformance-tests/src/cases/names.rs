//! Names mean what they say, byte for byte.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use lockkit_core::{Error, LockManager, Space};

use crate::context::{CaseContext, MustSucceed};
use crate::listing;
use crate::wrap::Tampered;
use crate::wrap::tampers::Counting;

pub async fn names_01_an_unusable_name_is_an_error_before_any_io(context: CaseContext) {
    let counting = Arc::new(Counting::default());
    let driver = Tampered::new(context.driver().await, counting.clone());
    let manager = context.manager_over(Arc::new(driver));
    let bad = ["", "a\0b", "a\nb", "\t", "\u{7f}", "\u{85}", &"x".repeat(513), &"é".repeat(257)];
    for name in bad {
        let invalid = |error: Option<Error>| {
            assert!(matches!(error, Some(Error::InvalidName { .. })), "{name:?}: {error:?}");
        };
        invalid(manager.mutex(name).lock().await.err());
        invalid(manager.mutex(name).try_lock().await.err());
        invalid(manager.rwlock(name).read().await.err());
        invalid(manager.rwlock(name).write().await.err());
        invalid(manager.semaphore(name, 3).acquire().await.err());
        invalid(manager.inspect(Space::Lock, name).await.err());
    }
    let note = manager.mutex("a").note("two\nlines").lock().await;
    assert!(note.is_err(), "notes are one line");
    assert_eq!(counting.calls(), 0, "the backend was asked nothing");
}

pub async fn names_02_a_name_may_have_512_bytes(context: CaseContext) {
    let long = "n".repeat(511);
    let unicode = "é".repeat(256);
    let names = [format!("{long}a"), format!("{long}b"), long, unicode];
    all_different(&context, &names).await;
}

pub async fn names_03_special_characters_are_just_characters(context: CaseContext) {
    let names = [
        "/", "//", "a/b", "a%2Fb", "a%b", "%", "_", "{", "}", "{a}", "{}", "*", "?", "[", "]",
        "[a]", "\\", "\\\\", "'", "''", "\"", "`", ";", "$", "$1", "${x}", ".", "..", "../a", " ",
        "a b", ":", "a:b", "#", "&", "=", "@", "~", "^", "<", ">", "|", "!", ",", "-", "--", "+",
        "%s", "\u{feff}", "🔒", "null", "NULL", "0",
    ];
    all_different(&context, &names.map(str::to_owned)).await;
}

pub async fn names_04_case_matters(context: CaseContext) {
    let names = ["a", "A", "straße", "STRASSE", "strasse", "ı", "I", "İ"];
    all_different(&context, &names.map(str::to_owned)).await;
}

pub async fn names_05_trailing_spaces_matter(context: CaseContext) {
    let names = ["a", "a ", "a  ", " a", " ", "  ", "a\u{a0}"];
    all_different(&context, &names.map(str::to_owned)).await;
}

pub async fn names_06_unicode_forms_are_different_names(context: CaseContext) {
    let names = ["\u{e1}", "a\u{301}", "a", "\u{fb01}", "fi", "\u{212b}", "\u{c5}", "ﾊ", "ハ"];
    all_different(&context, &names.map(str::to_owned)).await;
}

pub async fn names_07_a_name_that_begins_another_does_not_meet_it(context: CaseContext) {
    let names = ["a", "a/b", "a/b/c", "a/", "ab", "a:", "a-", "a\u{10ffff}"];
    all_different(&context, &names.map(str::to_owned)).await;
    // Neither do two namespaces of which one begins the other.
    let driver = context.driver().await;
    let namespace = context.namespace().as_str();
    let near = context.manager_with(driver, |s| s.namespace(format!("{namespace}a")));
    let guard = near.mutex("a").try_lock().await.expect("it works");
    guard.expect("another namespace is another lock").release().await.expect("it was held");
}

pub async fn names_08_a_listing_finds_prefixes_literally(context: CaseContext) {
    let manager = context.manager().await;
    let names = [
        "a",
        "a/b",
        "a/c",
        "a%",
        "a%b",
        "a*",
        "a*b",
        "a_",
        "a_b",
        "axb",
        "a[b]",
        "a\\b",
        "A/b",
        "b",
        "%",
        "*",
        "a\u{10ffff}z",
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(manager.mutex(name).lock().await.expect("it is free"));
    }
    let prefixes =
        ["", "a", "a/", "a%", "a*", "a_", "a[", "a\\", "A", "%", "*", "_", "z", "a\u{10ffff}"];
    for prefix in prefixes {
        let expected: BTreeSet<_> = names.iter().filter(|n| n.starts_with(prefix)).collect();
        let found = listed(&manager, prefix).await;
        let expected: BTreeSet<_> = expected.into_iter().map(|n| (*n).to_owned()).collect();
        assert_eq!(found, expected, "listed by the prefix {prefix:?}");
    }
}

async fn listed(manager: &LockManager, prefix: &str) -> BTreeSet<String> {
    let states: Vec<_> =
        manager.admin().list(prefix).try_collect().await.expect("it can be listed");
    let count = states.len();
    let names: BTreeSet<_> = states.iter().map(|s| s.name().as_str().to_owned()).collect();
    assert_eq!(names.len(), count, "each is shown once");
    names
}

/// Holds all of these at once, and finds each under its own name.
async fn all_different(context: &CaseContext, names: &[String]) {
    let driver = context.driver().await;
    let claims: Vec<_> = names.iter().map(|name| context.exclusive(name)).collect();
    for claim in &claims {
        let answer = driver.acquire(claim, lockkit_core::driver::Patience::Try).await;
        let granted = matches!(answer, Ok(a) if matches!(a.result, lockkit_core::driver::Acquisition::Granted(_)));
        assert!(granted, "{:?} is a lock of its own: {answer:?}", claim.key.name);
    }
    for claim in &claims {
        let state = context.state(&driver, &claim.key).await;
        assert_eq!(state.name(), &claim.key.name);
        assert_eq!(state.queue.len(), 1, "{:?} is held once", claim.key.name);
    }
    let all = listing::whole(&driver, context.namespace(), None, "", 7).await;
    let found: BTreeSet<_> =
        all.expect("it can be listed").iter().map(|s| s.name().as_str().to_owned()).collect();
    let expected: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(found, expected, "listed byte for byte");
    for claim in &claims {
        driver.let_go(claim).await;
        let name = &claim.key.name;
        assert!(context.queue(&driver, &claim.key).await.is_empty(), "{name:?} was released");
    }
}
