//! The Lua scripts: read from their files once, called by their hash, sent in full when the server
//! does not know them.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use redis::{Cmd, Value};

use crate::link::Link;
use lockkit_core::Error;

/// A script of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    fn new(text: &str) -> Self {
        let text = text.replace("-- #include line.lua\n", include_str!("scripts/line.lua"));
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// Calls it. One round trip, and a second one when the server has forgotten it. `repeated`
    /// becomes true when it may have been carried out twice.
    pub(crate) async fn call(
        &self,
        link: &Link,
        call: Call<'_>,
        repeated: &AtomicBool,
    ) -> Result<Value, Error> {
        match link.send_noting(&call.command("EVALSHA", &self.sha), repeated).await {
            Err(error) if is_unknown_script(&error) => {
                let whole = call.command("EVAL", &self.text);
                let sent = Box::pin(link.send_noting(&whole, repeated)).await;
                sent.map_err(|e| link.error(e))
            }
            answer => answer.map_err(|e| link.error(e)),
        }
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

/// Keys and arguments of one call.
pub(crate) struct Call<'a> {
    pub(crate) keys: &'a [&'a str],
    pub(crate) args: &'a [&'a [u8]],
}

impl Call<'_> {
    fn command(&self, verb: &str, script: &str) -> Cmd {
        let words = self.keys.iter().map(|key| key.len());
        let bytes = words.chain(self.args.iter().map(|arg| arg.len())).sum::<usize>();
        let words = self.keys.len() + self.args.len();
        // The verb and the number of keys come in addition.
        let mut cmd = Cmd::with_capacity(words + 3, bytes + script.len() + 16);
        cmd.arg(verb);
        cmd.arg(script).arg(self.keys.len()).arg(self.keys).arg(self.args);
        cmd
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal),* $(,)?) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));)*

        #[cfg(test)]
        static ALL: &[(&str, &LazyLock<Script>)] = &[$(($file, &$name)),*];
    };
}

scripts! {
    ACQUIRE = "acquire.lua",
    RELEASE = "release.lua",
    RENEW = "renew.lua",
    SHORTEN = "shorten.lua",
    DOWNGRADE = "downgrade.lua",
    BREAK = "break.lua",
    INSPECT = "inspect.lua",
    RAISE = "raise.lua",
    RESIZE = "resize.lua",
    BASE = "base.lua",
    LOAD = "load.lua",
    STORE = "store.lua",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_a_header_and_its_include_was_found() {
        for (file, script) in ALL {
            assert!(script.text.starts_with("-- "), "{file}");
            assert!(!script.text.contains("#include"), "{file}");
            assert_eq!(script.sha.len(), 40);
        }
    }
}
