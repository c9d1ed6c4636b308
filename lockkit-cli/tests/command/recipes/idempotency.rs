//! docs/recipes/idempotency.md: an endpoint of FastAPI with an idempotency key, in two processes. The one of
//! axum is `examples/src/bin/payments`.

use super::{Host, Recipe};
use crate::stage::{stdout, wait_for};

fn serve(recipe: &Recipe, name: &str, more: &str) -> (Host, String) {
    let script = format!("{more} exec python3 -m uvicorn --port 0 app:app");
    let host = recipe.host(name, &script);
    let url = wait_for("the application", || {
        let log = recipe.log(name);
        let (_, rest) = log.split_once("running on ")?;
        rest.split_once(' ').map(|(url, _)| url.to_owned())
    });
    (host, url)
}

/// The status and the answer of a payment.
fn pay(recipe: &Recipe, url: &str, key: &str, cents: u32) -> (String, String) {
    let body = format!("{{\"cents\": {cents}, \"payee\": \"ada\"}}");
    let asked = format!(
        "curl -s -w ' %{{http_code}}' {url}/payments -H 'content-type: application/json' \
         -H 'idempotency-key: {key}' -d '{body}'"
    );
    let said = stdout(&recipe.script(&asked).output().unwrap());
    let (answer, status) = said.rsplit_once(' ').unwrap();
    (status.to_owned(), answer.to_owned())
}

fn paid(recipe: &Recipe) -> String {
    let read = "python3 -c 'import sqlite3; print(sqlite3.connect(\"shop.db\").execute(\"SELECT count(*), sum(cents) FROM payment\").fetchone())'";
    stdout(&recipe.script(read).output().unwrap()).trim().to_owned()
}

#[test]
fn a_payment_that_is_sent_again_is_made_once_with_pypi() {
    let mut recipe = Recipe::new("recipes/idempotency");
    let Some(()) = recipe.packages() else { return };
    let _service = recipe.serve();
    recipe.set("LEASE", "2");
    recipe.set("DATABASE", "shop.db");
    let (_a, a) = serve(&recipe, "a", "");
    let (mut b_host, b) = serve(&recipe, "b", "DIE=key-that-kills");
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |url: &str| pay(&recipe, url, "key-0001", 100);
        let asked: Vec<_> =
            [&a, &b, &a, &b, &a, &b].map(|url| scope.spawn(move || ask(url))).into();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(answers[0].0, "200", "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(paid(&recipe), "(1, 100)");
    assert_eq!(pay(&recipe, &a, "key-0001", 200).0, "422", "another payment under the same key");
    assert_eq!(pay(&recipe, &a, "short", 100).0, "422", "no key to speak of");
    // One process dies between the payment and its answer; the other one is asked again.
    let lost = pay(&recipe, &b, "key-that-kills", 7);
    assert_eq!(lost.0, "000", "no answer: {lost:?}");
    assert_eq!(b_host.end(), None, "killed");
    assert_eq!(pay(&recipe, &a, "key-that-kills", 7).0, "200");
    assert_eq!(paid(&recipe), "(2, 107)");
}
