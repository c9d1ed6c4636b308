//! The grammar of backend URLs and of durations, in one place.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::{Error, Settings};

/// A backend's URL, taken apart: lockkit's own options out of its query, the rest for the driver.
///
/// `SCHEME:REST[?namespace=P&ttl=D&wait_ttl=D&…]`. `Debug` and `Display` hide a password.
///
/// ```
/// use lockkit_core::BackendUrl;
///
/// # fn main() -> Result<(), lockkit_core::Error> {
/// let url = BackendUrl::parse("redis://:secret@10.0.0.7/0?namespace=shop&ttl=10s")?;
/// assert_eq!(url.scheme(), "redis");
/// assert_eq!(url.settings().namespace_str(), "shop");
/// assert!(!url.to_string().contains("secret"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BackendUrl {
    scheme: String,
    settings: Settings,
    rest: String,
}

impl BackendUrl {
    /// Takes a URL apart. No I/O.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let Some((scheme, _)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
            let message = "a backend URL begins with a scheme and a colon, such as sqlite:locks.db";
            return Err(Error::config(message));
        };
        let (base, options) = split_query(url);
        let mut settings = Settings::default();
        let mut others = Vec::new();
        for option in options {
            match option.name {
                "namespace" => settings = settings.namespace(option.decoded()?),
                "ttl" => settings = settings.ttl(parse_duration(&option.decoded()?)?),
                "wait_ttl" => settings = settings.wait_ttl(parse_duration(&option.decoded()?)?),
                _ => others.push(option),
            }
        }
        let rest = join_query(base, &others);
        Ok(Self { scheme: scheme.to_ascii_lowercase(), settings, rest })
    }

    /// What stands before the first colon, in lower case: `sqlite`, `redis`, `redis+cluster` …
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Default settings, changed by the options in the URL.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The URL without lockkit's options: for the driver. **Contains the password.**
    pub fn rest(&self) -> &str {
        &self.rest
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.rest))
    }
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackendUrl({self})")
    }
}

/// An option in a URL's query: `name=value`, or a name alone.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::driver::{join_query, split_query};
///
/// let (place, options) = split_query("my://host:4711?note=two%20words&strict");
/// let options: Vec<_> = options.collect();
/// assert_eq!(options[0].name, "note");
/// assert_eq!(options[0].decoded()?, "two words");
/// assert_eq!(options[1].text, "strict");
/// assert_eq!(join_query(place, &options[1..]), "my://host:4711?strict");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlOption<'a> {
    /// What stands before the first `=`.
    pub name: &'a str,
    /// What stands behind it, as it is written; empty where there is none.
    pub value: &'a str,
    /// All of it, as it is written.
    pub text: &'a str,
}

impl UrlOption<'_> {
    /// The value as a duration.
    pub fn duration(&self) -> Result<Duration, Error> {
        parse_duration(self.value)
    }

    /// The value as a number in this range.
    pub fn number<N>(&self, range: RangeInclusive<N>) -> Result<N, Error>
    where
        N: FromStr + PartialOrd + fmt::Display,
    {
        let number = self.value.parse().ok().filter(|number| range.contains(number));
        let (name, from, to) = (self.name, range.start(), range.end());
        let wrong = || Error::Config(format!("{name} is a number from {from} to {to}"));
        number.ok_or_else(wrong)
    }

    /// What these choices give for the value.
    pub fn choice<T: Clone>(&self, choices: &[(&str, T)]) -> Result<T, Error> {
        let chosen = choices.iter().find(|(name, _)| *name == self.value);
        chosen.map(|(_, choice)| choice.clone()).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            Error::Config(format!("{} is one of {}", self.name, names.join(", ")))
        })
    }

    /// Whether a switch is on: `strict` and `strict=true` are, `strict=false` is not.
    pub fn switch(&self) -> Result<bool, Error> {
        match self.value {
            "" | "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Error::Config(format!("{} is true or false", self.name))),
        }
    }
}

impl<'a> UrlOption<'a> {
    /// The value, percent-decoded.
    pub fn decoded(&self) -> Result<Cow<'a, str>, Error> {
        let decoded = percent_decode_str(self.value).decode_utf8();
        let Self { name, .. } = self;
        decoded.map_err(|_| Error::Config(format!("the option {name} in the URL is not UTF-8")))
    }
}

/// What stands before a URL's query, and the options in it.
pub fn split_query(url: &str) -> (&str, impl Iterator<Item = UrlOption<'_>>) {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let texts = query.split('&').filter(|text| !text.is_empty());
    let options = texts.map(|text| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        UrlOption { name, value, text }
    });
    (base, options)
}

/// A URL of what stands before its query, and of options.
pub fn join_query(base: &str, options: &[UrlOption<'_>]) -> String {
    let texts: Vec<_> = options.iter().map(|option| option.text).collect();
    match texts.is_empty() {
        true => base.to_owned(),
        false => format!("{base}?{}", texts.join("&")),
    }
}

/// The URL with every password replaced by `***`, and without its query: what may be shown. Of the
/// members of `quorum:` and `mirror:`, each has its own.
pub fn without_password(url: &str) -> String {
    let (base, _) = url.split_once('?').unwrap_or((url, ""));
    members(base).map(member_without_password).collect::<Vec<_>>().join(",")
}

/// A URL, or the members of one of several: each begins with a scheme and `://`, which no password
/// contains unescaped.
fn members(base: &str) -> impl Iterator<Item = &str> {
    let several = base.starts_with("quorum:") || base.starts_with("mirror:");
    let mut rest = Some(base);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let begins = |at: &usize| {
            several && text[at + 1..].split_once("://").is_some_and(|(name, _)| is_scheme(name))
        };
        let Some(at) = text.match_indices(',').map(|(at, _)| at).find(begins) else {
            return Some(text);
        };
        rest = Some(&text[at + 1..]);
        Some(&text[..at])
    })
}

