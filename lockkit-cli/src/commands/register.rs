//! `get` and `put`: the value of a register.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;

use lockkit::{Entry, Expect, MAX_REGISTER_BYTES, Name, Space, Token, Version};
use serde::Serialize;

use crate::args::sync::{GetArgs, PutArgs};
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::run::nested;
use crate::view::json;
use crate::{output, take};

/// A register as JSON. Stable: programs read it.
#[derive(Serialize)]
struct EntryView<'a> {
    name: &'a str,
    version: u64,
    /// The highest that any write bore.
    token: Option<Token>,
    /// When it is UTF-8.
    value: Option<&'a str>,
    /// When it is not.
    hex: Option<String>,
}

/// Prints the value, byte for byte.
pub(crate) async fn get(args: &GetArgs) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    let locks = Backend::choose(&args.backend)?.connect().await?;
    let entry = locks.register(&args.name).load().await;
    take::close(&locks).await;
    let Some(entry) = entry? else {
        let sentence = format!("the register {:?} has no value", args.name);
        return Err(Failure::new(code::NO, sentence));
    };
    if args.json {
        output::print_line(json(&view(&args.name, &entry))?)?;
        return Ok(0);
    }
    let mut out = io::stdout().lock();
    match out.write_all(&entry.value).and_then(|()| out.flush()) {
        Ok(()) => Ok(0),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) => Err(Failure::os("cannot write to stdout", e)),
    }
}

fn view<'a>(name: &'a str, entry: &'a Entry) -> EntryView<'a> {
    let value = std::str::from_utf8(&entry.value).ok();
    let hex = || entry.value.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = value.is_none().then(hex);
    EntryView { name, version: entry.version.0, token: entry.token, value, hex }
}

/// Prints the version.
pub(crate) async fn put(args: &PutArgs) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    let token = args.fenced.then(surrounding_token).transpose()?;
    let backend = Backend::choose(&args.backend)?;
    let value = value(args)?;
    let expect = match args.if_version {
        Some(version) => Expect::Version(Version(version)),
        None if args.if_absent => Expect::Absent,
        None => Expect::Anything,
    };
    let locks = backend.connect().await?;
    let register = locks.register(&args.name);
    let register = match args.keep {
        Some(time) => register.ttl(time),
        None => register,
    };
    let stored = match token {
        Some(token) => register.store_with_token(token, expect, value).await,
        None => register.compare_and_store(expect, value).await,
    };
    take::close(&locks).await;
    match stored {
        Ok(version) => {
            output::print_line(version.0)?;
            Ok(0)
        }
        Err(error) => Err(error.into()),
    }
}

/// The token of the lock that this runs under.
fn surrounding_token() -> Result<Token, Failure> {
    let Some(held) = nested::held().pop() else {
        return Err(Failure::usage("this does not run under `lockkit run` or `elect`: no token"));
    };
    match (held.space(), Token::new(held.token)) {
        (Space::Lock, Some(token)) => Ok(token),
        _ => Err(Failure::usage("permits of a semaphore do not fence: use a lock")),
    }
}

fn value(args: &PutArgs) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    match &args.value {
        Some(value) => bytes.extend(value.as_bytes()),
        None => {
            let most = MAX_REGISTER_BYTES as u64 + 1;
            let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
            read.map_err(|e| Failure::usage(format!("cannot read the value from stdin: {e}")))?;
        }
    }
    match bytes.len() > MAX_REGISTER_BYTES {
        true => Err(Failure::usage(format!("a register keeps {MAX_REGISTER_BYTES} bytes at most"))),
        false => Ok(bytes),
    }
}
