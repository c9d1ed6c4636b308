//! URLs that name several backends: `quorum:URL,URL,URL` and `mirror:OLD,NEW`.

use std::sync::Arc;

use lockkit_compose::{MirrorDriver, QuorumDriver, QuorumMember, QuorumOptions};
use lockkit_core::driver::LockDriver;
use lockkit_core::{BackendUrl, Error, Settings};

use super::{SCHEMES, check, driver, split};

/// The driver of `mirror:OLD,NEW`. Lockkit's own options stand behind the new one.
pub(super) async fn mirror(
    both: &str,
    settings: Settings,
) -> Result<(Arc<dyn LockDriver>, Settings), Error> {
    let [old, new] = split(both)[..] else {
        return Err(Error::config("a mirror has two backends: mirror:OLD,NEW"));
    };
    let (given, old, new) = (old, BackendUrl::parse(old)?, BackendUrl::parse(new)?);
    if old.rest() != given {
        return Err(Error::config("options of lockkit stand behind the new backend of a mirror"));
    }
    let settings = settings.merged_with_url(new.settings())?;
    check(&old)?;
    check(&new)?;
    if feature(&new) == Some("http") {
        return Err(Error::config(
            "a lock service cannot be the new backend of a mirror, since it does not tell whether the tokens \
             were taken over: name the backend behind it",
        ));
    }
    let names = (name_in_errors(&old), name_in_errors(&new));
    let old = driver(&old, &settings).await.map_err(|error| error.at(&names.0))?;
    let new = driver(&new, &settings).await.map_err(|error| error.at(&names.1))?;
    Ok((Arc::new(MirrorDriver::new(old, new).named(names.0, names.1)), settings))
}

/// The driver of `quorum:URL,URL,URL`. Lockkit's own options, and those of the quorum, stand behind
/// the last member.
pub(super) async fn quorum(
    members: &str,
    settings: Settings,
) -> Result<(Arc<dyn LockDriver>, Settings), Error> {
    let (mut before, options) = members_of_quorum(members)?;
    let last = BackendUrl::parse(&before.pop().unwrap_or_default())?;
    let mut urls = Vec::with_capacity(before.len() + 1);
    for given in before {
        let url = BackendUrl::parse(&given)?;
        if url.rest() != given {
            let message = "options of lockkit stand behind the last member of a quorum's URL";
            return Err(Error::config(message));
        }
        urls.push(url);
    }
    let settings = settings.merged_with_url(last.settings())?;
    urls.push(last);
    for url in &urls {
        check_member(url)?;
    }
    let members = urls.into_iter().map(|url| member(url, &settings)).collect();
    Ok((Arc::new(QuorumDriver::connect(members, options).await?), settings))
}

/// The URLs of a quorum's members, without the quorum's own options, which stand behind the last one.
pub(super) fn members_of_quorum(members: &str) -> Result<(Vec<String>, QuorumOptions), Error> {
    let mut urls: Vec<_> = split(members).into_iter().map(str::to_owned).collect();
    let Some(last) = urls.last_mut() else {
        return Err(Error::config("a quorum of nobody"));
    };
    let whole = std::mem::take(last);
    let (place, query) = whole.split_once('?').unwrap_or((&whole, ""));
    let given = query.split('&').filter(|option| !option.is_empty());
    let (options, others) = QuorumOptions::parse(given)?;
    *last = match others.is_empty() {
        true => place.to_owned(),
        false => format!("{place}?{}", others.join("&")),
    };
    Ok((urls, options))
}

fn member(url: BackendUrl, settings: &Settings) -> QuorumMember {
    // What needs the same feature is the same kind of backend.
    let kind = feature(&url).unwrap_or(url.scheme()).to_owned();
    let name = name_in_errors(&url);
    let both = Arc::new((url, settings.clone()));
    let member = QuorumMember::new(kind, move || {
        let both = both.clone();
        async move { driver(&both.0, &both.1).await }
    });
    member.named(name)
}

/// The cargo feature that a backend needs.
fn feature(url: &BackendUrl) -> Option<&'static str> {
    SCHEMES.iter().find(|(scheme, ..)| *scheme == url.scheme()).and_then(|(_, feature, _)| *feature)
}

/// What errors call a backend: its URL without login and options, either of which may be secret.
fn name_in_errors(url: &BackendUrl) -> String {
    let shown = url.to_string();
    let shown = shown.split('?').next().unwrap_or_default();
    let Some((scheme, rest)) = shown.split_once("://") else {
        return shown.to_owned();
    };
    let (hosts, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let hosts = hosts.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{hosts}{path}")
}

/// Refuses what a member would refuse, before any other is asked: an option that its driver does
/// not know may be a misspelt one of the quorum.
fn check_member(url: &BackendUrl) -> Result<(), Error> {
    check(url).map_err(|error| match error {
        Error::Config(message) => Error::Config(format!(
            "a member of the quorum: {message} (a quorum's own options are ttl, wait_ttl, namespace, \
             max_ttl and member_limit)"
        )),
        other => other,
    })
}