fn member_without_password(base: &str) -> String {
    // The password may itself contain '@': everything up to the last one is the login.
    let parts = base.split_once("://").and_then(|(s, rest)| Some((s, rest.rsplit_once('@')?)));
    let Some((scheme, (login, rest))) = parts else { return base.to_owned() };
    let shown = match login.split_once(':') {
        Some((user, _)) => format!("{user}:***"),
        // NATS knows tokens in the place of a user and a password.
        None if scheme.starts_with("nats") => "***".to_owned(),
        None => login.to_owned(),
    };
    format!("{scheme}://{shown}@{rest}")
}

/// Reads a duration: a number with `ms`, `s`, `m`, `h` or `d`, or several of them, as in `1h30m`;
/// without a unit it is seconds. Fractions are fine: `1.5`, `0.25h`.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let parsed = sum_of_parts(text.trim());
    parsed.ok_or_else(|| {
        let excerpt: String = text.chars().take(40).collect();
        let hint = "use numbers with ms, s, m, h or d, such as 250ms, 30s or 1h30m (bare: seconds)";
        Error::Config(format!("{excerpt:?} is not a duration: {hint}"))
    })
}

fn sum_of_parts(text: &str) -> Option<Duration> {
    let (mut rest, mut sum, mut larger) = (text, Duration::ZERO, f64::INFINITY);
    while larger.is_infinite() || !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(unit_at);
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "" if larger.is_infinite() => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let number = number.trim();
        let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        // Each unit once, the larger first: anything else is a mistake.
        if !plain || seconds >= larger {
            return None;
        }
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        (rest, sum, larger) = (after, sum.checked_add(part)?, seconds);
    }
    Some(sum)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_options_are_taken_out_and_the_rest_is_left() {
        let url = BackendUrl::parse("redis://h:1/2?namespace=sh%20op&x=1&ttl=10s&y").unwrap();
        assert_eq!(url.scheme(), "redis");
        assert_eq!(url.rest(), "redis://h:1/2?x=1&y");
        assert_eq!(url.settings().namespace_str(), "sh op");
        assert_eq!(url.settings().default_ttl(), Duration::from_secs(10));
        let plain = BackendUrl::parse("sqlite:/tmp/a.db?ttl=1").unwrap();
        assert_eq!((plain.scheme(), plain.rest()), ("sqlite", "sqlite:/tmp/a.db"));
    }

    #[test]
    fn the_value_of_an_option_is_a_duration_a_number_a_choice_or_a_switch() {
        let text = "my://h?t=5s&n=3&c=b&s&off=false";
        let options: Vec<_> = split_query(text).1.collect();
        assert_eq!(options[0].duration().unwrap(), Duration::from_secs(5));
        assert_eq!(options[1].number(1..=3_u32).unwrap(), 3);
        assert_eq!(options[2].choice(&[("a", 1), ("b", 2)]).unwrap(), 2);
        assert_eq!((options[3].switch().unwrap(), options[4].switch().unwrap()), (true, false));
        for (wrong, message) in [
            (options[0].number(1..=9_u32).unwrap_err(), "t is a number from 1 to 9"),
            (options[1].number(4..=9_u32).unwrap_err(), "n is a number from 4 to 9"),
            (options[2].choice(&[("x", 1), ("y", 2)]).unwrap_err(), "c is one of x, y"),
            (options[0].switch().unwrap_err(), "t is true or false"),
        ] {
            assert_eq!(wrong.to_string(), message);
        }
    }

    #[test]
    fn what_is_no_url_is_refused_with_an_example() {
        for bad in ["", "locks.db", ":x", "1a:x", "/a:b", "a b:c"] {
            let message = BackendUrl::parse(bad).unwrap_err().to_string();
            assert!(message.contains("sqlite:"), "{bad:?}: {message}");
        }
        assert!(BackendUrl::parse("memory:?ttl=soon").is_err());
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, excerpt) in [
            ("redis://u:se:c@ret@h:1/0?password=x", "redis://u:***@h:1/0"),
            ("redis://:secret@h", "redis://:***@h"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("zk://a:1,b:2/x", "zk://a:1,b:2/x"),
            ("mysql://u:p/w@h/db", "mysql://u:***@h/db"),
            ("nats://token@h/b", "nats://***@h/b"),
            ("nats+tls://u:secret@h/b", "nats+tls://u:***@h/b"),
            ("sqlite:/a/b", "sqlite:/a/b"),
            ("redis+cluster://u:p,x@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
            (
                "mirror:redis://:p@h:1,postgres://u:p,q@h/x",
                "mirror:redis://:***@h:1,postgres://u:***@h/x",
            ),
            (
                "quorum:redis+sentinel://u:p@a:1,b:2/m,zk://c:3,d:4,sqlite:/x",
                "quorum:redis+sentinel://u:***@a:1,b:2/m,zk://c:3,d:4,sqlite:/x",
            ),
        ] {
            assert_eq!(without_password(url), excerpt);
            assert_eq!(format!("{}", BackendUrl::parse(url).unwrap()), excerpt);
        }
    }

    #[test]
    fn durations_have_units_and_bare_numbers_are_seconds() {
        for (text, ms) in [
            ("30", 30_000),
            ("1.5", 1_500),
            ("250ms", 250),
            ("30s", 30_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            (" 5 s ", 5_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("1m 30s", 90_000),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for bad in [
            "",
            "s",
            "-1",
            "1y",
            "1 2",
            "nan",
            "inf",
            "1e3",
            "99999999999999999999d",
            "1.2.3",
            "1m1h",
            "1h1h",
            "1h30",
            "h1",
            "1hm",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
