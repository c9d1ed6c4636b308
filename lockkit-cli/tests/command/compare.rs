//! `lockkit compare`, `storm` and `judge`, as processes. Built with the feature `lab` only.
//!
//! With `LOCKKIT_PICTURES=FOLDER` it leaves pictures of the page and of a drawing there.

mod histories;
mod tables;

use std::path::{Path, PathBuf};

use lockkit_lab::Browser;

/// Where pictures are wanted, if they are.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("LOCKKIT_PICTURES").map(PathBuf::from)
}

/// Opens a file.
async fn open(browser: &mut Browser, file: &Path) {
    browser.open(&format!("file://{}", file.display())).await;
}

/// Pictures of what is seen, all the way down.
async fn pictures_of(browser: &mut Browser, what: &str) {
    for (width, scheme) in [(1280, "light"), (400, "light"), (1280, "dark"), (400, "dark")] {
        browser.set_appearance(width, scheme).await;
        let sideways = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(
            browser.evaluate(sideways).await,
            serde_json::json!(false),
            "{what} is wider than {width}"
        );
        let Some(folder) = pictures() else { continue };
        let screens = browser.evaluate("Math.ceil(document.body.scrollHeight / innerHeight)").await;
        for screen in 0..screens.as_u64().unwrap_or(1).min(12) {
            browser.evaluate(&format!("scrollTo(0, {screen} * innerHeight)")).await;
            browser.picture(&folder.join(format!("{what}-{width}-{scheme}-{screen}.png"))).await;
        }
    }
}
